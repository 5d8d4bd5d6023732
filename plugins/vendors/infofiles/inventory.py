"""Builds one inventory from the entries of device-info files, by koordlet's rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import msgspec

from agent.errors import ParseError
from agent.snapshot.device import DeviceKind, Health, HealthState, Pairs, VendorDevice
from agent.snapshot.inventory import DeviceGroup, Inventory, Problem
from agent.wire_formats.device_info import (
    KIND_BY_VENDOR,
    NUMA_NODE_FACT,
    PCIE_ROOT_FACT,
    SOURCE_FILE_FACT,
)
from agent.wire_formats.foreign_text import UNKNOWN_REASON, condition_reason
from agent.wire_formats.quantities import parse_quantity
from plugins.vendors.infofiles.file_format import DeviceInfoEntry, DeviceInfoStatus, decode_entry

NAME = "infofiles"
MAX_ENTRIES = 1024
MAX_PROBLEMS = 16
MEMORY = "koordinator.sh/gpu-memory"
RATIO = "koordinator.sh/gpu-memory-ratio"
_BARE = ("gpu-core", "gpu-memory")  # names that get the prefix
_PREFIX = "koordinator.sh/"
ODD = "DeviceInfoOdd"
LEFT_OUT = "DeviceInfoLeftOut"


class EntryDevice(msgspec.Struct, frozen=True):
    """One device with the entry that it comes from."""

    entry: DeviceInfoEntry
    device: VendorDevice


def inventory_of(files: Iterable[tuple[str, Sequence[object]]]) -> Inventory:
    """Return the devices of all entries, files in order of name, and what was left out."""
    raw = [(name, at, item) for name, items in files for at, item in enumerate(items)]
    problems: list[Problem] = []
    if len(raw) > MAX_ENTRIES:
        message = f"{len(raw)} entries: only the first {MAX_ENTRIES} count"
        problems.append(Problem(reason=LEFT_OUT, message=message))
    found: list[EntryDevice] = []
    known: set[str] = set()
    for name, at, item in raw[:MAX_ENTRIES]:
        try:
            one = _describe_entry(name, decode_entry(item), f"{name}[{at}]", problems)
        except ParseError as error:
            problems.append(Problem(reason=LEFT_OUT, message=f"{name}[{at}]: {error}"))
            continue
        if one.device.key in known:
            message = f"{name}[{at}]: {one.device.key} is described twice"
            problems.append(Problem(reason=LEFT_OUT, message=message))
            continue
        known.add(one.device.key)
        found.append(one)
    first = found[0].entry if found else None
    return Inventory(
        vendor=NAME,
        devices=tuple(one.device for one in found),
        problems=tuple(islice(problems, MAX_PROBLEMS)),
        groups=groups_of(found),
        group_policy=None
        if first is None or not first.has_links
        else ("Honor" if first.must_honor_links else "Prefer"),
    )


def _describe_entry(
    file: str, entry: DeviceInfoEntry, where: str, problems: list[Problem]
) -> EntryDevice:
    problems += [Problem(reason=ODD, message=f"{where}: {words}") for words in entry.oddities]
    resources = _resources(entry.resources, where, problems)
    memory = parse_quantity(dict(resources).get(MEMORY, ""))
    facts: Mapping[str, str] = {
        SOURCE_FILE_FACT: file,
        NUMA_NODE_FACT: entry.numa_node,
        PCIE_ROOT_FACT: entry.pcie_root,
    }
    vendor = entry.vendor or "other"
    device = VendorDevice(
        kind=KIND_BY_VENDOR.get(vendor, DeviceKind.XPU),
        vendor=vendor,
        bus_id=entry.bus_id,
        uuid=entry.uuid or None,
        minor=entry.minor,
        model=entry.model or None,
        memory_bytes=memory.value if memory else None,
        health=_health(entry.status),
        resources=resources,
        facts=tuple((name, value) for name, value in facts.items() if value),
    )
    return EntryDevice(entry, device)


def _resources(told: tuple[tuple[str, str], ...], where: str, problems: list[Problem]) -> Pairs:
    """Return full names with canonical values; a value that is none, or zero, is left out."""
    found: dict[str, str] = {}
    for name, text in told:
        full = f"{_PREFIX}{name}" if name in _BARE else name
        amount = parse_quantity(text)
        if amount is None or (full == MEMORY and not amount.value):
            message = f"{where}: {name} {text[:40]!r} cannot be published"
            problems.append(Problem(reason=ODD, message=message))
        else:
            found[full] = amount.text
    if MEMORY not in found:
        problems.append(Problem(reason="MemoryUnknown", message=f"{where}: no {MEMORY}"))
    return tuple(sorted((found | {RATIO: "100"}).items()))


def _health(status: DeviceInfoStatus | None) -> Health:
    if status is None or status.is_healthy:
        return Health()
    reason = condition_reason(status.code) if status.code else UNKNOWN_REASON
    message = status.message or "device is unhealthy"
    if status.code and reason != status.code and status.code not in message:
        message = f"{message} ({status.code})"
    return Health(state=HealthState.FAILED, reason=reason, message=message)


def groups_of(found: Sequence[EntryDevice]) -> tuple[DeviceGroup, ...]:
    """Return the partitions that the links tell: each link joins its device and the peers.

    A partition with a card that nobody describes could never be granted: it is left out.
    """
    keys: dict[int, str] = {}
    for one in found:
        keys.setdefault(one.entry.minor, one.device.key)
    groups: dict[tuple[int, ...], DeviceGroup] = {}
    for one in found:
        for peers, kind in one.entry.links:
            members = tuple(sorted({one.entry.minor, *peers}))
            if all(member in keys for member in members) and members not in groups:
                named = tuple(keys[member] for member in members)
                groups[members] = DeviceGroup(keys=named, link_type=kind)
    ordered = sorted(groups.items(), key=lambda item: (len(item[0]), item[0]))
    return tuple(group for _, group in ordered)
