"""Makes the changes of a plan in their order; reports each refusal with the kernel's reason."""

from __future__ import annotations

import errno

import msgspec

from agent.cgroup.ledger import RESCTRL_KEY, LedgerError
from agent.clock import Clock
from agent.errors import HostFileError
from agent.resctrl.files import ResctrlContent, ResctrlMount, ResctrlReader
from agent.resctrl.group_writer import GONE, OWNER, GroupWriter
from agent.resctrl.plan import EXHAUSTED, FOREIGN, NO_RMID, PlannedGroup, ResctrlPlan
from agent.resctrl.refusals import SCHEMATA, RefusalMemory
from agent.snapshot.inventory import Problem
from agent.snapshot.publications import AuditRecord, audit_reason
from agent.snapshot.self_check import ResctrlAction, ResctrlActionKind

AUDIT_MAKE = "CreateCATGroup"  # Koordinator's word
BUDGET_S = 0.2  # of one cycle; the next one continues
NOT_IN_LEDGER = "LedgerNotWritable"
FAILED = "ResctrlFailed"

_DENIED = (errno.EPERM, errno.EACCES, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EBUSY)


class ExecutionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one cycle."""

    remaining: tuple[ResctrlAction, ...] = ()  # not done
    problems: tuple[Problem, ...] = ()
    audits: tuple[AuditRecord, ...] = ()


class _Stopped(Exception):
    """Nothing more is done in this cycle."""


class ResctrlExecutor:
    """Makes the changes of one plan. Raises nothing but bugs; for one thread."""

    def __init__(
        self, writer: GroupWriter, reader: ResctrlReader, refusals: RefusalMemory, clock: Clock
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._refusals = refusals
        self._clock = clock
        self._groups: dict[str, PlannedGroup] = {}
        self._failed: list[str] = []  # paths of groups that are not as they should be
        self._problems: list[Problem] = []
        self._audits: list[AuditRecord] = []
        self._remaining: list[ResctrlAction] = []

    def apply(self, content: ResctrlContent, plan: ResctrlPlan) -> ExecutionReport:
        """Make the changes; those of a group that could not be prepared are left out."""
        self._groups = {group.name: group for group in plan.groups}
        self._failed, self._problems, self._audits, self._remaining = [], [], [], []
        if self._refusals.is_denied(self._clock.monotonic()):
            self._remaining = list(plan.actions)
        elif plan.actions:
            self._run(content.mount, plan.actions)
        return ExecutionReport(
            remaining=tuple(self._remaining),
            problems=tuple(self._problems),
            audits=tuple(self._audits),
        )

    def _run(self, mount: ResctrlMount, actions: tuple[ResctrlAction, ...]) -> None:
        until_s = self._clock.monotonic() + BUDGET_S
        new_paths = [one.path for one in actions if one.kind is ResctrlActionKind.MAKE]
        done = 0
        try:
            self._writer.record_new_groups(mount, new_paths)
            for action in actions:
                if self._clock.monotonic() >= until_s:
                    break
                done += 1
                self._make_one(mount, action)
        except _Stopped:
            pass
        except LedgerError as error:
            self._problems.append(Problem(reason=NOT_IN_LEDGER, message=str(error)))
        self._remaining += actions[done:]
        self._writer.cancel(mount, new_paths)
        try:
            self._writer.flush()
        except LedgerError as error:
            self._problems.append(Problem(reason=NOT_IN_LEDGER, message=str(error)))

    def _make_one(self, mount: ResctrlMount, action: ResctrlAction) -> None:
        if any(f"{action.path}/".startswith(f"{path}/") for path in self._failed):
            self._remaining.append(action)
            return
        number = 0
        try:
            self._change(mount, action)
        except HostFileError as error:
            number = error.errno
            self._remaining.append(action)
            if action.kind is not ResctrlActionKind.MOVE:
                self._failed.append(action.path)
            self._refuse(mount, action, error)
        finally:
            self._record(mount, action, number)

    def _change(self, mount: ResctrlMount, action: ResctrlAction) -> None:
        if action.kind is ResctrlActionKind.MAKE:
            self._writer.make(mount, action.path)
            self._refusals.record_new_group(action.path)
        elif action.kind is ResctrlActionKind.REMOVE:
            self._writer.remove(mount, action.path)
        elif action.kind is ResctrlActionKind.MOVE:
            self._writer.move_task(mount, action.path, action.text)
        elif self._refusals.may_write(self._groups[action.path], self._clock.monotonic()):
            self._write(mount, self._groups[action.path], action.text)
        else:
            self._remaining.append(action)

    def _write(self, mount: ResctrlMount, group: PlannedGroup, text: str) -> None:
        """Write schemata; lines that the kernel refuses together are written one by one.

        Raises the last refusal.
        """
        refusal: HostFileError | None = None
        try:
            self._write_text(mount, group, text)
        except HostFileError as error:
            if error.errno != errno.EINVAL or text.count("\n") == 1:
                raise
            for line in text.splitlines(keepends=True):
                try:
                    self._write_text(mount, group, line)
                except HostFileError as of_line:
                    refusal = of_line
        self._refusals.record_values(group, self._writer.read_schemata(mount, group.name))
        if refusal is not None:
            raise refusal

    def _write_text(self, mount: ResctrlMount, group: PlannedGroup, text: str) -> None:
        try:
            self._writer.write_schemata(mount, group.name, text)
        except HostFileError as error:
            if error.errno == errno.EINVAL and text.count("\n") == 1:
                reason = self._reader.status(mount) or "EINVAL"
                message = f"{group.reason}: the kernel refuses {text.strip()}: {reason}"
                self._refusals.record_line(group, text.partition(":")[0], message)
            raise

    def _refuse(self, mount: ResctrlMount, action: ResctrlAction, error: HostFileError) -> None:
        """Record a refusal; raise `_Stopped` if the other changes would be refused, too."""
        now_s = self._clock.monotonic()
        number = error.errno
        name = self._refusals.count(number)
        is_make = action.kind is ResctrlActionKind.MAKE
        message = f"{action.reason}: {action.kind.value} {action.path or 'in the root group'}"
        message = f"{message}: {name}"
        if number in _DENIED:
            self._refusals.record_denial(message, now_s)
            raise _Stopped
        if number in GONE:
            self._problems.append(Problem(reason=FAILED, message=message))
            self._reader.forget_mount()
            raise _Stopped
        if action.kind is ResctrlActionKind.WRITE and number == errno.EINVAL:
            return  # reported as long as it lasts
        status = self._reader.status(mount)
        message = f"{message}: {status}" if status else message
        reason = FAILED
        if is_make and number == errno.EEXIST:
            reason = FOREIGN
        elif is_make:
            self._refusals.record_group(action.path, now_s)
            if number in _FULL:
                reason = NO_RMID if "/" in action.path else EXHAUSTED
        self._problems.append(Problem(reason=reason, message=message))

    def _record(self, mount: ResctrlMount, action: ResctrlAction, number: int) -> None:
        """Add the audit record of a change; moves of tasks have none."""
        if action.kind is ResctrlActionKind.MOVE or (action in self._remaining and not number):
            return
        self._audits.append(audit_record(mount.point, action, self._clock.wall(), number=number))


def audit_record(
    point: str, action: ResctrlAction, wall_s: float, *, number: int = 0, planned: bool = False
) -> AuditRecord:
    """Return the audit record of one change; `number` is the errno."""
    is_write = action.kind is ResctrlActionKind.WRITE
    is_make = action.kind is ResctrlActionKind.MAKE
    folder = f"{point}/{action.path}"
    return AuditRecord(
        wall_s=wall_s,
        owner=OWNER,
        reason=AUDIT_MAKE if is_make else audit_reason(OWNER),
        message=f"{action.kind.value} {folder}",
        source=action.reason,
        path=f"{folder}/{SCHEMATA}" if is_write else folder,
        key=SCHEMATA if is_write else RESCTRL_KEY,
        new=action.text.strip().replace("\n", " "),
        errno=number,
        planned=planned,
    )
