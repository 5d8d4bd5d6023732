"""Decodes one entry of a device-info file. Text is untrusted: an unusable entry is left out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import msgspec

from agent.errors import ParseError

MAX_TEXT = 253
MAX_MESSAGE = 1024
MAX_LINKS = 64
MAX_PEERS = 64
MAX_RESOURCES = 32

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_NUMBER = re.compile(r"[0-9]{1,9}")
_ADDRESS = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}(/[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])?")


class DeviceInfoStatus(msgspec.Struct, frozen=True):
    """The health of a device as the writer of the file states it."""

    is_healthy: bool
    code: str
    message: str


class DeviceInfoEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One device as the writer of the file describes it. Empty text: not set."""

    vendor: str
    model: str
    uuid: str
    minor: int
    resources: tuple[tuple[str, str], ...]
    bus_id: str | None
    numa_node: str
    pcie_root: str
    links: tuple[tuple[tuple[int, ...], str], ...]  # peers and type of each usable link
    has_links: bool  # the member exists, even if it is empty: the writer knows of partitions
    must_honor_links: bool
    status: DeviceInfoStatus | None
    oddities: tuple[str, ...] = ()  # texts about values that are invalid


def decode_array(data: bytes) -> list[object]:
    """Return a file's entries; raises `ParseError` for anything but a JSON array."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ParseError("device-info file", data[:80].decode("utf-8", "replace")) from error
    if body is None:
        return []
    if not isinstance(body, list):
        raise ParseError("device-info file: no array", data[:80].decode("utf-8", "replace"))
    return body


def decode_entry(raw: object) -> DeviceInfoEntry:
    """Decode one entry; raises `ParseError` with the reason if it cannot be used at all."""
    if not isinstance(raw, Mapping):
        raise ParseError("entry: no object", repr(raw))
    minor = raw.get("minor")
    number = str(minor) if type(minor) is int else minor
    if not isinstance(number, str) or not _NUMBER.fullmatch(number):
        raise ParseError("minor", str(minor))
    topology = _table(raw.get("topology"))
    oddities: list[str] = []
    bus_id = _bus_id(_text(topology.get("busID")), oddities)
    root = _text(topology.get("pcieID"))
    return DeviceInfoEntry(
        vendor=_text(raw.get("vendor")),
        model=_text(raw.get("model")),
        uuid=_text(raw.get("uuid")),
        minor=int(number),
        resources=_resources(raw.get("resources")),
        bus_id=bus_id,
        numa_node=_text(topology.get("nodeID")),
        pcie_root=root if _ROOT.fullmatch(root) else "",
        links=_links(topology.get("p2pLinks"), oddities),
        has_links=isinstance(topology.get("p2pLinks"), list),
        must_honor_links=topology.get("mustHonorPartition") is True,
        status=_status(raw.get("status")),
        oddities=tuple(oddities),
    )


def _table(value: object) -> Mapping[object, object]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object, limit: int = MAX_TEXT) -> str:
    """Return plain text; empty for other types, for control characters and lone surrogates."""
    if not isinstance(value, str):
        return ""
    text = value[: 4 * limit].encode("utf-8", "replace").decode()
    return _CONTROL.sub(" ", text).strip()[:limit]


def _resources(value: object) -> tuple[tuple[str, str], ...]:
    resources = ((_text(name), _text(amount)) for name, amount in _table(value).items())
    return tuple((name, amount) for name, amount in resources if name)[:MAX_RESOURCES]


def _bus_id(text: str, oddities: list[str]) -> str | None:
    """Return an address in the agent's spelling; writers use upper case, and drop leading zeros."""
    if not text:
        return None
    match = _ADDRESS.fullmatch(text.lower())
    if match is None or int(match[3], 16) > 0x1F:
        oddities.append(f"bus id {text[:40]!r}")
        return None
    domain, bus, device, function = (int(part, 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def _links(value: object, oddities: list[str]) -> tuple[tuple[tuple[int, ...], str], ...]:
    links = []
    for raw in value[:MAX_LINKS] if isinstance(value, list) else ():
        link = _table(raw)
        peers, kind = _text(link.get("peerMinor"), 512), _text(link.get("type"), 63)
        parts = [part.strip() for part in peers.split(",")][:MAX_PEERS]
        if not peers or not kind:
            continue  # as koordlet: a link without one of both is none
        if not all(_NUMBER.fullmatch(part) for part in parts):
            oddities.append(f"peers {peers[:40]!r}")
            continue
        links.append((tuple(int(part) for part in parts), kind))
    return tuple(links)


def _status(value: object) -> DeviceInfoStatus | None:
    if not isinstance(value, Mapping):
        return None
    code, message = _text(value.get("errCode")), _text(value.get("errMessage"), MAX_MESSAGE)
    return DeviceInfoStatus(value.get("healthy") is True, code, message)
