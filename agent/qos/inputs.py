"""Builds the inputs of the strategies from the snapshot and the files in force."""

from __future__ import annotations

from collections.abc import Mapping

from agent.cgroup.keys import CPUS, CgroupKey, CgroupValue
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import ChangeLedger
from agent.cgroup.values import CgroupValues
from agent.errors import ParseError
from agent.qos.strategy import CurrentValues, NodeCapacity, QosContainer, QosInputs, QosPod
from agent.snapshot.cpu import CpuSet
from agent.snapshot.node import IdentityMemo, ItemMemo, NodeSnapshot
from agent.snapshot.pod import PodView
from agent.wire_formats.annotations import QOS_CLASSES, QOS_LABEL, priority_class, qos_class
from agent.wire_formats.quantities import parse_amount

ACTIVE_PHASES = ("Pending", "Running")
SAMPLE_INTERVALS = 2  # a usage sample that is older than so many intervals does not count


class LiveValues:
    """`CurrentValues` of the live host; for the thread that owns the files."""

    def __init__(self, values: CgroupValues, ledger: ChangeLedger) -> None:
        self._values = values
        self._ledger = ledger

    def value(self, cgroup: str, key: CgroupKey) -> CgroupValue | None:
        """Return the value of a cgroup file; `None`: there is no such file, or no number in it."""
        try:
            return self._values.read_value(cgroup, key)
        except ParseError:
            return None

    def original(self, cgroup: str, key: CgroupKey) -> CgroupValue | None:
        """Return the value before the agent's first write; `None`: the agent never wrote it."""
        entry = self._ledger.entries.get((self._values.hierarchy(key), cgroup, key.name))
        if entry is None or entry.inode != self._values.inode(cgroup, key):
            return None
        try:
            return key.from_ledger(entry.original)
        except ParseError:
            return None

    def effective_cpus(self, cgroup: str) -> CpuSet | None:
        """Return the CPUs that a cgroup may use; on version 1 each group has a list of its own."""
        if self._values.version == 2:
            return self._values.effective_cpus(cgroup)
        cpus = self.value(cgroup, CPUS)
        return cpus if isinstance(cpus, frozenset) else None


class QosInputBuilder:
    """Builds the inputs; pods and capacity only when they changed."""

    def __init__(self, interval_s: float) -> None:
        """`interval_s` is that of usage samples."""
        self._interval_s = interval_s
        self._pods = IdentityMemo[tuple[QosPod, ...]]()
        self._qos_pods = ItemMemo(_qos_pod)
        self._capacity = IdentityMemo[NodeCapacity]()

    def build(
        self, snapshot: NodeSnapshot, layout: CgroupLayout, current: CurrentValues, now_s: float
    ) -> QosInputs:
        """Return the inputs of one cycle."""
        views, usage = snapshot.pods.value, snapshot.usage
        age_s = usage.age_s(now_s)
        is_current = age_s is not None and age_s <= SAMPLE_INTERVALS * self._interval_s
        cluster = snapshot.cluster
        return QosInputs(
            now_s=now_s,
            slo=cluster.slo.value.slo,
            usage=usage.value if is_current else None,
            usage_taken_s=usage.taken_s,
            node=self._capacity.get(
                (cluster.node.value, snapshot.cpus.value, usage.value.node.memory_total_bytes),
                lambda: node_capacity(snapshot),
            ),
            pods=self._pods.get((views,), lambda: qos_pods(views, self._qos_pods)),
            has_pods=cluster.has_pod_list or any(pod.name for pod in views),
            pod_views=views,
            pressure=snapshot.pressure.value,
            cpus=snapshot.cpus.value,
            cluster=cluster,
            layout=layout,
            current=current,
        )


def _qos_pod(view: PodView) -> QosPod:
    label = view.label(QOS_LABEL) or ""
    running = {
        container.name: container
        for container in view.containers
        if container.cgroup and container.name
    }
    return QosPod(
        view=view,
        label=label if label in QOS_CLASSES else "",
        qos_class=qos_class(view),
        priority_class=priority_class(view),
        is_active=view.phase in ACTIVE_PHASES,
        containers=tuple(
            QosContainer(id=running[spec.name].id, cgroup=running[spec.name].cgroup, resources=spec)
            for spec in view.resources or ()
            if spec.name in running
        ),
    )


def qos_pods(
    views: tuple[PodView, ...], memo: ItemMemo[PodView, QosPod] | None = None
) -> tuple[QosPod, ...]:
    """Return the pods whose spec is known, by uid; others have no name yet."""
    memo = memo or ItemMemo(_qos_pod)
    return tuple(memo.map(view for view in views if view.name))


def node_capacity(snapshot: NodeSnapshot) -> NodeCapacity:
    """Return the capacity of the Node object; that of the machine while there is none."""
    node = snapshot.cluster.node.value
    if node is not None and "cpu" in node.capacity:
        capacity = _amounts(node.capacity)
        return NodeCapacity(
            cpu_milli=capacity.get("cpu"),
            memory_bytes=capacity.get("memory"),
            allocatable=tuple(sorted(_amounts(node.allocatable).items())),
        )
    count = len(snapshot.cpus.value.cpus)
    return NodeCapacity(
        cpu_milli=count * 1000 or None,
        memory_bytes=snapshot.usage.value.node.memory_total_bytes,
    )


def _amounts(quantities: Mapping[str, str]) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for name, text in quantities.items():
        amount = parse_amount(text)
        if amount is not None and amount >= 0:
            amounts[name] = int(amount * 1000) if name == "cpu" else int(amount)
    return amounts
