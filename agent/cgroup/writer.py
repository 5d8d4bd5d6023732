"""Compares files with desired values each cycle, and writes the differences.

Values are compared, not texts. Every file is read each second through an open descriptor; bytes
that matched the same desired value before are not parsed again. Each write is read back. A refused
write does not affect other files.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.cgroup.keys import (
    IDLE,
    IDLE_WEIGHTS,
    MEMORY,
    QUOTA,
    SHARES,
    CgroupValue,
)
from agent.cgroup.ledger import ChangeLedger, EntryId, LedgerEntry, LedgerError
from agent.cgroup.reclaim import BUDGET_S, limit_memory, lower_high
from agent.cgroup.values import CgroupValues, ExpectedBytes, RawValue
from agent.cgroup.write_backoff import (
    OverwriteTracker,
    RefusalTracker,
)
from agent.cgroup.write_plan import (
    CgroupWrite,
    DesiredValue,
    WritePlan,
    WriteResult,
    WriteTarget,
    plan_writes,
)
from agent.cgroup.write_run import FileState, WriteRun
from agent.clock import Clock
from agent.errors import HostFileError, ParseError

# the kubelet changes these when it resizes a pod in place: restore uses its new values
_SPEC_KEYS = frozenset(key.name for key in (SHARES, QUOTA, MEMORY))


class _MatchedFiles(msgspec.Struct):
    """Desired values of one pod or strategy, and the bytes of the files of those that were met."""

    desired_values: tuple[DesiredValue, ...]
    files: tuple[ExpectedBytes, ...]
    unmet: tuple[DesiredValue, ...]  # compared in each cycle
    plan: WritePlan  # while all others stay as they are
    next_file: int = 0  # the first one of the next part


NOTHING_TO_WRITE = WritePlan()
MANY_FILES = 64  # of one group of values: of more than that, one of so many parts is read a cycle
PARTS = 4
OUTDATED = "another program has written the file since; the next decision begins with its value"


class CgroupWriter:
    """Compares and writes the cgroup files of one host. For one thread."""

    def __init__(self, values: CgroupValues, ledger: ChangeLedger, clock: Clock) -> None:
        """Create a writer; `ledger` has the changes of an earlier run."""
        self.values = values
        self.ledger = ledger
        self.refusals = RefusalTracker()
        self.overwrites = OverwriteTracker()
        self._clock = clock
        self.file_states: dict[WriteTarget, FileState] = {}
        # cgroups that another program resized, until `take_resized`
        self._resized: set[str] = set()
        self._reclaim_until_s = 0.0
        # by group of values
        self._matched_files: dict[str, _MatchedFiles] = {}

    def prepare(
        self, desired_values: Iterable[DesiredValue], now_s: float, group: str = ""
    ) -> WritePlan:
        """Compare the files of one pod or strategy; return the needed writes, in order.

        `group` names what the values belong to; without it, it is the cgroup of the first one.
        Equal values cost the least if they are the same object as in the last call.
        """
        desired_values = tuple(desired_values)
        if not desired_values:
            return NOTHING_TO_WRITE
        group = group or desired_values[0].cgroup
        matched = self._matched_files.get(group)
        if (
            matched is None
            or matched.desired_values is not desired_values
            or not self._are_unchanged(matched)
        ):
            prepared, unmet = self._compare(desired_values, now_s)
            self._record_matched_files(desired_values, unmet, group)
            return prepared
        if not matched.unmet:
            return matched.plan
        prepared, unmet = self._compare(matched.unmet, now_s)
        if len(unmet) < len(matched.unmet):
            self._record_matched_files(desired_values, unmet, group)
        compared = prepared.compared + matched.plan.compared
        return msgspec.structs.replace(prepared, compared=compared)

    def is_met(self, group: str, desired_values: tuple[DesiredValue, ...]) -> bool:
        """Return whether these values, which `record_met` was given, are still met."""
        matched = self._matched_files.get(group)
        return (
            matched is not None
            and matched.desired_values is desired_values
            and self._are_unchanged(matched)
        )

    def record_met(self, group: str, desired_values: tuple[DesiredValue, ...]) -> None:
        """Record that values of several groups are met, if the last comparison said so."""
        for desired in desired_values:
            file_state = self.file_states.get(desired.target)
            if file_state is None or (file_state.paths and file_state.desired != desired):
                return
        self._record_matched_files(desired_values, (), group)

    def _are_unchanged(self, matched: _MatchedFiles) -> bool:
        """Return whether the files have the same bytes as when the values were met.

        Of many files a part is read in each cycle. A program that writes many of them, as systemd
        does when it reloads its units, is noticed in the next cycle all the same.
        """
        files = matched.files
        if len(files) > MANY_FILES:
            begin, size = matched.next_file, -(-len(files) // PARTS)
            matched.next_file = begin + size if begin + size < len(files) else 0
            files = files[begin : begin + size]
        try:
            return self.values.files.holds(files)
        except HostFileError:
            return False

    def _record_matched_files(
        self,
        desired_values: tuple[DesiredValue, ...],
        unmet: tuple[DesiredValue, ...],
        group: str,
    ) -> None:
        """Record the bytes of the files whose values are met."""
        excluded = set(map(id, unmet))
        states = [
            self.file_states[desired.target]
            for desired in desired_values
            if id(desired) not in excluded
        ]
        files = tuple(
            (path, file_state.size, data)
            for file_state in states
            for path, data in zip(file_state.paths, file_state.raw, strict=True)
        )
        plan = WritePlan(compared=sum(bool(file_state.paths) for file_state in states))
        self._matched_files[group] = _MatchedFiles(desired_values, files, unmet, plan)

    def _compare(
        self, desired_values: tuple[DesiredValue, ...], now_s: float
    ) -> tuple[WritePlan, tuple[DesiredValue, ...]]:
        """Return the needed writes, and the values that are not met or that have no file."""
        unmet: list[DesiredValue] = []
        open_values: list[DesiredValue] = []
        adopted: list[DesiredValue] = []
        current: dict[WriteTarget, CgroupValue] = {}
        compared = unwritten = 0
        waking_groups = self._groups_leaving_idle(desired_values)
        for desired in desired_values:
            target = desired.target
            file_state = self.file_states.get(target) or self._add_file_state(desired)
            if not file_state.paths:  # this host has no such file
                continue
            raw = self._read(target, file_state, now_s)
            if raw is None:
                unmet.append(desired)
                continue
            compared += 1
            is_reset = desired.key is SHARES and desired.cgroup in waking_groups
            is_same = raw == file_state.raw
            if (
                is_same
                and (desired is file_state.desired or desired == file_state.desired)
                and not is_reset
            ):
                continue
            value = file_state.last if is_same else self._parse(desired, raw)
            if value is not None:
                current[target] = value
                if desired.is_met(value) and not is_reset:
                    file_state.record_match(desired, raw, value)
                    if desired.original is not None:
                        adopted.append(desired)
                    continue
                unmet.append(desired)
                if self._is_outdated(desired, file_state, value) or (
                    desired.key is SHARES and not is_reset and self._is_idle(desired.cgroup)
                ):
                    continue  # the kernel refuses a weight until the group stops being idle
                if self._may_write(desired, file_state, value, now_s):
                    open_values.append(desired)
                    continue
            else:
                unmet.append(desired)
            unwritten += 1
        steps = plan_writes(open_values, current, self.values.version) if open_values else ()
        plan = WritePlan(
            desired=tuple(open_values),
            current=current,
            steps=steps,
            adopted=tuple(adopted),
            compared=compared,
            unwritten=unwritten,
        )
        return plan, tuple(unmet)

    def _read(self, target: WriteTarget, file_state: FileState, now_s: float) -> RawValue | None:
        """Return the bytes of a value; `None` while a file is missing."""
        if self.refusals.is_missing(target, now_s):
            return None
        try:
            return self.values.read_raw(file_state.paths, file_state.size)
        except HostFileError:
            self.refusals.record_missing(target, now_s)
            return None

    def record_in_ledger(self, prepared: WritePlan) -> None:
        """Put the changes of the writes into the ledger, which the caller flushes before them."""
        if not prepared.steps and not prepared.adopted:
            return
        for desired in prepared.adopted:
            if desired.original is not None:
                self.replace_original(desired, desired.original)
        steps_by_target: dict[WriteTarget, list[CgroupWrite]] = {}
        for step in prepared.steps:
            steps_by_target.setdefault(step.desired.target, []).append(step)
        for target, steps in steps_by_target.items():
            desired, current = steps[0].desired, prepared.current[target]
            entry = self._entry(desired, self.file_states[target], current)
            if entry is not None:
                texts = [desired.key.to_ledger(step.value_after) for step in steps]
                in_force = desired.key.text_among(current, entry.own_values)
                self.ledger.set(entry.with_own_values(texts, desired.owner, in_force))
            if desired.key is IDLE and desired.value == 1:
                self._record_weight(desired)

    def adopt(self, desired: DesiredValue, original: CgroupValue) -> None:
        """Adopt a value that the runtime has set for the agent; `original` is the requested one.

        Nothing happens if the file is in the ledger, or does not have the desired value.
        """
        value, key = self.values.read_value(desired.cgroup, desired.key), desired.key
        inode = self.values.inode(desired.cgroup, key)
        entry = self.ledger.entries.get(self._entry_id(desired))
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
                    own_values=(key.to_ledger(value),),
                )
            )

    def replace_original(self, desired: DesiredValue, original: CgroupValue) -> None:
        """Set another value to restore than the one that was read or requested before."""
        key = desired.key
        entry = self.ledger.entries.get(self._entry_id(desired))
        if entry is None or entry.inode != self.values.inode(desired.cgroup, key):
            self.adopt(desired, original)
        elif entry.original != key.to_ledger(original):
            self._resized.add(desired.cgroup)
            self.ledger.set(msgspec.structs.replace(entry, original=key.to_ledger(original)))

    def record_answer(self, desired: DesiredValue) -> None:
        """Record a desired value as the agent's: the runtime writes it, as it was answered."""
        entry = self.ledger.entries.get(self._entry_id(desired))
        if entry is not None and entry.inode == self.values.inode(desired.cgroup, desired.key):
            values = (*desired.equivalents, desired.value)
            texts = [desired.key.to_ledger(value) for value in values]
            self.ledger.set(entry.with_own_values(texts, desired.owner))

    def take_resized(self) -> frozenset[str]:
        """Return the cgroups that got another original since the last call."""
        resized, self._resized = frozenset(self._resized), set()
        return resized

    def apply(self, prepared: WritePlan, now_s: float) -> WriteResult:
        """Make the writes; if another group's value conflicts, read and plan again, once."""
        self._reclaim_until_s = self._clock.monotonic() + BUDGET_S
        run = WriteRun(self, now_s, self._clock.wall())
        run.run(prepared.steps, prepared.current)
        if run.is_blocked:
            desired_values = tuple(
                desired for desired in prepared.desired if desired.target not in run.failed_targets
            )
            current = {**prepared.current, **self._read_current(desired_values)}
            steps = plan_writes(desired_values, current, self.values.version)
            self.record_in_ledger(WritePlan(desired=desired_values, current=current, steps=steps))
            try:
                self.ledger.flush()
            except LedgerError as error:  # the next flush fails too, and reports it
                if error.is_hanging:
                    return run.result()
            run.begin_second_attempt()
            run.run(steps, current)
        return run.result()

    def limit_memory(self, step: CgroupWrite, used: int) -> None:
        """Reclaim, then write a limit below the memory usage; see `reclaim.limit_memory`."""
        limit_memory(self.values, self.ledger, step, used, self._is_late)

    def lower_high(self, step: CgroupWrite) -> bool:
        """Write `memory.high`; return whether it is reached; see `reclaim.lower_high`."""
        return lower_high(self.values, self.ledger, step, self._is_late)

    def _is_late(self) -> bool:
        return self._clock.monotonic() >= self._reclaim_until_s

    def original(self, desired: DesiredValue) -> CgroupValue | None:
        """Return the value before the first write; `None` if the agent never wrote the file."""
        entry = self.ledger.entries.get(self._entry_id(desired))
        return None if entry is None else desired.key.from_ledger(entry.original)

    def explain(self, desired: DesiredValue, now_s: float) -> str:
        """Return why the value is not written now; empty if it is, or may be written."""
        refusal = self.refusals.explain(desired, now_s)
        file_state = self.file_states.get(desired.target)
        if refusal or file_state is None:
            return refusal
        value = self._read_current((desired,)).get(desired.target)
        if value is None or desired.is_met(value):
            return ""
        return OUTDATED if self._is_outdated(desired, file_state, value) else ""

    def retain(self, targets: frozenset[WriteTarget]) -> None:
        """Drop all other files, and close their descriptors."""
        self._matched_files = {
            group: matched
            for group, matched in self._matched_files.items()
            if all(desired.target in targets for desired in matched.desired_values)
        }
        for target in [target for target in self.file_states if target not in targets]:
            for path in self.file_states.pop(target).paths:
                self.values.files.close(path)
        self.refusals.retain(targets)
        self.overwrites.retain(targets)

    def _add_file_state(self, desired: DesiredValue) -> FileState:
        file_state = self.file_states[desired.target] = FileState(
            paths=self.values.paths(desired.cgroup, desired.key),
            size=desired.key.size,
            entry_id=self._entry_id(desired),
        )
        return file_state

    def _entry_id(self, desired: DesiredValue) -> EntryId:
        return self.values.hierarchy(desired.key), *desired.target

    def _parse(self, desired: DesiredValue, raw: RawValue) -> CgroupValue | None:
        try:
            return desired.key.parse(self.values.version, raw)
        except ParseError:
            return None  # no kernel prints it: there is nothing to compare with

    def _groups_leaving_idle(self, desired_values: Iterable[DesiredValue]) -> frozenset[str]:
        """Return the groups that will stop being idle: the kernel resets their weight then."""
        ends = (desired for desired in desired_values if desired.key is IDLE and desired.value == 0)
        return frozenset(
            desired.cgroup
            for desired in ends
            if self._read_current((desired,)).get(desired.target) == 1
        )

    def _is_outdated(
        self, desired: DesiredValue, file_state: FileState, value: CgroupValue
    ) -> bool:
        """Return whether another program has written the file since the value was decided."""
        if desired.replaces is None:
            return False
        was_met = file_state.desired == desired
        return was_met or not desired.key.is_equivalent(desired.replaces, value)

    def _may_write(
        self, desired: DesiredValue, file_state: FileState, value: CgroupValue, now_s: float
    ) -> bool:
        """Return whether to write now: neither refused recently nor contested."""
        if self.refusals.is_deferred(desired, now_s, value):
            return False
        if desired.replaces is not None:
            return True
        key, last = desired.key, file_state.last
        if last is not None and (value is last or key.is_equivalent(last, value)):
            return True
        entry = self.ledger.entries.get(self._entry_id(desired))
        # also an intermediate value between two desired ones
        if entry is not None and key.is_any_of(value, entry.own_values):
            return True
        is_first = last is None and (
            entry is None or not entry.own_values or key.is_any_of(value, (entry.original,))
        )
        return is_first or self.overwrites.may_write(desired.target, now_s)

    def _record_weight(self, idle: DesiredValue) -> None:
        """Record the weight of a group that begins to be idle: the kernel forgets it then."""
        desired = msgspec.structs.replace(idle, key=SHARES)
        current = self._read_current((desired,)).get(desired.target)
        file_state = self.file_states.get(desired.target) or self._add_file_state(desired)
        entry = None if current is None else self._entry(desired, file_state, current)
        if entry is not None:
            weight = str(IDLE_WEIGHTS[self.values.version])
            self.ledger.set(entry.with_own_values([weight]))

    def _is_idle(self, cgroup: str) -> bool:
        try:
            return self.values.read_value(cgroup, IDLE) == 1
        except ParseError:
            return False

    def _entry(
        self, desired: DesiredValue, file_state: FileState, current: CgroupValue
    ) -> LedgerEntry | None:
        """Return the target's entry, or a new one; `None` if the group was removed."""
        key = desired.key
        inode = self._inode(desired, file_state)
        if inode is None:
            return None
        entry = self.ledger.entries.get(file_state.entry_id)
        is_new = entry is None or entry.inode != inode
        is_resized = desired.original is not None or (
            key.name in _SPEC_KEYS
            and (entry is None or not key.is_any_of(current, entry.own_values))
        )
        if entry is not None and not is_new and not is_resized:
            return entry
        original = key.to_ledger(current if desired.original is None else desired.original)
        if entry is not None and not is_new:
            if original != entry.original:
                self._resized.add(desired.cgroup)
            return msgspec.structs.replace(entry, original=original)
        hierarchy, path, name = file_state.entry_id
        return LedgerEntry(
            hierarchy=hierarchy,
            path=path,
            inode=inode,
            key=name,
            owner=desired.owner,
            original=original,
        )

    def _inode(self, desired: DesiredValue, file_state: FileState) -> int | None:
        """Return the inode of a group's directory; it is read once per open descriptor."""
        path = file_state.paths[0] if file_state.paths else ""
        generation = self.values.files.generation(path)
        if generation is None:
            return self.values.inode(desired.cgroup, desired.key)
        if file_state.generation != generation:
            file_state.inode = self.values.inode(desired.cgroup, desired.key)
            file_state.generation = generation
        return file_state.inode

    def _read_current(
        self, desired_values: Iterable[DesiredValue]
    ) -> dict[WriteTarget, CgroupValue]:
        current: dict[WriteTarget, CgroupValue] = {}
        for desired in desired_values:
            try:
                value = self.values.read_value(desired.cgroup, desired.key)
            except ParseError:
                continue
            if value is not None:
                current[desired.target] = value
        return current
