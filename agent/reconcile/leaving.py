"""Which changes are taken back: of hooks switched off, of wishes and of groups that are no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agent.cgroup.layout import CgroupLayout, parse_pod_dir
from agent.cgroup.ledger.entry import CORE, OOM, SYSCTL, Entry
from agent.cgroup.ledger.journal import Ledger
from agent.cgroup.ledger.processes import directory
from agent.cgroup.ledger.undo import Undone, of_this_version, undo
from agent.cgroup.values.keys import BY_NAME, CPUS
from agent.cgroup.writing.kernel import CgroupFiles
from agent.cgroup.writing.values import CgroupValues
from agent.errors import HostFileError
from agent.hooks.dispatch import ON
from agent.model.cluster.node_cpus import knows_pods, knows_settings
from agent.model.snapshot import NodeSnapshot

UNWISHED_S = 10.0  # hooks may have nothing to say for a moment, as a part of the snapshot is new
SETTLED_S = 60.0  # after the start: the cluster, the kubelet and the runtime tell one by one
STALE_S = 1800.0  # without word of the cluster everything stays as it is
SWEEP_S = 30.0  # for groups that are gone
UNDO_BUDGET_S = 0.1  # of one cycle
UNDO_AGAIN_S = 600.0  # for what is in force by somebody else's word, or refused

Id = tuple[str, str, str]


class Leaving:
    """Remembers since when nobody wants a change any more."""

    def __init__(self, modes: Mapping[str, str]) -> None:
        self._modes = modes
        self._since: dict[Id, float] = {}
        self._after_s: dict[Id, float] = {}
        self._begun_s: float | None = None
        self._swept_s: float | None = None

    def entries(
        self,
        ledger: Ledger,
        wanted: frozenset[tuple[str, str]],
        looked: frozenset[str],
        snapshot: NodeSnapshot,
        now_s: float,
    ) -> tuple[Entry, ...]:
        """Return what is to be undone now.

        `wanted` are the targets that a hook which is on wants; `looked` the cgroups of pods that
        the hooks were asked about, and the directories above them: of other pods nobody knows what
        they ask for.
        """
        if self._begun_s is None:
            self._begun_s = now_s
        off = [e for e in ledger.entries.values() if self._modes.get(e.owner) != ON]
        if not self._told(snapshot, now_s):
            self._since.clear()
            return tuple(off)
        kept = "" if _knows_holders(snapshot) else CPUS.name
        free = {
            entry.id: entry
            for entry in ledger.entries.values()
            if (entry.path, entry.key) not in wanted
            and entry.key != kept
            and (pod_of(entry.path) or entry.path) in looked
        }
        self._since = {key: self._since.get(key, now_s) for key in free}
        late = [free[key] for key, since in self._since.items() if now_s - since >= UNWISHED_S]
        return tuple({entry.id: entry for entry in (*off, *late)}.values())

    def undo(
        self,
        ledger: Ledger,
        values: CgroupValues,
        entries: Iterable[Entry],
        monotonic: Callable[[], float],
    ) -> tuple[Undone, ...]:
        """Put these originals back; what could not be is tried again much later.

        Raise `LedgerError`.
        """
        now_s = monotonic()
        due = [entry for entry in entries if now_s >= self._after_s.get(entry.id, 0.0)]
        if not due:
            return ()
        done = undo(ledger, values, due, monotonic=monotonic, budget_s=UNDO_BUDGET_S)
        for one in done:
            if not one.done and one.state != "late":
                self._after_s[one.entry.id] = now_s + UNDO_AGAIN_S
        self._after_s = {key: at for key, at in self._after_s.items() if key in ledger.entries}
        return done

    def sweep(self, ledger: Ledger, layout: CgroupLayout, files: CgroupFiles, now_s: float) -> None:
        """Drop the entries of groups that are gone, every now and then."""
        if self._swept_s is not None and now_s - self._swept_s < SWEEP_S:
            return
        self._swept_s = now_s
        for entry in tuple(ledger.entries.values()):
            if _gone(entry, layout, files):
                ledger.drop(entry, "gone")

    def _told(self, snapshot: NodeSnapshot, now_s: float) -> bool:
        """Say whether hooks that say nothing have nothing to say."""
        if self._begun_s is None or now_s - self._begun_s < SETTLED_S:
            return False
        if not snapshot.cluster.clustered:
            return True
        ages = (snapshot.cluster.slo.age_s(now_s), snapshot.cluster.node.age_s(now_s))
        return all(age is not None and age < STALE_S for age in ages)


def _knows_holders(snapshot: NodeSnapshot) -> bool:
    """Say whether it is known whom CPUs belong to; else the hook is silent about shared ones.

    A kubelet that is not asked has neither an answer nor an error.
    """
    kubelet = snapshot.cluster.kubelet
    not_asked = kubelet.value is None and not kubelet.error
    return knows_pods(snapshot) and (not_asked or knows_settings(kubelet.value))


def pod_of(cgroup: str) -> str:
    """Return the pod's cgroup of a pod's or container's; empty for one outside of pods."""
    if parse_pod_dir(cgroup.rpartition("/")[2]) is not None:
        return cgroup
    above = cgroup.rpartition("/")[0]
    return above if parse_pod_dir(above.rpartition("/")[2]) is not None else ""


def pods_of(cgroups: Iterable[str]) -> frozenset[str]:
    """Return the pods' cgroups."""
    return frozenset(filter(None, map(pod_of, cgroups)))


def _gone(entry: Entry, layout: CgroupLayout, files: CgroupFiles) -> bool:
    if entry.hierarchy == SYSCTL or not of_this_version(entry):
        return False
    if entry.hierarchy in (OOM, CORE):
        place = directory(layout, entry.path)
    else:
        key = BY_NAME.get(entry.key)
        place = None if key is None else layout.directory(key.controller, entry.path)
    try:
        return place is None or files.inode(place) != entry.inode
    except HostFileError:
        return True
