"""PCI addresses, host bridges, functions and their tree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

import msgspec

from agent.errors import ParseError
from agent.snapshot.cpu import CpuSet

HOST_BRIDGE_CLASS = 0x0600
MAX_BRIDGES = 32  # above one function
MAX_LINK = 4096  # characters of a link's text: the kernel's PATH_MAX
_CANONICAL = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([01][0-9a-fA-F])\.([0-7])")
_SHORT = re.compile(r"[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def parse_address(text: str) -> str:
    """Return the address in lower case with a domain of at least four digits.

    A domain beyond 16 bits (Intel VMD, Hyper-V) keeps its five to eight digits; leading zeros of a
    shorter one are dropped, so that NVML's 00000000:1B:00.0 is 0000:1b:00.0. Any other text raises
    `ParseError`, also one with blanks.
    """
    if _CANONICAL.fullmatch(text):
        return text
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise ParseError("PCI address", text)
    domain, bus, device, function = (int(part, 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def parse_user_address(text: str) -> str:
    """Parse an address of the settings as `parse_address` does.

    1b:00.0 is a function of domain 0.
    """
    return parse_address(f"0000:{text}" if _SHORT.fullmatch(text) else text)


def is_host_bridge(part: str) -> bool:
    """Return whether a part of a path names a host bridge: pciDDDD:BB, domain in hexadecimal."""
    return _ROOT.fullmatch(part) is not None


def address_sort_key(address: str) -> tuple[int, int, int, int]:
    """Return a key that sorts addresses by number: 10000:00:00.0 follows 9999:00:00.0.

    The address is a result of `parse_address`.
    """
    domain, bus, rest = address.split(":")
    return int(domain, 16), int(bus, 16), int(rest[:2], 16), int(rest[3], 16)


def slot_of(address: str) -> str:
    """Return domain, bus and device, which the functions of one card have in common."""
    return address.rpartition(".")[0]


class PciPath(msgspec.Struct, frozen=True):
    """The place of a function according to the text of its link."""

    root: str | None = None
    bridges: tuple[str, ...] = ()  # from the root port down
    outer_bridges: int = 0  # number of bridges above the last root


def parse_device_link(text: str, own: str) -> PciPath:
    """Parse the text of a function's link; nothing is resolved, so the target need not exist.

    The first host bridge is the root, and all addresses are the chain. Other components (the second
    host bridge of an Intel VMD, virtual buses) are dropped. Raises `ParseError` if the chain does
    not end in the function's own address, or is deeper than any PCI tree.
    """
    above, _, last = text.rstrip("/").rpartition("/")
    if len(text) > MAX_LINK or last != own:
        raise ParseError("PCI link", text)
    return _parse_bridges(above)


@lru_cache(maxsize=256)  # a card's virtual functions share all but the last part
def _parse_bridges(text: str) -> PciPath:
    root: str | None = None
    chain: list[str] = []
    outer = 0
    for part in text.split("/"):
        if is_host_bridge(part):
            root, outer = root or part, len(chain)
        elif _ADDRESS.fullmatch(part):
            chain.append(parse_address(part))
    if len(chain) > MAX_BRIDGES:
        raise ParseError("PCI link", text)
    return PciPath(root, tuple(chain), outer)


_GENERATIONS: dict[int | None, int] = {25: 1, 50: 2, 80: 3, 160: 4, 320: 5, 640: 6}  # by speed


class PciLink(msgspec.Struct, frozen=True, kw_only=True):
    """Link speed in GT/s x 10 and width in lanes, now and at most; `None` is unknown."""

    speed: int | None = None
    width: int | None = None
    max_speed: int | None = None
    max_width: int | None = None

    @property
    def generation(self) -> int | None:
        """Return the generation of PCIe that has the speed."""
        return _GENERATIONS.get(self.speed)

    @property
    def max_generation(self) -> int | None:
        """Return the generation of PCIe that has the highest speed."""
        return _GENERATIONS.get(self.max_speed)


class PciFunction(msgspec.Struct, frozen=True, kw_only=True):
    """One function as sysfs shows it. `None`: the kernel does not report the value; never 0."""

    address: str  # lower case, at least four digits of domain: 0000:3b:00.0
    root: str | None = None  # host bridge, pciDDDD:BB
    bridges: tuple[str, ...] = ()  # from the root port down, without the function itself
    outer_bridges: int = 0  # number of bridges above the last root (Intel VMD)
    class_code: int | None = None  # 24 bits
    vendor_id: int | None = None
    device_id: int | None = None
    subsystem_vendor_id: int | None = None
    subsystem_device_id: int | None = None
    revision: int | None = None
    numa_node: int | None = None  # content of the file; there may be no such node
    local_cpus: CpuSet | None = None
    link: PciLink = PciLink()
    driver: str | None = None
    physfn: str | None = None  # address of the physical function
    virtfns: tuple[str, ...] = ()  # addresses by index of the virtfn link
    sriov_numvfs: int | None = None
    sriov_totalvfs: int | None = None
    iommu_group: int | None = None
    port_type: int | None = None  # PCIe capability, flags bits 7:4
    acs_control: int | None = None  # control word; None without the capability or rights
    ats_enabled: bool | None = None
    power_state: str | None = None
    gone: bool = False  # it is not on the bus any more: its ids are all zeros or ones

    @property
    def base_class(self) -> int | None:
        """Return the upper 16 bits of the class: 0x0302 is a 3D controller."""
        return self.class_code >> 8 if self.class_code is not None else None

    @property
    def path(self) -> tuple[str, ...]:
        """Return root, bridges and the function itself; only the function without a root."""
        return ((self.root,) if self.root else ()) + self.bridges + (self.address,)


def _no_functions() -> Mapping[str, PciFunction]:
    return MappingProxyType({})


class PciTree(msgspec.Struct, frozen=True, kw_only=True):
    """All functions by address, in numeric order; equal trees compare equal."""

    functions: Mapping[str, PciFunction] = msgspec.field(default_factory=_no_functions)
    switch_links: frozenset[tuple[str, str]] = frozenset()  # cabled switches, smaller first
    iommu_types: tuple[tuple[int, str], ...] = ()  # (group, identity | DMA | DMA-FQ)
    skipped: int = 0  # entries whose name is no PCI address
    warnings: tuple[str, ...] = ()

    def get(self, address: str | None) -> PciFunction | None:
        """Return a function by its address."""
        return self.functions.get(address) if address else None

    def physical(self, function: PciFunction) -> PciFunction | None:
        """Return the physical function of a virtual one; `None` for all others and for orphans."""
        physical = self.get(function.physfn)
        return physical if physical is not None and physical.physfn is None else None

    def is_orphan(self, function: PciFunction) -> bool:
        """Return whether this is a virtual function with an unknown physical one."""
        return function.physfn is not None and self.physical(function) is None


_BUS_RANGE = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2})-([0-9a-f]{2})")


class NumaOverride(msgspec.Struct, frozen=True):
    """A setting that overrides the firmware: functions that match are near the NUMA node.

    `match` is an address, a range of buses DDDD:BB-BB, or a root pciDDDD:BB.
    """

    match: str
    node: int

    def __post_init__(self) -> None:
        """Raise `ParseError` for a match of an unknown form."""
        if not is_host_bridge(self.match) and not _BUS_RANGE.fullmatch(self.match):
            parse_user_address(self.match)

    def matches(self, function: PciFunction) -> bool:
        """Return whether the override matches this function."""
        if is_host_bridge(self.match):
            return function.root == self.match
        match = _BUS_RANGE.fullmatch(self.match)
        if match is None:
            return function.address == parse_user_address(self.match)
        domain, bus, _ = function.address.split(":")
        return int(domain, 16) == int(match[1], 16) and match[2] <= bus <= match[3]


class FilePlace(msgspec.Struct, frozen=True):
    """The place of one function in a topology file: NUMA node, and switches outermost first."""

    node: int
    switches: tuple[str, ...] = ()

    @property
    def hierarchy(self) -> tuple[str, ...]:
        """Return a root that represents the NUMA node, then the switches."""
        return (f"numa{self.node}", *self.switches)


class TopologyFile(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine's topology as its provider wrote it; only fills gaps of sysfs."""

    label: str  # base name and SHA-256 prefix
    places: Mapping[str, FilePlace]  # by address
    ignored: int = 0  # functions that are not here
    warnings: tuple[str, ...] = ()

    def restricted_to(self, tree: PciTree) -> TopologyFile:
        """Return the places of functions of this host; raises for a host bridge as device."""
        present = {address: tree.functions.get(address) for address in self.places}
        for address, function in present.items():
            if function is not None and function.base_class == HOST_BRIDGE_CLASS:
                raise ParseError(f"topology file {self.label}: a host bridge as device", address)
        places = {a: place for a, place in self.places.items() if present[a] is not None}
        ignored = len(self.places) - len(places)
        return TopologyFile(
            label=self.label, places=places, ignored=ignored, warnings=self.warnings
        )
