"""Which changes are restored: those of disabled hooks, of ended rules, of removed cgroups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from agent.allocation.cpus import has_pods, has_settings
from agent.cgroup.enforcement import NO_ENFORCEMENT, EnforcementPlan
from agent.cgroup.key_index import find_key
from agent.cgroup.keys import CPUS
from agent.cgroup.layout import CgroupLayout, parse_pod_dir
from agent.cgroup.ledger import (
    CORE_HIERARCHY,
    OOM_HIERARCHY,
    RESCTRL_HIERARCHY,
    SYSCTL_HIERARCHY,
    ChangeLedger,
    LedgerEntry,
)
from agent.cgroup.processes import process_directory
from agent.cgroup.restore import RestoreResult, is_known_entry, restore_entries
from agent.cgroup.values import CgroupFiles, CgroupValues, KernelFiles
from agent.cgroup.write_backoff import BUSY_RETRY_S
from agent.containers.dispatch import ON
from agent.errors import HostFileError, ParseError
from agent.slo.status import is_frozen
from agent.snapshot.node import NodeSnapshot

UNDESIRED_S = 10.0  # hooks may return nothing for a moment, while a part of the snapshot is new
STARTUP_GRACE_S = 60.0  # until then the cluster, the kubelet or the runtime may not have answered
SWEEP_S = 30.0  # between two searches for entries of removed cgroups
UNDO_BUDGET_S = 0.1  # of one cycle
UNDO_AGAIN_S = 600.0  # for values that another writer changed, or that the kernel refused

EntryId = tuple[str, str, str]


class Restoration:
    """Remembers since when no hook has wanted a change."""

    def __init__(self, modes: Mapping[str, str], slo_stale_s: float) -> None:
        self._modes = modes
        self._slo_stale_s = slo_stale_s
        self._since: dict[EntryId, float] = {}
        # of entries that could not be restored, as they were then
        self._after_s: dict[EntryId, tuple[float, LedgerEntry]] = {}
        # of those, the refused ones whose originals exceed the values of the groups above
        self._exceeding: set[EntryId] = set()
        self._begun_s: float | None = None
        self._swept_s: float | None = None
        self._open: tuple[tuple[object, ...], tuple[LedgerEntry, ...]] | None = None

    def due_entries(
        self,
        ledger: ChangeLedger,
        enforced: frozenset[tuple[str, str]],
        managed: frozenset[str],
        snapshot: NodeSnapshot,
        now_s: float,
        enforcement: EnforcementPlan = NO_ENFORCEMENT,
    ) -> tuple[LedgerEntry, ...]:
        """Return the entries to restore now.

        `enforced` are the targets that hooks and strategies which are on set. `managed` are the
        cgroups of pods with a desired state, and the directories above them: what other pods
        request is unknown. What a strategy that decided in this cycle does not want any more is
        restored at once.
        """
        if self._begun_s is None:
            self._begun_s = now_s
        entries = self._open_entries(ledger, enforced)
        off = [
            entry
            for entry in entries
            if self._modes.get(entry.owner) != ON
            or (entry.owner in enforcement.decided and (entry.path, entry.key) not in enforced)
        ]
        if not self._is_cluster_current(snapshot, now_s):
            self._since.clear()
            return tuple(off)
        excluded_key = "" if _are_cpu_owners_read(snapshot) else CPUS.name
        unused = {
            entry.id: entry
            for entry in entries
            if (entry.path, entry.key) not in enforced
            and entry.owner not in enforcement.owners
            and entry.key != excluded_key
            and (pod_cgroup(entry.path) or entry.path) in managed
        }
        self._since = {key: self._since.get(key, now_s) for key in unused}
        late = [unused[key] for key, since in self._since.items() if now_s - since >= UNDESIRED_S]
        return tuple({entry.id: entry for entry in (*off, *late)}.values())

    def _open_entries(
        self, ledger: ChangeLedger, enforced: frozenset[tuple[str, str]]
    ) -> tuple[LedgerEntry, ...]:
        """Return the entries that may have to be restored: nothing that is on sets their files."""
        inputs = ledger.revision, enforced, tuple(self._modes.items())
        if self._open is None or self._open[0] != inputs:
            entries = tuple(
                entry
                for entry in ledger.entries.values()
                if entry.hierarchy != RESCTRL_HIERARCHY
                and ((entry.path, entry.key) not in enforced or self._modes.get(entry.owner) != ON)
            )
            self._open = inputs, entries
        return self._open[1]

    def undo(
        self,
        ledger: ChangeLedger,
        values: CgroupValues,
        entries: Iterable[LedgerEntry],
        monotonic: Callable[[], float],
    ) -> tuple[RestoreResult, ...]:
        """Restore these originals; an entry that could not be restored is retried much later.

        An original that exceeds the value of a group above, which version 1 refuses, is restored
        with that value, or as soon as that value allows it. Raise `LedgerError`.
        """
        now_s = monotonic()
        due = self._due(tuple(entries), values, now_s)
        if not due:
            return ()
        results = restore_entries(ledger, values, due, monotonic=monotonic, budget_s=UNDO_BUDGET_S)
        for result in results:
            self._exceeding.discard(result.entry.id)
            if not result.is_done and result.state != "late":
                self._after_s[result.entry.id] = now_s + self._pause_s(result), result.entry
                if result.state == "refused" and _exceeds_limit(values, result.entry):
                    self._exceeding.add(result.entry.id)
        self._after_s = {key: at for key, at in self._after_s.items() if key in ledger.entries}
        self._exceeding &= ledger.entries.keys()
        return results

    def _due(
        self, entries: tuple[LedgerEntry, ...], values: CgroupValues, now_s: float
    ) -> list[LedgerEntry]:
        """Return the entries to try now."""
        due = [entry for entry in entries if self._may_try(entry, now_s)]
        if not self._exceeding:
            return due
        groups = {(entry.key, entry.path) for entry in due}
        due += [
            entry
            for entry in entries
            if entry.id in self._exceeding
            and (entry.key, entry.path) not in groups
            and (
                any((entry.key, group) in groups for group in _groups_above(entry.path))
                or not _exceeds_limit(values, entry)
            )
        ]
        return due

    def _pause_s(self, result: RestoreResult) -> float:
        """Return the pause before the next attempt: once a short one if a group below has more.

        A group that was removed just now counts for the kernel some 20 ms longer.
        """
        is_first = result.entry.id not in self._after_s
        return BUSY_RETRY_S if is_first and result.is_below else UNDO_AGAIN_S

    def _may_try(self, entry: LedgerEntry, now_s: float) -> bool:
        """Return whether to try; the agent has written the file again if its entry is another."""
        after_s, failed = self._after_s.get(entry.id, (0.0, entry))
        return now_s >= after_s or entry != failed

    def sweep(
        self, ledger: ChangeLedger, layout: CgroupLayout, files: KernelFiles, now_s: float
    ) -> None:
        """Drop the entries and descriptors of removed cgroups, once per interval."""
        if self._swept_s is not None and now_s - self._swept_s < SWEEP_S:
            return
        self._swept_s = now_s
        inodes: dict[tuple[str, str], int | None] = {}  # a group has several entries
        for entry in tuple(ledger.entries.values()):
            if _is_removed(entry, layout, files, inodes):
                ledger.drop(entry, "gone")
        files.close_removed()

    def _is_cluster_current(self, snapshot: NodeSnapshot, now_s: float) -> bool:
        """Return whether the cluster's answers are recent enough to trust an empty hook answer."""
        if self._begun_s is None or now_s - self._begun_s < STARTUP_GRACE_S:
            return False
        if not snapshot.cluster.is_clustered:
            return True
        node_age_s = snapshot.cluster.node.age_s(now_s)
        is_node_current = node_age_s is not None and node_age_s <= self._slo_stale_s
        return is_node_current and not is_frozen(snapshot.cluster.slo, now_s, self._slo_stale_s)


def _groups_above(cgroup: str) -> Iterator[str]:
    while cgroup := cgroup.rpartition("/")[0]:
        yield cgroup


def _exceeds_limit(values: CgroupValues, entry: LedgerEntry) -> bool:
    """Return whether a group above allows less than the original now, so that it is refused."""
    key = find_key(entry.key)
    if key is None or not key.is_hierarchical or values.version != 1:
        return False
    try:
        original = key.from_ledger(entry.original)
    except ParseError:
        return False
    return values.limiting_group(entry.path, key, original) is not None


def _are_cpu_owners_read(snapshot: NodeSnapshot) -> bool:
    """Return whether the owners of CPUs are known; if not, the hook sets no shared CPUs.

    A kubelet whose settings are not read has neither a value nor an error.
    """
    kubelet = snapshot.cluster.kubelet
    is_unread = kubelet.value is None and not kubelet.error
    return has_pods(snapshot) and (is_unread or has_settings(kubelet.value))


def pod_cgroup(cgroup: str) -> str:
    """Return the cgroup of the pod that a cgroup belongs to; empty outside of pods."""
    if parse_pod_dir(cgroup.rpartition("/")[2]) is not None:
        return cgroup
    parent = cgroup.rpartition("/")[0]
    return parent if parse_pod_dir(parent.rpartition("/")[2]) is not None else ""


def pod_cgroups(cgroups: Iterable[str]) -> frozenset[str]:
    """Return the cgroups of the pods that these cgroups belong to."""
    return frozenset(filter(None, map(pod_cgroup, cgroups)))


def _is_removed(
    entry: LedgerEntry,
    layout: CgroupLayout,
    files: CgroupFiles,
    inodes: dict[tuple[str, str], int | None],
) -> bool:
    group = entry.hierarchy, entry.path
    if entry.hierarchy in (SYSCTL_HIERARCHY, RESCTRL_HIERARCHY) or (
        group not in inodes and not is_known_entry(entry)
    ):
        return False
    if group not in inodes:
        inodes[group] = _inode(entry, layout, files)
    return inodes[group] != entry.inode


def _inode(entry: LedgerEntry, layout: CgroupLayout, files: CgroupFiles) -> int | None:
    """Return the inode of an entry's directory; `None` if it does not exist."""
    if entry.hierarchy in (OOM_HIERARCHY, CORE_HIERARCHY):
        directory = process_directory(layout, entry.path)
    else:
        key = find_key(entry.key)
        directory = None if key is None else layout.directory(key.controller, entry.path)
    try:
        return None if directory is None else files.inode(directory)
    except HostFileError:
        return None
