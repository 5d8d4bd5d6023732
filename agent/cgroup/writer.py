"""Compares files with desired values each cycle, and writes the differences.

Values are compared, not texts. Every file is read each second through an open descriptor; bytes
that matched the same desired value before are not parsed again. Each write is read back. A refused
write does not affect other files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from agent.cgroup.keys import (
    BURST,
    CPUS,
    HIGH,
    IDLE,
    KEYS_BY_NAME,
    MEMORY,
    QUOTA,
    SHARES,
    CgroupValue,
)
from agent.cgroup.ledger import ChangeLedger, LedgerEntry, LedgerError
from agent.cgroup.reclaim import limit_memory
from agent.cgroup.values import CgroupValues, RawValue
from agent.cgroup.write_backoff import (
    OverwriteTracker,
    RefusalTracker,
    WriteErrorClass,
    burst_cause,
    classify_error,
)
from agent.cgroup.write_plan import (
    CgroupWrite,
    DesiredValue,
    WritePlan,
    WriteProblem,
    WriteResult,
    WriteTarget,
    plan_writes,
)
from agent.clock import Clock
from agent.errors import HostFileError, ParseError
from agent.snapshot.publications import AuditRecord


class WriteRunHost(Protocol):
    """What a run needs of the writer."""

    values: CgroupValues
    refusals: RefusalTracker

    def record_match(self, desired: DesiredValue, raw: RawValue, value: CgroupValue) -> None:
        """Remember bytes that are as wanted."""
        ...

    def limit_memory(self, step: CgroupWrite, used: int) -> None:
        """Reclaim, then write a limit below the memory in use; see `reclaim.limit_memory`."""
        ...

    def original(self, desired: DesiredValue) -> CgroupValue | None:
        """Return what the file held before the first write; `None` if we never wrote it."""
        ...


class WriteRun:
    """The state of one run."""

    def __init__(self, host: WriteRunHost, now_s: float, wall_s: float) -> None:
        self._host = host
        self._now_s = now_s
        self._wall_s = wall_s
        self._last_try = False
        self._stuck: set[WriteTarget] = set()  # a write of theirs failed in this run
        self._done: set[WriteTarget] = set()
        self._left: set[WriteTarget] = set()
        self._audits: list[AuditRecord] = []
        self._troubles: list[WriteProblem] = []
        self.failed_targets: set[WriteTarget] = set()  # not to be tried again
        self.is_blocked = False  # by a neighbour's value

    def run(self, steps: Iterable[CgroupWrite], current: Mapping[WriteTarget, CgroupValue]) -> None:
        """Make the writes in order, without those that could only fail."""
        for step in steps:
            target = step.desired.target
            if target in self._stuck or target in self.failed_targets:
                continue
            if step.is_widening and self._below_stuck(target):
                self._stuck.add(target)
                self._left.add(target)
                continue
            self._make(step, current)

    def begin_second_try(self) -> None:
        """Begin the second try: what is refused now stays so for a while."""
        self._last_try, self.is_blocked = True, False
        self._stuck.clear()

    def result(self) -> WriteResult:
        """Return what became of it."""
        return WriteResult(
            written=len(self._done),
            unwritten=len(self._left - self._done),
            audits=tuple(self._audits),
            problems=tuple(self._troubles),
        )

    def _make(self, step: CgroupWrite, current: Mapping[WriteTarget, CgroupValue]) -> None:
        desired, values = step.desired, self._host.values
        used = values.memory_above_limit(step)
        try:
            if used is None:
                values.write(step)
            else:
                self._host.limit_memory(step, used)
        except HostFileError as error:
            self._failed(step, error.errno, current, used)
            return
        except LedgerError:  # the next flush fails too, and reports it
            self._stuck.add(desired.target)
            self._left.add(desired.target)
            return
        if not step.is_last:
            return
        paths = values.paths(desired.cgroup, desired.key)
        try:
            raw = values.read_raw(paths, desired.key)
            value = desired.key.parse(values.version, raw)
        except (HostFileError, ParseError):  # it went, together with what was written
            self.failed_targets.add(desired.target)
            self._left.add(desired.target)
            return
        self._audit(step, current, 0, reclaimed=used is not None)
        if desired.is_met(value):
            self._host.record_match(desired, raw, value)
            self._host.refusals.record_success(desired)
            self._done.add(desired.target)
            self._check_effect(desired)
            return
        self._refuse(
            desired, WriteErrorClass.REFUSED, "taken, but not kept: it reads back otherwise"
        )

    def _failed(
        self,
        step: CgroupWrite,
        number: int,
        current: Mapping[WriteTarget, CgroupValue],
        used: int | None,
    ) -> None:
        desired = step.desired
        self._stuck.add(desired.target)
        self._left.add(desired.target)
        answer = classify_error(number, desired.key, self._host.values.version)
        if answer is WriteErrorClass.GONE:
            self.failed_targets.add(desired.target)
            return
        if answer is WriteErrorClass.ORDER and not self._last_try:
            self.is_blocked = True
            return
        self._audit(step, current, number)
        cause = self._cause(step, number, used)
        if answer is WriteErrorClass.DENIED:
            self.failed_targets.add(desired.target)
            if self._host.refusals.record_denial(desired.owner, cause, self._now_s):
                self._tell(desired, "WriteNotPermitted", cause)
            return
        self._refuse(desired, answer, cause)

    def _cause(self, step: CgroupWrite, number: int, used: int | None) -> str:
        """Return why a write was refused, for people."""
        if used is not None:
            return (
                f"{used} bytes were in use: at this limit the kernel would kill processes;"
                f" they are reclaimed by {HIGH.name} first, as far as that is possible"
            )
        words = os.strerror(number)
        cause = burst_cause(self._host.values, step, number)
        if cause:
            burst = DesiredValue(
                cgroup=step.desired.cgroup, key=BURST, value=0, owner=step.desired.owner
            )
            cause += "" if self._host.original(burst) is not None else "; another agent left it"
        return words + cause

    def _refuse(self, desired: DesiredValue, answer: WriteErrorClass, cause: str) -> None:
        self.failed_targets.add(desired.target)
        self._left.add(desired.target)
        if self._host.refusals.record_refusal(desired, answer, self._now_s):
            self._tell(
                desired, "LimitInUse" if answer is WriteErrorClass.BUSY else "ValueRefused", cause
            )

    def _check_effect(self, desired: DesiredValue) -> None:
        """Tell where version 2 took a set of CPUs without giving it: the parent has none of it."""
        wanted = desired.value
        if desired.key is not CPUS or not wanted or not isinstance(wanted, frozenset):
            return
        effective = self._host.values.effective_cpus(desired.cgroup)
        if effective is not None and not effective <= wanted:
            self._tell(desired, "CPUsNotInForce", "the group above has none of these CPUs")

    def _tell(self, desired: DesiredValue, reason: str, cause: str) -> None:
        text = desired.key.text(self._host.values.version, desired.value).strip()
        message = f"{desired.key.name} of {desired.cgroup} to {text!r}: {cause}"
        self._troubles.append(WriteProblem(desired=desired, reason=reason, message=message))

    def _audit(
        self,
        step: CgroupWrite,
        current: Mapping[WriteTarget, CgroupValue],
        number: int,
        *,
        reclaimed: bool = False,
    ) -> None:
        desired, values = step.desired, self._host.values
        directory = values.layout.directory(desired.key.controller, desired.cgroup)
        old = current.get(desired.target)
        self._audits.append(
            AuditRecord(
                wall_s=self._wall_s,
                owner=desired.owner,
                message=desired.message + (f", after reclaim by {HIGH.name}" if reclaimed else ""),
                path=f"{directory}/{step.file}",
                key=desired.key.name,
                old="" if old is None else desired.key.text(values.version, old).strip(),
                new=desired.key.text(values.version, desired.value).strip(),
                errno=number,
            )
        )

    def _below_stuck(self, target: WriteTarget) -> bool:
        """Say whether a group above could not be widened: this one could only fail."""
        cgroup, key = target
        return any(k == key and cgroup.startswith(f"{above}/") for above, k in self._stuck)


# what the kubelet asks anew when a pod is resized in place: that is what undoing gives back then
_SPEC_KEYS = (SHARES, QUOTA, MEMORY)


class _FileState(msgspec.Struct):
    """One file, or a pair that holds one value."""

    paths: tuple[str, ...]
    desired: DesiredValue | None = None  # that the bytes below are good for
    raw: RawValue = ()
    last: CgroupValue | None = None  # as it was in force when it was looked at last, by our doing


class _MatchedFiles(msgspec.Struct):
    """Wishes of one pod that were all met, and the bytes that did."""

    desired_values: tuple[DesiredValue, ...]
    files: tuple[tuple[str, int, bytes], ...]  # path, how much of it is read, what was there


NOTHING_TO_WRITE = WritePlan()


class CgroupWriter:
    """Compares and writes the cgroup files of one host. Not for two threads."""

    def __init__(self, values: CgroupValues, ledger: ChangeLedger, clock: Clock) -> None:
        """Take over what the ledger says was written by an earlier run."""
        self.values = values
        self.ledger = ledger
        self.refusals = RefusalTracker()
        self.overwrites = OverwriteTracker()
        self._clock = clock
        self._slots: dict[WriteTarget, _FileState] = {}
        self._settled: dict[str, _MatchedFiles] = {}  # by the first wish's cgroup

    def prepare(self, desired_values: Iterable[DesiredValue], now_s: float) -> WritePlan:
        """Compare the files of one pod; say what is to be written, in which order."""
        desired_values = tuple(desired_values)
        if not desired_values:
            return NOTHING_TO_WRITE
        if self._as_before(desired_values):
            return WritePlan(compared=len(desired_values))
        prepared = self._compare(desired_values, now_s)
        if (
            prepared.compared == len(desired_values)
            and not prepared.unwritten
            and not prepared.desired
        ):
            self._settle(desired_values)
        return prepared

    def _as_before(self, desired_values: tuple[DesiredValue, ...]) -> bool:
        """Say whether every file holds what it held when all of these very wishes were met."""
        settled = self._settled.get(desired_values[0].cgroup)
        if settled is None or settled.desired_values is not desired_values:
            return False
        read = self.values.files.read
        try:
            return all(read(path, size) == data for path, size, data in settled.files)
        except HostFileError:
            return False

    def _settle(self, desired_values: tuple[DesiredValue, ...]) -> None:
        slots = [(desired.key.size, self._slots[desired.target]) for desired in desired_values]
        files = tuple(
            (path, size, data)
            for size, slot in slots
            for path, data in zip(slot.paths, slot.raw, strict=True)
        )
        self._settled[desired_values[0].cgroup] = _MatchedFiles(desired_values, files)

    def _compare(self, desired_values: tuple[DesiredValue, ...], now_s: float) -> WritePlan:
        open_: list[DesiredValue] = []
        current: dict[WriteTarget, CgroupValue] = {}
        compared = left = 0
        woken = self._woken(desired_values)
        for desired in desired_values:
            slot = self._slots.get(desired.target) or self._slot(desired)
            if not slot.paths or self.refusals.is_missing(desired.target, now_s):
                continue
            try:
                raw = self.values.read_raw(slot.paths, desired.key)
            except HostFileError:
                self.refusals.record_missing(desired.target, now_s)
                continue
            compared += 1
            reset = desired.key is SHARES and desired.cgroup in woken
            if (
                raw == slot.raw
                and (desired is slot.desired or desired == slot.desired)
                and not reset
            ):
                continue
            value = self._parsed(desired, raw)
            if value is not None:
                current[desired.target] = value
                if desired.is_met(value) and not reset:
                    self.record_match(desired, raw, value)
                    continue
                if self._may(desired, slot, value, now_s):
                    open_.append(desired)
                    continue
            left += 1
        steps = plan_writes(open_, current, self.values.version) if open_ else ()
        return WritePlan(
            desired=tuple(open_), current=current, steps=steps, compared=compared, unwritten=left
        )

    def record_in_ledger(self, prepared: WritePlan) -> None:
        """Put what the steps will change into the ledger, which the caller flushes before them."""
        after: dict[WriteTarget, list[CgroupWrite]] = {}
        for step in prepared.steps:
            after.setdefault(step.desired.target, []).append(step)
        for target, steps in after.items():
            desired = steps[0].desired
            entry = self._entry(desired, prepared.current[target])
            if entry is not None:
                ours = (*entry.ours, *(desired.key.to_ledger(step.value_after) for step in steps))
                self.ledger.set(msgspec.structs.replace(entry, owner=desired.owner, ours=ours))

    def adopt(self, desired: DesiredValue, original: CgroupValue) -> None:
        """Take over a value that the runtime has set for us; `original` is what it was asked.

        Nothing is done if the file is in the ledger, or does not hold the wish.
        """
        value, key = self.values.read_value(desired.cgroup, desired.key), desired.key
        inode = self.values.inode(desired.cgroup, key)
        entry = self.ledger.entries.get((self.values.hierarchy(key), *desired.target))
        if value is None or inode is None or not desired.is_met(value):
            return
        if (entry is None or entry.inode != inode) and not key.is_equivalent(original, value):
            self.ledger.set(
                LedgerEntry(
                    hierarchy=self.values.hierarchy(key),
                    path=desired.cgroup,
                    inode=inode,
                    key=key.name,
                    owner=desired.owner,
                    original=key.to_ledger(original),
                    ours=(key.to_ledger(value),),
                )
            )

    def replace_original(self, desired: DesiredValue, original: CgroupValue) -> None:
        """Have another value given back than what was found, or than what was asked before."""
        key = desired.key
        entry = self.ledger.entries.get((self.values.hierarchy(key), *desired.target))
        if entry is None or entry.inode != self.values.inode(desired.cgroup, key):
            self.adopt(desired, original)
        else:
            self.ledger.set(msgspec.structs.replace(entry, original=key.to_ledger(original)))

    def apply(self, prepared: WritePlan, now_s: float) -> WriteResult:
        """Make the writes; where a neighbour's value is in the way, look and plan again, once."""
        work = WriteRun(self, now_s, self._clock.wall())
        work.run(prepared.steps, prepared.current)
        if work.is_blocked:
            desired_values = tuple(
                desired for desired in prepared.desired if desired.target not in work.failed_targets
            )
            current = {**prepared.current, **self._look(desired_values)}
            steps = plan_writes(desired_values, current, self.values.version)
            self.record_in_ledger(WritePlan(desired=desired_values, current=current, steps=steps))
            try:
                self.ledger.flush()
            except LedgerError as error:  # the next flush fails too, and reports it
                if error.is_hanging:
                    return work.result()
            work.begin_second_try()
            work.run(steps, current)
        return work.result()

    def limit_memory(self, step: CgroupWrite, used: int) -> None:
        """Reclaim, then write a limit below the memory in use; see `reclaim.limit_memory`."""
        limit_memory(self.values, self.ledger, step, used)

    def original(self, desired: DesiredValue) -> CgroupValue | None:
        """Return what the file held before the first write; `None` if we never wrote it."""
        entry = self.ledger.entries.get((self.values.hierarchy(desired.key), *desired.target))
        return None if entry is None else desired.key.from_ledger(entry.original)

    def record_match(self, desired: DesiredValue, raw: RawValue, value: CgroupValue) -> None:
        """Remember bytes that are as wanted."""
        slot = self._slots.get(desired.target) or self._slot(desired)
        slot.desired, slot.raw, slot.last = desired, raw, value

    def retain(self, targets: frozenset[WriteTarget]) -> None:
        """Forget all other files, and let go of their descriptors."""
        self._settled.clear()
        for target in [target for target in self._slots if target not in targets]:
            for path in self._slots.pop(target).paths:
                self.values.files.close(path)
        self.refusals.retain(targets)
        self.overwrites.retain(targets)

    def _slot(self, desired: DesiredValue) -> _FileState:
        slot = self._slots[desired.target] = _FileState(
            self.values.paths(desired.cgroup, desired.key)
        )
        return slot

    def _parsed(self, desired: DesiredValue, raw: RawValue) -> CgroupValue | None:
        try:
            return desired.key.parse(self.values.version, raw)
        except ParseError:
            return None  # no kernel prints it: nothing that we could compare with

    def _woken(self, desired_values: Iterable[DesiredValue]) -> frozenset[str]:
        """Return the groups that are to stop being idle: the kernel resets their weight then."""
        ends = (desired for desired in desired_values if desired.key is IDLE and desired.value == 0)
        return frozenset(
            desired.cgroup for desired in ends if self._look((desired,)).get(desired.target) == 1
        )

    def _may(
        self, desired: DesiredValue, slot: _FileState, value: CgroupValue, now_s: float
    ) -> bool:
        """Say whether to write now: neither refused lately nor fought over."""
        if self.refusals.is_deferred(desired, now_s):
            return False
        key = desired.key
        entry = self.ledger.entries.get((self.values.hierarchy(key), *desired.target))
        # also a value on the way between two wanted ones
        if entry is not None and key.is_any_of(value, entry.ours):
            return True
        if slot.last is None:
            first = entry is None or not entry.ours or key.is_any_of(value, (entry.original,))
        else:
            first = key.is_equivalent(slot.last, value)
        return first or self.overwrites.may_write(desired.target, now_s)

    def _entry(self, desired: DesiredValue, current: CgroupValue) -> LedgerEntry | None:
        """Return the target's entry, a new one for a group that has none; `None` if it is gone."""
        key, original = desired.key, desired.key.to_ledger(current)
        inode = self.values.inode(desired.cgroup, key)
        if inode is None:
            return None
        hierarchy = self.values.hierarchy(key)
        entry = self.ledger.entries.get((hierarchy, *desired.target))
        if entry is None or entry.inode != inode:
            return LedgerEntry(
                hierarchy=hierarchy,
                path=desired.cgroup,
                inode=inode,
                key=key.name,
                owner=desired.owner,
                original=original,
            )
        if key in _SPEC_KEYS and not key.is_any_of(current, entry.ours):
            return msgspec.structs.replace(entry, original=original)
        return entry

    def _look(self, desired_values: Iterable[DesiredValue]) -> dict[WriteTarget, CgroupValue]:
        current: dict[WriteTarget, CgroupValue] = {}
        for desired in desired_values:
            try:
                value = self.values.read_value(desired.cgroup, KEYS_BY_NAME[desired.key.name])
            except ParseError:
                continue
            if value is not None:
                current[desired.target] = value
        return current
