"""Nodes, their devices, and what pods have of them. For one thread; no I/O.

A node's `NodeState` is immutable and built again after a change only. Nodes whose states differ in
nothing that a decision reads have one signature, so that a request is answered once for all of
them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping

import msgspec

from agent.snapshot.allocation import AllocatedDevice
from plugins.scheduler.devices.allocator import NodeState
from plugins.scheduler.devices.device_table import (
    MODEL_LABEL,
    NO_AMOUNTS,
    NO_LABELS,
    POLICY_LABEL,
    VENDOR_LABEL,
    DeviceTable,
    Labels,
    NodeDevice,
)
from plugins.scheduler.devices.device_usage import sum_usage
from plugins.scheduler.devices.requests import ISOLATION_LABEL

DECISIVE_LABELS = (VENDOR_LABEL, MODEL_LABEL, POLICY_LABEL, ISOLATION_LABEL)

Allocation = tuple[AllocatedDevice, ...]


class PodKey(msgspec.Struct, frozen=True):
    """A pod as events and API calls name it; the uid tells it from a later one of that name."""

    uid: str
    namespace: str
    name: str


class AssignedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that is on a node, or is assumed to be: its binding was sent."""

    key: PodKey
    node: str
    allocation: Allocation = ()
    is_assumed: bool = False


class _Node:
    """One node; `state` is `None` after a change."""

    __slots__ = ("labels", "name", "pods", "state", "table")

    def __init__(self, name: str) -> None:
        self.name = name
        self.labels: Labels | None = None  # None: the Node object is not known
        self.table: DeviceTable | None = None
        self.pods: dict[str, AssignedPod] = {}  # by uid: those with devices
        self.state: NodeState | None = None


class ClusterState:
    """All nodes by name. Pods without devices are not in it."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._pods: dict[str, AssignedPod] = {}  # by uid
        self._signatures: dict[Hashable, int] = {}
        self._next_signature = 0
        self._signature_of: dict[str, int] = {}  # by node; those in `_changed` are out of date
        self._changed: set[str] = set()

    def set_node(self, name: str, labels: Labels) -> None:
        """Add or replace a Node object."""
        node = self._node(name)
        if node.labels != labels:
            node.labels = labels
            self._mark_changed(node)

    def remove_node(self, name: str) -> None:
        """Forget a Node object; its pods stay counted until they are gone."""
        node = self._nodes.get(name)
        if node is not None:
            node.labels = None
            self._mark_changed(node)
            self._drop_if_empty(node)

    def set_devices(self, table: DeviceTable) -> None:
        """Add or replace the devices of a node; what pods use of them stays."""
        node = self._node(table.node)
        if node.table != table:
            node.table = table
            self._mark_changed(node)

    def remove_devices(self, name: str) -> None:
        """Take a node's devices out of service: its Device object was deleted."""
        node = self._nodes.get(name)
        if node is not None and node.table is not None:
            node.table = _without_amounts(node.table)
            self._mark_changed(node)

    def set_pod(self, pod: AssignedPod) -> None:
        """Add or replace a pod with devices; equal ones change nothing."""
        before = self._pods.get(pod.key.uid)
        if before == pod:
            return
        if before is not None:
            self._remove(before)
        self._pods[pod.key.uid] = pod
        node = self._node(pod.node)
        node.pods[pod.key.uid] = pod
        self._mark_changed(node)

    def remove_pod(self, uid: str) -> AssignedPod | None:
        """Release the devices of a pod that ended or was deleted; return what it was."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._remove(pod)
        return pod

    def pod(self, uid: str) -> AssignedPod | None:
        """Return a pod with devices, assumed ones included."""
        return self._pods.get(uid)

    def pods_of(self, node: str) -> tuple[AssignedPod, ...]:
        """Return the pods with devices of a node."""
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
        """Return what decisions read of a node; an unknown one has no devices."""
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

    def signatures(self, names: Iterable[str]) -> list[int | None]:
        """Return a number for each node; decisions about nodes of one number are equal.

        Unknown nodes have `None`.
        """
        if self._changed:
            for name in self._changed:
                if name in self._nodes:
                    self._signature_of[name] = self._signature(signature_content(self.state(name)))
                else:
                    self._signature_of.pop(name, None)
            self._changed.clear()
        return list(map(self._signature_of.get, names))

    def _signature(self, content: Hashable) -> int:
        number = self._signatures.get(content)
        if number is None:
            if len(self._signatures) >= MAX_SIGNATURES:  # numbers are never used again
                self._signatures.clear()
            number = self._signatures[content] = self._next_signature
            self._next_signature += 1
        return number

    def _node(self, name: str) -> _Node:
        return self._nodes.setdefault(name, _Node(name))

    def _mark_changed(self, node: _Node) -> None:
        node.state = None
        self._changed.add(node.name)

    def _remove(self, pod: AssignedPod) -> None:
        node = self._nodes.get(pod.node)
        if node is not None:
            node.pods.pop(pod.key.uid, None)
            self._mark_changed(node)
            self._drop_if_empty(node)

    def _drop_if_empty(self, node: _Node) -> None:
        if node.labels is None and node.table is None and not node.pods:
            del self._nodes[node.name]


MAX_SIGNATURES = 65536


def _without_amounts(table: DeviceTable) -> DeviceTable:
    devices = {
        kind: tuple(msgspec.structs.replace(device, total=NO_AMOUNTS) for device in of_kind)
        for kind, of_kind in table.devices.items()
    }
    return msgspec.structs.replace(table, devices=devices)


def signature_content(state: NodeState) -> Hashable:
    """Return what a decision reads of a node, without names and ids of the node's own."""
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


def _device_content(device: NodeDevice) -> Hashable:
    groups = tuple((_items(group.labels), group.functions) for group in device.function_groups)
    place = (device.has_topology, device.numa_node, device.socket, device.pcie, device.switch)
    return device.kind, device.minor, _items(device.total), _items(device.labels), place, groups


def _items(mapping: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(mapping.items()))
