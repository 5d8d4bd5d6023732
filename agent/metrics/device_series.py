"""Series of devices: state, capacity, readings of vendors, GPUDirect RDMA per GPU and NIC."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from agent.metrics.device_pods import UNUSED, DevicePods, key_of_users
from agent.metrics.families import (
    DEVICE,
    DEVICE_POD,
    FAMILIES,
    POD_NAME,
    POD_UID,
    RDMA_DEVICE,
    ExportedFamily,
)
from agent.metrics.text_format import LabelCache, SeriesLines, label_pairs, sample_line
from agent.snapshot.device import Device, DeviceKind, Health, HealthState, VendorDevice
from agent.snapshot.inventory import DeviceSample, MetricFamily
from agent.snapshot.node import GpuDirectPair, NodeSnapshot, VendorState
from agent.snapshot.usage import MpsDaemon
from agent.wire_formats.device_info import is_cuda_device

_METRIC_NAME = re.compile(r"xpu_[a-z0-9]+(_[a-z0-9]+)*")

_LABEL_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

NO_NAMES = ("", "", "", "")

_RESERVED_LABELS = frozenset(
    {*DEVICE, *RDMA_DEVICE, "le", "quantile", "job", "instance"} - {POD_UID}
)


class FamilyCheck(msgspec.Struct, frozen=True):
    """Vendors' families that can be exported, by name, and the errors of the others."""

    families: Mapping[str, MetricFamily]
    errors: tuple[str, ...]


def check_families(vendors: Iterable[tuple[str, Iterable[MetricFamily]]]) -> FamilyCheck:
    """Check the families that vendors declare; two vendors may declare the same family."""
    own_names = {_base_name(family.name) for family in FAMILIES}
    accepted: dict[str, MetricFamily] = {}  # by bare name
    errors = []
    for vendor, families in vendors:
        for family in families:
            error = _find_error(family, own_names, accepted.get(_base_name(family.name)))
            if error:
                errors.append(f"vendor {vendor}: metric family {family.name[:80]!r}: {error}")
            else:
                accepted.setdefault(_base_name(family.name), family)
    return FamilyCheck({family.name: family for family in accepted.values()}, tuple(errors))


def _base_name(name: str) -> str:
    """Return the name without the suffixes that OpenMetrics removes: the rest must be unique."""
    return name.removesuffix("_total").removesuffix("_info")


def _find_error(family: MetricFamily, own_names: set[str], other: MetricFamily | None) -> str:
    if not _METRIC_NAME.fullmatch(family.name):
        return "the name does not fit xpu_[a-z0-9_]+"
    if _base_name(family.name) in own_names:
        return "the agent exports it itself"
    if family.type not in ("gauge", "counter"):
        return f"the type is {family.type[:20]!r}, not gauge or counter"
    if (family.type == "counter") != family.name.endswith("_total"):
        return "counters, and only they, end in _total"
    invalid = [
        name
        for name in family.labels
        if not _LABEL_NAME.fullmatch(name) or name in _RESERVED_LABELS
    ]
    if invalid or len(set(family.labels)) < len(family.labels):
        return "a label has a bad name, or one that every device series has"
    if family.slice_label and family.slice_label not in family.labels:
        return "the label of slices is none of its labels"
    declaration = (family.name, family.type, family.labels)
    if other is not None and (other.name, other.type, other.labels) != declaration:
        return "it is declared a second time, with another type or other labels"
    return ""


def export_family(family: MetricFamily) -> ExportedFamily:
    """Return a vendor's family as an exported one, with the labels that every series has."""
    is_info = family.type == "gauge" and family.name.endswith("_info")
    base: tuple[str, ...] = RDMA_DEVICE if family.name.startswith("xpu_rdma_") else DEVICE
    if POD_UID in family.labels:
        base = (*(name for name in base if name not in DEVICE_POD), *POD_NAME)
    return ExportedFamily(
        name=family.name,
        type="info" if is_info else family.type,
        help=family.help,
        labels=(*base, *family.labels),
        stability="alpha",
    )


def device_series(
    snapshot: NodeSnapshot,
    samples: Mapping[str, DeviceSample],  # by device key
    families: Mapping[str, MetricFamily],
    labels: LabelCache,
    pods: DevicePods,
    mps: tuple[MpsDaemon, ...] = (),
) -> SeriesLines:
    """Yield the families of devices, a series for each pod that uses one.

    What is not known has no sample.
    """
    node = snapshot.node.name or "unknown"
    devices, vendors = snapshot.devices.value.devices, snapshot.vendors
    users = [(device, pod) for device in devices for pod in pods.get(device.key, (UNUSED,))]
    labelled = {device_labels(one, pod.values, labels, node): (one, pod) for one, pod in users}
    rows = [(label_prefix, device) for label_prefix, (device, _) in labelled.items()]
    drivers = driver_versions(vendors)
    name = "xpu_device_info"
    yield (
        name,
        [
            sample_line(name, label_prefix, 1, _info_labels(device, drivers))
            for label_prefix, device in rows
        ],
    )
    name = "xpu_device_healthy"
    yield name, [sample_line(name, o, int(device.info.health.is_in_service)) for o, device in rows]
    name = "xpu_device_health_state"
    yield (
        name,
        [
            sample_line(
                name, label_prefix, int(device.info.health.state is state), f'state="{state.value}"'
            )
            for label_prefix, device in rows
            for state in HealthState
        ],
    )
    name = "xpu_device_health_reason"
    yield (
        name,
        [
            sample_line(name, label_prefix, 1, _health_labels(device.info.health))
            for label_prefix, device in rows
            if device.info.health.state is not HealthState.HEALTHY
        ],
    )
    name = "xpu_device_pod_unknown"
    yield (
        name,
        [
            sample_line(name, label_prefix, 1, label_pairs(("reason",), (pod.reason,)))
            for label_prefix, (_, pod) in labelled.items()
            if pod.reason
        ],
    )
    name = "xpu_device_link_degraded"
    yield (
        name,
        [
            sample_line(name, label_prefix, int(device.place.link_degraded is not None))
            for label_prefix, device in rows
            if device.place.link.speed is not None or device.place.link_degraded is not None
        ],
    )
    yield from _link_series(rows)
    yield from _sample_series(rows, samples)
    name = "xpu_device_mps_servers"
    daemons_by_device = [
        (label_prefix, [daemon for daemon in mps if daemon.reaches(device.info.uuid or "")])
        for label_prefix, device in rows
        if is_cuda_device(device.info) and device.info.uuid
    ]
    yield (
        name,
        [
            sample_line(name, o, sum(len(d.servers) for d in daemons))
            for o, daemons in daemons_by_device
            if daemons
        ],
    )
    yield from _reading_series(devices, pods, samples, families, labels, snapshot)


def device_labels(
    device: Device, pod_values: tuple[str, str, str, str], labels: LabelCache, node: str
) -> str:
    """Return the labels of a device that one pod uses, without the closing brace."""
    info = device.info
    minor = "" if info.minor is None else str(info.minor)
    values = (node, info.vendor, minor, info.uuid or "", info.model or "", info.bus_id or "")
    return labels.prefix(DEVICE, (*values, *pod_values))


def _reading_labels(
    device: Device, pod_values: tuple[str, str, str, str], labels: LabelCache, node: str
) -> str:
    if device.info.kind is DeviceKind.RDMA:
        name = device.info.bus_id or device.key
        return labels.prefix(RDMA_DEVICE, (node, name, *pod_values))
    return device_labels(device, pod_values, labels, node)


def _health_labels(health: Health) -> str:
    return label_pairs(("state", "reason"), (health.state.value, health.reason))


def driver_versions(vendors: Iterable[VendorState]) -> dict[str, str]:
    """Return driver versions by device key, and by name of the vendor that reports them.

    The vendor's name serves devices that have just been removed; it need not be the maker's.
    """
    versions: dict[str, str] = {}
    for vendor in vendors:
        inventory = vendor.inventory.value
        if inventory is not None and inventory.driver_version:
            names = (vendor.vendor, *(device.key for device in inventory.devices))
            versions.update(dict.fromkeys(names, inventory.driver_version))
    return versions


def _info_labels(device: Device, drivers: Mapping[str, str]) -> str:
    place = device.place
    values = (
        device.info.kind.value,
        str(place.numa_node) if place.numa_node >= 0 else "",
        place.root or "",
        drivers.get(device.key) or drivers.get(device.info.vendor, ""),
        "true" if device.info.managed else "false",
    )
    return label_pairs(("type", "numa_node", "pcie_root", "driver_version", "managed"), values)


def _link_series(rows: list[tuple[str, Device]]) -> SeriesLines:
    links = [(label_prefix, device.place.link) for label_prefix, device in rows]
    for name, values in (
        ("xpu_device_pcie_link_lanes", [(o, link.width, link.max_width) for o, link in links]),
        (
            "xpu_device_pcie_link_generation",
            [(o, link.generation, link.max_generation) for o, link in links],
        ),
    ):
        yield (
            name,
            [
                sample_line(name, label_prefix, value, f'kind="{kind}"')
                for label_prefix, *pair in values
                for kind, value in zip(("now", "most"), pair, strict=True)
                if value is not None
            ],
        )


def _sample_series(
    rows: list[tuple[str, Device]], samples: Mapping[str, DeviceSample]
) -> SeriesLines:
    sampled = [(o, device.info, samples.get(device.key)) for o, device in rows]
    name = "xpu_device_memory_total_bytes"
    totals = [(o, total_bytes(info, sample)) for o, info, sample in sampled]
    yield name, [sample_line(name, o, total) for o, total in totals if total is not None]
    name = "xpu_device_memory_used_bytes"
    yield (
        name,
        [
            sample_line(name, o, sample.memory_used_bytes)
            for o, _, sample in sampled
            if sample is not None and sample.memory_used_bytes is not None
        ],
    )
    name = "xpu_device_utilization_ratio"
    yield (
        name,
        [
            sample_line(name, o, sample.core_percent / 100)
            for o, _, sample in sampled
            if sample is not None and sample.core_percent is not None
        ],
    )
    name = "xpu_device_processes"
    yield (
        name,
        [
            sample_line(name, o, len(sample.processes))
            for o, _, sample in sampled
            if sample is not None and sample.processes is not None
        ],
    )


def total_bytes(info: VendorDevice, sample: DeviceSample | None) -> int | None:
    """Return the memory of a device: of its sample, else of its inventory."""
    sampled_bytes = sample.memory_total_bytes if sample is not None else None
    return sampled_bytes if sampled_bytes is not None else info.memory_bytes


def _reading_series(
    devices: Iterable[Device],
    pods: DevicePods,
    samples: Mapping[str, DeviceSample],
    families: Mapping[str, MetricFamily],
    labels: LabelCache,
    snapshot: NodeSnapshot,
) -> SeriesLines:
    """Collect readings by family; undeclared families and wrong labels are left out."""
    lines: dict[str, dict[str, float]] = {name: {} for name in families}
    names = {pod.uid: (pod.namespace, pod.name, "", "") for pod in snapshot.pods.value}
    node = snapshot.node.name or "unknown"
    for device in devices:
        sample = samples.get(device.key)
        if sample is None:
            continue
        prefixes: dict[tuple[str, ...], str] = {}
        for reading in sample.readings:
            family = families.get(reading.family)
            if family is None or len(reading.labels) != len(family.labels):
                continue
            users: Iterable[tuple[str, str, str, str]]
            if POD_UID in family.labels:
                uid = reading.labels[family.labels.index(POD_UID)]
                users = (names.get(uid, NO_NAMES),)
            else:
                key = key_of_users(device, _slice_name(family, reading.labels))
                users = (pod.values for pod in pods.get(key, (UNUSED,)))
            extra = labels.suffix(family.labels, reading.labels) if family.labels else ""
            for pod_values in users:
                prefix = prefixes.get(pod_values)
                if prefix is None:
                    prefix = _reading_labels(device, pod_values, labels, node)
                    prefixes[pod_values] = prefix
                lines[reading.family][f"{prefix}{extra}"] = reading.value
    for name, values in lines.items():
        yield (
            name,
            [sample_line(name, label_prefix, value) for label_prefix, value in values.items()],
        )


def _slice_name(family: MetricFamily, label_values: tuple[str, ...]) -> str:
    if not family.slice_label:
        return ""
    return label_values[family.labels.index(family.slice_label)]


GPUDIRECT_NAME = "xpu_gpudirect_ready"

GPUDIRECT_LABELS = ("node", "gpu", "rdma")

GPUDIRECT_OK, GPUDIRECT_UNKNOWN = "ok", "unknown"


def gpudirect_series(
    pairs: tuple[GpuDirectPair, ...], labels: LabelCache, node: str
) -> SeriesLines:
    """Yield 1 for a pair that is ready and 0 for one that is slow or not possible; else nothing."""
    yield (
        GPUDIRECT_NAME,
        [
            sample_line(
                GPUDIRECT_NAME,
                labels.prefix(GPUDIRECT_LABELS, (node, pair.gpu, pair.nic)),
                int(pair.verdict == GPUDIRECT_OK),
            )
            for pair in pairs
            if pair.verdict != GPUDIRECT_UNKNOWN
        ],
    )
