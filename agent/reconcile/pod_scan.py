"""The desired state of each pod, computed again only where one of its inputs is another object."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from agent.cgroup.cpu import WeightFormula
from agent.clock import Clock
from agent.containers.hooks import Hook
from agent.reconcile.desired_state import (
    CycleInputs,
    DesiredState,
    RequestedQuota,
    desired_state_of,
)
from agent.reconcile.managed_pods import ManagedPod, ManagedPods
from agent.snapshot.node import NodeSnapshot, are_same_objects
from agent.snapshot.pod import ENDED_PHASES
from agent.wire_formats.annotations import QOS_LABEL
from agent.wire_formats.resource_status import RESOURCE_STATUS

BUDGET_S = 0.015  # per cycle, for pods that are recomputed because of a change of the node
MIN_PODS = 8  # of these pods are recomputed per cycle even if the budget is used up
MAX_MARKS = 1024


class PodScan:
    """Pods and their desired state by cgroup. `prioritize` may be called from any thread."""

    def __init__(self, hooks: tuple[Hook, ...], modes: Mapping[str, str], clock: Clock) -> None:
        self.desired: dict[str, DesiredState] = {}
        self.formulas: dict[str, WeightFormula] = {}  # by level; absent while unknown
        self.is_changed = False  # the last `refresh` changed `desired`
        self._hooks = hooks
        self._modes = modes
        self._clock = clock
        self._priority: deque[str] = deque(maxlen=MAX_MARKS)  # uids
        self._pod_inputs: tuple[object, ...] = ()
        self._managed_pods = ManagedPods()
        self._pods: dict[str, ManagedPod] = {}
        self._hook_inputs: tuple[object, ...] = ()
        self._cpu_owners: tuple[object, ...] = ()
        self._outdated: dict[str, None] = {}  # cgroups of pods to recompute, oldest first

    def prioritize(self, uid: str) -> None:
        """Recompute a pod in the next cycle, before others."""
        self._priority.append(uid)

    def rescan_all(self) -> None:
        """Recompute all pods, within the budget of the next cycles."""
        self._outdated.update(dict.fromkeys(self._pods))

    def recompute(
        self, cgroups: Iterable[str], snapshot: NodeSnapshot, version: int, base: RequestedQuota
    ) -> None:
        """Recompute these pods at once."""
        inputs = self.cycle_inputs(snapshot, version, base)
        for cgroup in cgroups:
            if cgroup in self._pods:
                self._update(cgroup, inputs)

    def refresh(self, snapshot: NodeSnapshot, version: int, base: RequestedQuota) -> frozenset[str]:
        """Recompute new, changed and prioritized pods, then others within the budget.

        Return the uids that were prioritized.
        """
        self.is_changed = False
        prioritized = frozenset(self._priority.popleft() for _ in range(len(self._priority)))
        changed = self._changed_pods(snapshot, prioritized)
        if not changed and not self._outdated:
            return prioritized
        inputs = self.cycle_inputs(snapshot, version, base)
        until_s = self._clock.monotonic() + BUDGET_S
        others = [cgroup for cgroup in self._outdated if cgroup not in changed]
        for count, cgroup in enumerate((*changed, *others)):
            if count >= len(changed) + MIN_PODS and self._clock.monotonic() >= until_s:
                break
            self._update(cgroup, inputs)
            self._outdated.pop(cgroup, None)
        return prioritized

    def cycle_inputs(
        self, snapshot: NodeSnapshot, version: int, base: RequestedQuota
    ) -> CycleInputs:
        """Return the inputs that all hook requests of one cycle share."""
        return CycleInputs(
            hooks=self._hooks,
            modes=self._modes,
            snapshot=snapshot,
            cgroup_version=version,
            formulas=self.formulas,
            requested_quota=base,
            clock=self._clock,
        )

    @property
    def backlog(self) -> int:
        """Return how many pods are still to be recomputed."""
        return len(self._outdated)

    def _update(self, cgroup: str, inputs: CycleInputs) -> None:
        state = desired_state_of(self._pods[cgroup], inputs)
        if state != self.desired.get(cgroup):
            self.desired[cgroup] = state
            self.is_changed = True

    def _changed_pods(self, snapshot: NodeSnapshot, prioritized: frozenset[str]) -> dict[str, None]:
        """Update the list of pods; return those that must be recomputed in this cycle."""
        pod_inputs = _pod_inputs_of(snapshot)
        changed: dict[str, None] = {}
        if not are_same_objects(pod_inputs, self._pod_inputs):
            self._pod_inputs = pod_inputs
            managed = self._managed_pods.list(snapshot)
            before, self._pods = self._pods, {pod.cgroup: pod for pod in managed}
            self._outdated = {cgroup: None for cgroup in self._outdated if cgroup in self._pods}
            for cgroup in [cgroup for cgroup in self.desired if cgroup not in self._pods]:
                del self.desired[cgroup]
                self.is_changed = True
            changed = {
                cgroup: None
                for cgroup, pod in self._pods.items()
                if (previous := before.get(cgroup)) is not pod and previous != pod
            }
            self._cpu_owners = _cpu_holders(snapshot)
        if prioritized:
            changed.update((c, None) for c, p in self._pods.items() if p.pod.uid in prioritized)
        hook_inputs = (*_hook_inputs_of(snapshot), self._cpu_owners)
        if hook_inputs != self._hook_inputs:  # comparing tuples skips identical objects
            self.rescan_all()
        self._hook_inputs = hook_inputs
        self._outdated.update(changed)  # they stay until they are recomputed, even if a hook raises
        return changed


def _pod_inputs_of(snapshot: NodeSnapshot) -> tuple[object, ...]:
    runtime = snapshot.runtime.value
    return snapshot.pods.value, runtime.sandboxes, runtime.containers


def _hook_inputs_of(snapshot: NodeSnapshot) -> tuple[object, ...]:
    """Return what hooks read beside the pods."""
    cluster = snapshot.cluster
    node = cluster.node.value
    return (
        snapshot.cpus.value,
        snapshot.host_devices.value.kernel,
        cluster.slo.value,
        cluster.slo.taken_s is None,
        None if node is None else (node.labels, node.annotations),  # the rest has a heartbeat
        cluster.kubelet.value,
    )


def _cpu_holders(snapshot: NodeSnapshot) -> tuple[object, ...]:
    """Return what hooks read of other pods: the CPUs that these pods own, and nothing else.

    Pods come and go all the time, pods with CPUs of their own seldom.
    """
    kubelet = snapshot.cluster.kubelet.value
    by_kubelet = {uid for uid, _ in kubelet.pod_cpus} if kubelet is not None else set()
    return tuple(
        (pod.uid, pod.phase in ENDED_PHASES, pod.label(QOS_LABEL), status)
        for pod in snapshot.pods.value
        if (status := pod.annotation(RESOURCE_STATUS)) is not None or pod.uid in by_kubelet
    )
