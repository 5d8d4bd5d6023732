"""The metrics of HAMi's monitor under its names, for existing dashboards and alerts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from agent.metrics.families import ExportedFamily
from agent.metrics.text_format import LabelCache, SeriesLines, label_pairs, sample_line
from agent.snapshot.inventory import DeviceSample
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import PodView
from agent.snapshot.usage import SharedCard, SharedRegion, SharingView
from agent.snapshot.vendor import AliasMatch, AliasSource, AliasTable, MetricAlias
from agent.wire_formats.device_info import is_cuda_device

HAMI_ALIAS, HAMI_LEGACY_ALIAS = "hami", "hami_legacy"  # values of `metrics.aliases`
BUSY_FAMILY = "xpu_device_memory_busy_ratio"
_HOST = ("zone", "node", "device_index", "device_uuid", "device_type")
_HOST_OLD = ("zone", "nodeid", "deviceidx", "deviceuuid", "devicetype")
_CARD = ("zone", "namespace", "pod", "container", "vdevice_index", "device_uuid")
_CARD_OLD = ("zone", "podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")

# labels of one old family, whose values are text
MEMORY_PART_LABELS = ("context", "module", "data", "offset")

HostValue = Callable[[DeviceSample], float | None]

CardValue = Callable[[SharedCard, float | None], float | None]


class AliasFamily(msgspec.Struct, frozen=True, kw_only=True):
    """One fact under both of its names."""

    new: str
    old: str = ""  # empty: the fact has no old name
    help: str
    alias_of: str = ""
    difference: str = ""  # from HAMi's value


_DRIVER_COUNTS = "What the driver counts, where HAMi's library counts something else."
_MIG_REASON = "Slices and their pods are in the series of dcgm-exporter's names."
_ABSENT: Mapping[str, Mapping[str, str]] = {  # by alias
    HAMI_ALIAS: {
        "hami_build_info": "The agent is another program: xpu_agent_build_info has its version.",
        "hami_mig_device_info": _MIG_REASON,
    },
    HAMI_LEGACY_ALIAS: {"MigInfo": _MIG_REASON},
}


def _core_percent(sample: DeviceSample) -> float | None:
    return sample.core_percent


def _memory_used(sample: DeviceSample) -> float | None:
    return sample.memory_used_bytes


def _memory_busy(sample: DeviceSample) -> float | None:
    busy = (reading.value for reading in sample.readings if reading.family == BUSY_FAMILY)
    return next((value * 100 for value in busy), None)


def _card_used(card: SharedCard, _: float | None) -> float:
    """Return the driver's value if the library's count differs from it."""
    return card.used_bytes if card.measured_bytes is None else card.measured_bytes


HOST_ROWS: tuple[tuple[AliasFamily, HostValue], ...] = (
    (
        AliasFamily(
            new="hami_host_gpu_memory_used_bytes",
            old="HostGPUMemoryUsage",
            help="Memory in use on a card.",
            alias_of="xpu_device_memory_used_bytes",
        ),
        _memory_used,
    ),
    (
        AliasFamily(
            new="hami_host_gpu_utilization_ratio",
            old="HostCoreUtilization",
            help="Busy time of a card, 0 to 100.",
            alias_of="xpu_device_utilization_ratio",
        ),
        _core_percent,
    ),
    (
        AliasFamily(
            new="hami_host_gpu_memory_controller_utilization_ratio",
            help="Busy time of a card's memory, 0 to 100.",
            alias_of=BUSY_FAMILY,
        ),
        _memory_busy,
    ),
)

CARD_ROWS: tuple[tuple[AliasFamily, CardValue], ...] = (
    (
        AliasFamily(
            new="hami_vgpu_memory_used_bytes",
            old="vGPU_device_memory_usage_in_bytes",
            help="Memory that a container uses of a shared card.",
            difference=_DRIVER_COUNTS,
        ),
        _card_used,
    ),
    (
        AliasFamily(
            new="hami_vgpu_memory_limit_bytes",
            old="vGPU_device_memory_limit_in_bytes",
            help="Memory that a container may use of a shared card.",
        ),
        lambda card, _: card.limit_bytes,
    ),
    (
        AliasFamily(
            new="hami_container_device_memory_bytes",
            old="Device_memory_desc_of_container",
            help="Memory that a container uses of a shared card, of all kinds.",
            difference=_DRIVER_COUNTS,
        ),
        _card_used,
    ),
    (
        AliasFamily(
            new="hami_container_device_utilization_ratio",
            old="Device_utilization_desc_of_container",
            help="Busy time of a shared card for a container, in percent.",
        ),
        lambda card, _: card.core_percent,
    ),
    (
        AliasFamily(
            new="hami_container_last_kernel_elapsed_seconds",
            old="Device_last_kernel_of_container",
            help="Time since a container started a kernel on a shared card.",
        ),
        lambda _, idle_s: idle_s or None,
    ),
    (
        AliasFamily(
            new="hami_vgpu_memory_context_bytes", help="Memory of contexts on a shared card."
        ),
        lambda card, _: card.context_bytes,
    ),
    (
        AliasFamily(
            new="hami_vgpu_memory_module_bytes", help="Memory of modules on a shared card."
        ),
        lambda card, _: card.module_bytes,
    ),
    (
        AliasFamily(
            new="hami_vgpu_memory_buffer_bytes", help="Memory of buffers on a shared card."
        ),
        lambda card, _: card.buffer_bytes,
    ),
)

MEMORY_DESCRIPTION = "Device_memory_desc_of_container"

FAMILY_WITHOUT_NODE = "hami_host_gpu_memory_controller_utilization_ratio"


def alias_labels(row: AliasFamily, *, host: bool, old: bool) -> tuple[str, ...]:
    """Return the labels of one of a row's names; those of the memory parts come last."""
    if host:
        new = tuple(name for name in _HOST if name != "node" or row.new != FAMILY_WITHOUT_NODE)
        return _HOST_OLD if old else new
    more = MEMORY_PART_LABELS if row.old == MEMORY_DESCRIPTION else ()
    return (*_CARD_OLD, *more) if old else _CARD


def _exported_family(row: AliasFamily, *, host: bool, old: bool) -> ExportedFamily:
    name = row.old if old else row.new
    unit = next((unit for unit in ("bytes", "seconds") if row.new.endswith(f"_{unit}")), "")
    return ExportedFamily(
        name=name,
        type="gauge",
        help=row.help,
        labels=alias_labels(row, host=host, old=old),
        unit="" if old else unit,
        stability="alpha",
        alias_of=row.new if old else row.alias_of,
    )


def hami_families(aliases: tuple[str, ...]) -> tuple[ExportedFamily, ...]:
    """Return the families of `metrics.aliases`."""
    rows = [(row, True) for row, _ in HOST_ROWS] + [(row, False) for row, _ in CARD_ROWS]
    new = [
        _exported_family(row, host=host, old=False) for row, host in rows if HAMI_ALIAS in aliases
    ]
    old = [
        _exported_family(row, host=host, old=True)
        for row, host in rows
        if HAMI_LEGACY_ALIAS in aliases and row.old
    ]
    return (*new, *old)


def hami_table(alias: str) -> AliasTable:
    """Return for each name of HAMi's monitor how far ours equals it, for the reference."""
    old = alias == HAMI_LEGACY_ALIAS
    rows = (row for row, _ in (*HOST_ROWS, *CARD_ROWS) if row.old or not old)
    exported = (
        MetricAlias(
            name=row.old if old else row.new,
            type="gauge",
            sources=(AliasSource(family=row.alias_of),) if row.alias_of else (),
            match=AliasMatch.NEAR if row.difference else AliasMatch.SAME,
            note=row.difference,
        )
        for row in rows
    )
    absent = (
        MetricAlias(name=name, type="gauge", match=AliasMatch.ABSENT, note=reason)
        for name, reason in _ABSENT[alias].items()
    )
    exporter = f"HAMi's monitor, {'up to' if old else 'since'} version 2.{8 if old else 9}"
    return AliasTable(name=alias, exporter=exporter, maker="", metrics=(*exported, *absent))


ZONE = "vGPU"  # constant in every series of HAMi

MAX_UUID = 40  # characters of a card's uuid in a container's series


def hami_series(
    snapshot: NodeSnapshot,
    samples: Mapping[str, DeviceSample],  # by device key
    aliases: tuple[str, ...],
    labels: LabelCache,
    *,
    sharing_is_fresh: bool,
) -> SeriesLines:
    """Yield the requested families; unknown values have no sample."""
    names = [
        (key, key == HAMI_LEGACY_ALIAS) for key in (HAMI_ALIAS, HAMI_LEGACY_ALIAS) if key in aliases
    ]
    hosts = list(_host_cards(snapshot, samples))
    view = snapshot.sharing.value if sharing_is_fresh else SharingView()
    shares = list(_shared_cards(view, snapshot.pods.value))
    for _, old in names:
        for host_row, host_value in HOST_ROWS:
            if host_row.old or not old:
                yield _host_lines(host_row, host_value, hosts, labels, old=old)
        # label texts are made once for all families; a share that is listed twice counts once
        card_labels = _CARD_OLD if old else _CARD
        cards = {
            labels.prefix(card_labels, values): (card, idle_s) for values, card, idle_s in shares
        }
        for row, value_of in CARD_ROWS:
            if row.old or not old:
                yield _card_lines(row, value_of, cards, old=old)


def _host_lines(
    row: AliasFamily,
    value_of: HostValue,
    hosts: list[tuple[tuple[str, ...], DeviceSample]],
    labels: LabelCache,
    *,
    old: bool,
) -> tuple[str, list[str]]:
    name, names = row.old if old else row.new, alias_labels(row, host=True, old=old)
    has_node = row.new != FAMILY_WITHOUT_NODE
    values_by_prefix = {
        labels.prefix(names, values if has_node else (values[0], *values[2:])): value_of(sample)
        for values, sample in hosts
    }
    return name, [
        sample_line(name, label_prefix, value)
        for label_prefix, value in values_by_prefix.items()
        if value is not None
    ]


def _card_lines(
    row: AliasFamily,
    value_of: CardValue,
    cards: Mapping[str, tuple[SharedCard, float | None]],  # and the idle time, by label prefix
    *,
    old: bool,
) -> tuple[str, list[str]]:
    name = row.old if old else row.new
    has_parts = old and row.old == MEMORY_DESCRIPTION
    return name, [
        sample_line(name, label_prefix, value, _memory_parts(card) if has_parts else "")
        for label_prefix, (card, idle_s) in cards.items()
        if (value := value_of(card, idle_s)) is not None
    ]


def _host_cards(
    snapshot: NodeSnapshot, samples: Mapping[str, DeviceSample]
) -> Iterator[tuple[tuple[str, ...], DeviceSample]]:
    node = snapshot.node.name or "unknown"
    for device in snapshot.devices.value.devices:
        sample = samples.get(device.key)
        if sample is not None and is_cuda_device(device.info):
            facts = dict(device.info.facts)
            name = facts.get("name") or device.info.model
            kind = f"NVIDIA-{name}" if name else "NVIDIA"
            yield (ZONE, node, facts.get("index", ""), device.info.uuid or "", kind), sample


def _shared_cards(
    view: SharingView, pods: tuple[PodView, ...]
) -> Iterator[tuple[tuple[str, ...], SharedCard, float | None]]:
    """Yield each container's cards; an unknown pod's name is its uid."""
    pods_by_uid = {pod.uid: pod for pod in pods}
    for region in view.regions:
        pod = pods_by_uid.get(region.pod_uid)
        name = (pod.name if pod else "") or region.pod_uid
        labels = (ZONE, pod.namespace if pod else "", name, region.container)
        idle_s = _idle_s(region, view.wall_s)
        for card in region.cards:
            yield (*labels, str(card.index), card.uuid[:MAX_UUID]), card, idle_s


def _idle_s(region: SharedRegion, wall_s: float) -> float | None:
    return None if region.last_kernel_s is None else max(0.0, wall_s - region.last_kernel_s)


def _memory_parts(card: SharedCard) -> str:
    """Return the values that one old family has as labels; they change with each sample."""
    sizes = (card.context_bytes, card.module_bytes, card.buffer_bytes, card.offset_bytes)
    return label_pairs(MEMORY_PART_LABELS, tuple(map(str, sizes)))
