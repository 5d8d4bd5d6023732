"""Keeps files of pods at their desired values on the collector thread, and reports problems."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from agent.app.threads import ScheduledLoop
from agent.cgroup.enforcement import NO_ENFORCEMENT
from agent.cgroup.layout import CgroupLayout, LayoutLocator
from agent.cgroup.ledger import LEDGER_FILE, ChangeLedger, LedgerError
from agent.clock import Clock
from agent.config.containers import EnforceSettings
from agent.containers.devices import DevicesHook
from agent.containers.dispatch import Answers
from agent.errors import AgentError
from agent.loop import Loop
from agent.messages import EventReported, MessageQueue
from agent.qos.conditions import ConditionState, strategy_conditions
from agent.qos.engine import StrategyRunner
from agent.qos.inputs import LiveValues
from agent.qos.pressure import PressureMonitor, watched_cgroups
from agent.reconcile.audit_file import AuditFile, AuditTrail
from agent.reconcile.explanation import FileExplainer
from agent.reconcile.reconciler import Reconciler
from agent.reconcile.reports import PodReport, PodReportNote
from agent.resctrl.group_writer import OWNER as RESCTRL_STRATEGY
from agent.resctrl.manager import ResctrlManager
from agent.snapshot.container import (
    ContainerSpec,
    HookRequest,
    HookStage,
    RuntimeView,
    sandbox_from_pod,
)
from agent.snapshot.edits import ContainerInjection
from agent.snapshot.node import NodeSnapshot, SnapshotStore
from agent.snapshot.part import HistogramCounter, SnapshotPart
from agent.snapshot.pod import PodEvictionView, PodRef
from agent.snapshot.publications import AuditRecord
from agent.snapshot.self_check import (
    EnforcementCounters,
    EnforcementView,
    FileCondition,
    FileExplanation,
    ResctrlView,
    StrategyState,
    StrategyStatus,
)
from agent.state_writer import StateWriter

log = logging.getLogger(__name__)

# a new NodeSLO and new pods are in the files before the next regular run
# and best-effort pods are limited soon after others have stalled
WAKING_CHANGES = ("cluster.slo.value", "pods.value", "pressure.value")
FIRST_CYCLE_S = 1.0  # after the start
CYCLE_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

AUDIT_FILE, NO_AUDIT_FILE = "audit.jsonl", "off"


def create_ledger(state_dir: str, boot_id: str, writer: StateWriter | None = None) -> ChangeLedger:
    """Return the ledger of a folder, not yet read; without a folder it is in memory only."""
    return ChangeLedger(
        os.path.join(state_dir, LEDGER_FILE) if state_dir else None, boot_id, writer
    )


def create_audit_trail(enforce: EnforceSettings, state_dir: str) -> AuditTrail:
    """Return the trail with its file; without a folder or with the setting off in memory only."""
    path = enforce.audit_file or (state_dir and os.path.join(state_dir, AUDIT_FILE))
    if not path or path == NO_AUDIT_FILE:
        return AuditTrail()
    return AuditTrail(AuditFile(path, enforce.audit_mib << 20), StateWriter("audit"))


def new_conditions(
    before: Iterable[FileCondition], now: Iterable[FileCondition]
) -> Iterator[FileCondition]:
    """Yield the new conditions, without those that replace one with the same reason.

    The same problem may name other files or another process in each cycle.
    """
    old, new = set(before), tuple(now)
    ended = Counter(one.reason for one in old.difference(new))
    for one in new:
        if one in old:
            continue
        if ended[one.reason]:
            ended[one.reason] -= 1
        else:
            yield one


class Enforcers(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that change the host; they share one ledger."""

    reconciler: Reconciler
    strategies: StrategyRunner
    resctrl: ResctrlManager
    ledger_writer: StateWriter


class PodFileUpdater:
    """Runs the reconciler. `cycle`, `write_pod` and `close` belong to the collector thread."""

    def __init__(
        self,
        store: SnapshotStore,
        clock: Clock,
        locator: LayoutLocator,
        enforcers: Enforcers,
        messages: MessageQueue,
        pressure: PressureMonitor | None = None,
    ) -> None:
        """Without `pressure`, no stall of latency-sensitive pods is watched for."""
        self._store = store
        self._clock = clock
        self._locator = locator
        self._reconciler = enforcers.reconciler
        self._strategies = enforcers.strategies
        self._resctrl = enforcers.resctrl
        self._resctrl_error = ""  # the bug that was logged
        self._ledger_writer = enforcers.ledger_writer
        self._messages = messages
        self._pressure = pressure
        self._conditions: tuple[FileCondition, ...] = ()
        self._condition_state = ConditionState()
        self._turned_s: float | None = None
        self._cycle_durations = HistogramCounter(CYCLE_BOUNDS_S)
        self._is_ledger_loaded = False
        self._logged_error = ""  # the error of the last read of the ledger that was logged
        self.files_written = 0
        self.files_left: int | None = None

    def scheduled_loops(self, interval_s: float) -> Iterator[ScheduledLoop]:
        """Return the loop; it also runs with all hooks off, to restore what they changed."""
        loop = Loop("pod-files", interval_s, self.cycle)
        yield ScheduledLoop(loop, FIRST_CYCLE_S, wakes_on=WAKING_CHANGES)

    def cycle(self) -> None:
        """Compare and write once."""
        self._load_ledger()
        self._reconciler.audits.load()
        layout = self._locator.layout(self._clock.monotonic())
        snapshot, now_s = self._store.current, self._clock.monotonic()
        enforcement = NO_ENFORCEMENT
        if layout is not None and layout.root is not None:
            values = LiveValues(self._reconciler.current_values(layout), self._reconciler.ledger)
            enforcement = self._strategies.plan(snapshot, layout, values, now_s)
            if self._pressure is not None:
                self._pressure.watch(layout, watched_cgroups(snapshot, layout))
        report = self._reconciler.cycle(snapshot, layout, enforcement)
        self._strategies.record_refusals(report.refused, now_s)
        self._reconciler.audits.extend(self._strategies.audits(self._clock.wall()))
        refusals_before = self._resctrl.refusal_count
        resctrl, status = self._partition(snapshot, layout, enforcement.view.brake)
        self._strategies.record_refusals(self._resctrl.refusal_count - refusals_before, now_s)
        self._reconciler.audits.flush(now_s)
        view = msgspec.structs.replace(
            enforcement.view, strategies=(*enforcement.view.strategies, status)
        )
        conditions = (
            *report.conditions,
            *self._strategy_conditions(view, now_s),
            *self._strategies.conditions(),
            *(
                FileCondition(reason=problem.reason, message=problem.message)
                for problem in resctrl.problems
            ),
        )
        self.files_written += report.written
        self.files_left = report.unwritten
        for hook, error in report.failed_hooks:
            log.error("hook_failed", extra={"hook": hook, "error": error})
        self._report_notes(report.notes)
        for condition in new_conditions(self._conditions, conditions):
            self._messages.put(EventReported(condition.reason, condition.message))
        if self._turned_s is None or bool(conditions) is not bool(self._conditions):
            self._turned_s = self._clock.wall()
        self._conditions = conditions
        view = msgspec.structs.replace(view, conditions=conditions, turned_s=self._turned_s)
        self._store.put(
            enforcement=SnapshotPart(view, now_s),
            desired_files=self._reconciler.desired_files,
            resctrl=resctrl,
        )
        self._cycle_durations.add(self._clock.monotonic() - now_s)

    def _strategy_conditions(
        self, view: EnforcementView, now_s: float
    ) -> tuple[FileCondition, ...]:
        is_clustered = self._store.current.cluster.is_clustered
        conditions, self._condition_state = strategy_conditions(
            view, self._condition_state, now_s, is_clustered=is_clustered
        )
        return conditions

    def _partition(
        self, snapshot: NodeSnapshot, layout: CgroupLayout | None, brake: str
    ) -> tuple[ResctrlView, StrategyStatus]:
        """Run the cycle of resctrl; a bug in it, or the brake, leaves its groups as they are."""
        if brake:
            return self._resctrl.view, self._resctrl.status()
        try:
            report = self._resctrl.cycle(snapshot, layout)
        except Exception as error:  # a bug in resctrl must not stop the writes of other files
            text = f"{type(error).__name__}: {error}"[:200]
            if self._resctrl_error != text:
                extra = {"strategy": RESCTRL_STRATEGY, "error": text}
                log.error("strategy_failed", extra=extra, exc_info=error)
            self._resctrl_error = text
            failed = msgspec.structs.replace(
                self._resctrl.status(), state=StrategyState.FAILED, message=text
            )
            return self._resctrl.view, failed
        self._resctrl_error = ""
        self._reconciler.audits.extend(report.audits)
        return report.view, self._resctrl.status()

    def write_pod(self, request: HookRequest) -> PodReport:
        """Write a new pod's own files, and make its resctrl group."""
        self._load_ledger()
        layout = self._locator.layout(self._clock.monotonic())
        snapshot = self._store.current
        prepared = None
        if not snapshot.enforcement.value.brake:
            prepared = self._resctrl.prepare_pod(request, snapshot, layout)
        if prepared is not None:
            self._reconciler.audits.extend(prepared.audits)
            self._store.put(resctrl=prepared.view)
        report = self._reconciler.apply_pod(request, self._store.current, layout)
        self.files_written += report.written
        self._report_notes(report.notes)
        return report

    def record_requested_values(self, request: HookRequest, answers: Answers) -> None:
        """Record the values that a container requested before hooks adjusted them."""
        if request.container is not None:
            uid, name = request.pod.uid, request.container.name
            runs = request.stage is HookStage.UPDATE
            self._reconciler.record_request(uid, name, request.resources, answers, runs=runs)

    def prioritise_missed_pods(self, before: RuntimeView, now: RuntimeView) -> None:
        """Check those pods first whose containers were created without the hooks."""
        for key in now.missed.keys() - before.missed.keys():
            container = now.containers.get(key)
            sandbox = now.sandboxes.get(container.sandbox_id if container is not None else key)
            if sandbox is not None:
                self._reconciler.prioritize(sandbox.uid)

    def problems(self) -> tuple[str, ...]:
        """Return the present problems with files of pods."""
        return tuple(f"{condition.reason}: {condition.message}" for condition in self._conditions)

    def counters(self) -> EnforcementCounters:
        """Return the counts of changes since the start. For any thread."""
        audits = self._reconciler.audits
        return EnforcementCounters(
            changes=audits.changes(),
            refusals=audits.refusals(),
            cycles=self._cycle_durations.histogram,
            lost_audits=audits.lost_records,
        )

    def audit(self) -> tuple[AuditRecord, ...]:
        """Return the last writes, oldest first. For any thread."""
        return self._reconciler.audits.latest()

    def explainer(self) -> FileExplainer | None:
        """Return what explains the files; `None` before the first cycle."""
        return self._reconciler.explainer()

    def explain_eviction(self, pod_uid: str) -> PodEvictionView | None:
        """Return which rules may evict a pod; `None`: it is not listed."""
        return self._strategies.explain_eviction(pod_uid)

    def close(self) -> None:
        """Close all files; their content stays."""
        self._reconciler.close()
        self._reconciler.audits.close(self._clock.monotonic())
        self._ledger_writer.close()

    def _load_ledger(self) -> None:
        if self._is_ledger_loaded:
            return
        try:
            self._reconciler.ledger.load()
        except LedgerError as error:
            if str(error) != self._logged_error:
                log.error("ledger_not_read", extra={"error": str(error)})
            self._logged_error = str(error)
            self._is_ledger_loaded = not error.is_hanging  # a file system that hangs may answer yet
        else:
            self._is_ledger_loaded = True

    def _report_notes(self, notes: tuple[PodReportNote, ...]) -> None:
        for note in notes:
            ref = PodRef(namespace=note.namespace or "default", name=note.name, uid=note.uid)
            self._messages.put(EventReported(note.note.reason, note.note.message, ref))


class Explanations:
    """Implements `agent.web.view.ExplanationSource`. Belongs to the collector thread."""

    def __init__(
        self, store: SnapshotStore, devices_hook: DevicesHook, pod_files: PodFileUpdater | None
    ) -> None:
        """Without `pod_files` the agent writes no files, and explains none."""
        self._store = store
        self._devices_hook = devices_hook
        self._pod_files = pod_files

    def explain_file(self, path: str) -> FileExplanation | None:
        """Return who wants which value of a file."""
        explainer = self._explainer()
        return None if explainer is None else explainer.explain_file(path)

    def explain_group(self, cgroup: str) -> tuple[FileExplanation, ...]:
        """Return the explanations of all files of a cgroup."""
        explainer = self._explainer()
        return () if explainer is None else explainer.explain_group(cgroup)

    def explain_eviction(self, pod_uid: str) -> PodEvictionView | None:
        """Return which rules may evict a pod."""
        return None if self._pod_files is None else self._pod_files.explain_eviction(pod_uid)

    def explain_injection(self, pod_uid: str) -> tuple[ContainerInjection, ...]:
        """Return what a new container of this pod gets for its devices, for each container."""
        snapshot = self._store.current
        pod = next((one for one in snapshot.pods.value if one.uid == pod_uid and one.name), None)
        if pod is None:
            return ()
        sandbox = sandbox_from_pod(pod)
        # those of the spec, which a new pod has before any container runs, and ephemeral ones
        in_spec = (container.name for container in pod.resources or ())
        names = dict.fromkeys((*in_spec, *(container.name for container in pod.containers)))
        requests = (
            HookRequest(
                stage=HookStage.CREATE,
                pod=sandbox,
                container=ContainerSpec(
                    name=name,
                    pod_uid=pod.uid,
                    labels=pod.labels,
                    annotations=pod.annotations,
                ),
            )
            for name in names
            if name
        )
        return tuple(self._injection(request, snapshot) for request in requests)

    def _injection(self, request: HookRequest, snapshot: NodeSnapshot) -> ContainerInjection:
        name = request.container.name if request.container is not None else ""
        try:
            answer = self._devices_hook.adjust(request, snapshot)
        except AgentError as error:
            return ContainerInjection(container=name, refusal=str(error))
        return ContainerInjection(container=name, edits=answer.edits, refusal=answer.failed)

    def _explainer(self) -> FileExplainer | None:
        return self._pod_files.explainer() if self._pod_files is not None else None
