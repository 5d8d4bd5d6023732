"""Brings what watches report of load and requests into `NodeLoads`; runs only with these scores.

The watches are its own, because the other scores read pods with devices alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

from agent.clock import Clock
from agent.kube.api import ApiClient
from agent.kube.resources import NODE_METRICS, NODES, PODS
from agent.kube.watch.cache import ObjectChanges
from agent.kube.watch.decoder import WatchedKind
from agent.kube.watch.reflector import Reflector, WatchScope
from agent.wire_formats.annotations import raw_allocatable
from agent.wire_formats.cluster_objects import NodeObject, node_facts
from plugins.scheduler.load.load_score import THRESHOLDS_ANNOTATION
from plugins.scheduler.load.node_loads import LoadCapacity, NodeLoads
from plugins.scheduler.load.pod_load import LoadPodObject, PodLoad, pod_load
from plugins.scheduler.load.reported_usage import ReportedUsage, ReportedUsageObject, reported_usage
from plugins.scheduler.pod_object import CPU, MEMORY, parse_amounts
from plugins.scheduler.server.cluster_feed import CLUSTER_LIMITS

T = TypeVar("T")


def load_capacity(body: NodeObject) -> LoadCapacity:
    """Return what the scores read of a Node."""
    node = node_facts(body)
    allocatable = parse_amounts(node.allocatable)
    raw = raw_allocatable(node)
    cpu_memory = {name: allocatable.get(name, 0) for name in (CPU, MEMORY)}
    return LoadCapacity(
        allocatable=allocatable,
        raw_allocatable=cpu_memory
        if raw is None
        else {CPU: round(raw[0] * 1000), MEMORY: int(raw[1])},
        thresholds=node.annotation(THRESHOLDS_ANNOTATION),
    )


POD_LOADS: WatchedKind[LoadPodObject, PodLoad] = WatchedKind(
    resource=PODS, body_type=LoadPodObject, convert=pod_load
)
NODE_CAPACITIES: WatchedKind[NodeObject, LoadCapacity] = WatchedKind(
    resource=NODES, body_type=NodeObject, convert=load_capacity
)
USAGES: WatchedKind[ReportedUsageObject, ReportedUsage] = WatchedKind(
    resource=NODE_METRICS, body_type=ReportedUsageObject, convert=reported_usage
)


class LoadChanges(Generic[T]):
    """Objects of one kind. `set_value` takes an object's name and value, and `None` at its end."""

    def __init__(self, set_value: Callable[[str, T | None], None]) -> None:
        self._set_value = set_value
        self._names: set[str] = set()

    def replace_objects(self, values: Mapping[str, T]) -> None:
        """Take a complete list."""
        for name in self._names - values.keys():
            self._set_value(name, None)
        self._names = set(values)
        for name, value in values.items():
            self._set_value(name, value)

    def set_object(self, key: str, value: T) -> None:
        """Take an object that is new or differs."""
        self._names.add(key)
        self._set_value(key, value)

    def remove_object(self, key: str, value: T) -> None:  # noqa: ARG002 - as its Protocol
        """Forget an object."""
        self._names.discard(key)
        self._set_value(key, None)


class LoadPodChanges:
    """Pods, which are known by their uid: a later pod may have the name of an earlier one."""

    def __init__(self, loads: NodeLoads) -> None:
        self._loads = loads
        self._uids: dict[str, str] = {}  # by namespace/name

    def set_pod(self, key: str, pod: PodLoad | None) -> None:
        """Take a pod; `None`: it was deleted."""
        before = self._uids.pop(key, None)
        if before is not None and (pod is None or pod.uid != before):
            self._loads.remove_pod(before)
        if pod is not None:
            self._uids[key] = pod.uid
            self._loads.set_pod(pod)


class LoadFeed:
    """The watches that fill one `NodeLoads`. Belongs to the loop thread."""

    def __init__(self, api: ApiClient, loads: NodeLoads, clock: Clock) -> None:
        scope = WatchScope(limits=CLUSTER_LIMITS)

        def watch(kind: WatchedKind[Any, Any], changes: ObjectChanges[Any]) -> Reflector[Any, Any]:
            return Reflector(
                kind, api, on_change=_ignore_objects, clock=clock, scope=scope, changes=changes
            )

        self._watches = (
            watch(NODE_CAPACITIES, LoadChanges(loads.set_capacity)),
            watch(USAGES, LoadChanges(loads.set_usage)),
            watch(POD_LOADS, LoadChanges(LoadPodChanges(loads).set_pod)),
        )

    def tasks(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return the work of each watch by name, which goes on until it is cancelled."""
        return {f"load of {watch.kind}": watch.run for watch in self._watches}


def _ignore_objects(_: Mapping[str, object]) -> None:
    """Do nothing: single changes are reported."""
