"""What every pod wants, asked anew only where something it depends on is another object."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import zip_longest

from agent.cgroup.values.shares import Formula
from agent.hooks.base import Hook
from agent.model.classes import QOS_LABEL
from agent.model.cluster.pod_cpus import RESOURCE_STATUS
from agent.model.cluster.pods import ENDED
from agent.model.runtime.adjustment import Resources
from agent.model.snapshot import NodeSnapshot
from agent.reconcile.looked import Asking, Looked, look
from agent.reconcile.places import PodPlace, places

BUDGET_S = 0.015  # of one cycle for pods that are asked again because of the node, not of their own
LEAST = 8  # of those are asked whatever it takes
MAX_MARKS = 1024


class Survey:
    """The pods by cgroup, with what the hooks said. `mark` may come from any thread."""

    def __init__(
        self, hooks: tuple[Hook, ...], modes: Mapping[str, str], now_s: Callable[[], float]
    ) -> None:
        self.looked: dict[str, Looked] = {}
        self.formulas: dict[str, Formula] = {}  # by level, as far as they are known
        self.changed = False  # what is wanted is not what it was before the last `refresh`
        self._hooks = hooks
        self._modes = modes
        self._now_s = now_s
        self._marks: deque[str] = deque(maxlen=MAX_MARKS)  # uids
        self._seen: tuple[object, ...] = ()
        self._places: dict[str, PodPlace] = {}
        self._parts: tuple[object, ...] = ()
        self._held: tuple[object, ...] = ()
        self._old: dict[str, None] = {}  # cgroups of pods to be asked again, oldest first

    def mark(self, uid: str) -> None:
        """Have a pod asked again in the next cycle, before others."""
        self._marks.append(uid)

    def again(self) -> None:
        """Have all pods asked again, as time allows."""
        self._old.update(dict.fromkeys(self._places))

    def refresh(
        self, snapshot: NodeSnapshot, version: int, base: Callable[[str], Resources]
    ) -> frozenset[str]:
        """Ask about new, changed and marked pods, then about others within the budget.

        Return the uids that were marked.
        """
        self.changed = False
        marked = frozenset(self._marks.popleft() for _ in range(len(self._marks)))
        first = self._follow(snapshot, marked)
        if not first and not self._old:
            return marked
        asking = self.asking(snapshot, version, base)
        until_s = self._now_s() + BUDGET_S
        others = [cgroup for cgroup in self._old if cgroup not in first]
        for count, cgroup in enumerate((*first, *others)):
            if count >= len(first) + LEAST and self._now_s() >= until_s:
                break
            self._take(cgroup, asking)
            self._old.pop(cgroup, None)
        return marked

    def asking(
        self, snapshot: NodeSnapshot, version: int, base: Callable[[str], Resources]
    ) -> Asking:
        """Return what the questions of one cycle have in common."""
        return Asking(
            hooks=self._hooks,
            modes=self._modes,
            snapshot=snapshot,
            version=version,
            formulas=self.formulas,
            base=base,
            now_s=self._now_s,
        )

    @property
    def waiting(self) -> int:
        """Return how many pods are still to be asked again."""
        return len(self._old)

    def _take(self, cgroup: str, asking: Asking) -> None:
        new = look(self._places[cgroup], asking)
        if new != self.looked.get(cgroup):
            self.looked[cgroup] = new
            self.changed = True

    def _follow(self, snapshot: NodeSnapshot, marked: frozenset[str]) -> dict[str, None]:
        """Take up the pods there are; return those that must be asked now."""
        seen = _seen(snapshot)
        first: dict[str, None] = {}
        if any(new is not old for new, old in zip_longest(seen, self._seen)):
            self._seen = seen
            before, self._places = self._places, {p.cgroup: p for p in places(snapshot)}
            self._old = {cgroup: None for cgroup in self._old if cgroup in self._places}
            for cgroup in [cgroup for cgroup in self.looked if cgroup not in self._places]:
                del self.looked[cgroup]
                self.changed = True
            first = {c: None for c, place in self._places.items() if before.get(c) != place}
            self._held = _held(snapshot)
        if marked:
            first.update((c, None) for c, p in self._places.items() if p.pod.uid in marked)
        parts = (*_parts(snapshot), self._held)
        if parts != self._parts:  # which looks into an object only where it is another one
            self.again()
        self._parts = parts
        self._old.update(first)  # until they are taken, whatever happens before
        return first


def _seen(snapshot: NodeSnapshot) -> tuple[object, ...]:
    runtime = snapshot.runtime.value
    return snapshot.pods.value, runtime.sandboxes, runtime.containers


def _parts(snapshot: NodeSnapshot) -> tuple[object, ...]:
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


def _held(snapshot: NodeSnapshot) -> tuple[object, ...]:
    """Return what hooks look at of other pods: the CPUs these hold, and nothing else.

    Pods come and go all the time, those with CPUs of their own seldom.
    """
    kubelet = snapshot.cluster.kubelet.value
    by_kubelet = {uid for uid, _ in kubelet.pod_cpus} if kubelet is not None else set()
    found = (
        (pod.uid, pod.phase in ENDED, pod.label(QOS_LABEL), pod.annotation(RESOURCE_STATUS))
        for pod in snapshot.pods.value
    )
    return tuple(one for one in found if one[3] is not None or one[0] in by_kubelet)
