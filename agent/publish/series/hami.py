"""What HAMi's monitor exports, under its names: for dashboards and alerts that exist already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent.model.device import Device, DeviceKind
from agent.model.grant.sharing import SharedCard, SharedRegion, SharingView
from agent.model.inventory import DeviceSample
from agent.model.pod import PodView
from agent.model.snapshot import NodeSnapshot
from agent.publish.series.hami_names import (
    CARD_ROWS,
    DESCRIBED,
    HOST_ROWS,
    NEW,
    NODELESS,
    OLD,
    PARTS,
    Row,
    labels_of,
)
from agent.publish.series.text import Labels, Series, line, pairs

ZONE = "vGPU"  # constant in every series of HAMi's
MAX_UUID = 40  # characters that a container's series repeat


def hami_series(
    snapshot: NodeSnapshot,
    fresh: Mapping[str, DeviceSample],  # by device key
    aliases: tuple[str, ...],
    labels: Labels,
    *,
    sharing_is_fresh: bool,
) -> Series:
    """Yield the families that are asked for; what nobody told has no sample."""
    named = [(key, key == OLD) for key in (NEW, OLD) if key in aliases]
    hosts = list(_hosts(snapshot, fresh))
    view = snapshot.sharing.value if sharing_is_fresh else SharingView()
    shares = list(_shares(view, snapshot.pods.value))
    for _, old in named:
        for host_row, host_value in HOST_ROWS:
            if host_row.old or not old:
                yield _lines(
                    host_row, labels, [(v, host_value(s)) for v, s in hosts], host=True, old=old
                )
        for row, value in CARD_ROWS:
            if row.old or not old:
                told = [
                    ((*values, *_parts(row, card, old=old)), value(card, idle_s))
                    for values, card, idle_s in shares
                ]
                yield _lines(row, labels, told, host=False, old=old)


def _lines(
    row: Row,
    labels: Labels,
    told: list[tuple[tuple[str, ...], float | None]],
    *,
    host: bool,
    old: bool,
) -> tuple[str, list[str]]:
    name, names = row.old if old else row.new, labels_of(row, host=host, old=old)
    skipped = 1 if row.new == NODELESS else None  # where the node's name stands
    found: dict[str, float] = {}
    for values, value in told:
        if value is None:
            continue
        kept = tuple(text for at, text in enumerate(values) if at != skipped)
        moving = names[-1] == PARTS[-1]  # labels that differ each time are not kept
        found["{" + pairs(names, kept) if moving else labels.open(names, kept)] = value
    return name, [line(name, opened, value) for opened, value in found.items()]


def _hosts(
    snapshot: NodeSnapshot, fresh: Mapping[str, DeviceSample]
) -> Iterator[tuple[tuple[str, ...], DeviceSample]]:
    node = snapshot.node.name or "unknown"
    for device in snapshot.devices.value.devices:
        sample = fresh.get(device.key)
        if sample is not None and device.info.vendor == "nvidia" and _is_card(device):
            facts = dict(device.info.facts)
            name = facts.get("name") or device.info.model
            kind = f"NVIDIA-{name}" if name else "NVIDIA"
            yield (ZONE, node, facts.get("index", ""), device.info.uuid or "", kind), sample


def _is_card(device: Device) -> bool:
    return device.info.kind is not DeviceKind.RDMA


def _shares(
    view: SharingView, pods: tuple[PodView, ...]
) -> Iterator[tuple[tuple[str, ...], SharedCard, float | None]]:
    """Yield each container's cards; a pod whose name nobody tells is called by its uid."""
    known = {pod.uid: pod for pod in pods}
    for region in view.regions:
        pod = known.get(region.pod_uid)
        name = (pod.name if pod else "") or region.pod_uid
        who = (ZONE, pod.namespace if pod else "", name, region.container)
        idle_s = _idle_s(region, view.wall_s)
        for card in region.cards:
            yield (*who, str(card.index), card.uuid[:MAX_UUID]), card, idle_s


def _idle_s(region: SharedRegion, wall_s: float) -> float | None:
    return None if region.last_kernel_s is None else max(0.0, wall_s - region.last_kernel_s)


def _parts(row: Row, card: SharedCard, *, old: bool) -> tuple[str, ...]:
    """Return the values that one old family has as labels."""
    if not old or row.old != DESCRIBED:
        return ()
    parts = (card.context_bytes, card.module_bytes, card.buffer_bytes, card.offset_bytes)
    return tuple(map(str, parts))
