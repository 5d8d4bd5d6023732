"""Puts the load and requests that watches report into `NodeLoads`; runs only with these scores.

It has its own watches, because the other scores read only pods with devices.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from agent.clock import Clock
from agent.kube.api import ApiClient
from agent.kube.resources import NODE_METRICS, NODES, PODS
from agent.kube.watch.decoder import WatchedKind
from agent.snapshot.cluster import NodeView
from agent.wire_formats.annotations import raw_allocatable
from agent.wire_formats.cluster_objects import NodeObject, node_facts
from plugins.scheduler.load.load_score import THRESHOLDS_ANNOTATION
from plugins.scheduler.load.node_loads import LoadCapacity, NodeLoads
from plugins.scheduler.load.pod_load import LoadPodObject, PodLoad, pod_load
from plugins.scheduler.load.reported_usage import ReportedUsage, ReportedUsageObject, reported_usage
from plugins.scheduler.pod_object import CPU, MEMORY, parse_amounts
from plugins.scheduler.server.value_changes import watch_values


def load_capacity(node: NodeView) -> LoadCapacity:
    """Return the fields of a Node that the scores read."""
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
    resource=NODES, body_type=NodeObject, convert=lambda body: load_capacity(node_facts(body))
)
USAGES: WatchedKind[ReportedUsageObject, ReportedUsage] = WatchedKind(
    resource=NODE_METRICS, body_type=ReportedUsageObject, convert=reported_usage
)


class LoadPodChanges:
    """Stores pods by their uid: a later pod may have the name of an earlier one."""

    def __init__(self, loads: NodeLoads) -> None:
        self._loads = loads
        self._uids: dict[str, str] = {}  # by namespace/name

    def set_pod(self, key: str, pod: PodLoad | None) -> None:
        """Store a pod; `None`: it was deleted."""
        before = self._uids.pop(key, None)
        if before is not None and (pod is None or pod.uid != before):
            self._loads.remove_pod(before)
        if pod is not None:
            self._uids[key] = pod.uid
            self._loads.set_pod(pod)


class LoadFeed:
    """The watches that fill one `NodeLoads`. Belongs to the loop thread."""

    def __init__(self, api: ApiClient, loads: NodeLoads, clock: Clock) -> None:
        self._watches = (
            watch_values(NODE_CAPACITIES, api, clock, loads.set_capacity),
            watch_values(USAGES, api, clock, loads.set_usage),
            watch_values(POD_LOADS, api, clock, LoadPodChanges(loads).set_pod),
        )

    def tasks(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return the work of each watch by name, which runs until it is cancelled."""
        return {f"load of {watch.kind}": watch.run for watch in self._watches}
