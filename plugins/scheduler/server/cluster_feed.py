"""Puts the pods, nodes and devices of watches into the state of the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Set
from typing import Any

import msgspec

from agent.clock import Clock
from agent.kube.api import ApiClient, ApiResource
from agent.kube.resources import DEVICES, NODES, PODS, TOPOLOGIES
from agent.kube.watch.cache import ObjectChanges
from agent.kube.watch.decoder import WatchedKind
from agent.kube.watch.reflector import Reflector
from agent.snapshot.cluster import NodeView, WatchStatus
from agent.wire_formats.cluster_objects import LabelledObjectMeta, NodeObject, node_facts
from agent.wire_formats.device_allocated import ANNOTATION
from agent.wire_formats.json_values import JSON_ERRORS
from agent.wire_formats.resource_status import RESOURCE_STATUS
from plugins.scheduler.cluster_state import AssignedPod, ClusterState
from plugins.scheduler.devices.device_table import (
    NO_LABELS,
    DeviceObject,
    DeviceTable,
    device_table,
)
from plugins.scheduler.devices.hami_annotations import hami_annotations
from plugins.scheduler.numa.cpu_request import RESOURCE_SPEC, numa_amounts
from plugins.scheduler.numa.node_cpus import NodeCpus, TopologyObject, cpu_capacity, node_cpus
from plugins.scheduler.pod_object import (
    CPU,
    PodKey,
    SchedulerPod,
    SchedulerPodObject,
    scheduler_pod,
)
from plugins.scheduler.server.binding import allocation_error, assigned_pod
from plugins.scheduler.server.value_changes import ValueChanges, watch_changes


def counted_pod(body: SchedulerPodObject) -> SchedulerPod | None:
    """Return a pod that counts on a node or may be bound; `None` for all others.

    For a pod on a node, the fields that do not count are dropped: most objects of a cluster are
    pods.
    """
    pod = scheduler_pod(body)
    if not pod.node and not pod.has_ended:
        return pod
    if pod.has_ended:
        return None
    annotations = {
        key: pod.annotations[key] for key in COUNTED_ANNOTATIONS if key in pod.annotations
    } | hami_annotations(pod.annotations)
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


RESERVATION_ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"
COUNTED_ANNOTATIONS = (ANNOTATION, RESOURCE_STATUS, RESOURCE_SPEC, RESERVATION_ALLOCATED)
RESERVATIONS = ApiResource(
    group="scheduling.koordinator.sh",
    version="v1alpha1",
    plural="reservations",
    kind="Reservation",
)
OPTIONAL_KINDS = (TOPOLOGIES.plural, RESERVATIONS.plural)  # that a cluster may be without


class _ReservationStatus(msgspec.Struct, rename="camel"):
    phase: str = ""
    node_name: str = ""


class ReservationObject(msgspec.Struct):
    """The fields of Koordinator's Reservation that are read."""

    metadata: LabelledObjectMeta
    status: _ReservationStatus | None = None


def reserved_devices(body: ReservationObject) -> AssignedPod | None:
    """Return the devices of a reservation as those of a pod; `None` if it reserves none."""
    status, meta = body.status or _ReservationStatus(), body.metadata
    if status.phase != "Available":
        return None
    return assigned_pod(
        SchedulerPod(
            key=PodKey(meta.uid, RESERVATIONS.kind, meta.name),
            node=status.node_name,
            annotations=meta.annotations or NO_LABELS,
        )
    )


class _ReservationRef(msgspec.Struct):
    uid: str = ""


_RESERVATION_REF = msgspec.json.Decoder(_ReservationRef)


def used_reservation(pod: SchedulerPod) -> str:
    """Return the uid of the reservation that a pod uses; empty for none."""
    text = pod.annotations.get(RESERVATION_ALLOCATED)
    try:
        return "" if text is None else _RESERVATION_REF.decode(text).uid
    except JSON_ERRORS:
        return ""


class Reservations:
    """Stores reservations: they count on their nodes until a pod uses them; then the pod counts."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._devices: dict[str, AssignedPod] = {}  # by uid
        self._uid_of_key: dict[str, str] = {}
        self._user_of: dict[str, str] = {}  # uid of a reservation by that of the pod
        self._users = Counter[str]()  # how many pods use a reservation

    def has(self, uid: str) -> bool:
        """Return whether a reservation has this uid."""
        return uid in self._devices

    def set_reservation(self, key: str, value: AssignedPod | None) -> None:
        """Store a new or changed reservation; `None`: it reserves nothing any more."""
        before = self._uid_of_key.pop(key, None)
        if before is not None:
            self._devices.pop(before, None)
            self._update(before)
        if value is not None:
            self._uid_of_key[key] = value.key.uid
            self._devices[value.key.uid] = value
            self._update(value.key.uid)

    def set_user(self, pod_uid: str, reservation_uid: str) -> None:
        """Store which reservation a bound pod uses; empty for none."""
        before = self._user_of.pop(pod_uid, "")
        if before:
            self._users[before] -= 1
            self._update(before)
        if reservation_uid:
            self._user_of[pod_uid] = reservation_uid
            self._users[reservation_uid] += 1
            self._update(reservation_uid)

    def _update(self, uid: str) -> None:
        devices = self._devices.get(uid)
        if not self._users[uid]:
            del self._users[uid]  # a Counter keeps zeros
        if devices is None or uid in self._users:
            self._state.remove_pod(uid)
        else:
            self._state.set_pod(devices)


ALL_RESERVATIONS: WatchedKind[ReservationObject, AssignedPod | None] = WatchedKind(
    resource=RESERVATIONS, body_type=ReservationObject, convert=reserved_devices
)
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
    """Stores pods: bound ones count on their nodes, others wait for their binding."""

    def __init__(self, state: ClusterState, reservations: Reservations | None = None) -> None:
        self._state = state
        self._reservations = reservations or Reservations(state)
        self._pending: dict[str, SchedulerPod] = {}  # by namespace/name
        self._uid_of_key: dict[str, str] = {}  # of bound pods that the watch has reported
        # bound pods whose allocation cannot be read, by namespace/name, and why
        self._unreadable: dict[str, tuple[PodKey, str]] = {}
        self._changed_nodes: set[str] = set()  # that, or whose pods, have other devices than before

    def pending_pod(self, namespace: str, name: str) -> SchedulerPod | None:
        """Return a pod that is not bound; `None` if it is unknown."""
        return self._pending.get(f"{namespace}/{name}")

    @property
    def unreadable_count(self) -> int:
        """Return how many bound pods have an allocation that cannot be read."""
        return len(self._unreadable)

    @property
    def unreadable(self) -> Mapping[PodKey, str]:
        """Return the pods whose allocation cannot be read, with the reasons."""
        return dict(self._unreadable.values())

    def unreported(self) -> tuple[AssignedPod, ...]:
        """Return the pods that were bound here and that no list and no event has shown yet.

        A pod that was deleted while the watch was interrupted causes no event.
        """
        reported = frozenset(self._uid_of_key.values())
        return tuple(
            pod
            for pod in self._state.pods()
            if pod.key.uid not in reported
            and self._state.hold_of(pod.key.uid) is None
            and not self._reservations.has(pod.key.uid)
        )

    def take_changed_nodes(self) -> Set[str]:
        """Return the nodes whose devices, or those of their pods, changed since the last call."""
        changed, self._changed_nodes = self._changed_nodes, set()
        return changed

    def report_devices(self, node: str) -> None:
        """Take note that the devices of a node have changed under its pods."""
        self._changed_nodes.add(node)

    def replace_objects(self, values: Mapping[str, SchedulerPod | None]) -> None:
        """Store a complete list; a pod that is not in it is removed, unless it is being bound."""
        for key in self._pending.keys() - values.keys():
            self._drop_pending(key, None)
        self._unreadable.clear()
        for key in self._uid_of_key.keys() - values.keys():
            self._release(key)
        for key, pod in values.items():
            self.set_object(key, pod)

    def set_object(self, key: str, value: SchedulerPod | None) -> None:
        """Store a new or changed pod; `None`: one that ended, or that has nothing that counts."""
        self._drop_pending(key, value)
        self._unreadable.pop(key, None)
        assigned = None if value is None else assigned_pod(value)
        if assigned is None or assigned.key.uid != self._uid_of_key.get(key):
            self._release(key)
        if value is None:
            return
        error = allocation_error(value) if value.node and not value.has_ended else ""
        if error:
            self._unreadable[key] = (value.key, error)
        uid = value.key.uid
        if assigned is not None:
            self._uid_of_key[key] = uid
            if assigned.allocation:
                self._changed_nodes.add(assigned.node)
            self._state.set_pod(assigned)
            self._reservations.set_user(uid, used_reservation(value))
        elif value.has_ended or value.node:
            self._remove(uid)
        else:
            self._pending[key] = value

    def _drop_pending(self, key: str, value: SchedulerPod | None) -> None:
        """Drop a pod that was not bound; release a plan's reservation for it if it was deleted."""
        before = self._pending.pop(key, None)
        if before is None or (value is not None and value.key.uid == before.key.uid):
            return
        hold = self._state.hold_of(before.key.uid)
        if hold is not None and not hold.is_assumed:
            self._state.remove_pod(before.key.uid)

    def remove_object(self, key: str, value: SchedulerPod | None) -> None:
        """Release the devices of a deleted pod."""
        self._pending.pop(key, None)
        self._unreadable.pop(key, None)
        self._release(key)
        if value is not None:
            self._remove(value.key.uid)

    def _release(self, key: str) -> None:
        """Release the devices of the bound pod that the watch has reported by this key, if any."""
        uid = self._uid_of_key.pop(key, None)
        if uid is not None:
            self._remove(uid)

    def _remove(self, uid: str) -> None:
        self._reservations.set_user(uid, "")
        removed = self._state.remove_pod(uid)
        if removed is not None and removed.allocation:
            self._changed_nodes.add(removed.node)


class ClusterFeed:
    """The watches that fill one state. Belongs to the loop thread."""

    def __init__(self, api: ApiClient, state: ClusterState, clock: Clock) -> None:
        """Start without a view; the first lists are of the most recent state."""
        reservations = Reservations(state)
        self.pods = PodChanges(state, reservations)

        def set_node(name: str, node: NodeView | None) -> None:
            if node is None:
                state.remove_node(name)
            else:
                capacity = cpu_capacity(dict(node.annotations), node.allocatable.get(CPU, "0"))
                state.set_node(name, dict(node.labels), capacity)

        def set_devices(name: str, table: DeviceTable | None) -> None:
            if table is None:
                state.remove_devices(name)
            else:
                state.set_devices(table)
            self.pods.report_devices(name)

        def set_cpus(name: str, cpus: NodeCpus | None) -> None:
            if cpus is None:
                state.remove_cpus(name)
            else:
                state.set_cpus(cpus)

        def watch(kind: WatchedKind[Any, Any], changes: ObjectChanges[Any]) -> Reflector[Any, Any]:
            return watch_changes(kind, api, clock, changes, recent=True)

        self._watches = (
            watch(ALL_NODES, ValueChanges(set_node)),
            watch(ALL_DEVICES, ValueChanges(set_devices)),
            watch(ALL_TOPOLOGIES, ValueChanges(set_cpus)),
            watch(ALL_RESERVATIONS, ValueChanges(reservations.set_reservation)),
            watch(ALL_PODS, self.pods),
        )

    def tasks(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return the work of each watch by name, which runs until it is cancelled."""
        return {f"watch {watch.kind}": watch.run for watch in self._watches}

    @property
    def statuses(self) -> tuple[WatchStatus, ...]:
        """Return the status of each watch."""
        return tuple(watch.state for watch in self._watches)

    @property
    def is_synced(self) -> bool:
        """Return whether each kind was listed completely.

        A cluster without the kind NodeResourceTopology has no NUMA nodes to align to.
        """
        return all(
            status.synced or (status.resource in OPTIONAL_KINDS and status.absent_s is not None)
            for status in self.statuses
        )
