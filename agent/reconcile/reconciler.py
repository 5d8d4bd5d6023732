"""Files of pods and containers kept as the hooks say: one short cycle a second."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from agent.cgroup.keys import QUOTA
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import ChangeLedger, LedgerError
from agent.cgroup.paths import CgroupPathError, from_cgroup_parent
from agent.cgroup.processes import CoreCookies, KernelCoreCookies
from agent.cgroup.values import CgroupValues, KernelFiles
from agent.cgroup.write_plan import WritePlan, WriteTarget
from agent.cgroup.writer import CgroupWriter
from agent.clock import Clock
from agent.containers.dispatch import OFF
from agent.containers.hooks import Hook
from agent.errors import ParseError
from agent.host.files import LiveHostFiles
from agent.reconcile.core_cookies import CookieReconciler
from agent.reconcile.desired_state import (
    DesiredCoreGroup,
    DesiredState,
    compared_targets,
    desired_state_of,
    enforced_targets,
)
from agent.reconcile.managed_pods import ManagedPod
from agent.reconcile.oom_scores import OomScores
from agent.reconcile.pod_scan import PodScan
from agent.reconcile.qos_directories import QosDirectories
from agent.reconcile.reports import CycleReport, FileCondition, PodReport, ReportHistory
from agent.reconcile.requested_values import RequestedValues
from agent.reconcile.restoration import Restoration, pod_cgroups
from agent.snapshot.container import NO_RESOURCES, HookRequest, LinuxResources
from agent.snapshot.edits import ContainerNote
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.publications import AuditRecord

MAX_AUDITS = 1024
MAX_PODS_PER_CYCLE = 64  # whose files one cycle writes: the others' turn comes in the next
NORMALIZATION_HOOK = "cpu_normalization"  # the hook that must know what was asked before it


class Reconciler:
    """Compares and writes what hooks want. All of it on the collector thread, but what says so.

    Raises nothing for what a kernel, a disk or a pod may do. `audits` is what was done of late.
    """

    def __init__(
        self,
        *,
        root: LiveHostFiles,
        ledger: ChangeLedger,
        hooks: tuple[Hook, ...],
        modes: Mapping[str, str],
        clock: Clock,
        cookies: Callable[[], CoreCookies] = KernelCoreCookies,
    ) -> None:
        """Begin with what the ledger has, which is loaded; touch nothing."""
        self.audits: deque[AuditRecord] = deque(maxlen=MAX_AUDITS)
        self.ledger = ledger
        self._clock = clock
        self._modes = modes
        self._files = KernelFiles(root)
        self._scan = PodScan(hooks, modes, clock.monotonic)
        self._restoration = Restoration(modes)
        self._requested = RequestedValues()
        self._reports = ReportHistory()
        self._oom = OomScores(self._files, ledger, clock.wall)
        self._directories = QosDirectories(self._files, ledger, modes, clock.wall)
        self._cores = CookieReconciler(self._files, ledger, cookies)
        self._writer: CgroupWriter | None = None
        self._planner: CgroupWriter | None = None
        self._next = 0  # which pod the next cycle begins with
        self._targets: frozenset[WriteTarget] = frozenset()  # all files that are looked at
        self._enforced_targets: frozenset[WriteTarget] = (
            frozenset()
        )  # what hooks that are on want, of any kind
        self._pods: frozenset[str] = frozenset()  # whose hooks were asked
        self._ledger_problem = ""  # why the ledger is not written
        self._is_ledger_hanging = False  # the ledger's file system does not answer

    def cycle(self, snapshot: NodeSnapshot, layout: CgroupLayout | None) -> CycleReport:
        """Compare and write once. `layout` is the host's; without one nothing is done."""
        if layout is None or layout.root is None:
            return CycleReport(conditions=self._conditions())
        now_s = self._clock.monotonic()
        writer, planner = self._open(layout)
        marked = self._scan.refresh(snapshot, layout.version, self._requested_quota)
        looked = self._scan.desired
        if self._scan.is_changed:
            self._targets = compared_targets(looked.values()) | self._directory_targets()
            self._enforced_targets = enforced_targets(looked.values())
            self._pods = pod_cgroups(looked)
            writer.retain(self._targets)
            planner.retain(self._targets)
            self._reports.forget_other_targets(self._targets)
            self._reports.forget_other_pods({one.managed_pod.pod.uid for one in looked.values()})
        if self._requested.settle(looked, writer, self._scan.formulas):
            self._scan.rescan_all()
        notes = self._reports.late_notes(snapshot, looked.values(), marked)
        above = self._directories.prepare(snapshot, layout, writer, now_s)
        prepared = self._prepare(writer, now_s)
        planned = self._plan_only(planner, looked.values(), now_s)
        scores = self._oom.prepare(
            (wish for one in looked.values() for wish in one.oom_scores), layout, now_s
        )
        cores = tuple(wish for one in looked.values() for wish in one.core_groups)
        self._cores.record_originals(cores, layout)
        for _, ready in prepared:
            writer.record_in_ledger(ready)
        self._restoration.sweep(self.ledger, layout, self._files, now_s)
        self._flush()
        compared = above.compared + sum(ready.compared for _, ready in prepared)
        left, written = above.unwritten + sum(ready.unwritten for _, ready in prepared), 0
        if not self._ledger_problem:
            done = self._directories.apply(above, writer, now_s)
            self.audits.extend(done.audits)
            left, written = left + done.unwritten, written + done.written
        for one, ready in prepared:
            if ready.steps:
                report = self._apply(one.managed_pod, ready, now_s)
                written, left = written + report.written, left + report.left
                notes += report.notes
        if not self._is_ledger_hanging:
            self.audits.extend(self._oom.apply(scores, now_s))
            self._apply_cores(cores, layout, now_s)
            self._restore(snapshot, writer.values, now_s)
        for one in looked.values():
            notes += self._reports.new_notes(one.managed_pod.pod, one.notes)
        return CycleReport(
            pods=len(looked),
            pods_later=max(self._scan.backlog, len(looked) - len(prepared)),
            files=compared,
            written=written,
            left=left,
            planned=planned,
            failed_hooks=self._reports.new_failures(looked.values()),
            notes=notes,
            conditions=self._conditions(),
        )

    def apply_pod(
        self, request: HookRequest, snapshot: NodeSnapshot, layout: CgroupLayout | None
    ) -> PodReport:
        """Write a new pod's own files before its sandbox runs.

        The hooks are asked here again: the ledger must know which of them wants what.
        """
        if layout is None or layout.root is None:
            return PodReport()
        pod = request.pod
        try:
            cgroup = from_cgroup_parent(pod.cgroup_parent, pod.uid)
        except CgroupPathError as error:
            note = ContainerNote(reason="BadCgroupPath", message=str(error))
            return PodReport(notes=self._reports.new_notes(pod, (note,)))
        now_s = self._clock.monotonic()
        writer, _ = self._open(layout)
        place = ManagedPod(pod=msgspec.structs.replace(pod, cgroup_parent=cgroup), cgroup=cgroup)
        looked = desired_state_of(
            place, self._scan.cycle_inputs(snapshot, layout.version, self._requested_quota)
        )
        ready = writer.prepare(looked.writes, now_s)
        writer.record_in_ledger(ready)
        self._flush()
        report = self._apply(place, ready, now_s)
        return msgspec.structs.replace(
            report,
            left=report.left + ready.unwritten,
            notes=report.notes + self._reports.new_notes(pod, looked.notes),
        )

    def record_request(
        self, uid: str, container: str, asked: LinuxResources, *, runs: bool = False
    ) -> None:
        """Learn what was asked for a container that hooks changed: undoing gives that back.

        `runs`: it is there already, and is asked to have other resources. From any thread.
        """
        learn = self._requested.renew if runs else self._requested.add
        learn(uid, container, asked)

    def prioritize(self, uid: str) -> None:
        """Have a pod looked at first in the next cycle: its answer came late. From any thread."""
        self._scan.prioritize(uid)

    def close(self) -> None:
        """Let go of all descriptors; nothing is undone."""
        self._files.close_all()
        self._writer = self._planner = None

    def _open(self, layout: CgroupLayout) -> tuple[CgroupWriter, CgroupWriter]:
        """Return what writes and what only compares; new ones for a new layout."""
        if self._writer is None or self._planner is None or self._writer.values.layout != layout:
            self._files.close_all()
            values = CgroupValues(self._files, layout)
            self._writer = CgroupWriter(values, self.ledger, self._clock.wall)
            self._planner = CgroupWriter(values, ChangeLedger(None, ""), self._clock.wall)
        return self._writer, self._planner

    def _requested_quota(self, cgroup: str) -> LinuxResources:
        """Return the quota that was asked for a group, before we wrote any."""
        if self._writer is None or self._modes.get(NORMALIZATION_HOOK, OFF) == OFF:
            return NO_RESOURCES
        values = self._writer.values
        entry = self.ledger.entries.get((values.hierarchy(QUOTA), cgroup, QUOTA.name))
        try:
            found = (
                values.read_value(cgroup, QUOTA)
                if entry is None
                else QUOTA.from_ledger(entry.original)
            )
        except ParseError:
            return NO_RESOURCES
        quota_us, period_us = getattr(found, "quota_us", None), getattr(found, "period_us", None)
        return LinuxResources(quota_us=quota_us, period_us=period_us)

    def _apply(self, place: ManagedPod, ready: WritePlan, now_s: float) -> PodReport:
        if self._writer is None or not ready.steps:
            return PodReport()
        if self._is_ledger_hanging:
            return PodReport(left=len(ready.desired))
        done = self._writer.apply(ready, now_s)
        self.audits.extend(done.audits)
        notes = tuple(
            ContainerNote(reason=one.reason, message=one.message) for one in done.problems
        )
        return PodReport(
            written=done.written,
            left=done.unwritten,
            audits=done.audits,
            notes=self._reports.new_notes(place.pod, notes),
        )

    def _prepare(self, writer: CgroupWriter, now_s: float) -> list[tuple[DesiredState, WritePlan]]:
        """Compare the files of pods in turn, until so many are to be written as one cycle may."""
        looked = list(self._scan.desired.values())
        self._next = self._next if self._next < len(looked) else 0
        prepared: list[tuple[DesiredState, WritePlan]] = []
        writes = 0
        for one in (*looked[self._next :], *looked[: self._next]):
            ready = writer.prepare(one.writes, now_s)
            prepared.append((one, ready))
            writes += bool(ready.steps)
            if writes >= MAX_PODS_PER_CYCLE:
                break
        self._next = (self._next + len(prepared)) % max(len(looked), 1)
        return prepared

    def _plan_only(
        self, planner: CgroupWriter, looked: Iterable[DesiredState], now_s: float
    ) -> int:
        """Count what hooks in plan mode would write; tell each such value once."""
        ready = [planner.prepare(one.planned_writes, now_s) for one in looked if one.planned_writes]
        for one in ready:
            self.audits.extend(
                self._reports.planned_audits(planner.values, one, self._clock.wall())
            )
        return sum(len(one.desired) for one in ready)

    def _flush(self) -> None:
        """Put the originals on the disk. A disk that refuses them does not stop pods' files.

        Their originals follow from the pods' own specs; limits that are not in force harm others.
        While the disk does not answer, nothing is written: the entries may reach it much later.
        """
        try:
            self.ledger.flush()
        except LedgerError as error:
            self._ledger_problem, self._is_ledger_hanging = str(error), error.is_hanging
            if self._is_ledger_hanging:
                self._ledger_problem += ": no file of a pod is written until it does"
        else:
            self._ledger_problem, self._is_ledger_hanging = "", False

    def _apply_cores(
        self, cores: tuple[DesiredCoreGroup, ...], layout: CgroupLayout, now_s: float
    ) -> None:
        if not self._directories.problem:  # a switch that must be off before there are cookies
            self._cores.apply(cores, layout, now_s)

    def _restore(self, snapshot: NodeSnapshot, values: CgroupValues, now_s: float) -> None:
        looked = self._pods | self._directories.paths(values.layout)
        wanted = self._enforced_targets | self._directory_targets() | self._directories.required
        leaving = self._restoration.due_entries(self.ledger, wanted, looked, snapshot, now_s)
        try:
            done = self._restoration.undo(self.ledger, values, leaving, self._clock.monotonic)
        except LedgerError as error:
            self._ledger_problem = str(error)
            return
        self.audits.extend(self._reports.restored_audits(values, done, self._clock.wall()))

    def _directory_targets(self) -> frozenset[WriteTarget]:
        return frozenset(wish.target for wish in self._directories.writes)

    def _conditions(self) -> tuple[FileCondition, ...]:
        found = []
        if self._ledger_problem:
            found.append(FileCondition(reason="LedgerNotWritable", message=self._ledger_problem))
        if self.ledger.problem:
            found.append(FileCondition(reason="LedgerDamaged", message=self.ledger.problem))
        if self.ledger.newer_lines:
            message = f"{len(self.ledger.newer_lines)} lines that this version cannot read"
            found.append(FileCondition(reason="LedgerOfNewerVersion", message=message))
        if self._oom.problem:
            found.append(FileCondition(reason="OOMScoreNotWritable", message=self._oom.problem))
        if self._directories.problem:
            found.append(FileCondition(reason="SwitchRefused", message=self._directories.problem))
        if self._cores.problem:
            found.append(FileCondition(reason="CoreSchedulingRefused", message=self._cores.problem))
        if self._writer is not None:
            found += self._reports.conditions(self._writer, self._clock.monotonic())
        return tuple(found)
