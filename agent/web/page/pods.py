"""The table of pods: what each one was granted, got, is held to, and what was verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from urllib.parse import quote

import msgspec

from agent.snapshot.allocation import (
    MEMORY,
    RATIO,
    AllocatedDevice,
    ContainerVerification,
    PodAllocation,
    VerificationStatus,
)
from agent.snapshot.device import short_name
from agent.snapshot.device_plugin import KubeletAllocation
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import KubeQos, PodView
from agent.snapshot.self_check import DesiredFile
from agent.snapshot.usage import CgroupUsage
from agent.web.page.html import anchor, badge, bytes_text, grid, section, tag, text
from agent.wire_formats.annotations import qos_class

MAX_ROWS = 20  # pods of the first page; those with a problem or with devices come first
MAX_ALL_ROWS = 1000  # pods of the page that has them all
MAX_DEVICES = 8  # devices of one pod
MAX_FILES = 4  # names of files of one pod
MAX_MESSAGE = 300  # characters
COLUMNS = ("pod", "class", "granted", "injected", "enforced", "verified", "cores", "memory")
_VERDICT_STATES = {
    VerificationStatus.VERIFIED: "healthy",
    VerificationStatus.MISSING: "failed",
    VerificationStatus.EXCESS: "failed",
    VerificationStatus.UNKNOWN: "unmanaged",
}
_WAYS = {"nri": "by the runtime (NRI)", "kubelet": "by the kubelet"}


class PodRow(msgspec.Struct, frozen=True, kw_only=True):
    """All facts about one pod that its row shows."""

    pod: PodView
    names: Mapping[str, str] = MappingProxyType({})  # of devices and slices, by every id of them
    allocation: PodAllocation | None = None
    kubelet: tuple[KubeletAllocation, ...] = ()
    missed: tuple[str, ...] = ()  # why containers started without the edits of their devices
    written: tuple[DesiredFile, ...] = ()
    planned: tuple[DesiredFile, ...] = ()
    verdicts: tuple[ContainerVerification, ...] = ()
    usage: CgroupUsage | None = None

    @property
    def is_wrong(self) -> bool:
        """Return whether the pod does not have what it must have."""
        is_refused = self.allocation is not None and bool(self.allocation.refusal)
        return is_refused or bool(self.missed) or any(one.verdict.is_wrong for one in self.verdicts)

    @property
    def has_devices(self) -> bool:
        """Return whether the pod has devices, or containers that were verified."""
        return self.allocation is not None or bool(self.kubelet) or bool(self.verdicts)


def pod_rows(snapshot: NodeSnapshot) -> list[PodRow]:
    """Return all pods: those with a problem first, then those with devices, then the busiest."""
    allocations, usage = snapshot.allocations.value.pods, snapshot.usage.value.pods
    pods = {pod.uid: pod for pod in snapshot.pods.value}
    verdicts = _verdicts_by_pod(snapshot)
    for uid in [*allocations, *verdicts]:
        if uid not in pods:
            pods[uid] = _unlisted_pod(uid, allocations.get(uid), verdicts.get(uid, ()))
    kubelet: dict[str, list[KubeletAllocation]] = {}
    for one in snapshot.served.value.held or snapshot.kubelet_devices.value:
        kubelet.setdefault(one.pod_uid, []).append(one)
    desired = snapshot.desired_files
    written = _files_by_pod((*desired.hooks, *desired.strategies), pods)
    planned = _files_by_pod((*desired.planned_hooks, *desired.planned_strategies), pods)
    missed = snapshot.runtime.value.missed
    names = _device_names(snapshot)
    rows = [
        PodRow(
            pod=pod,
            names=names,
            allocation=allocations.get(pod.uid),
            kubelet=tuple(kubelet.get(pod.uid, ())),
            missed=tuple(
                f"{one.name or one.id[:12]}: {missed[one.id]}"
                for one in pod.containers
                if one.id in missed
            )
            if missed
            else (),
            written=tuple(written.get(pod.uid, ())),
            planned=tuple(planned.get(pod.uid, ())),
            verdicts=verdicts.get(pod.uid, ()),
            usage=usage.get(pod.uid),
        )
        for pod in pods.values()
    ]
    return sorted(rows, key=_row_order)


def _row_order(row: PodRow) -> tuple[bool, bool, float, str, str]:
    cores = row.usage.cpu_cores if row.usage is not None else None
    load = -(cores or 0.0)
    return not row.is_wrong, not row.has_devices, load, row.pod.namespace, row.pod.name


def _unlisted_pod(
    uid: str, allocation: PodAllocation | None, verdicts: Sequence[ContainerVerification]
) -> PodView:
    """Return a pod that is known by its allocation or its verification only."""
    namespace = allocation.namespace if allocation is not None else verdicts[0].namespace
    name = allocation.name if allocation is not None else verdicts[0].pod
    return PodView(uid=uid, qos=KubeQos.BEST_EFFORT, namespace=namespace, name=name)


def _verdicts_by_pod(snapshot: NodeSnapshot) -> Mapping[str, tuple[ContainerVerification, ...]]:
    verdicts: dict[str, list[ContainerVerification]] = {}
    for _, proof in sorted(snapshot.verification.value.containers.items()):
        verdicts.setdefault(proof.pod_uid, []).append(proof)
    return {uid: tuple(proofs) for uid, proofs in verdicts.items()}


def _files_by_pod(
    files: Sequence[DesiredFile], pods: Mapping[str, PodView]
) -> dict[str, list[DesiredFile]]:
    """Return the files of each pod: those of its group, and of the groups of its containers."""
    uids = {pod.cgroup: pod.uid for pod in pods.values() if pod.cgroup}
    by_pod: dict[str, list[DesiredFile]] = {}
    for file in files:
        uid = uids.get(file.cgroup) or uids.get(file.cgroup.rpartition("/")[0])
        if uid is not None:
            by_pod.setdefault(uid, []).append(file)
    return by_pod


def pods_section(snapshot: NodeSnapshot) -> str:
    """Return the pods that matter most, with a link to the page that has all."""
    rows = pod_rows(snapshot)
    if not rows:
        note = "No pod's control group was found on this host."
        return section("pods", "Pods", tag("p", note, class_="quiet"))
    shown = rows[:MAX_ROWS]
    caption, link = "Pods of this node", ""
    if len(shown) < len(rows):
        caption = f"{len(shown)} of {len(rows)} pods: problems first, then devices, then load"
        link = tag("p", tag("a", f"all {len(rows)} pods", href="/pods"))
    return section("pods", "Pods", _pods_table(shown, caption), link)


def all_pods_section(snapshot: NodeSnapshot) -> str:
    """Return every pod, for a page of its own; more than a thousand are counted."""
    rows = pod_rows(snapshot)
    shown = rows[:MAX_ALL_ROWS]
    caption = "All pods: problems first, then devices, then load"
    if len(shown) < len(rows):
        caption = f"{len(shown)} of {len(rows)} pods: the others are in /api/v1/snapshot"
    return section("pods", "Pods", _pods_table(shown, caption))


def _pods_table(rows: Sequence[PodRow], caption: str) -> str:
    ids = [anchor("pod", row.pod.uid) for row in rows]
    return grid(COLUMNS, map(_pod_cells, rows), caption, "pods", ids=ids)


def _pod_cells(row: PodRow) -> list[str]:
    pod, usage = row.pod, row.usage
    cores = usage.cpu_cores if usage is not None else None
    return [
        _name(pod),
        text(qos_class(pod) if pod.name else pod.qos.value),
        _granted(row),
        _injected(row),
        _enforced(row),
        "".join(map(_verdict, row.verdicts)) or "–",
        text(None if cores is None else f"{cores:.3f}"),
        bytes_text(usage.memory_bytes if usage is not None else None),
    ]


def _name(pod: PodView) -> str:
    """Return the pod's name as a link to its explanation, with its namespace."""
    if not pod.name:
        return tag("code", text(pod.uid))
    path = f"/api/v1/explain/pod/{quote(pod.namespace, safe='')}/{quote(pod.name, safe='')}"
    return tag("a", text(pod.name), href=path) + tag("div", text(pod.namespace), class_="quiet")


def _granted(row: PodRow) -> str:
    allocation = row.allocation
    if allocation is not None and allocation.refusal:
        message = allocation.message.removeprefix(f"{allocation.refusal}: ")  # shown already
        return badge("failed", allocation.refusal) + _line(message)
    names = [_device_text(one, row.names) for one in allocation.grant.devices] if allocation else []
    names += [
        f"{one.resource}: {', '.join(row.names.get(name, name) for name in one.device_ids)}"
        for one in row.kubelet
    ]
    more = len(names) - MAX_DEVICES
    lines = [_line(name) for name in names[:MAX_DEVICES]]
    return "".join([*lines, f"and {more} more" if more > 0 else ""]) or "–"


def _device_names(snapshot: NodeSnapshot) -> Mapping[str, str]:
    """Return the short name of each device and slice by its ids."""
    names: dict[str, str] = {}
    for device in snapshot.devices.value.devices:
        info, name = device.info, short_name(device)
        names.update(dict.fromkeys(filter(None, (info.uuid, info.bus_id)), name))
        names[f"{info.kind.wire_type} {info.minor}"] = name
        for part in info.partitions:
            names[part.uuid] = f"{part.profile} of {name}"
    return names


def _device_text(one: AllocatedDevice, short_names: Mapping[str, str]) -> str:
    id_ = one.id or f"{one.type} {one.minor}"
    names = short_names.get(id_, f"{one.type} {one.id or one.minor}")
    amounts = ", ".join(_amount_text(one.type, *pair) for pair in _telling_amounts(one))
    more = (amounts, one.template, ", ".join(one.vfs))
    return names + "".join(f"; {part}" for part in more if part)


def _telling_amounts(one: AllocatedDevice) -> tuple[tuple[str, int], ...]:
    """Return the amounts without the share of the memory, if the memory itself is known."""
    has_memory = one.amount(MEMORY) is not None
    return tuple(pair for pair in one.resources if not (has_memory and pair[0] == RATIO))


def _amount_text(type_: str, name: str, value: int) -> str:
    amount = bytes_text(value) if name == MEMORY else str(value)
    return f"{name.rpartition('/')[2].removeprefix(f'{type_}-')} {amount}"


def _injected(row: PodRow) -> str:
    """Return how the containers got their devices, as the verification found it."""
    ways = dict.fromkeys(_WAYS.get(one.way, one.way) for one in row.verdicts if one.way)
    missed = [badge("failed", "missed") + _line(words) for words in row.missed]
    return "".join([*missed, *map(_line, ways)]) or "–"


def _enforced(row: PodRow) -> str:
    """Return the files that are held at a value, and how many would be in plan mode."""
    names = list(dict.fromkeys(one.key_name for one in row.written))
    words = ", ".join(names[:MAX_FILES]) + (" …" if len(names) > MAX_FILES else "")
    parts = []
    if row.written:
        parts.append(
            _line(_count(len(row.written), "value")) + tag("div", text(words), class_="why")
        )
    if row.planned:
        parts.append(badge("probing", f"{_count(len(row.planned), 'value')} planned"))
    return "".join(parts) or "–"


def _verdict(proof: ContainerVerification) -> str:
    messages = f" {proof.container}" + "".join(f"; {detail}" for detail in proof.details)
    words = text(messages[:MAX_MESSAGE])
    return tag("div", badge(_VERDICT_STATES[proof.verdict], proof.verdict.value) + words)


def _line(words: str) -> str:
    return tag("div", text(words[:MAX_MESSAGE]))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
