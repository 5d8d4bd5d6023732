"""Which changes are taken back: of hooks switched off, of wishes and of groups that are no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agent.allocation.cpus import has_pods, has_settings
from agent.cgroup.keys import CPUS, KEYS_BY_NAME
from agent.cgroup.layout import CgroupLayout, parse_pod_dir
from agent.cgroup.ledger import (
    CORE_HIERARCHY,
    OOM_HIERARCHY,
    SYSCTL_HIERARCHY,
    ChangeLedger,
    LedgerEntry,
)
from agent.cgroup.processes import process_directory
from agent.cgroup.restore import RestoreResult, is_known_entry, restore_entries
from agent.cgroup.values import CgroupFiles, CgroupValues
from agent.containers.dispatch import ON
from agent.errors import HostFileError
from agent.snapshot.node import NodeSnapshot

UNDESIRED_S = 10.0  # hooks may have nothing to say for a moment, as a part of the snapshot is new
SETTLED_S = 60.0  # after the start: the cluster, the kubelet and the runtime tell one by one
STALE_S = 1800.0  # without word of the cluster everything stays as it is
SWEEP_S = 30.0  # for groups that are gone
UNDO_BUDGET_S = 0.1  # of one cycle
UNDO_AGAIN_S = 600.0  # for what is in force by somebody else's word, or refused

EntryId = tuple[str, str, str]


class Restoration:
    """Remembers since when nobody wants a change any more."""

    def __init__(self, modes: Mapping[str, str]) -> None:
        self._modes = modes
        self._since: dict[EntryId, float] = {}
        self._after_s: dict[EntryId, float] = {}
        self._begun_s: float | None = None
        self._swept_s: float | None = None

    def due_entries(
        self,
        ledger: ChangeLedger,
        wanted: frozenset[tuple[str, str]],
        looked: frozenset[str],
        snapshot: NodeSnapshot,
        now_s: float,
    ) -> tuple[LedgerEntry, ...]:
        """Return what is to be undone now.

        `wanted` are the targets that a hook which is on wants; `looked` the cgroups of pods that
        the hooks were asked about, and the directories above them: of other pods nobody knows what
        they ask for.
        """
        if self._begun_s is None:
            self._begun_s = now_s
        off = [e for e in ledger.entries.values() if self._modes.get(e.owner) != ON]
        if not self._is_cluster_known(snapshot, now_s):
            self._since.clear()
            return tuple(off)
        kept = "" if _are_cpu_holders_known(snapshot) else CPUS.name
        free = {
            entry.id: entry
            for entry in ledger.entries.values()
            if (entry.path, entry.key) not in wanted
            and entry.key != kept
            and (pod_cgroup(entry.path) or entry.path) in looked
        }
        self._since = {key: self._since.get(key, now_s) for key in free}
        late = [free[key] for key, since in self._since.items() if now_s - since >= UNDESIRED_S]
        return tuple({entry.id: entry for entry in (*off, *late)}.values())

    def undo(
        self,
        ledger: ChangeLedger,
        values: CgroupValues,
        entries: Iterable[LedgerEntry],
        monotonic: Callable[[], float],
    ) -> tuple[RestoreResult, ...]:
        """Put these originals back; what could not be is tried again much later.

        Raise `LedgerError`.
        """
        now_s = monotonic()
        due = [entry for entry in entries if now_s >= self._after_s.get(entry.id, 0.0)]
        if not due:
            return ()
        done = restore_entries(ledger, values, due, monotonic=monotonic, budget_s=UNDO_BUDGET_S)
        for one in done:
            if not one.is_done and one.state != "late":
                self._after_s[one.entry.id] = now_s + UNDO_AGAIN_S
        self._after_s = {key: at for key, at in self._after_s.items() if key in ledger.entries}
        return done

    def sweep(
        self, ledger: ChangeLedger, layout: CgroupLayout, files: CgroupFiles, now_s: float
    ) -> None:
        """Drop the entries of groups that are gone, every now and then."""
        if self._swept_s is not None and now_s - self._swept_s < SWEEP_S:
            return
        self._swept_s = now_s
        for entry in tuple(ledger.entries.values()):
            if _is_gone(entry, layout, files):
                ledger.drop(entry, "gone")

    def _is_cluster_known(self, snapshot: NodeSnapshot, now_s: float) -> bool:
        """Say whether hooks that say nothing have nothing to say."""
        if self._begun_s is None or now_s - self._begun_s < SETTLED_S:
            return False
        if not snapshot.cluster.is_clustered:
            return True
        ages = (snapshot.cluster.slo.age_s(now_s), snapshot.cluster.node.age_s(now_s))
        return all(age is not None and age < STALE_S for age in ages)


def _are_cpu_holders_known(snapshot: NodeSnapshot) -> bool:
    """Say whether it is known whom CPUs belong to; else the hook is silent about shared ones.

    A kubelet that is not asked has neither an answer nor an error.
    """
    kubelet = snapshot.cluster.kubelet
    not_asked = kubelet.value is None and not kubelet.error
    return has_pods(snapshot) and (not_asked or has_settings(kubelet.value))


def pod_cgroup(cgroup: str) -> str:
    """Return the pod's cgroup of a pod's or container's; empty for one outside of pods."""
    if parse_pod_dir(cgroup.rpartition("/")[2]) is not None:
        return cgroup
    above = cgroup.rpartition("/")[0]
    return above if parse_pod_dir(above.rpartition("/")[2]) is not None else ""


def pod_cgroups(cgroups: Iterable[str]) -> frozenset[str]:
    """Return the pods' cgroups."""
    return frozenset(filter(None, map(pod_cgroup, cgroups)))


def _is_gone(entry: LedgerEntry, layout: CgroupLayout, files: CgroupFiles) -> bool:
    if entry.hierarchy == SYSCTL_HIERARCHY or not is_known_entry(entry):
        return False
    if entry.hierarchy in (OOM_HIERARCHY, CORE_HIERARCHY):
        place = process_directory(layout, entry.path)
    else:
        key = KEYS_BY_NAME.get(entry.key)
        place = None if key is None else layout.directory(key.controller, entry.path)
    try:
        return place is None or files.inode(place) != entry.inode
    except HostFileError:
        return True
