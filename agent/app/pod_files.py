"""Files of pods kept as the hooks say, on the collector thread; and what of it is told."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from agent.app.context import AppContext
from agent.app.threads import ScheduledLoop
from agent.cgroup.layout import LayoutLocator
from agent.cgroup.ledger import ChangeLedger, LedgerError
from agent.containers.hooks import Hook
from agent.host.files import LiveHostFiles
from agent.loop import Loop
from agent.messages import EventReported, MessageQueue
from agent.reconcile.reconciler import Reconciler
from agent.reconcile.reports import FileCondition, PodReport, PodReportNote
from agent.snapshot.container import HookRequest, HookStage, RuntimeView
from agent.snapshot.pod import PodRef
from agent.snapshot.publications import AuditRecord
from agent.state_writer import StateWriter

log = logging.getLogger(__name__)

POD_FILES_INTERVAL_S = 1.0
LEDGER_FILE = "ledger.log"


def create_ledger(state_dir: str, boot_id: str, writer: StateWriter | None = None) -> ChangeLedger:
    """Return the ledger of a folder, not yet read; without a folder nothing outlives the agent."""
    return ChangeLedger(
        os.path.join(state_dir, LEDGER_FILE) if state_dir else None, boot_id, writer
    )


def new_conditions(
    before: Iterable[FileCondition], now: Iterable[FileCondition]
) -> Iterator[FileCondition]:
    """Yield those that came; one that took another's place is the same trouble in other words.

    Which files are contested, or which process is named, may be another at each look.
    """
    old, new = set(before), tuple(now)
    gone = Counter(one.reason for one in old.difference(new))
    for one in new:
        if one in old:
            continue
        if gone[one.reason]:
            gone[one.reason] -= 1
        else:
            yield one


class PodFileUpdater:
    """`cycle`, `write_pod` and `close` belong to the collector thread; the others to any."""

    def __init__(
        self,
        parts: AppContext,
        hooks: tuple[Hook, ...],
        modes: Mapping[str, str],
        messages: MessageQueue,
    ) -> None:
        """Nothing is written by a hook that is off in `modes`."""
        self._context = parts
        self._messages = messages
        self._locator = LayoutLocator(parts.host_source.files, parts.kubelet_root)
        self._conditions: tuple[FileCondition, ...] = ()
        self._is_ledger_loaded = False
        self._logged_error = ""  # the error of the last read of the ledger that was logged
        self._writer = StateWriter("ledger")
        self.files_written = 0
        self.files_left: int | None = None
        self._reconciler = Reconciler(
            root=LiveHostFiles(),
            ledger=create_ledger(
                parts.settings.node.state_dir, parts.store.current.node.boot_id, self._writer
            ),
            hooks=hooks,
            modes=modes,
            clock=parts.clock,
        )

    def scheduled_loops(self) -> Iterator[ScheduledLoop]:
        """Return the loop; it runs also with all hooks off, to undo what they did."""
        yield ScheduledLoop(
            Loop("pod-files", POD_FILES_INTERVAL_S, self.cycle), POD_FILES_INTERVAL_S
        )

    def cycle(self) -> None:
        """Compare and write once."""
        self._load_ledger()
        layout = self._locator.layout(self._context.clock.monotonic())
        report = self._reconciler.cycle(self._context.store.current, layout)
        self.files_written += report.written
        self.files_left = report.unwritten
        for hook, error in report.failed_hooks:
            log.error("hook_failed", extra={"hook": hook, "error": error})
        self._report_notes(report.notes)
        for condition in new_conditions(self._conditions, report.conditions):
            self._messages.put(EventReported(condition.reason, condition.message))
        self._conditions = report.conditions

    def write_pod(self, request: HookRequest) -> PodReport:
        """Write a new pod's own files."""
        self._load_ledger()
        layout = self._locator.layout(self._context.clock.monotonic())
        report = self._reconciler.apply_pod(request, self._context.store.current, layout)
        self.files_written += report.written
        self._report_notes(report.notes)
        return report

    def record_requested_values(self, request: HookRequest) -> None:
        """Learn what was asked for a container whose answer changed it."""
        if request.container is not None:
            uid, name = request.pod.uid, request.container.name
            runs = request.stage is HookStage.UPDATE
            self._reconciler.record_request(uid, name, request.resources, runs=runs)

    def prioritise_missed_pods(self, before: RuntimeView, now: RuntimeView) -> None:
        """Have pods looked at first whose containers went on without an answer."""
        for key in now.missed.keys() - before.missed.keys():
            container = now.containers.get(key)
            sandbox = now.sandboxes.get(container.sandbox_id if container is not None else key)
            if sandbox is not None:
                self._reconciler.prioritize(sandbox.uid)

    def problems(self) -> tuple[str, ...]:
        """Return what stays wrong with files of pods."""
        return tuple(f"{one.reason}: {one.message}" for one in self._conditions)

    def audit(self) -> tuple[AuditRecord, ...]:
        """Return what was written of late, oldest first; from any thread."""
        return tuple(self._reconciler.audits.copy())

    def close(self) -> None:
        """Let go of all files; what they say stays."""
        self._reconciler.close()
        self._writer.close()

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
        for one in notes:
            ref = PodRef(namespace=one.namespace or "default", name=one.name, uid=one.uid)
            self._messages.put(EventReported(one.note.reason, one.note.message, ref))
