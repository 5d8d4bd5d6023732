"""Families and series of storage: devices and mounts of the node, block IO of pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter

from agent.metrics.families import CONTAINER, NODE, POD, ExportedFamily
from agent.metrics.text_format import SeriesLines, label_pairs, sample_line
from agent.snapshot.usage import BlockDevice, DeviceIo, DiskCounters, StorageUsage

DISK = (*NODE, "device")
DISK_INFO = (*DISK, "number", "kind", "parents", "volume_group", "logical_volume")
MOUNT = (*DISK, "mount_point", "filesystem")
MAX_MOUNTS = 256
_VOLUMES_OF_PODS = ("/volumes/kubernetes.io~", "/volume-subpaths/")  # in paths of the kubelet

_Row = tuple[str, str, tuple[str, ...], str, str]  # name, type, labels, unit, help

_DISKS: tuple[_Row, ...] = (
    ("disk_info", "info", DISK_INFO, "", "A block device: its kind and what it is built on."),
    ("disk_size_bytes", "gauge", DISK, "bytes", "Size of a block device."),
    ("disk_reads_total", "counter", DISK, "", "Reads that a block device completed."),
    ("disk_read_bytes_total", "counter", DISK, "bytes", "Bytes read from a block device."),
    ("disk_writes_total", "counter", DISK, "", "Writes that a block device completed."),
    ("disk_written_bytes_total", "counter", DISK, "bytes", "Bytes written to a block device."),
    (
        *("disk_busy_seconds_total", "counter", DISK, "seconds"),
        "Time in which a block device had a request in progress.",
    ),
    (
        *("mount_info", "info", MOUNT, ""),
        "Where a block device is mounted; volumes of pods are left out.",
    ),
)

_IO: tuple[_Row, ...] = (
    ("storage_reads_total", "counter", ("device",), "", "Reads from a block device."),
    ("storage_read_bytes_total", "counter", ("device",), "bytes", "Bytes read from a device."),
    ("storage_writes_total", "counter", ("device",), "", "Writes to a block device."),
    (
        *("storage_written_bytes_total", "counter", ("device",), "bytes"),
        "Bytes written to a device; with cgroup v1 without writes through the page cache.",
    ),
)

STORAGE_FAMILIES: tuple[ExportedFamily, ...] = tuple(
    ExportedFamily(
        name=f"xpu_{scope}_{name}", type=kind, labels=(*labels, *more), unit=unit, help=text
    )
    for scope, labels, rows in (
        ("node", (), _DISKS),
        ("pod", POD, _IO),
        ("container", CONTAINER, _IO),
    )
    for name, kind, more, unit, text in rows
)


def _busy_s(counters: DiskCounters) -> float:
    return counters.busy_ms / 1000


_COUNTERS: tuple[tuple[str, Callable[[DiskCounters], float]], ...] = (
    ("disk_reads_total", attrgetter("reads")),
    ("disk_read_bytes_total", attrgetter("read_bytes")),
    ("disk_writes_total", attrgetter("writes")),
    ("disk_written_bytes_total", attrgetter("written_bytes")),
    ("disk_busy_seconds_total", _busy_s),
)

_IO_COUNTERS: tuple[tuple[str, Callable[[DeviceIo], float]], ...] = (
    ("storage_reads_total", attrgetter("reads")),
    ("storage_read_bytes_total", attrgetter("read_bytes")),
    ("storage_writes_total", attrgetter("writes")),
    ("storage_written_bytes_total", attrgetter("written_bytes")),
)


def node_storage_series(storage: StorageUsage, label_prefix: str) -> SeriesLines:
    """Yield the families of the node's storage; `label_prefix` has the labels of every sample."""
    name = "xpu_node_disk_info"
    yield (
        name,
        [sample_line(name, label_prefix, 1, _info_labels(device)) for device in storage.devices],
    )
    disks = [(label_pairs(("device",), (device.name,)), device) for device in storage.devices]
    name = "xpu_node_disk_size_bytes"
    yield name, [sample_line(name, label_prefix, one.size_bytes, extra) for extra, one in disks]
    for column, value_of in _COUNTERS:
        name = f"xpu_node_{column}"
        yield (
            name,
            [
                sample_line(name, label_prefix, value_of(one.counters), extra)
                for extra, one in disks
                if one.counters is not None
            ],
        )
    name = "xpu_node_mount_info"
    mounts = [
        label_pairs(MOUNT[1:], (mount.device, mount.path, mount.filesystem))
        for mount in storage.mounts
        if mount.is_whole and not any(part in mount.path for part in _VOLUMES_OF_PODS)
    ]
    yield name, [sample_line(name, label_prefix, 1, extra) for extra in mounts[:MAX_MOUNTS]]


def group_storage_series(
    storage: StorageUsage, pods: Mapping[str, str], containers: Mapping[str, str]
) -> SeriesLines:
    """Yield the families of pods, then of containers; arguments have labels by uid and by id."""
    names = {device.number: device.name for device in storage.devices}
    for scope, label_prefix, groups in (
        ("pod", pods, storage.pods),
        ("container", containers, storage.containers),
    ):
        rows = [
            (label_prefix[key], label_pairs(("device",), (names.get(number, number),)), io)
            for key, by_device in groups.items()
            if key in label_prefix
            for number, io in by_device.items()
        ]
        for column, value_of in _IO_COUNTERS:
            name = f"xpu_{scope}_{column}"
            lines = [sample_line(name, labels, value_of(io), extra) for labels, extra, io in rows]
            yield name, lines


def _info_labels(device: BlockDevice) -> str:
    return label_pairs(
        DISK_INFO[1:],
        (
            device.name,
            device.number,
            device.kind,
            ",".join(device.parents),
            device.volume_group,
            device.logical_volume,
        ),
    )
