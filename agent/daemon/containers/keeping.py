"""Files of pods kept as the hooks say, on the collector thread; and what of it is told."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from agent.cgroup.ledger.journal import Ledger, LedgerError
from agent.cgroup.locate import LayoutLocator
from agent.cgroup.writing.audit import Audit
from agent.daemon.schedule import Timed
from agent.hooks.base import Hook
from agent.host.files import LiveRoot
from agent.loop import Loop
from agent.model.runtime.request import HookRequest, Stage
from agent.model.runtime.seen import RuntimeView
from agent.model.selfcheck import Check
from agent.node.parts import Parts
from agent.publish.eventing.event import PodRef
from agent.reconcile.reconciler import Reconciler
from agent.reconcile.report import Condition, PodNote, PodReport
from agent.state_writer import StateWriter

log = logging.getLogger(__name__)

CYCLE_S = 1.0
LEDGER = "ledger.log"

Tell = Callable[[str, str, PodRef | None], None]


def ledger_of(state_dir: str, boot_id: str, writer: StateWriter | None = None) -> Ledger:
    """Return the ledger of a folder, not yet read; without a folder nothing outlives the agent."""
    return Ledger(os.path.join(state_dir, LEDGER) if state_dir else None, boot_id, writer)


def newly(before: Iterable[Condition], now: Iterable[Condition]) -> Iterator[Condition]:
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


class Keeping:
    """`cycle`, `write_pod` and `close` belong to the collector thread; the others to any."""

    def __init__(
        self, parts: Parts, hooks: tuple[Hook, ...], modes: Mapping[str, str], tell: Tell
    ) -> None:
        """Nothing is written by a hook that is off in `modes`."""
        self._parts = parts
        self._tell = tell
        self._locator = LayoutLocator(parts.opened.files, parts.kubelet_root)
        self._conditions: tuple[Condition, ...] = ()
        self._loaded = False
        self._unread = ""  # the error of the last read of the ledger that was logged
        self._writer = StateWriter("ledger")
        self.written = 0
        self.left: int | None = None
        self._reconciler = Reconciler(
            root=LiveRoot(),
            ledger=ledger_of(
                parts.settings.node.state_dir, parts.store.current.node.boot_id, self._writer
            ),
            hooks=hooks,
            modes=modes,
            clock=parts.clock,
        )

    def timed(self) -> Iterator[Timed]:
        """Return the loop; it runs also with all hooks off, to undo what they did."""
        yield Timed(Loop("pod-files", CYCLE_S, self.cycle), CYCLE_S)

    def cycle(self) -> None:
        """Compare and write once."""
        self._load()
        layout = self._locator.layout(self._parts.clock.monotonic())
        report = self._reconciler.cycle(self._parts.store.current, layout)
        self.written += report.written
        self.left = report.left
        for hook, error in report.failed_hooks:
            log.error("hook_failed", extra={"hook": hook, "error": error})
        self._tell_notes(report.notes)
        for condition in newly(self._conditions, report.conditions):
            self._tell(condition.reason, condition.message, None)
        self._conditions = report.conditions

    def write_pod(self, request: HookRequest) -> PodReport:
        """Write a new pod's own files."""
        self._load()
        layout = self._locator.layout(self._parts.clock.monotonic())
        report = self._reconciler.apply_pod(request, self._parts.store.current, layout)
        self.written += report.written
        self._tell_notes(report.notes)
        return report

    def given(self, request: HookRequest) -> None:
        """Learn what was asked for a container whose answer changed it."""
        if request.container is not None:
            uid, name = request.pod.uid, request.container.name
            runs = request.stage is Stage.UPDATE
            self._reconciler.given(uid, name, request.resources, runs=runs)

    def mark(self, before: RuntimeView, now: RuntimeView) -> None:
        """Have pods looked at first whose containers went on without an answer."""
        for key in now.missed.keys() - before.missed.keys():
            container = now.containers.get(key)
            sandbox = now.sandboxes.get(container.sandbox_id if container is not None else key)
            if sandbox is not None:
                self._reconciler.mark(sandbox.uid)

    def checks(self) -> list[Check]:
        """Say what stays wrong with files of pods."""
        words = "; ".join(f"{one.reason}: {one.message}" for one in self._conditions)
        return [Check(name="pod-files", ok=not self._conditions, message=words, gates_ready=False)]

    def audit(self) -> tuple[Audit, ...]:
        """Return what was written of late, oldest first; from any thread."""
        return tuple(self._reconciler.audits.copy())

    def close(self) -> None:
        """Let go of all files; what they say stays."""
        self._reconciler.close()
        self._writer.close()

    def _load(self) -> None:
        if self._loaded:
            return
        try:
            self._reconciler.ledger.load()
        except LedgerError as error:
            if str(error) != self._unread:
                log.error("ledger_not_read", extra={"error": str(error)})
            self._unread = str(error)
            self._loaded = not error.hangs  # a file system that hangs may answer yet
        else:
            self._loaded = True

    def _tell_notes(self, notes: tuple[PodNote, ...]) -> None:
        for one in notes:
            ref = PodRef(namespace=one.namespace or "default", name=one.name, uid=one.uid)
            self._tell(one.note.reason, one.note.message, ref)
