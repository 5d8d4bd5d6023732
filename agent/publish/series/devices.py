"""Samples of devices: what the snapshot says of each, and what vendors' readings add."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from agent.model.device import Device, DeviceKind, HealthState, VendorDevice
from agent.model.grant.sharing import MpsDaemon
from agent.model.inventory import DeviceSample, MetricFamily
from agent.model.snapshot import VendorState
from agent.publish.families import DEVICE, FAMILIES, RDMA, Family
from agent.publish.series.text import Labels, Series, line, pairs

_METRIC = re.compile(r"xpu_[a-z0-9]+(_[a-z0-9]+)*")
_LABEL = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_RESERVED = frozenset((*DEVICE, *RDMA, "le", "quantile", "job", "instance"))


class Declared(msgspec.Struct, frozen=True):
    """Vendors' families that can be exported, by name, and what is wrong with the others."""

    families: Mapping[str, MetricFamily]
    refused: tuple[str, ...]


def declared(vendors: Iterable[tuple[str, Iterable[MetricFamily]]]) -> Declared:
    """Check what vendors declare; two vendors may share a family that they declare alike."""
    own = {_bare(family.name) for family in FAMILIES}
    found: dict[str, MetricFamily] = {}  # by bare name
    refused = []
    for vendor, families in vendors:
        for family in families:
            complaint = _complaint(family, own, found.get(_bare(family.name)))
            if complaint:
                refused.append(f"vendor {vendor}: metric family {family.name[:80]!r}: {complaint}")
            else:
                found.setdefault(_bare(family.name), family)
    return Declared({family.name: family for family in found.values()}, tuple(refused))


def _bare(name: str) -> str:
    """Return the name without what OpenMetrics takes off: families must differ in the rest."""
    return name.removesuffix("_total").removesuffix("_info")


def _complaint(family: MetricFamily, own: set[str], other: MetricFamily | None) -> str:
    if not _METRIC.fullmatch(family.name):
        return "the name does not fit xpu_[a-z0-9_]+"
    if _bare(family.name) in own:
        return "the agent exports it itself"
    if family.type not in ("gauge", "counter"):
        return f"the type is {family.type[:20]!r}, not gauge or counter"
    if (family.type == "counter") != family.name.endswith("_total"):
        return "counters, and only they, end in _total"
    odd = [name for name in family.labels if not _LABEL.fullmatch(name) or name in _RESERVED]
    if odd or len(set(family.labels)) < len(family.labels):
        return "a label has a bad name, or one that every device series has"
    same = (family.name, family.type, family.labels)
    if other is not None and (other.name, other.type, other.labels) != same:
        return "it is declared a second time, with another type or other labels"
    return ""


def as_family(family: MetricFamily) -> Family:
    """Return a vendor's family in the form of ours, with the labels that every series has."""
    is_info = family.type == "gauge" and family.name.endswith("_info")
    base = RDMA if family.name.startswith("xpu_rdma_") else DEVICE
    return Family(
        name=family.name,
        type="info" if is_info else family.type,
        help=family.help,
        labels=(*base, *family.labels),
        stability="alpha",
    )


def device_series(
    devices: tuple[Device, ...],
    vendors: tuple[VendorState, ...],
    fresh: Mapping[str, DeviceSample],  # by device key
    families: Mapping[str, MetricFamily],
    labels: Labels,
    node: str,
    mps: tuple[MpsDaemon, ...] = (),
) -> Series:
    """Yield the families of devices; what nobody told has no sample."""
    rows = list({_opened(device, labels, node): device for device in devices}.items())
    drivers = _drivers(vendors)
    name = "xpu_device_info"
    yield name, [line(name, opened, 1, _facts(device, drivers)) for opened, device in rows]
    name = "xpu_device_healthy"
    yield name, [line(name, o, int(device.info.health.in_service)) for o, device in rows]
    name = "xpu_device_health_state"
    yield (
        name,
        [
            line(name, opened, int(device.info.health.state is state), f'state="{state.value}"')
            for opened, device in rows
            for state in HealthState
        ],
    )
    name = "xpu_device_link_degraded"
    yield (
        name,
        [
            line(name, opened, int(device.place.link_degraded is not None))
            for opened, device in rows
            if device.place.link.speed is not None or device.place.link_degraded is not None
        ],
    )
    yield from _sample_series(rows, fresh)
    name = "xpu_device_mps_servers"
    reached = [
        (opened, [daemon for daemon in mps if daemon.reaches(device.info.uuid or "")])
        for opened, device in rows
        if device.info.vendor == "nvidia" and device.info.uuid
    ]
    yield name, [line(name, o, sum(len(d.servers) for d in found)) for o, found in reached if found]
    yield from _reading_series(rows, fresh, families, labels, node)


def _opened(device: Device, labels: Labels, node: str) -> str:
    info = device.info
    minor = "" if info.minor is None else str(info.minor)
    values = (node, info.vendor, minor, info.uuid or "", info.model or "", info.bus_id or "")
    return labels.open(DEVICE, values)


def _drivers(vendors: Iterable[VendorState]) -> dict[str, str]:
    """Return driver versions by key of each device that is told of, and by name of who tells.

    The name is for devices that have just gone; it need not be the maker's.
    """
    found: dict[str, str] = {}
    for vendor in vendors:
        inventory = vendor.inventory.value
        if inventory is not None and inventory.driver_version:
            names = (vendor.vendor, *(device.key for device in inventory.devices))
            found.update(dict.fromkeys(names, inventory.driver_version))
    return found


def _facts(device: Device, drivers: Mapping[str, str]) -> str:
    place = device.place
    values = (
        device.info.kind.value,
        str(place.numa_node) if place.numa_node >= 0 else "",
        place.root or "",
        drivers.get(device.key) or drivers.get(device.info.vendor, ""),
        "true" if device.info.managed else "false",
    )
    return pairs(("type", "numa_node", "pcie_root", "driver_version", "managed"), values)


def _sample_series(rows: list[tuple[str, Device]], fresh: Mapping[str, DeviceSample]) -> Series:
    sampled = [(o, device.info, fresh.get(device.key)) for o, device in rows]
    name = "xpu_device_memory_total_bytes"
    totals = [(o, _total_bytes(info, sample)) for o, info, sample in sampled]
    yield name, [line(name, o, total) for o, total in totals if total is not None]
    name = "xpu_device_memory_used_bytes"
    yield (
        name,
        [
            line(name, o, sample.memory_used_bytes)
            for o, _, sample in sampled
            if sample is not None and sample.memory_used_bytes is not None
        ],
    )
    name = "xpu_device_utilization_ratio"
    yield (
        name,
        [
            line(name, o, sample.core_percent / 100)
            for o, _, sample in sampled
            if sample is not None and sample.core_percent is not None
        ],
    )
    name = "xpu_device_processes"
    yield (
        name,
        [
            line(name, o, len(sample.processes))
            for o, _, sample in sampled
            if sample is not None and sample.processes is not None
        ],
    )


def _total_bytes(info: VendorDevice, sample: DeviceSample | None) -> int | None:
    told = sample.memory_total_bytes if sample is not None else None
    return told if told is not None else info.memory_bytes


def _reading_series(
    rows: list[tuple[str, Device]],
    fresh: Mapping[str, DeviceSample],
    families: Mapping[str, MetricFamily],
    labels: Labels,
    node: str,
) -> Series:
    """Gather readings by family; one of an undeclared family or with other labels is left out."""
    lines: dict[str, dict[str, float]] = {name: {} for name in families}
    for opened, device in rows:
        sample = fresh.get(device.key)
        if sample is None:
            continue
        base = opened
        if device.info.kind is DeviceKind.RDMA:
            base = labels.open(RDMA, (node, device.info.bus_id or device.key))
        for reading in sample.readings:
            family = families.get(reading.family)
            if family is None or len(reading.labels) != len(family.labels):
                continue
            extra = labels.behind(family.labels, reading.labels) if family.labels else ""
            lines[reading.family][f"{base}{extra}"] = reading.value
    for name, values in lines.items():
        yield name, [line(name, opened, value) for opened, value in values.items()]
