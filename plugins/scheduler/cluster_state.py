"""Nodes, their devices, and the devices that pods use. For one thread; no I/O.

A node's `NodeState` is immutable and built again only after a change. Nodes whose states are equal
for decisions have one signature, so that a request is answered once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Set

import msgspec

from agent.snapshot.allocation import AllocatedDevice
from plugins.scheduler.devices.allocator import NodeState
from plugins.scheduler.devices.device_table import (
    MODEL_LABEL,
    NO_AMOUNTS,
    NO_LABELS,
    POLICY_LABEL,
    VENDOR_LABEL,
    Amounts,
    DeviceTable,
    Labels,
    NodeDevice,
)
from plugins.scheduler.devices.device_usage import sum_usage
from plugins.scheduler.devices.requests import ISOLATION_LABEL
from plugins.scheduler.numa.cpu_choice import NumaPod, NumaState
from plugins.scheduler.numa.cpu_request import (
    NODE_BIND_POLICY,
    NODE_NUMA_POLICY,
    NODE_NUMA_STRATEGY,
)
from plugins.scheduler.numa.node_cpus import CpuCapacity, NodeCpus
from plugins.scheduler.numa.status_annotation import NO_NUMA
from plugins.scheduler.pod_object import CPU, PodKey

DEFAULT_CAPACITY = CpuCapacity()
NUMA_LABELS = (NODE_BIND_POLICY, NODE_NUMA_POLICY, NODE_NUMA_STRATEGY)
DECISIVE_LABELS = (VENDOR_LABEL, MODEL_LABEL, POLICY_LABEL, ISOLATION_LABEL)

Allocation = tuple[AllocatedDevice, ...]


class AssignedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that is on a node, or is assumed to be: its binding was sent."""

    key: PodKey
    node: str
    allocation: Allocation = ()
    numa: NumaPod = NO_NUMA
    amounts: Amounts = NO_AMOUNTS  # CPU, memory and huge pages that it requests
    is_assumed: bool = False

    @property
    def has_record(self) -> bool:
        """Return whether CPUs or NUMA nodes of the pod are recorded."""
        return bool(self.numa.cpus or self.numa.amounts)


class Plan(msgspec.Struct, frozen=True):
    """Pods that are placed together. They wait for each other when they come to be bound."""

    name: str  # as in reasons: `gang ml/job`
    wait_s: float = 20.0  # less than kube-scheduler waits for an answer


class _Node:
    """One node; the states are `None` after a change."""

    __slots__ = (
        "capacity",
        "cpus",
        "has_device_object",
        "labels",
        "name",
        "numa",
        "pods",
        "state",
        "table",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.labels: Labels | None = None  # None: the Node object is not known
        self.capacity = DEFAULT_CAPACITY
        self.has_device_object = False
        self.table: DeviceTable | None = None  # stays, out of service, without the object
        self.cpus: NodeCpus | None = None
        self.pods: dict[str, AssignedPod] = {}  # by uid
        self.state: NodeState | None = None
        self.numa: NumaState | None = None


class _Signatures:
    """A number for each node, computed again only after changes.

    Nodes with one number are equal for decisions.
    """

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self._numbers: dict[Hashable, int] = {}
        self._next = 0
        self._of_node: dict[str, int] = {}

    def update(self, nodes: Container[str], content: Callable[[str], Hashable]) -> None:
        """Compute the numbers of changed nodes, and drop those of removed nodes."""
        for name in self.changed:
            if name in nodes:
                self._of_node[name] = self._number(content(name))
            else:
                self._of_node.pop(name, None)
        self.changed.clear()

    def of(self, names: Iterable[str]) -> list[int | None]:
        """Return the number of each node; `None` for unknown nodes."""
        return list(map(self._of_node.get, names))

    def _number(self, content: Hashable) -> int:
        number = self._numbers.get(content)
        if number is None:
            if len(self._numbers) >= MAX_SIGNATURES:  # numbers are never used again
                self._numbers.clear()
            number = self._numbers[content] = self._next
            self._next += 1
        return number


class ClusterState:
    """All nodes by name, with the pods on them."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._pods: dict[str, AssignedPod] = {}  # by uid
        self._plans: dict[str, Plan] = {}  # that hold devices, by uid of the pod
        self._device_signatures = _Signatures()
        self._numa_signatures = _Signatures()
        self._with_policy: set[str] = set()

    def set_node(self, name: str, labels: Labels, capacity: CpuCapacity = DEFAULT_CAPACITY) -> None:
        """Add or replace a Node object."""
        node = self._node(name)
        if node.labels != labels or node.capacity != capacity:
            node.labels, node.capacity = labels, capacity
            self._mark_changed(node)

    def remove_node(self, name: str) -> None:
        """Remove a Node object; its pods count until they are removed."""
        node = self._nodes.get(name)
        if node is not None:
            node.labels = None
            self._mark_changed(node)
            self._drop_if_empty(node)

    def set_devices(self, table: DeviceTable) -> None:
        """Add or replace the devices of a node; their usage by pods stays."""
        node = self._node(table.node)
        node.has_device_object = True
        if node.table != table:
            node.table = table
            self._mark_changed(node)

    def remove_devices(self, name: str) -> None:
        """Take a node's devices out of service: its Device object was deleted."""
        node = self._nodes.get(name)
        if node is not None and node.table is not None:
            node.has_device_object = False
            node.table = _without_amounts(node.table)
            self._mark_changed(node)
            self._drop_if_empty(node)

    def set_cpus(self, cpus: NodeCpus) -> None:
        """Add or replace the CPUs and NUMA nodes of a node."""
        node = self._node(cpus.node)
        if node.cpus != cpus:
            node.cpus = cpus
            self._mark_changed(node)

    def remove_cpus(self, name: str) -> None:
        """Remove CPUs and NUMA nodes: the NodeResourceTopology was deleted."""
        node = self._nodes.get(name)
        if node is not None:
            node.cpus = None
            self._mark_changed(node)
            self._drop_if_empty(node)

    def set_pod(self, pod: AssignedPod) -> None:
        """Add or replace a pod; equal ones change nothing. A bound pod leaves its plan."""
        if not pod.is_assumed:
            self._plans.pop(pod.key.uid, None)
        before = self._pods.get(pod.key.uid)
        if before == pod:
            return
        if before is not None:
            self._remove(before)
        self._pods[pod.key.uid] = pod
        node = self._node(pod.node)
        node.pods[pod.key.uid] = pod
        self._mark_pods_changed(node, pod)

    def remove_pod(self, uid: str) -> AssignedPod | None:
        """Release the devices of a pod that ended or was deleted; return the pod."""
        self._plans.pop(uid, None)
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._remove(pod)
        return pod

    def pod(self, uid: str) -> AssignedPod | None:
        """Return a pod, also an assumed one."""
        return self._pods.get(uid)

    def pods(self) -> Iterator[AssignedPod]:
        """Yield the pods of all nodes."""
        yield from self._pods.values()

    def hold(self, pod: AssignedPod, plan: Plan) -> None:
        """Hold what a plan gives to a pod that is to be bound, until it is or the plan ends."""
        self.set_pod(pod)
        self._plans[pod.key.uid] = plan

    def release_plan(self, plan: Plan) -> None:
        """Release what a plan holds, except of pods whose binding is being sent."""
        for uid in self.uids_of_plan(plan):
            del self._plans[uid]
            if not self._pods[uid].is_assumed:
                self.remove_pod(uid)

    @property
    def planned_count(self) -> int:
        """Return for how many pods that are not being bound a plan holds devices."""
        return sum(not self._pods[uid].is_assumed for uid in self._plans)

    def uids_of_plan(self, plan: Plan) -> frozenset[str]:
        """Return the pods of a plan that are not bound yet."""
        return frozenset(uid for uid, one in self._plans.items() if one == plan)

    def plan_of(self, uid: str) -> Plan | None:
        """Return the plan that holds devices for a pod."""
        return self._plans.get(uid)

    def hold_of(self, uid: str) -> AssignedPod | None:
        """Return a pod for which devices are held; `None` for bound and unknown ones."""
        pod = self._pods.get(uid)
        return pod if pod is not None and (pod.is_assumed or uid in self._plans) else None

    def pods_of(self, node: str) -> tuple[AssignedPod, ...]:
        """Return the pods of a node."""
        entry = self._nodes.get(node)
        return () if entry is None else tuple(entry.pods.values())

    def node_names(self) -> Iterator[str]:
        """Yield the nodes whose Node object is known."""
        return (name for name, node in self._nodes.items() if node.labels is not None)

    def has_node(self, name: str) -> bool:
        """Return whether a Node object of this name is known."""
        node = self._nodes.get(name)
        return node is not None and node.labels is not None

    def state(self, name: str) -> NodeState:
        """Return the state of a node for decisions; an unknown one has no devices."""
        node = self._nodes.get(name)
        if node is None:
            return NodeState(name=name)
        if node.state is None:
            node.state = self.state_without(name, ())
        return node.state

    def state_without(self, name: str, uids: Iterable[str]) -> NodeState:
        """Return the state that a node would have without some of its pods."""
        node = self._nodes.get(name)
        if node is None:
            return NodeState(name=name)
        excluded = frozenset(uids)
        allocations = (pod.allocation for uid, pod in node.pods.items() if uid not in excluded)
        return NodeState(
            name=name,
            labels=node.labels or NO_LABELS,
            table=node.table,
            usage=sum_usage(allocations, node.table),
        )

    def numa_state(self, name: str) -> NumaState:
        """Return the state of CPUs and NUMA nodes for decisions; an unknown node has none."""
        node = self._nodes.get(name)
        if node is None:
            return NumaState()
        if node.numa is None:
            node.numa = self.numa_state_without(name, ())
        return node.numa

    def numa_state_without(self, name: str, uids: Iterable[str]) -> NumaState:
        """Return the state of CPUs and NUMA nodes without some of the pods."""
        node = self._nodes.get(name)
        if node is None:
            return NumaState()
        excluded = frozenset(uids)
        pods = [pod for uid, pod in node.pods.items() if uid not in excluded]
        is_amplified = node.capacity.ratio != 1
        reserved = frozenset[str]() if node.cpus is None else node.cpus.reserved_uids
        return NumaState(
            labels=node.labels or NO_LABELS,
            cpus=node.cpus,
            pods=tuple(pod.numa for pod in pods if pod.has_record),
            capacity=node.capacity if is_amplified else DEFAULT_CAPACITY,
            requested_milli=sum(pod.amounts.get(CPU, 0) for pod in pods) if is_amplified else 0,
            unrecorded=_sum(
                _without_cpu(pod.amounts) if pod.key.uid in reserved else pod.amounts
                for pod in pods
                if not pod.has_record
            ),
        )

    def nodes_with_numa_policy(self) -> Set[str]:
        """Return the nodes that require CPU sets, NUMA alignment or amplified CPU.

        On those nodes, CPUs and NUMA nodes matter to every pod.
        """
        self._device_signatures.update(self._nodes, self._device_content)
        return self._with_policy

    def signatures(self, names: Iterable[str], *, with_numa: bool = False) -> list[int | None]:
        """Return a number for each node; decisions about nodes of one number are equal.

        CPUs and NUMA nodes count on nodes with a policy for them, `with_numa` on all.
        Unknown nodes have `None`.
        """
        if with_numa:
            self._numa_signatures.update(self._nodes, self._numa_content)
            return self._numa_signatures.of(names)
        self._device_signatures.update(self._nodes, self._device_content)
        return self._device_signatures.of(names)

    def _device_content(self, name: str) -> Hashable:
        node = self._nodes[name]
        numa = NumaState(labels=node.labels or NO_LABELS, cpus=node.cpus, capacity=node.capacity)
        if numa.has_policy:
            self._with_policy.add(name)
            return self._numa_content(name)
        self._with_policy.discard(name)
        return signature_content(self.state(name))

    def _numa_content(self, name: str) -> Hashable:
        return signature_content(self.state(name)), numa_content(self.numa_state(name))

    def _node(self, name: str) -> _Node:
        return self._nodes.setdefault(name, _Node(name))

    def _mark_changed(self, node: _Node) -> None:
        node.state = node.numa = None
        self._device_signatures.changed.add(node.name)
        self._numa_signatures.changed.add(node.name)

    def _mark_pods_changed(self, node: _Node, pod: AssignedPod) -> None:
        """Mark the parts that a new or removed pod changes: for most pods not the devices."""
        if pod.allocation or node.name in self._with_policy:
            self._mark_changed(node)
        else:
            node.numa = None
            self._numa_signatures.changed.add(node.name)

    def _remove(self, pod: AssignedPod) -> None:
        node = self._nodes.get(pod.node)
        if node is not None:
            node.pods.pop(pod.key.uid, None)
            self._mark_pods_changed(node, pod)
            self._drop_if_empty(node)

    def _drop_if_empty(self, node: _Node) -> None:
        has_object = node.labels is not None or node.has_device_object or node.cpus is not None
        if not has_object and not node.pods:
            del self._nodes[node.name]
            self._with_policy.discard(node.name)


MAX_SIGNATURES = 65536


def _without_amounts(table: DeviceTable) -> DeviceTable:
    devices = {
        kind: tuple(msgspec.structs.replace(device, total=NO_AMOUNTS) for device in of_kind)
        for kind, of_kind in table.devices.items()
    }
    return msgspec.structs.replace(table, devices=devices)


def signature_content(state: NodeState) -> Hashable:
    """Return the parts of a node's state that decisions read, without names and ids of the node."""
    labels = tuple(state.labels.get(name) for name in DECISIVE_LABELS)
    table, usage = state.table, state.usage
    if table is None:
        return labels
    used = tuple(sorted((key, _items(amounts)) for key, amounts in usage.amounts.items()))
    functions = tuple(sorted((key, tuple(sorted(ids))) for key, ids in usage.functions.items()))
    devices = tuple(
        _device_content(device) for kind in sorted(table.devices) for device in table.of(kind)
    )
    partitions = None if table.partitions is None else tuple(sorted(table.partitions.items()))
    return labels, _items(table.labels), devices, partitions, used, functions


def numa_content(state: NumaState) -> Hashable:
    """Return the CPUs and NUMA nodes that decisions read, without names of the node."""
    labels = tuple(state.labels.get(name) for name in NUMA_LABELS)
    pods = sorted(
        (tuple(sorted(pod.cpus)), pod.exclusive_policy, _zone_items(pod.amounts))
        for pod in state.pods
    )
    used = (tuple(pods), _items(state.unrecorded), state.capacity, state.requested_milli)
    cpus = state.cpus
    if cpus is None:
        return labels, used
    return (
        labels,
        used,
        tuple(cpus.places.values()),
        _zone_items(cpus.zones),
        cpus.reserved,
        cpus.is_full_cores_only,
        cpus.kubelet_numa_policy,
    )


def _zone_items(zones: Mapping[int, Amounts]) -> tuple[tuple[int, object], ...]:
    return tuple(sorted((number, _items(amounts)) for number, amounts in zones.items()))


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    total: dict[str, int] = {}
    for one in amounts:
        for name, amount in one.items():
            total[name] = total.get(name, 0) + amount
    return total


def _without_cpu(amounts: Amounts) -> Amounts:
    return {name: amount for name, amount in amounts.items() if name != CPU}


def _device_content(device: NodeDevice) -> Hashable:
    groups = tuple((_items(group.labels), group.functions) for group in device.function_groups)
    place = (device.has_topology, device.numa_node, device.socket, device.pcie, device.switch)
    return device.kind, device.minor, _items(device.total), _items(device.labels), place, groups


def _items(mapping: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(mapping.items()))
