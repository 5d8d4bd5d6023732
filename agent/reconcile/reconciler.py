"""Keeps files of pods and containers at the values that hooks set: one short cycle a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain

import msgspec

from agent.cgroup.enforcement import NO_ENFORCEMENT, EnforcementPlan, StrategyValues
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import ChangeLedger, LedgerError
from agent.cgroup.paths import CgroupPathError, from_cgroup_parent
from agent.cgroup.processes import CoreCookies, KernelCoreCookies
from agent.cgroup.values import CgroupValues, KernelFiles
from agent.cgroup.write_plan import DesiredValue, WritePlan, WriteTarget
from agent.cgroup.writer import CgroupWriter
from agent.clock import Clock
from agent.containers.dispatch import OFF, ON, Answers
from agent.containers.hooks import Hook
from agent.host.files import LiveHostFiles
from agent.reconcile.audit_file import AuditTrail
from agent.reconcile.core_cookies import CookieReconciler
from agent.reconcile.desired_state import (
    DesiredCoreGroup,
    DesiredState,
    compared_targets,
    desired_state_of,
    enforced_targets,
)
from agent.reconcile.explanation import FileExplainer
from agent.reconcile.managed_pods import ManagedContainer, ManagedPod
from agent.reconcile.oom_scores import OomScores
from agent.reconcile.pod_scan import PodScan
from agent.reconcile.qos_directories import QosDirectories
from agent.reconcile.reports import CycleReport, PodReport, ReportHistory
from agent.reconcile.requested_values import RequestedValues, original_quota
from agent.reconcile.restoration import Restoration, pod_cgroups
from agent.snapshot.cluster import SLO_STALE_S
from agent.snapshot.container import NO_RESOURCES, HookRequest, LinuxResources
from agent.snapshot.edits import ContainerNote
from agent.snapshot.node import IdentityMemo, NodeSnapshot, are_same_objects
from agent.snapshot.self_check import DesiredFiles, FileCondition

MAX_PODS_PER_CYCLE = 64  # whose files one cycle writes; the next cycle continues with the others
ALL_PODS = "all pods"  # the group of the values of all pods' hooks
NORMALIZATION_HOOK = "cpu_normalization"  # the hook that needs the quota which the pod requested


class Reconciler:
    """Compares and writes the desired values on the collector thread.

    Methods that may be called from other threads say so. Errors of the kernel, of a disk or of a
    pod are reported and not raised. `audits` has all changes.
    """

    def __init__(
        self,
        *,
        root: LiveHostFiles,
        ledger: ChangeLedger,
        hooks: tuple[Hook, ...],
        modes: Mapping[str, str],
        clock: Clock,
        slo_stale_s: float = SLO_STALE_S,
        cookies: Callable[[], CoreCookies] = KernelCoreCookies,
        audits: AuditTrail | None = None,
    ) -> None:
        """Start with the entries of the loaded ledger; read and write no file.

        A NodeSLO that was not confirmed for `slo_stale_s` changes nothing.
        """
        self.audits = AuditTrail() if audits is None else audits
        self.ledger = ledger
        self._clock = clock
        self._modes = modes
        self._files = KernelFiles(root)
        self._scan = PodScan(hooks, modes, clock)
        self._restoration = Restoration(modes, slo_stale_s)
        self._requested = RequestedValues()
        self._reports = ReportHistory()
        self._oom = OomScores(self._files, ledger, clock)
        self._directories = QosDirectories(self._files, ledger, modes, clock, slo_stale_s, hooks)
        self._cores = CookieReconciler(self._files, ledger, cookies)
        self._writer: CgroupWriter | None = None
        self._planner: CgroupWriter | None = None
        self._next = 0  # index of the pod that the next cycle starts with
        self._targets: frozenset[WriteTarget] = frozenset()  # all files that are compared
        self._enforced_targets: frozenset[WriteTarget] = (
            frozenset()
        )  # files and process attributes that hooks which are on set
        # the same and those of the QoS directories
        self._all_targets = IdentityMemo[frozenset[WriteTarget]]()
        self._pods: frozenset[str] = frozenset()  # cgroups of pods with a desired state
        self._enforcement = NO_ENFORCEMENT
        self._overridden: frozenset[WriteTarget] = frozenset()  # files that strategies set
        # desired values of hooks without those files, by cgroup of the pod
        self._pod_writes: dict[str, tuple[DesiredValue, ...]] = {}
        self._all_pod_writes: tuple[DesiredValue, ...] = ()  # the same together
        self._desired_files = DesiredFiles()
        self._ledger_problem = ""  # why the ledger cannot be written
        self._is_ledger_hanging = False  # the ledger's file system does not answer

    def current_values(self, layout: CgroupLayout) -> CgroupValues:
        """Return the files in force, through the descriptors that the cycle has open."""
        return self._open(layout)[0].values

    @property
    def desired_files(self) -> DesiredFiles:
        """Return all desired values; the same object as before while they are the same."""
        directories = self._directories.writes
        if self._desired_files.directories is not directories:
            self._desired_files = msgspec.structs.replace(
                self._desired_files, directories=directories
            )
        return self._desired_files

    def cycle(
        self,
        snapshot: NodeSnapshot,
        layout: CgroupLayout | None,
        enforcement: EnforcementPlan = NO_ENFORCEMENT,
    ) -> CycleReport:
        """Compare and write once. `layout` is the host's; without one nothing is done."""
        if layout is None or layout.root is None:
            return CycleReport(conditions=self._conditions())
        now_s = self._clock.monotonic()
        writer, planner = self._open(layout)
        prioritized = self._scan.refresh(snapshot, layout.version, self._requested_quota)
        states = self._scan.desired
        self._settle_requests(snapshot, layout, writer)
        self._adopt_enforcement(enforcement, writer, planner)
        notes = self._reports.late_notes(snapshot, states.values(), prioritized)
        directory_plan = self._directories.prepare(snapshot, layout, writer, now_s)
        strategies = [writer.prepare(one.values, now_s, one.owner) for one in enforcement.enforced]
        prepared = self._prepare(writer, now_s)
        planned = self._plan_only(planner, states.values(), enforcement.planned, now_s)
        scores = self._oom.prepare(
            (desired for state in states.values() for desired in state.oom_scores), layout, now_s
        )
        cores = tuple(desired for state in states.values() for desired in state.core_groups)
        self._cores.record_originals(cores, layout)
        for plan in (*strategies, *(plan for _, plan in prepared)):
            writer.record_in_ledger(plan)
        self._restoration.sweep(self.ledger, layout, self._files, now_s)
        self._flush()
        plans = (directory_plan, *strategies, *(plan for _, plan in prepared))
        compared = sum(plan.compared for plan in plans)
        unwritten, written, refused = sum(plan.unwritten for plan in plans), 0, 0
        if not self._ledger_problem:
            results = [self._directories.apply(directory_plan, writer, now_s)]
            of_strategies = [writer.apply(plan, now_s) for plan in strategies if plan.steps]
            refused = sum(bool(audit.errno) for result in of_strategies for audit in result.audits)
            results += of_strategies
            for result in results:
                self.audits.extend(result.audits)
                self._reports.record_problems(result.problems)
                written, unwritten = written + result.written, unwritten + result.unwritten
        for one, plan in prepared:
            if plan.steps:
                report = self._apply(one.managed_pod, plan, now_s)
                written, unwritten = written + report.written, unwritten + report.unwritten
                notes += report.notes
        if not self._is_ledger_hanging:
            self.audits.extend(self._oom.apply(scores, now_s))
            self._apply_cores(cores, layout, now_s)
            self._restore(snapshot, writer.values, now_s)
        for one in states.values():
            notes += self._reports.new_notes(one.managed_pod.pod, one.notes)
        return CycleReport(
            pods=len(states),
            pods_later=max(self._scan.backlog, len(states) - len(prepared)),
            files=compared,
            written=written,
            unwritten=unwritten,
            refused=refused,
            planned=planned,
            failed_hooks=self._reports.new_failures(states.values()),
            notes=notes,
            conditions=self._conditions(),
        )

    def apply_pod(
        self, request: HookRequest, snapshot: NodeSnapshot, layout: CgroupLayout | None
    ) -> PodReport:
        """Write a new pod's own files before its sandbox runs.

        The hooks are called again, because the ledger must record which hook sets which value.
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
        managed_pod = ManagedPod(
            pod=msgspec.structs.replace(pod, cgroup_parent=cgroup), cgroup=cgroup
        )
        state = desired_state_of(
            managed_pod, self._scan.cycle_inputs(snapshot, layout.version, self._requested_quota)
        )
        plan = writer.prepare(state.writes, now_s)
        writer.record_in_ledger(plan)
        self._flush()
        report = self._apply(managed_pod, plan, now_s)
        return msgspec.structs.replace(
            report,
            unwritten=report.unwritten + plan.unwritten,
            notes=report.notes + self._reports.new_notes(pod, state.notes),
        )

    def record_request(
        self,
        uid: str,
        container: str,
        requested: LinuxResources,
        answers: Answers = (),
        *,
        runs: bool = False,
    ) -> None:
        """Record the resources that were requested for a container, and what hooks answered.

        Restoring writes these values. `runs`: the container exists and is being resized. Any thread
        may call this.
        """
        if runs:
            self._requested.renew(uid, container, requested)
        else:
            self._requested.add(uid, container, requested, answers)

    def prioritize(self, uid: str) -> None:
        """Recompute a pod first in the next cycle: its answer came late.

        Any thread may call this.
        """
        self._scan.prioritize(uid)

    def explainer(self) -> FileExplainer | None:
        """Return what explains the files of this host; `None` before the first cycle."""
        if self._writer is None:
            return None
        now_s = self._clock.monotonic()
        return FileExplainer(self._writer, self.desired_files, self.audits.latest(), now_s)

    def close(self) -> None:
        """Close all descriptors; nothing is restored."""
        self._files.close_all()
        self._writer = self._planner = None

    def _open(self, layout: CgroupLayout) -> tuple[CgroupWriter, CgroupWriter]:
        """Return a writer that writes and one that only compares; new ones for a new layout."""
        if self._writer is None or self._planner is None or self._writer.values.layout != layout:
            self._files.close_all()
            values = CgroupValues(self._files, layout)
            self._writer = CgroupWriter(values, self.ledger, self._clock)
            self._planner = CgroupWriter(values, ChangeLedger(None, ""), self._clock)
        return self._writer, self._planner

    def _settle_requests(
        self, snapshot: NodeSnapshot, layout: CgroupLayout, writer: CgroupWriter
    ) -> None:
        """Recompute the pods whose requests or originals changed, and record new originals."""
        states = self._scan.desired
        if self._requested.settle(states, writer, self._scan.formulas):
            self._scan.rescan_all()
        resized = pod_cgroups(writer.take_resized()) | self._requested.resized(states)
        if resized:
            self._scan.recompute(resized, snapshot, layout.version, self._requested_quota)
        self._requested.record_answers(states, writer, self._scan.formulas)

    def _adopt_enforcement(
        self, enforcement: EnforcementPlan, writer: CgroupWriter, planner: CgroupWriter
    ) -> None:
        """Update what depends on the desired values of all hooks and strategies together."""
        before, self._enforcement = self._enforcement, enforcement
        groups = (*enforcement.enforced, *enforcement.planned)
        earlier_groups = (*before.enforced, *before.planned)
        is_changed = self._scan.is_changed
        if not is_changed and are_same_objects(groups, earlier_groups):
            return
        self._desired_files = self._all_desired_files(enforcement, writer.values.version)
        targets_of_groups = [
            tuple(one.targets for one in part) for part in (groups, earlier_groups)
        ]
        if not is_changed and are_same_objects(*targets_of_groups):
            return  # other values of the same files
        states = self._scan.desired
        # while the brake holds, what strategies that are on have written stays
        held = (one for one in enforcement.planned if self._modes.get(one.owner) == ON)
        self._overridden = frozenset().union(
            *(one.targets for one in (*enforcement.enforced, *held))
        )
        self._pod_writes = {
            cgroup: self._without_overridden(cgroup, state) for cgroup, state in states.items()
        }
        all_writes = tuple(chain.from_iterable(self._pod_writes.values()))
        if all_writes != self._all_pod_writes:
            self._all_pod_writes = all_writes
        targets = compared_targets(states.values()).union(
            self._directory_targets(), *(group.targets for group in groups)
        )
        self._enforced_targets = enforced_targets(states.values()) | self._overridden
        self._pods = pod_cgroups(states)
        if targets != self._targets:
            self._targets = targets
            writer.retain(targets)
            planner.retain(targets)
            self._reports.forget_other_targets(targets)
        self._reports.forget_other_pods({state.managed_pod.pod.uid for state in states.values()})

    def _all_desired_files(self, enforcement: EnforcementPlan, version: int) -> DesiredFiles:
        states = self._scan.desired.values()
        return DesiredFiles(
            version=version,
            directories=self._directories.writes,
            hooks=tuple(chain.from_iterable(state.writes for state in states)),
            planned_hooks=tuple(chain.from_iterable(state.planned_writes for state in states)),
            strategies=tuple(chain.from_iterable(one.values for one in enforcement.enforced)),
            planned_strategies=tuple(
                chain.from_iterable(one.values for one in enforcement.planned)
            ),
        )

    def _without_overridden(self, cgroup: str, state: DesiredState) -> tuple[DesiredValue, ...]:
        """Return the desired values of the hooks; equal ones are the same object as before."""
        writes = state.writes
        if not self._overridden.isdisjoint(desired.target for desired in writes):
            writes = tuple(write for write in writes if write.target not in self._overridden)
        before = self._pod_writes.get(cgroup)
        return before if before == writes else writes

    def _requested_quota(
        self, pod: ManagedPod, container: ManagedContainer | None
    ) -> LinuxResources:
        """Return the quota of a cgroup from before the agent's first write."""
        if self._writer is None or self._modes.get(NORMALIZATION_HOOK, OFF) == OFF:
            return NO_RESOURCES
        if container is None:
            return original_quota(self._writer.values, self.ledger, pod.cgroup)
        pending = self._requested.pending(pod.pod.uid, container.name)
        return original_quota(self._writer.values, self.ledger, container.cgroup, pending)

    def _apply(self, managed_pod: ManagedPod, plan: WritePlan, now_s: float) -> PodReport:
        if self._writer is None or not plan.steps:
            return PodReport()
        if self._is_ledger_hanging:
            return PodReport(unwritten=len(plan.desired))
        result = self._writer.apply(plan, now_s)
        self.audits.extend(result.audits)
        notes = tuple(
            ContainerNote(reason=problem.reason, message=problem.message)
            for problem in result.problems
        )
        return PodReport(
            written=result.written,
            unwritten=result.unwritten,
            audits=result.audits,
            notes=self._reports.new_notes(managed_pod.pod, notes),
        )

    def _prepare(self, writer: CgroupWriter, now_s: float) -> list[tuple[DesiredState, WritePlan]]:
        """Compare the files of pods in turn, up to the limit of pods with writes in one cycle.

        Files of pods that are all met are compared together, which costs less.
        """
        states = list(self._scan.desired.values())
        if writer.is_met(ALL_PODS, self._all_pod_writes):
            plans = (
                WritePlan(compared=len(self._pod_writes[cgroup])) for cgroup in self._scan.desired
            )
            return list(zip(states, plans, strict=True))
        self._next = self._next if self._next < len(states) else 0
        prepared: list[tuple[DesiredState, WritePlan]] = []
        writes = 0
        for one in (*states[self._next :], *states[: self._next]):
            plan = writer.prepare(self._pod_writes[one.managed_pod.cgroup], now_s)
            prepared.append((one, plan))
            writes += bool(plan.steps)
            if writes >= MAX_PODS_PER_CYCLE:
                break
        self._next = (self._next + len(prepared)) % max(len(states), 1)
        if not writes and len(prepared) == len(states):
            writer.record_met(ALL_PODS, self._all_pod_writes)
        return prepared

    def _plan_only(
        self,
        planner: CgroupWriter,
        states: Iterable[DesiredState],
        strategies: Iterable[StrategyValues],
        now_s: float,
    ) -> int:
        """Count what hooks and strategies in plan mode would write; record each such value once."""
        plans = [
            planner.prepare(state.planned_writes, now_s) for state in states if state.planned_writes
        ]
        plans += [
            planner.prepare(strategy.values, now_s, strategy.owner) for strategy in strategies
        ]
        for plan in plans:
            self.audits.extend(
                self._reports.planned_audits(planner.values, plan, self._clock.wall())
            )
        return sum(len(plan.desired) for plan in plans)

    def _flush(self) -> None:
        """Write the originals to disk. If the disk refuses them, files of pods are still written.

        Their originals follow from the pods' own specs, and limits that are not in force harm other
        pods. While the disk does not answer, nothing is written: the entries may reach it much
        later.
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
        if (
            not self._directories.problem
        ):  # the switches must be written before any cookie is created
            self._cores.apply(cores, layout, now_s)

    def _restore(self, snapshot: NodeSnapshot, values: CgroupValues, now_s: float) -> None:
        managed = self._pods | self._directories.paths(values.layout)
        enforced = self._all_targets.get(
            (self._enforced_targets, self._directories.writes, self._directories.required),
            lambda: self._enforced_targets | self._directory_targets() | self._directories.required,
        )
        due = self._restoration.due_entries(
            self.ledger, enforced, managed, snapshot, now_s, self._enforcement
        )
        try:
            results = self._restoration.undo(self.ledger, values, due, self._clock.monotonic)
        except LedgerError as error:
            self._ledger_problem = str(error)
            return
        self.audits.extend(self._reports.restored_audits(values, results, self._clock.wall()))

    def _directory_targets(self) -> frozenset[WriteTarget]:
        return frozenset(desired.target for desired in self._directories.writes)

    def _conditions(self) -> tuple[FileCondition, ...]:
        conditions = []
        if self._ledger_problem:
            conditions.append(
                FileCondition(reason="LedgerNotWritable", message=self._ledger_problem)
            )
        if self.audits.problem:
            conditions.append(
                FileCondition(reason="AuditFileNotWritable", message=self.audits.problem)
            )
        if self.ledger.problem:
            conditions.append(FileCondition(reason="LedgerDamaged", message=self.ledger.problem))
        if self.ledger.newer_lines:
            message = f"{len(self.ledger.newer_lines)} lines that this version cannot read"
            conditions.append(FileCondition(reason="LedgerOfNewerVersion", message=message))
        if self._oom.problem:
            conditions.append(
                FileCondition(reason="OOMScoreNotWritable", message=self._oom.problem)
            )
        if self._directories.problem:
            conditions.append(
                FileCondition(reason="SwitchRefused", message=self._directories.problem)
            )
        if self._cores.problem:
            conditions.append(
                FileCondition(reason="CoreSchedulingRefused", message=self._cores.problem)
            )
        if self._writer is not None:
            conditions += self._reports.conditions(self._writer, self._clock.monotonic())
        return tuple(conditions)
