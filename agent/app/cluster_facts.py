"""Puts the values of watched objects and of the kubelet into the snapshot."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from agent.app.identity import MachineIdentity, decide_write_permission
from agent.clock import Clock
from agent.kube.api import ApiClient
from agent.kube.resources import (
    OWN_DEVICE,
    OWN_NODE,
    OWN_NODE_METRIC,
    OWN_NODE_SLO,
    OWN_PODS,
    OWN_TOPOLOGY,
)
from agent.kube.watch.decoder import WatchedKind
from agent.kube.watch.reflector import Reflector, WatchScope
from agent.kubelet.pod_merge import PodMerger
from agent.messages import ClusterFactsChanged, MessageQueue
from agent.objects.node import PUBLISHED_CONDITIONS
from agent.slo.status import build_slo_view
from agent.snapshot.cluster import (
    ClusterView,
    KubeletView,
    MetricCollectPolicy,
    NodeView,
    WritePermission,
)
from agent.snapshot.node import NodeSnapshot, SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView
from agent.snapshot.slo import NodeSloView

log = logging.getLogger(__name__)


class ClusterFactsUpdater:
    """Puts the results of watches and of the kubelet into the snapshot.

    Belongs to the loop thread.
    """

    def __init__(
        self,
        name: str,
        machine: MachineIdentity,
        store: SnapshotStore,
        clock: Clock,
        messages: MessageQueue,
    ) -> None:
        """Put `ClusterFactsChanged` into `messages` when a published fact may have changed."""
        self._name = name
        self._merge_pods = PodMerger(name)
        self._machine = machine
        self._store = store
        self._clock = clock
        self._messages = messages
        self._pending_slos: deque[tuple[object, float]] = deque()  # not decoded yet
        self._has_pending_slos = asyncio.Event()
        self._slo_lock = threading.Lock()  # NodeSLOs are applied in their order
        self._api_pods: tuple[PodView, ...] | None = None
        self._is_api_reachable = True
        self._kubelet_pods: SnapshotPart[tuple[PodView, ...]] = SnapshotPart(())
        self._is_merge_scheduled = False
        self._logged_reason = ""  # reason of the write permission that was logged last
        self._change_cluster(lambda now: replace(now, is_clustered=True))

    def write_permission(self) -> WritePermission:
        """Return whether objects of the Node may be written now."""
        return decide_write_permission(self._machine, self._name, self._store.current.cluster.node)

    def update_node(self, view: Mapping[str, NodeView]) -> None:
        """Store the Node; the view is empty if no Node has this name."""
        node = view.get(self._name)
        part = SnapshotPart(node, self._clock.monotonic())

        def put(now: NodeSnapshot) -> NodeSnapshot:
            # the last uid stays while there is no Node: it is the owner of published objects
            uid = now.node.uid if node is None else node.uid
            cluster = replace(now.cluster, node=part)
            return replace(now, node=replace(now.node, uid=uid), cluster=cluster)

        self._store.change(put)
        self._log_write_permission()
        self._messages.put(ClusterFactsChanged())

    def update_slo(self, view: Mapping[str, object]) -> None:
        """Queue the NodeSLO for decoding; without an object the defaults apply."""
        self._pending_slos.append((view.get(self._name), self._clock.monotonic()))
        self._has_pending_slos.set()

    async def apply_slos(self) -> None:
        """Decode each NodeSLO on another thread, until cancelled."""
        while True:
            await self._has_pending_slos.wait()
            self._has_pending_slos.clear()
            while self._pending_slos:
                await asyncio.to_thread(self.apply_slo)

    def confirm_no_slo(self, at_s: float) -> None:
        """Record that the API server had no NodeSLOs; if none is in force, this confirms it."""

        def put(now: ClusterView) -> ClusterView:
            if now.slo.value.found:
                return now
            return replace(now, slo=replace(now.slo, taken_s=at_s))

        self._change_cluster(put)

    def update_metric_policy(self, view: Mapping[str, MetricCollectPolicy]) -> None:
        """Store the policy of NodeMetric; without an object there is none."""
        part = SnapshotPart(view.get(self._name), self._clock.monotonic())
        self._change_cluster(lambda now: replace(now, metric_policy=part))

    def update_topology_versions(self, versions: tuple[str, ...]) -> None:
        """Store the versions of NodeResourceTopology that the server has."""
        before = self._store.current.cluster.topology_versions.value
        part = SnapshotPart(versions, self._clock.monotonic())
        self._change_cluster(lambda now: replace(now, topology_versions=part))
        if versions != before:
            self._messages.put(ClusterFactsChanged())

    def update_volume_names(self, names: Mapping[str, str]) -> None:
        """Store the volumes of claims whose disks pods on this node limit."""
        self._change_cluster(lambda now: replace(now, volume_names=names))

    def needed_claims(self) -> frozenset[str]:
        """Return "namespace/claim" of the volumes whose disks pods on this node limit."""
        return frozenset(
            f"{pod.namespace}/{volume.claim}"
            for pod in self._store.current.cluster.pods
            for volume in pod.volumes
            if volume.claim
        )

    def update_api_pods(self, view: Mapping[str, PodView]) -> None:
        """Store the pods that are bound to this node."""
        self._api_pods = tuple(view.values())
        self._schedule_merge()

    def update_kubelet_pods(self, part: SnapshotPart[tuple[PodView, ...]]) -> None:
        """Store the kubelet's pods."""
        before, self._kubelet_pods = self._kubelet_pods, part
        if part.value is not before.value or bool(part.error) is not bool(before.error):
            self._schedule_merge()

    def update_api_reachability(self, answers: bool) -> None:
        """Record whether the API server reports this node's pods now."""
        if answers is not self._is_api_reachable:
            self._is_api_reachable = answers
            self._schedule_merge()

    def update_kubelet_facts(self, part: SnapshotPart[KubeletView | None]) -> None:
        """Store the kubelet's settings and the CPUs that it allocated."""
        before = self._store.current.cluster.kubelet
        self._change_cluster(lambda now: replace(now, kubelet=part))
        if part.value != before.value:
            self._messages.put(ClusterFactsChanged())

    def confirm(self, part: str, at_s: float | None, error: str) -> None:
        """Record when a part was last confirmed by its source, and why it is not confirmed now."""

        def put(now: ClusterView) -> ClusterView:
            known: SnapshotPart[object] = getattr(now, part)
            taken_s = known.taken_s
            if at_s is not None and taken_s is not None:
                taken_s = max(at_s, taken_s)
            reason = error or (now.slo.value.problem if part == "slo" else "")
            return replace(now, **{part: SnapshotPart(known.value, taken_s, reason)})

        self._change_cluster(put)

    def _log_write_permission(self) -> None:
        now = self.write_permission()
        if now.reason == self._logged_reason:
            return
        self._logged_reason = now.reason
        fields = {"node": self._name, "reason": now.reason, "why": now.message}
        log.log(logging.INFO if now.is_allowed else logging.WARNING, "node_judged", extra=fields)

    def apply_slo(self) -> None:
        """Decode the oldest queued NodeSLO, which takes milliseconds.

        May be called from any thread.
        """
        with self._slo_lock:
            raw, at_s = self._pending_slos.popleft()
            before = self._store.current.cluster.slo.value
            view = build_slo_view(raw, before)
            part = SnapshotPart(view, at_s, view.problem)
            self._change_cluster(lambda now: replace(now, slo=part))
            _log_refused_values(before, view)

    def _change_cluster(self, make: Callable[[ClusterView], ClusterView]) -> None:
        self._store.change(lambda now: replace(now, cluster=make(now.cluster)))

    def _schedule_merge(self) -> None:
        """Schedule one merge for all changes of one turn; a watch may report many at once."""
        if not self._is_merge_scheduled:
            self._is_merge_scheduled = True
            asyncio.get_running_loop().call_soon(self._merge)

    def _merge(self) -> None:
        self._is_merge_scheduled = False
        pods = self._merge_pods.merge(
            self._api_pods,
            self._kubelet_pods.value,
            api_fresh=self._is_api_reachable,
            kubelet_fresh=not self._kubelet_pods.error,
        )
        has_list = self._api_pods is not None
        deleted = frozenset(self._merge_pods.deleted)
        self._change_cluster(
            lambda now: replace(now, pods=pods, has_pod_list=has_list, deleted_pods=deleted)
        )


def _log_refused_values(before: NodeSloView, now: NodeSloView) -> None:
    """Log which values of a NodeSLO are refused, once for as long as they are the same."""
    if now.problem and now.problem != before.problem:
        log.warning("node_slo_unreadable", extra={"error": now.problem})
    if now.refused and now.refused != before.refused:
        first = f"{now.refused[0].path} {now.refused[0].why}"
        fields = {"version": now.resource_version, "count": now.refused_count, "first": first}
        log.warning("node_slo_refused", extra=fields)


def _published_part(node: NodeView | None) -> object:
    """Return the fields of the Node that the agent may write, and its uid; `None` without a Node.

    The kubelet writes other fields every few minutes, after which nothing has to be read.
    """
    if node is None:
        return None
    conditions = tuple(one for one in node.conditions if one[0] in PUBLISHED_CONDITIONS)
    return node.uid, node.labels, conditions


def create_watches(
    api: ApiClient,
    node: str,
    known: ClusterFactsUpdater,
    clock: Clock,
    *,
    on_version: Callable[[str, str | None], None],
    topology_version: Callable[[], str],
) -> dict[str, Reflector[Any, Any]]:
    """Return the watches of this node's own objects, by their names in the snapshot.

    `on_version` is called with the kind and the resourceVersion of an object that the agent writes,
    `None` if the object does not exist; `topology_version` is the API version in which the server
    has NodeResourceTopologies.
    """

    def follow(
        kind: WatchedKind[Any, Any], on_change: Callable[[Mapping[str, Any]], None]
    ) -> Reflector[Any, Any]:
        selector = kind.node_selector(node)
        scope = WatchScope(field_selector=selector)
        return Reflector(kind, api, on_change=on_change, clock=clock, scope=scope)

    def report(kind: WatchedKind[Any, str]) -> Callable[[Mapping[str, str]], None]:
        return lambda view: on_version(kind.resource.kind, view.get(node))

    published: object = None

    def update_node(view: Mapping[str, NodeView]) -> None:
        nonlocal published
        known.update_node(view)
        before, published = published, _published_part(view.get(node))
        if published != before:
            on_version(OWN_NODE.resource.kind, view[node].resource_version if published else None)

    return {
        "node": follow(OWN_NODE, update_node),
        "slo": follow(OWN_NODE_SLO, known.update_slo),
        "metric_policy": follow(OWN_NODE_METRIC, known.update_metric_policy),
        "pods": follow(OWN_PODS, known.update_api_pods),
        "device": follow(OWN_DEVICE, report(OWN_DEVICE)),
        "topology": follow(replace(OWN_TOPOLOGY, version=topology_version), report(OWN_TOPOLOGY)),
    }
