"""Builds one inventory from the entries of device-info files, by koordlet's rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import msgspec

from agent.errors import ParseError
from agent.snapshot.device import DeviceKind, Health, HealthState, Pairs, VendorDevice
from agent.snapshot.inventory import DeviceGroup, Inventory, Problem
from agent.wire_formats.api_values import UNKNOWN_REASON, condition_reason
from agent.wire_formats.device_info import (
    KIND_BY_VENDOR,
    NUMA_NODE_FACT,
    PCIE_ROOT_FACT,
    SOURCE_FILE_FACT,
)
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
    """Return the devices of all entries, files in order of name, and the unusable entries."""
    entries = [(name, index, entry) for name, items in files for index, entry in enumerate(items)]
    problems: list[Problem] = []
    if len(entries) > MAX_ENTRIES:
        message = f"{len(entries)} entries: only the first {MAX_ENTRIES} count"
        problems.append(Problem(reason=LEFT_OUT, message=message))
    described: list[EntryDevice] = []
    keys: set[str] = set()
    for name, index, entry in entries[:MAX_ENTRIES]:
        try:
            entry_device = _describe_entry(name, decode_entry(entry), f"{name}[{index}]", problems)
        except ParseError as error:
            problems.append(Problem(reason=LEFT_OUT, message=f"{name}[{index}]: {error}"))
            continue
        if entry_device.device.key in keys:
            message = f"{name}[{index}]: {entry_device.device.key} is described twice"
            problems.append(Problem(reason=LEFT_OUT, message=message))
            continue
        keys.add(entry_device.device.key)
        described.append(entry_device)
    first = described[0].entry if described else None
    return Inventory(
        vendor=NAME,
        devices=tuple(entry_device.device for entry_device in described),
        problems=tuple(islice(problems, MAX_PROBLEMS)),
        groups=groups_of(described),
        group_policy=None
        if first is None or not first.has_links
        else ("Honor" if first.must_honor_links else "Prefer"),
    )


def _describe_entry(
    file: str, entry: DeviceInfoEntry, place: str, problems: list[Problem]
) -> EntryDevice:
    problems += [Problem(reason=ODD, message=f"{place}: {message}") for message in entry.oddities]
    resources = _resources(entry.resources, place, problems)
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


def _resources(raw: tuple[tuple[str, str], ...], place: str, problems: list[Problem]) -> Pairs:
    """Return full names with canonical values; invalid and zero values are left out."""
    resources: dict[str, str] = {}
    for name, text in raw:
        resource = f"{_PREFIX}{name}" if name in _BARE else name
        amount = parse_quantity(text)
        if amount is None or (resource == MEMORY and not amount.value):
            message = f"{place}: {name} {text[:40]!r} cannot be published"
            problems.append(Problem(reason=ODD, message=message))
        else:
            resources[resource] = amount.text
    if MEMORY not in resources:
        problems.append(Problem(reason="MemoryUnknown", message=f"{place}: no {MEMORY}"))
    return tuple(sorted((resources | {RATIO: "100"}).items()))


def _health(status: DeviceInfoStatus | None) -> Health:
    if status is None or status.is_healthy:
        return Health()
    reason = condition_reason(status.code) if status.code else UNKNOWN_REASON
    message = status.message or "device is unhealthy"
    if status.code and reason != status.code and status.code not in message:
        message = f"{message} ({status.code})"
    return Health(state=HealthState.FAILED, reason=reason, message=message)


def groups_of(devices: Sequence[EntryDevice]) -> tuple[DeviceGroup, ...]:
    """Return the partitions in the links: each link joins its device and the peers.

    A partition with a card that no entry describes is left out: it can never be allocated.
    """
    keys: dict[int, str] = {}
    for entry_device in devices:
        keys.setdefault(entry_device.entry.minor, entry_device.device.key)
    groups: dict[tuple[int, ...], DeviceGroup] = {}
    for entry_device in devices:
        for peers, kind in entry_device.entry.links:
            members = tuple(sorted({entry_device.entry.minor, *peers}))
            if all(member in keys for member in members) and members not in groups:
                member_keys = tuple(keys[member] for member in members)
                groups[members] = DeviceGroup(keys=member_keys, link_type=kind)
    ordered = sorted(groups.items(), key=lambda item: (len(item[0]), item[0]))
    return tuple(group for _, group in ordered)
