"""What every pod wants, asked anew only where something it depends on is another object."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from agent.cgroup.cpu import WeightFormula
from agent.containers.hooks import Hook
from agent.reconcile.desired_state import CycleInputs, DesiredState, desired_state_of
from agent.reconcile.managed_pods import ManagedPod, managed_pods
from agent.snapshot.container import LinuxResources
from agent.snapshot.node import NodeSnapshot, are_same_objects
from agent.snapshot.pod import ENDED_PHASES
from agent.wire_formats.annotations import QOS_LABEL
from agent.wire_formats.resource_status import RESOURCE_STATUS

BUDGET_S = 0.015  # of one cycle for pods that are asked again because of the node, not of their own
MIN_PODS = 8  # of those are asked whatever it takes
MAX_MARKS = 1024


class PodScan:
    """The pods by cgroup, with what the hooks said. `mark` may come from any thread."""

    def __init__(
        self, hooks: tuple[Hook, ...], modes: Mapping[str, str], now_s: Callable[[], float]
    ) -> None:
        self.desired: dict[str, DesiredState] = {}
        self.formulas: dict[str, WeightFormula] = {}  # by level, as far as they are known
        self.is_changed = False  # what is wanted is not what it was before the last `refresh`
        self._hooks = hooks
        self._modes = modes
        self._now_s = now_s
        self._priority: deque[str] = deque(maxlen=MAX_MARKS)  # uids
        self._pod_parts: tuple[object, ...] = ()
        self._pods: dict[str, ManagedPod] = {}
        self._parts: tuple[object, ...] = ()
        self._held: tuple[object, ...] = ()
        self._outdated: dict[str, None] = {}  # cgroups of pods to be asked again, oldest first

    def prioritize(self, uid: str) -> None:
        """Have a pod asked again in the next cycle, before others."""
        self._priority.append(uid)

    def rescan_all(self) -> None:
        """Have all pods asked again, as time allows."""
        self._outdated.update(dict.fromkeys(self._pods))

    def refresh(
        self, snapshot: NodeSnapshot, version: int, base: Callable[[str], LinuxResources]
    ) -> frozenset[str]:
        """Ask about new, changed and marked pods, then about others within the budget.

        Return the uids that were marked.
        """
        self.is_changed = False
        marked = frozenset(self._priority.popleft() for _ in range(len(self._priority)))
        first = self._changed_pods(snapshot, marked)
        if not first and not self._outdated:
            return marked
        asking = self.cycle_inputs(snapshot, version, base)
        until_s = self._now_s() + BUDGET_S
        others = [cgroup for cgroup in self._outdated if cgroup not in first]
        for count, cgroup in enumerate((*first, *others)):
            if count >= len(first) + MIN_PODS and self._now_s() >= until_s:
                break
            self._update(cgroup, asking)
            self._outdated.pop(cgroup, None)
        return marked

    def cycle_inputs(
        self, snapshot: NodeSnapshot, version: int, base: Callable[[str], LinuxResources]
    ) -> CycleInputs:
        """Return what the questions of one cycle have in common."""
        return CycleInputs(
            hooks=self._hooks,
            modes=self._modes,
            snapshot=snapshot,
            cgroup_version=version,
            formulas=self.formulas,
            requested_quota=base,
            now_s=self._now_s,
        )

    @property
    def backlog(self) -> int:
        """Return how many pods are still to be asked again."""
        return len(self._outdated)

    def _update(self, cgroup: str, asking: CycleInputs) -> None:
        new = desired_state_of(self._pods[cgroup], asking)
        if new != self.desired.get(cgroup):
            self.desired[cgroup] = new
            self.is_changed = True

    def _changed_pods(self, snapshot: NodeSnapshot, marked: frozenset[str]) -> dict[str, None]:
        """Take up the pods there are; return those that must be asked now."""
        pod_parts = _pod_parts(snapshot)
        first: dict[str, None] = {}
        if not are_same_objects(pod_parts, self._pod_parts):
            self._pod_parts = pod_parts
            before, self._pods = self._pods, {p.cgroup: p for p in managed_pods(snapshot)}
            self._outdated = {cgroup: None for cgroup in self._outdated if cgroup in self._pods}
            for cgroup in [cgroup for cgroup in self.desired if cgroup not in self._pods]:
                del self.desired[cgroup]
                self.is_changed = True
            first = {c: None for c, place in self._pods.items() if before.get(c) != place}
            self._held = _cpu_holders(snapshot)
        if marked:
            first.update((c, None) for c, p in self._pods.items() if p.pod.uid in marked)
        parts = (*_hook_parts(snapshot), self._held)
        if parts != self._parts:  # which looks into an object only where it is another one
            self.rescan_all()
        self._parts = parts
        self._outdated.update(first)  # until they are taken, whatever happens before
        return first


def _pod_parts(snapshot: NodeSnapshot) -> tuple[object, ...]:
    runtime = snapshot.runtime.value
    return snapshot.pods.value, runtime.sandboxes, runtime.containers


def _hook_parts(snapshot: NodeSnapshot) -> tuple[object, ...]:
    """Return what hooks look at beside the pods."""
    cluster = snapshot.cluster
    node = cluster.node.value
    return (
        snapshot.cpus.value,
        snapshot.means.value.kernel,
        cluster.slo.value,
        cluster.slo.taken_s is None,
        None if node is None else (node.labels, node.annotations),  # the rest has a heartbeat
        cluster.kubelet.value,
    )


def _cpu_holders(snapshot: NodeSnapshot) -> tuple[object, ...]:
    """Return what hooks look at of other pods: the CPUs these hold, and nothing else.

    Pods come and go all the time, those with CPUs of their own seldom.
    """
    kubelet = snapshot.cluster.kubelet.value
    by_kubelet = {uid for uid, _ in kubelet.pod_cpus} if kubelet is not None else set()
    found = (
        (pod.uid, pod.phase in ENDED_PHASES, pod.label(QOS_LABEL), pod.annotation(RESOURCE_STATUS))
        for pod in snapshot.pods.value
    )
    return tuple(one for one in found if one[3] is not None or one[0] in by_kubelet)
