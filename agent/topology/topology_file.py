"""Parses the NCCL topology file (XML) of a cloud's virtual machine. Its text is untrusted."""

from __future__ import annotations

import hashlib
from types import MappingProxyType
from xml.parsers import expat

import msgspec

from agent.errors import ParseError
from agent.snapshot.pci import FilePlace, TopologyFile, parse_address
from agent.wire_formats.kernel_text import parse_int

MAX_BYTES = 1 << 20
MAX_ELEMENTS = 4096
MAX_DEPTH = 32
_BRIDGE = "0x0604"
_HOST_BRIDGE = "0x0600"
_MAX_NODE = 65535
_FORBIDDEN = (b"<!doctype", b"<!entity")


def parse_topology_file(data: bytes, name: str) -> TopologyFile:
    """Return the places in the file; only its structure is used.

    A file with more than 1 MiB, 4096 elements or 32 levels, with a DTD or an entity, with another
    root than `system`, or with a device that is not a PCI function is refused (`ParseError`).
    Unknown elements and attributes are skipped; the first of two equal bus ids counts.
    """
    if len(data) > MAX_BYTES:
        raise ParseError(f"topology file {name}: more than {MAX_BYTES} bytes", "")
    lowered = data.lower()
    if any(mark in lowered for mark in _FORBIDDEN):
        raise ParseError(f"topology file {name}: has a DTD or an entity", "")
    reader = _TopologyFileReader(name)
    parser = expat.ParserCreate("utf-8")  # another encoding could hide forbidden marks
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.StartDoctypeDeclHandler = reader.refuse_declaration
    parser.EntityDeclHandler = reader.refuse_declaration
    try:
        parser.Parse(data, True)  # noqa: FBT003 - the parser has no keyword arguments
    except expat.ExpatError as error:
        raise ParseError(f"topology file {name}: {error}", "") from error
    digest = hashlib.sha256(data).hexdigest()[:12]
    return TopologyFile(
        label=f"{name} {digest}",
        places=MappingProxyType(reader.places),
        warnings=tuple(reader.warnings),
    )


class _OpenElement(msgspec.Struct):
    """A `pci` element that is still open."""

    address: str
    is_bridge: bool
    has_inner: bool = False


class _TopologyFileReader(msgspec.Struct):
    """Handles the elements; limits bound the memory that a hostile file can use."""

    name: str
    places: dict[str, FilePlace] = msgspec.field(default_factory=dict)
    warnings: list[str] = msgspec.field(default_factory=list)
    tags: list[str] = msgspec.field(default_factory=list)
    above: list[_OpenElement] = msgspec.field(default_factory=list)
    node: int = -1
    elements: int = 0

    def refuse(self, reason: str, extract: str = "") -> ParseError:
        return ParseError(f"topology file {self.name}: {reason}", extract)

    def refuse_declaration(self, *_parts: object) -> None:
        raise self.refuse("has a DTD or an entity")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.elements += 1
        if self.elements > MAX_ELEMENTS or len(self.tags) >= MAX_DEPTH:
            raise self.refuse(f"more than {MAX_ELEMENTS} elements or {MAX_DEPTH} levels")
        if not self.tags and tag != "system":
            raise self.refuse("the root is not `system`", tag)
        self.tags.append(tag)
        if tag == "cpu":
            self.node = _parse_node(attributes.get("numaid"))
        elif tag == "pci":
            self._start_pci(attributes)

    def _start_pci(self, attributes: dict[str, str]) -> None:
        kind = attributes.get("class", "")
        address = parse_address(attributes.get("busid", ""))
        if kind.startswith(_HOST_BRIDGE):
            raise self.refuse("a host bridge as device", address)
        if self.above:
            self.above[-1].has_inner = True
        self.above.append(_OpenElement(address, kind.startswith(_BRIDGE)))

    def end(self, tag: str) -> None:
        self.tags.pop()
        if tag == "cpu":
            self.node = -1
        elif tag == "pci":
            self._end_pci(self.above.pop())

    def _end_pci(self, closed: _OpenElement) -> None:
        if closed.is_bridge or closed.has_inner:
            return
        if closed.address in self.places:
            self.warnings.append(f"topology file {self.name}: {closed.address} is there twice")
            return
        switches = tuple(element.address for element in self.above if element.is_bridge)
        self.places[closed.address] = FilePlace(self.node, switches)


def _parse_node(text: str | None) -> int:
    try:
        return parse_int(text or "", 0, _MAX_NODE)
    except ParseError:
        return -1
