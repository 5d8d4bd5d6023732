"""Names and labels of HAMi's monitor, new and old, and what of ours they stand for."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from agent.model.grant.sharing import SharedCard
from agent.model.inventory import DeviceSample
from agent.publish.families import Family

NEW, OLD = "hami", "hami_legacy"  # values of `metrics.aliases`
BUSY_FAMILY = "xpu_device_memory_busy_ratio"

_HOST = ("zone", "node", "device_index", "device_uuid", "device_type")
_HOST_OLD = ("zone", "nodeid", "deviceidx", "deviceuuid", "devicetype")
_CARD = ("zone", "namespace", "pod", "container", "vdevice_index", "device_uuid")
_CARD_OLD = ("zone", "podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
PARTS = ("context", "module", "data", "offset")  # labels of one old family, values as text

HostValue = Callable[[DeviceSample], float | None]
CardValue = Callable[[SharedCard, float | None], float | None]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One fact under both of its names."""

    new: str
    old: str = ""  # empty: it came after the old names
    help: str
    alias_of: str = ""


def _percent(sample: DeviceSample) -> float | None:
    return sample.core_percent


def _used(sample: DeviceSample) -> float | None:
    return sample.memory_used_bytes


def _memory_busy(sample: DeviceSample) -> float | None:
    busy = (reading.value for reading in sample.readings if reading.family == BUSY_FAMILY)
    return next((value * 100 for value in busy), None)


def _card_used(card: SharedCard, _: float | None) -> float:
    """Return the driver's figure where the library's count has drifted off."""
    return card.used_bytes if card.measured_bytes is None else card.measured_bytes


HOST_ROWS: tuple[tuple[Row, HostValue], ...] = (
    (
        Row(
            new="hami_host_gpu_memory_used_bytes",
            old="HostGPUMemoryUsage",
            help="Memory in use on a card.",
            alias_of="xpu_device_memory_used_bytes",
        ),
        _used,
    ),
    (
        Row(
            new="hami_host_gpu_utilization_ratio",
            old="HostCoreUtilization",
            help="Busy time of a card, 0 to 100.",
            alias_of="xpu_device_utilization_ratio",
        ),
        _percent,
    ),
    (
        Row(
            new="hami_host_gpu_memory_controller_utilization_ratio",
            help="Busy time of a card's memory, 0 to 100.",
            alias_of=BUSY_FAMILY,
        ),
        _memory_busy,
    ),
)
CARD_ROWS: tuple[tuple[Row, CardValue], ...] = (
    (
        Row(
            new="hami_vgpu_memory_used_bytes",
            old="vGPU_device_memory_usage_in_bytes",
            help="Memory that a container uses of a shared card.",
        ),
        _card_used,
    ),
    (
        Row(
            new="hami_vgpu_memory_limit_bytes",
            old="vGPU_device_memory_limit_in_bytes",
            help="Memory that a container may use of a shared card.",
        ),
        lambda card, _: card.limit_bytes,
    ),
    (
        Row(
            new="hami_container_device_memory_bytes",
            old="Device_memory_desc_of_container",
            help="Memory that a container uses of a shared card, of all kinds.",
        ),
        _card_used,
    ),
    (
        Row(
            new="hami_container_device_utilization_ratio",
            old="Device_utilization_desc_of_container",
            help="Busy time of a shared card for a container, in percent.",
        ),
        lambda card, _: card.core_percent,
    ),
    (
        Row(
            new="hami_container_last_kernel_elapsed_seconds",
            old="Device_last_kernel_of_container",
            help="Time since a container started a kernel on a shared card.",
        ),
        lambda _, idle_s: idle_s or None,
    ),
    (
        Row(new="hami_vgpu_memory_context_bytes", help="Memory of contexts on a shared card."),
        lambda card, _: card.context_bytes,
    ),
    (
        Row(new="hami_vgpu_memory_module_bytes", help="Memory of modules on a shared card."),
        lambda card, _: card.module_bytes,
    ),
    (
        Row(new="hami_vgpu_memory_buffer_bytes", help="Memory of buffers on a shared card."),
        lambda card, _: card.buffer_bytes,
    ),
)
DESCRIBED = "Device_memory_desc_of_container"
NODELESS = "hami_host_gpu_memory_controller_utilization_ratio"


def labels_of(row: Row, *, host: bool, old: bool) -> tuple[str, ...]:
    """Return the labels of one of a row's names; those of the parts come last."""
    if host:
        new = tuple(name for name in _HOST if name != "node" or row.new != NODELESS)
        return _HOST_OLD if old else new
    more = PARTS if row.old == DESCRIBED else ()
    return (*_CARD_OLD, *more) if old else _CARD


def _family(row: Row, *, host: bool, old: bool) -> Family:
    name = row.old if old else row.new
    unit = next((unit for unit in ("bytes", "seconds") if row.new.endswith(f"_{unit}")), "")
    return Family(
        name=name,
        type="gauge",
        help=row.help,
        labels=labels_of(row, host=host, old=old),
        unit="" if old else unit,
        stability="alpha",
        alias_of=row.new if old else row.alias_of,
    )


def hami_families(aliases: tuple[str, ...]) -> tuple[Family, ...]:
    """Return the families that `metrics.aliases` asks for."""
    rows = [(row, True) for row, _ in HOST_ROWS] + [(row, False) for row, _ in CARD_ROWS]
    new = [_family(row, host=host, old=False) for row, host in rows if NEW in aliases]
    old = [_family(row, host=host, old=True) for row, host in rows if OLD in aliases and row.old]
    return (*new, *old)
