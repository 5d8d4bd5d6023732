"""Makes the writes of one plan: each is read back, and a refused one does not affect others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from agent.cgroup.keys import (
    BURST,
    CPUS,
    HIGH,
    MEMORY,
    CgroupValue,
)
from agent.cgroup.ledger import EntryId, LedgerError
from agent.cgroup.values import CgroupValues, RawValue
from agent.cgroup.write_backoff import (
    RefusalCause,
    RefusalTracker,
    WriteErrorClass,
    burst_cause,
    classify_error,
    nesting_cause,
)
from agent.cgroup.write_plan import (
    CgroupWrite,
    DesiredValue,
    WriteProblem,
    WriteResult,
    WriteTarget,
    write_record,
)
from agent.errors import HostFileError, ParseError
from agent.snapshot.publications import AuditRecord


class FileState(msgspec.Struct, kw_only=True):
    """The files of one value: one, or two with one value, and what was read of them."""

    paths: tuple[str, ...]
    size: int  # of each, how many bytes are read at most
    entry_id: EntryId  # in the ledger
    desired: DesiredValue | None = None  # that the bytes below have
    raw: RawValue = ()
    last: CgroupValue | None = None  # last value of the agent that was read
    inode: int | None = None  # of the directory, while the descriptor has this generation
    generation: int | None = None

    def path(self, file: str) -> str:
        """Return the path of one of the files."""
        paths = self.paths
        return paths[0] if len(paths) == 1 else next(one for one in paths if one.endswith(file))

    def record_match(self, desired: DesiredValue, raw: RawValue, value: CgroupValue) -> None:
        """Record bytes that have the desired value."""
        self.desired, self.raw, self.last = desired, raw, value


class WriteRunHost(Protocol):
    """The parts of the writer that a run uses."""

    values: CgroupValues
    refusals: RefusalTracker
    file_states: dict[WriteTarget, FileState]  # of all values that were compared

    def limit_memory(self, step: CgroupWrite, used: int) -> None:
        """Reclaim, then write a limit below the memory usage; see `reclaim.limit_memory`."""
        ...

    def lower_high(self, step: CgroupWrite) -> bool:
        """Write `memory.high`; return whether it is reached; see `reclaim.lower_high`."""
        ...

    def original(self, desired: DesiredValue) -> CgroupValue | None:
        """Return the value before the first write; `None` if the agent never wrote the file."""
        ...


class WriteRun:
    """One execution of a write plan."""

    def __init__(self, host: WriteRunHost, now_s: float, wall_s: float) -> None:
        self._host = host
        self._now_s = now_s
        self._wall_s = wall_s
        self._is_last_attempt = False
        self._stuck: set[WriteTarget] = set()  # targets with a failed write in this run
        self._written: set[WriteTarget] = set()
        self._unwritten: set[WriteTarget] = set()
        self._audits: list[AuditRecord] = []
        self._problems: list[WriteProblem] = []
        # targets that are not tried again in this run
        self.failed_targets: set[WriteTarget] = set()
        self.is_blocked = False  # by the value of another group

    def run(self, steps: Iterable[CgroupWrite], current: Mapping[WriteTarget, CgroupValue]) -> None:
        """Make the writes in order, except those that are certain to fail."""
        for step in steps:
            target = step.desired.target
            # other groups may have refused all such writes since the plan was made
            if self._host.refusals.is_suspended(step.desired, self._now_s):
                self._stuck.add(target)
                self._unwritten.add(target)
                continue
            if self._stuck or self.failed_targets:
                if target in self._stuck or target in self.failed_targets:
                    continue
                if step.is_widening and self._is_below_stuck(target):
                    self._stuck.add(target)
                    self._unwritten.add(target)
                    continue
            self._write(step, target, current)

    def begin_second_attempt(self) -> None:
        """Begin the second attempt, after which a refusal is recorded."""
        self._is_last_attempt, self.is_blocked = True, False
        self._stuck.clear()

    def result(self) -> WriteResult:
        """Return the result of the run."""
        return WriteResult(
            written=len(self._written),
            unwritten=len(self._unwritten - self._written),
            audits=tuple(self._audits),
            problems=tuple(self._problems),
        )

    def _write(
        self, step: CgroupWrite, target: WriteTarget, current: Mapping[WriteTarget, CgroupValue]
    ) -> None:
        desired, values = step.desired, self._host.values
        file_state = self._host.file_states[target]
        path = file_state.path(step.file)
        used = values.memory_above_limit(step) if desired.key is MEMORY else None
        try:
            if used is not None:
                self._host.limit_memory(step, used)
            elif desired.key is not HIGH:
                values.write(step, path)
            elif not self._host.lower_high(step):  # continued in the next cycle
                self._unwritten.add(target)
                return
        except HostFileError as error:
            self._handle_error(step, error.errno, current, used)
            return
        except LedgerError:  # the next flush fails too, and reports it
            self._stuck.add(target)
            self._unwritten.add(target)
            return
        if not step.is_last:
            return
        try:
            raw = values.read_raw(file_state.paths, file_state.size)
            is_same_text = len(raw) == 1 and raw[0].rstrip(b"\n") == step.text.encode()
            value = step.value_after if is_same_text else desired.key.parse(values.version, raw)
        except (HostFileError, ParseError):  # the group was removed with the written value
            self.failed_targets.add(target)
            self._unwritten.add(target)
            return
        self._audit(step, path, current[target], 0, reclaimed=used is not None)
        if is_same_text or desired.is_met(value):
            file_state.record_match(desired, raw, value)
            self._host.refusals.record_success(desired)
            self._written.add(target)
            if desired.key is CPUS:
                self._check_effect(desired)
            return
        self._record_refusal(
            desired, WriteErrorClass.REFUSED, "taken, but not kept: it reads back otherwise"
        )

    def _handle_error(
        self,
        step: CgroupWrite,
        number: int,
        current: Mapping[WriteTarget, CgroupValue],
        used: int | None,
    ) -> None:
        desired = step.desired
        self._stuck.add(desired.target)
        self._unwritten.add(desired.target)
        error_class = classify_error(number, desired.key, self._host.values.version)
        if error_class is WriteErrorClass.GONE:
            self.failed_targets.add(desired.target)
            return
        if error_class is WriteErrorClass.ORDER and not self._is_last_attempt:
            self.is_blocked = True
            return
        path = self._host.file_states[desired.target].path(step.file)
        self._audit(step, path, current.get(desired.target), number)
        cause = self._cause(step, number, used)
        if cause.is_below:
            error_class = WriteErrorClass.BELOW
        if error_class is WriteErrorClass.DENIED:
            self.failed_targets.add(desired.target)
            if self._host.refusals.record_denial(desired.owner, cause.text, self._now_s):
                self._add_problem(desired, "WriteNotPermitted", cause.text)
            return
        self._record_refusal(desired, error_class, cause.text, used)

    def _cause(self, step: CgroupWrite, number: int, used: int | None) -> RefusalCause:
        """Return why a write was refused."""
        if used is not None:
            return RefusalCause(
                f"{used} bytes were in use: at this limit the kernel would kill processes;"
                f" they are reclaimed by {HIGH.name} first, as far as that is possible"
            )
        error_text = os.strerror(number)
        cause = burst_cause(self._host.values, step, number)
        if cause:
            burst = DesiredValue(
                cgroup=step.desired.cgroup, key=BURST, value=0, owner=step.desired.owner
            )
            cause += "" if self._host.original(burst) is not None else "; another agent left it"
            return RefusalCause(error_text + cause)
        nesting = nesting_cause(self._host.values, step, number)
        return RefusalCause(error_text + nesting.text, is_below=nesting.is_below)

    def _record_refusal(
        self,
        desired: DesiredValue,
        error_class: WriteErrorClass,
        cause: str,
        used: int | None = None,
    ) -> None:
        self.failed_targets.add(desired.target)
        self._unwritten.add(desired.target)
        if self._host.refusals.record_refusal(desired, error_class, cause, self._now_s, used):
            self._add_problem(
                desired,
                "LimitInUse" if error_class is WriteErrorClass.BUSY else "ValueRefused",
                cause,
            )

    def _check_effect(self, desired: DesiredValue) -> None:
        """Report a CPU set that version 2 accepted without effect.

        The parent has none of the CPUs.
        """
        desired_cpus = desired.value
        if not desired_cpus or not isinstance(desired_cpus, frozenset):
            return
        effective = self._host.values.effective_cpus(desired.cgroup)
        if effective is not None and not effective <= desired_cpus:
            self._add_problem(desired, "CPUsNotInForce", "the group above has none of these CPUs")

    def _add_problem(self, desired: DesiredValue, reason: str, cause: str) -> None:
        text = desired.key.text(self._host.values.version, desired.value).strip()
        message = f"{desired.key.name} of {desired.cgroup} to {text!r}: {cause}"
        self._problems.append(WriteProblem(desired=desired, reason=reason, message=message))

    def _audit(
        self,
        step: CgroupWrite,
        path: str,
        old: CgroupValue | None,
        number: int,
        *,
        reclaimed: bool = False,
    ) -> None:
        desired = step.desired
        record = write_record(
            desired,
            path=path,
            old=old,
            version=self._host.values.version,
            wall_s=self._wall_s,
        )
        if number or reclaimed:
            after_reclaim = f", after reclaim by {HIGH.name}" if reclaimed else ""
            message = record.message + after_reclaim
            record = msgspec.structs.replace(record, errno=number, message=message)
        self._audits.append(record)

    def _is_below_stuck(self, target: WriteTarget) -> bool:
        """Return whether a group above could not be widened: version 1 would refuse this write."""
        if self._host.values.version != 1:
            return False
        cgroup, key = target
        return any(k == key and cgroup.startswith(f"{above}/") for above, k in self._stuck)
