"""What every vendor promises of its answers, as functions that name each broken promise.

A test of a source asserts that nothing is named; `test_promises.py` breaks each promise once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from agent.snapshot.device import DeviceKind, Health, HealthState, VendorDevice
from agent.snapshot.inventory import (
    DeviceEvent,
    DeviceSample,
    Inventory,
    MetricFamily,
    MetricValue,
    ProcessSample,
)
from agent.snapshot.pci import parse_address
from agent.wire_formats import api_values, quantities

REASON = re.compile(r"([A-Z][a-z0-9]*)+")
CONDITION = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
FAMILY = re.compile(r"xpu_[a-z0-9]+(_[a-z0-9]+)+")
POLICIES = (None, "Prefer", "Honor")
MAX_MINOR = (1 << 31) - 1
MAX_MEMORY = 1 << 46  # bytes; a card of 64 TiB is a mistake in a unit
LEAST_MEMORY = 1 << 20  # a card of less than 1 MiB was told in MiB or GiB

CORE, MEMORY, RATIO = (f"koordinator.sh/gpu-{name}" for name in ("core", "memory", "memory-ratio"))
RDMA = "koordinator.sh/rdma"
WHOLE = {CORE: "100", RATIO: "100", RDMA: "100"}  # the scheduler counts a device in hundredths
SHARED_RESOURCES = frozenset((*WHOLE, MEMORY))  # of the domain koordinator.sh
COUNT = re.compile(r"[1-9][0-9]*k?")  # of another domain: a positive whole number

# words by which a family's name says that it is not in base units
SCALED = re.compile(
    r"_([kmgt]i?b|kilobytes|megabytes|gigabytes|bits|[kmg]bps|[mun]s|(milli|micro|nano)seconds"
    r"|minutes|hours|[kmg]hz|megahertz|mw|(milli|kilo)watts|mv|millivolts|fahrenheit|kelvin)(_|$)"
)
# what a reading may be, by the last word of its family's name; all others are 0 or more
BOUNDS = {"celsius": (-100.0, 250.0), "ratio": (0.0, 1.0), "percent": (0.0, 100.0)}


def inventory_faults(inventory: Inventory, vendor: str, *, whole: bool) -> list[str]:
    """Return the broken promises of an inventory.

    `whole`: the vendor's library or files answered, so that at least one device can be granted.
    """
    devices = inventory.devices
    result = [fault for device in devices for fault in device_faults(device)]
    result += _differing(devices)
    result += _slices(devices)
    result += _links_and_groups(inventory)
    if inventory.vendor != vendor:
        result.append(f"the inventory is of {inventory.vendor!r}, not of {vendor!r}")
    if not devices:
        result.append("no device is listed")
    if whole and devices and not any(d.managed and d.minor is not None for d in devices):
        result.append("no device can be published")
    for problem in inventory.problems:
        if not REASON.fullmatch(problem.reason) or not problem.message:
            result.append(f"problem {problem.reason!r}: a CamelCase reason and words are missing")
    return result


def device_faults(device: VendorDevice) -> list[str]:
    """Return the broken promises of one device."""
    faults = [
        *_identity(device),
        *_health("its health", device.health),
        *_memory("its memory", device.memory_bytes),
        *_resources(device),
        *_conditions(device),
        *_nodes(device),
    ]
    for part in device.partitions:
        faults += _health(f"the health of {part.uuid}", part.health)
        faults += _memory(f"the memory of {part.uuid}", part.memory_bytes)
    return [f"{device.bus_id or device.uuid or 'a device'}: {fault}" for fault in faults]


def _identity(device: VendorDevice) -> Iterator[str]:
    if not device.bus_id and not device.uuid:
        yield "it has neither an address nor a uuid"
    if device.bus_id is not None and parse_address(device.bus_id) != device.bus_id:
        yield "its address is not spelt as the kernel spells it"
    if not device.vendor:
        yield "its maker has no name"
    for name, number in (("minor", device.minor), ("vendor_minor", device.vendor_minor)):
        if number is not None and not 0 <= number <= MAX_MINOR:
            yield f"{name} {number} is no number of a device"
    if device.resources and device.minor is not None and not (device.uuid or "").strip():
        yield "it can be granted, and has no uuid to be granted by"


def _health(what: str, health: Health) -> Iterator[str]:
    if health.state is HealthState.PROBING:
        yield f"{what} is PROBING, which only the agent may say"
    if not REASON.fullmatch(health.reason) or not health.message:
        yield f"{what} has no CamelCase reason with words: {health.reason!r}"


def _memory(what: str, amount: int | None) -> Iterator[str]:
    if amount is not None and not LEAST_MEMORY <= amount <= MAX_MEMORY:
        yield f"{what} is {amount} bytes; unknown is None"


def _resources(device: VendorDevice) -> Iterator[str]:
    names = [name for name, _ in device.resources]
    if len(set(names)) < len(names):
        yield "a resource is listed twice"
    if device.resources and not device.managed:
        yield "it is not managed, and has resources"
    for name, amount in device.resources:
        domain, slash, rest = name.partition("/")
        if not slash or not domain or not rest:
            yield f"{name!r} is no name of a resource"
        elif api_values.valid_quantity(amount) is None or not api_values.is_positive_quantity(
            amount
        ):
            yield f"{name}: {amount!r} is no positive quantity"
        elif domain == "koordinator.sh" and name not in SHARED_RESOURCES:
            yield f"{name}: the scheduler knows no such resource"
        elif name != MEMORY and not COUNT.fullmatch(amount):
            yield f"{name}: {amount!r} is no whole number"
        elif amount != WHOLE.get(name, amount):
            yield f"{name}: {amount!r} of one device, which is {WHOLE[name]} hundredths"
    yield from _amounts_together(device, dict(device.resources))


def _amounts_together(device: VendorDevice, amounts: dict[str, str]) -> Iterator[str]:
    if not amounts:
        return
    if device.kind is DeviceKind.RDMA:
        if set(amounts) != {RDMA}:
            yield f"an RDMA device has {RDMA} and nothing else"
        return
    if RDMA in amounts:
        yield f"an accelerator has no {RDMA}"
    if not {MEMORY, RATIO} <= amounts.keys():
        yield f"an accelerator that can be granted has {MEMORY} and {RATIO}"
    elif device.memory_bytes is None:
        yield "its memory is granted, and not known"
    elif amounts[MEMORY] != quantities.format_binary(device.memory_bytes):
        yield f"{MEMORY} is {amounts[MEMORY]}, its memory {device.memory_bytes} bytes"


def _conditions(device: VendorDevice) -> Iterator[str]:
    types = [condition.type for condition in device.conditions]
    if len(set(types)) < len(types):
        yield "a condition is listed twice"
    for condition in device.conditions:
        if not CONDITION.fullmatch(condition.type) or condition.type == "Healthy":
            yield f"{condition.type!r} is no type of a condition that a vendor may set"
        if (
            api_values.condition_reason(condition.reason) != condition.reason
            or not condition.reason
        ):
            yield f"{condition.type}: {condition.reason!r} is no reason of a condition"


def _nodes(device: VendorDevice) -> Iterator[str]:
    for node in (*device.nodes, *(n for part in device.partitions for n in part.nodes)):
        if not node.path.startswith("/dev/") or "/../" in node.path:
            yield f"{node.path} is no device node"
        if node.major < 0 or node.minor < 0:
            yield f"{node.path} has the numbers {node.major}:{node.minor}"


def _differing(devices: Iterable[VendorDevice]) -> Iterator[str]:
    """Name what two devices have in common that each must have for itself."""
    devices = tuple(devices)
    own: dict[str, list[object]] = {
        "key": [d.key for d in devices],
        "uuid": [(d.kind.wire_type, d.uuid) for d in devices if d.uuid],
        "minor": [(d.kind.wire_type, d.minor) for d in devices if d.minor is not None],
        "vendor_minor": [(d.kind, d.vendor_minor) for d in devices if d.vendor_minor is not None],
    }
    for name, values in own.items():
        if len(set(values)) < len(values):
            yield f"two devices have one {name}"
    nodes = [(n.major, n.minor) for d in devices for n in dict.fromkeys(d.nodes)]
    shared = {numbers for numbers in nodes if nodes.count(numbers) > 1}
    for device in devices:
        numbers = {(node.major, node.minor) for node in device.nodes}
        if numbers and numbers <= shared:
            yield f"{device.key}: no node is its own"


def _slices(devices: Iterable[VendorDevice]) -> Iterator[str]:
    devices = tuple(devices)
    uuids = [part.uuid for device in devices for part in device.partitions]
    if len(set(uuids)) < len(uuids) or set(uuids) & {device.uuid for device in devices}:
        yield "a slice has the uuid of another slice or of a device"
    if "" in uuids:
        yield "a slice has no uuid"
    for device in devices:
        for profile, starts in device.free_slices:
            if not profile or list(starts) != sorted(set(starts)) or min(starts, default=0) < 0:
                yield f"{device.key}: {profile!r} is free at {starts}"


def _links_and_groups(inventory: Inventory) -> Iterator[str]:
    keys = {device.key for device in inventory.devices}
    pairs = [(frozenset((link.a, link.b)), link.type) for link in inventory.links]
    if len(set(pairs)) < len(pairs):
        yield "a link is listed twice"
    for link in inventory.links:
        if link.a == link.b or link.count <= 0 or not {link.a, link.b} & keys:
            yield f"{link.a} - {link.b}: no {link.type} link of two devices, counted {link.count}"
    members = [frozenset(group.keys) for group in inventory.groups]
    if len(set(members)) < len(members):
        yield "a group is listed twice"
    for group in inventory.groups:
        if len(group.keys) < 1 or len(set(group.keys)) < len(group.keys):
            yield f"the group {group.keys} is empty or has a device twice"
        if not set(group.keys) <= keys:
            yield f"the group {group.keys} is of devices that are not listed"
        if (group.bandwidth_bytes_per_s or 0) < 0:
            yield f"the group {group.keys} has {group.bandwidth_bytes_per_s} bytes per second"
    if inventory.group_policy not in POLICIES:
        yield f"{inventory.group_policy!r} is no policy of groups"


def family_faults(families: Iterable[MetricFamily]) -> list[str]:
    """Return the broken promises of what a vendor declares."""
    families = tuple(families)
    result = []
    if len({family.name for family in families}) < len(families):
        result.append("a family is declared twice")
    for family in families:
        if not FAMILY.fullmatch(family.name):
            result.append(f"{family.name!r} is no name of a family")
        if SCALED.search(family.name):
            result.append(f"{family.name} is not in base units")
        if not family.help.endswith("."):
            result.append(f"{family.name}: the help has no full stop")
        if family.type not in ("gauge", "counter"):
            result.append(f"{family.name}: {family.type!r} is no type")
        elif family.name.endswith("_total") != (family.type == "counter"):
            result.append(f"{family.name}: counters and nothing else end in _total")
    return result


def sample_faults(
    samples: Iterable[DeviceSample], inventory: Inventory, families: Iterable[MetricFamily]
) -> list[str]:
    """Return the broken promises of one answer to `sample`."""
    samples = tuple(samples)
    devices = {device.key: device for device in inventory.devices}
    parts = {part.uuid for device in inventory.devices for part in device.partitions}
    declared = {family.name: family for family in families}
    result = []
    if len({sample.key for sample in samples}) < len(samples):
        result.append("a device is sampled twice")
    for sample in samples:
        faults = [*_figures(sample), *_readings(sample.readings, declared)]
        if sample.key not in devices:
            faults.append("no such device is listed")
        if sample.health is not None:
            faults += _health("its health", sample.health)
        for process in sample.processes or ():
            faults += _process(process, parts)
        result += [f"{sample.key}: {fault}" for fault in faults]
    return result


def _figures(sample: DeviceSample) -> Iterator[str]:
    core, used, total = sample.core_percent, sample.memory_used_bytes, sample.memory_total_bytes
    if core is not None and not 0 <= core <= 100:
        yield f"it is busy for {core} percent"
    if used is not None and used < 0:
        yield f"{used} bytes of its memory are in use"
    if total is not None and total <= 0:
        yield f"its memory is {total} bytes; unknown is None"
    if used is not None and total is not None and used > total > 0:
        yield f"{used} of {total} bytes are in use"


def _process(process: ProcessSample, parts: set[str]) -> Iterator[str]:
    core, memory = process.core_percent, process.memory_bytes
    if process.pid <= 0:
        yield f"{process.pid} is no process"
    if (memory is not None and memory < 0) or (core is not None and not 0 <= core <= 100):
        yield f"process {process.pid} has {memory} bytes and {core} percent"
    if process.partition and process.partition not in parts:
        yield f"process {process.pid} runs on a slice that is not listed"


def _readings(readings: Iterable[MetricValue], declared: dict[str, MetricFamily]) -> Iterator[str]:
    readings = tuple(readings)
    series = [(reading.family, reading.labels) for reading in readings]
    if len(set(series)) < len(series):
        yield "a series has two values"
    for reading in readings:
        family = declared.get(reading.family)
        if family is None:
            yield f"{reading.family} is not declared"
        elif len(family.labels) != len(reading.labels):
            yield f"{reading.family} has the labels {reading.labels}"
        low, high = BOUNDS.get(reading.family.rpartition("_")[2], (0.0, math.inf))
        if not (math.isfinite(reading.value) and low <= reading.value <= high):
            yield f"{reading.family} is {reading.value}"


def event_faults(events: Iterable[DeviceEvent], inventory: Inventory) -> list[str]:
    """Return the broken promises of events."""
    keys = {"", *(device.key for device in inventory.devices)}
    result = []
    for event in events:
        if event.key not in keys:
            result.append(f"{event.key}: no such device is listed")
        if not REASON.fullmatch(event.reason):
            result.append(f"{event.key}: {event.reason!r} is no CamelCase reason")
        if event.state is HealthState.PROBING:
            result.append(f"{event.key}: PROBING, which only the agent may say")
    return result
