"""What the cluster says, put into the snapshot: Node, NodeSLO, NodeMetric, pods, the kubelet."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from agent.clock import Clock
from agent.model.cluster.facts import ClusterFacts, KubeletFacts, MetricPolicy, NodeFacts
from agent.model.cluster.pods import PodMerge
from agent.model.part import Part
from agent.model.pod import PodView
from agent.model.slo.view import SloView
from agent.model.snapshot import NodeSnapshot
from agent.node.identity import Machine, Standing, standing
from agent.node.store import SnapshotStore

log = logging.getLogger(__name__)


def at_once(work: Callable[[], None]) -> None:
    """Do the work before going on."""
    work()


class Known:
    """Takes what watches and the kubelet tell. Belongs to the loop thread."""

    def __init__(
        self,
        name: str,
        machine: Machine,
        store: SnapshotStore,
        clock: Clock,
        changed: Callable[[], None],
        aside: Callable[[Callable[[], None]], None] = at_once,
    ) -> None:
        """Call `changed`, which is quick, when something that is published may differ.

        `aside` does, on any thread, what is too long for the loop's.
        """
        self.metric_came: Callable[[], None] = lambda: None  # called when there is a NodeMetric
        self.pods_changed: Callable[[], None] = lambda: None  # called after each change of pods
        self._name = name
        self._merge_pods = PodMerge(name)
        self._machine = machine
        self._store = store
        self._clock = clock
        self._changed = changed
        self._aside = aside
        self._slos: deque[tuple[object, float]] = deque()  # told, and not yet in force
        self._laying = threading.Lock()  # one after another, as they were told
        self._of_api: tuple[PodView, ...] | None = None
        self._api_answers = True
        self._of_kubelet: Part[tuple[PodView, ...]] = Part(())
        self._merging = False
        self._said = ""  # reason of the standing that the log has
        self._cluster(lambda now: replace(now, clustered=True))

    def standing(self) -> Standing:
        """Say whether anything may be written for the Node now."""
        return standing(self._machine, self._name, self._store.current.cluster.node)

    def nodes(self, view: Mapping[str, NodeFacts]) -> None:
        """Take the Node: nothing, when there is none of our name."""
        node = view.get(self._name)
        part = Part(node, self._clock.monotonic())

        def put(now: NodeSnapshot) -> NodeSnapshot:
            # the last uid stays while there is no Node: what is published names it as owner
            uid = now.node.uid if node is None else node.uid
            cluster = replace(now.cluster, node=part)
            return replace(now, node=replace(now.node, uid=uid), cluster=cluster)

        self._store.change(put)
        self._say_standing()
        self._changed()

    def slos(self, view: Mapping[str, object]) -> None:
        """Take the NodeSLO; without one the defaults stand."""
        self._slos.append((view.get(self._name), self._clock.monotonic()))
        self._aside(self._lay_slo)

    def no_slos(self, at_s: float) -> None:
        """Take that the API server knew no NodeSLOs then: if none is in force, none is wanted."""

        def put(now: ClusterFacts) -> ClusterFacts:
            if now.slo.value.found:
                return now
            return replace(now, slo=replace(now.slo, taken_s=at_s))

        self._cluster(put)

    def metrics(self, view: Mapping[str, MetricPolicy]) -> None:
        """Take how usage is to be reported; nothing, when there is no NodeMetric."""
        lacked = self._store.current.cluster.metric_policy.value is None
        part = Part(view.get(self._name), self._clock.monotonic())
        self._cluster(lambda now: replace(now, metric_policy=part))
        if lacked and part.value is not None:
            self.metric_came()

    def topology_versions(self, versions: tuple[str, ...]) -> None:
        """Take the versions of NodeResourceTopology that the server has."""
        before = self._store.current.cluster.topology_versions.value
        part = Part(versions, self._clock.monotonic())
        self._cluster(lambda now: replace(now, topology_versions=part))
        if versions != before:
            self._changed()

    def api_pods(self, view: Mapping[str, PodView]) -> None:
        """Take the pods that are bound to this node."""
        self._of_api = tuple(view.values())
        self._merge_soon()

    def kubelet_pods(self, part: Part[tuple[PodView, ...]]) -> None:
        """Take the kubelet's pods."""
        before, self._of_kubelet = self._of_kubelet, part
        if part.value is not before.value or bool(part.error) is not bool(before.error):
            self._merge_soon()

    def api_answers(self, answers: bool) -> None:
        """Take whether the API server tells of this node's pods now."""
        if answers is not self._api_answers:
            self._api_answers = answers
            self._merge_soon()

    def kubelet_facts(self, part: Part[KubeletFacts | None]) -> None:
        """Take the kubelet's settings and what it gave away of CPUs."""
        before = self._store.current.cluster.kubelet
        self._cluster(lambda now: replace(now, kubelet=part))
        if part.value != before.value:
            self._changed()

    def confirmed(self, part: str, at_s: float | None, error: str) -> None:
        """Note until when a part of the cluster's facts is known to be so, and why no longer."""

        def put(now: ClusterFacts) -> ClusterFacts:
            known: Part[object] = getattr(now, part)
            taken_s = known.taken_s
            if at_s is not None and taken_s is not None:
                taken_s = max(at_s, taken_s)
            why = error or (now.slo.value.problem if part == "slo" else "")
            return replace(now, **{part: Part(known.value, taken_s, why)})

        self._cluster(put)

    def _say_standing(self) -> None:
        now = self.standing()
        if now.reason == self._said:
            return
        self._said = now.reason
        fields = {"node": self._name, "reason": now.reason, "why": now.message}
        log.log(logging.INFO if now.writes else logging.WARNING, "node_judged", extra=fields)

    def _lay_slo(self) -> None:
        # imported here: the first Device object does not wait for it
        from agent.model.slo.in_force import slo_view  # noqa: PLC0415 - see above

        with self._laying:
            raw, at_s = self._slos.popleft()
            before = self._store.current.cluster.slo.value
            found = slo_view(raw, before)
            part = Part(found, at_s, found.problem)
            self._cluster(lambda now: replace(now, slo=part))
            _say_refused(before, found)

    def _cluster(self, make: Callable[[ClusterFacts], ClusterFacts]) -> None:
        self._store.change(lambda now: replace(now, cluster=make(now.cluster)))

    def _merge_soon(self) -> None:
        """Merge once for all that comes in one go: a watch that was silent has many events."""
        if not self._merging:
            self._merging = True
            asyncio.get_running_loop().call_soon(self._merge)

    def _merge(self) -> None:
        self._merging = False
        pods = self._merge_pods.merge(
            self._of_api,
            self._of_kubelet.value,
            api_fresh=self._api_answers,
            kubelet_fresh=not self._of_kubelet.error,
        )
        known = self._of_api is not None
        deleted = frozenset(self._merge_pods.deleted)
        self._cluster(lambda now: replace(now, pods=pods, pods_known=known, deleted=deleted))
        self.pods_changed()


def _say_refused(before: SloView, now: SloView) -> None:
    """Say what of a NodeSLO is not used, once for as long as it is the same."""
    if now.problem and now.problem != before.problem:
        log.warning("node_slo_unreadable", extra={"error": now.problem})
    if now.refused and now.refused != before.refused:
        first = f"{now.refused[0].path} {now.refused[0].why}"
        fields = {"version": now.resource_version, "count": now.refused_count, "first": first}
        log.warning("node_slo_refused", extra=fields)
