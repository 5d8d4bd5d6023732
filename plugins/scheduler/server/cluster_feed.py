"""Brings what watches report of pods, nodes and devices into the state of the cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agent.clock import Clock
from agent.kube.api import ApiClient
from agent.kube.resources import DEVICES, NODES, PODS, TOPOLOGIES
from agent.kube.watch.cache import ObjectChanges
from agent.kube.watch.decoder import WatchedKind
from agent.kube.watch.machine import ListLimits
from agent.kube.watch.reflector import Reflector, WatchScope
from agent.snapshot.cluster import NodeView, WatchStatus
from agent.wire_formats.cluster_objects import NodeObject, node_facts
from agent.wire_formats.device_allocated import ANNOTATION
from agent.wire_formats.resource_status import RESOURCE_STATUS
from plugins.scheduler.cluster_state import ClusterState
from plugins.scheduler.devices.device_table import (
    NO_LABELS,
    DeviceObject,
    DeviceTable,
    device_table,
)
from plugins.scheduler.numa.cpu_request import RESOURCE_SPEC, numa_amounts
from plugins.scheduler.numa.node_cpus import NodeCpus, TopologyObject, cpu_capacity, node_cpus
from plugins.scheduler.pod_object import CPU, SchedulerPod, SchedulerPodObject, scheduler_pod
from plugins.scheduler.server.binding import assigned_pod, is_allocation_readable

CLUSTER_LIMITS = ListLimits(objects=200_000, pages=512, bytes=2 << 30)


def counted_pod(body: SchedulerPodObject) -> SchedulerPod | None:
    """Return a pod that counts on a node or may be bound; `None` for all others.

    Of a pod on a node it drops what does not count: most objects of a cluster are pods.
    """
    pod = scheduler_pod(body)
    if not pod.node and not pod.has_ended:
        return pod
    if pod.has_ended:
        return None
    annotations = {
        key: pod.annotations[key] for key in COUNTED_ANNOTATIONS if key in pod.annotations
    }
    amounts = numa_amounts(pod.amounts)
    if not annotations and not amounts:
        return None
    return SchedulerPod(
        key=pod.key,
        node=pod.node,
        amounts=amounts,
        annotations=annotations or NO_LABELS,
        resource_version=pod.resource_version,
    )


COUNTED_ANNOTATIONS = (ANNOTATION, RESOURCE_STATUS, RESOURCE_SPEC)
ALL_PODS: WatchedKind[SchedulerPodObject, SchedulerPod | None] = WatchedKind(
    resource=PODS, body_type=SchedulerPodObject, convert=counted_pod
)
ALL_NODES: WatchedKind[NodeObject, NodeView] = WatchedKind(
    resource=NODES, body_type=NodeObject, convert=node_facts
)
ALL_DEVICES: WatchedKind[DeviceObject, DeviceTable] = WatchedKind(
    resource=DEVICES, body_type=DeviceObject, convert=device_table
)
ALL_TOPOLOGIES: WatchedKind[TopologyObject, NodeCpus] = WatchedKind(
    resource=TOPOLOGIES, body_type=TopologyObject, convert=node_cpus
)


class PodChanges:
    """Pods: those that are bound count, those that are not are remembered for their binding."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._pending: dict[str, SchedulerPod] = {}  # by namespace/name
        self._uids: set[str] = set()  # of bound pods that the watch has reported
        self._unreadable: set[str] = set()  # bound pods whose allocation cannot be read

    def pending_pod(self, namespace: str, name: str) -> SchedulerPod | None:
        """Return a pod that is not bound; `None` if it is not known."""
        return self._pending.get(f"{namespace}/{name}")

    @property
    def unreadable_count(self) -> int:
        """Return how many bound pods have an allocation that cannot be read."""
        return len(self._unreadable)

    def replace_objects(self, values: Mapping[str, SchedulerPod | None]) -> None:
        """Take a complete list; a pod that is not in it is gone, unless it is being bound."""
        self._pending.clear()
        self._unreadable.clear()
        before, self._uids = self._uids, set()
        for key, pod in values.items():
            self.set_object(key, pod)
        for uid in before - self._uids:
            self._state.remove_pod(uid)

    def set_object(self, key: str, value: SchedulerPod | None) -> None:
        """Take a pod that is new or differs."""
        self._pending.pop(key, None)
        self._unreadable.discard(key)
        if value is None:
            return
        if value.node and not value.has_ended and not is_allocation_readable(value):
            self._unreadable.add(key)
        uid, assigned = value.key.uid, assigned_pod(value)
        if assigned is not None:
            self._uids.add(uid)
            self._state.set_pod(assigned)
        elif value.has_ended or value.node:
            self._uids.discard(uid)
            self._state.remove_pod(uid)
        else:
            self._pending[key] = value

    def remove_object(self, key: str, value: SchedulerPod | None) -> None:
        """Release the devices of a deleted pod."""
        self._pending.pop(key, None)
        self._unreadable.discard(key)
        if value is not None:
            self._uids.discard(value.key.uid)
            self._state.remove_pod(value.key.uid)


class NodeChanges:
    """Nodes: of each its labels and its CPU."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def replace_objects(self, values: Mapping[str, NodeView]) -> None:
        """Take a complete list."""
        for name in set(self._state.node_names()) - values.keys():
            self._state.remove_node(name)
        for name, node in values.items():
            self.set_object(name, node)

    def set_object(self, key: str, value: NodeView) -> None:
        """Take a node that is new or differs."""
        capacity = cpu_capacity(dict(value.annotations), value.allocatable.get(CPU, "0"))
        self._state.set_node(key, dict(value.labels), capacity)

    def remove_object(self, key: str, value: NodeView) -> None:  # noqa: ARG002 - as its Protocol
        """Forget a node."""
        self._state.remove_node(key)


class DeviceChanges:
    """Device objects, which have the names of their nodes."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._names: set[str] = set()

    def replace_objects(self, values: Mapping[str, DeviceTable]) -> None:
        """Take a complete list."""
        for name in self._names - values.keys():
            self._state.remove_devices(name)
        self._names = set(values)
        for table in values.values():
            self._state.set_devices(table)

    def set_object(self, key: str, value: DeviceTable) -> None:
        """Take a Device object that is new or differs."""
        self._names.add(key)
        self._state.set_devices(value)

    def remove_object(self, key: str, value: DeviceTable) -> None:  # noqa: ARG002 - as its Protocol
        """Take the devices of a node out of service."""
        self._names.discard(key)
        self._state.remove_devices(key)


class TopologyChanges:
    """NodeResourceTopologies, which have the names of their nodes."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._names: set[str] = set()

    def replace_objects(self, values: Mapping[str, NodeCpus]) -> None:
        """Take a complete list."""
        for name in self._names - values.keys():
            self._state.remove_cpus(name)
        self._names = set(values)
        for cpus in values.values():
            self._state.set_cpus(cpus)

    def set_object(self, key: str, value: NodeCpus) -> None:
        """Take an object that is new or differs."""
        self._names.add(key)
        self._state.set_cpus(value)

    def remove_object(self, key: str, value: NodeCpus) -> None:  # noqa: ARG002 - as its Protocol
        """Forget the CPUs and NUMA nodes of a node."""
        self._names.discard(key)
        self._state.remove_cpus(key)


class ClusterFeed:
    """The watches that fill one state. Belongs to the loop thread."""

    def __init__(self, api: ApiClient, state: ClusterState, clock: Clock) -> None:
        """Start without a view; the first lists are of the most recent state."""
        self.pods = PodChanges(state)
        scope = WatchScope(limits=CLUSTER_LIMITS, recent=True)

        def watch(kind: WatchedKind[Any, Any], changes: ObjectChanges[Any]) -> Reflector[Any, Any]:
            return Reflector(
                kind, api, on_change=_ignore_view, clock=clock, scope=scope, changes=changes
            )

        self._watches = (
            watch(ALL_NODES, NodeChanges(state)),
            watch(ALL_DEVICES, DeviceChanges(state)),
            watch(ALL_TOPOLOGIES, TopologyChanges(state)),
            watch(ALL_PODS, self.pods),
        )

    def tasks(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return the work of each watch by name, which goes on until it is cancelled."""
        return {f"watch {watch.kind}": watch.run for watch in self._watches}

    @property
    def statuses(self) -> tuple[WatchStatus, ...]:
        """Return how each watch does."""
        return tuple(watch.state for watch in self._watches)

    @property
    def is_synced(self) -> bool:
        """Return whether each kind was listed completely.

        A cluster without the kind NodeResourceTopology has no NUMA nodes to align to.
        """
        return all(
            status.synced or (status.resource == TOPOLOGIES.plural and status.absent_s is not None)
            for status in self.statuses
        )


def _ignore_view(_: Mapping[str, object]) -> None:
    """Do nothing: single changes are reported."""
