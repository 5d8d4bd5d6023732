"""Delays writes that the kernel refused, and writes to files that another program also writes."""

from __future__ import annotations

import enum
import errno
from collections import deque

import msgspec

from agent.cgroup.keys import BURST, CgroupKey, CgroupValue
from agent.cgroup.values import CgroupValues
from agent.cgroup.write_plan import CgroupWrite, DesiredValue, WriteTarget

FIRST_RETRY_S, LONGEST_RETRY_S = 60.0, 3600.0

BUSY_RETRY_S = 1.0  # a limit below what is in use: the group may shrink any moment

BUSY_REPORTED = 3  # refusals of that kind in a row until people are told

BUSY_RETRIES = 60  # refusals after which a limit is tried less often: each try reclaims page cache

REFUSING_GROUPS = 3  # groups that refuse one key until it counts as unsupported

MISSING_RETRY_S = 60.0  # a file that is not there is looked for again: controllers get enabled


class WriteErrorClass(enum.Enum):
    """Classes of errno, by what is to be done about them."""

    GONE = "gone"  # the group, or the file on this kernel: silence
    REFUSED = "refused"  # this value, here: less and less often
    ORDER = "order"  # a neighbour's value is in the way: plan again, once
    BUSY = "busy"  # in use: the next round
    DENIED = "denied"  # all writes of this kind: the owner stops
    AGAIN = "again"


_DENIED = (errno.EROFS, errno.EPERM)

_ORDER = (errno.EBUSY, errno.EACCES, errno.ENOSPC, errno.EINVAL)


def classify_error(number: int, key: CgroupKey, version: int) -> WriteErrorClass:
    """Return what an errno means for a write of this key."""
    if number in (errno.ENOENT, errno.ENODEV):
        return WriteErrorClass.GONE
    if number in (errno.EAGAIN, errno.EINTR):
        return WriteErrorClass.AGAIN
    if number in _DENIED:
        return WriteErrorClass.DENIED
    if number == errno.EBUSY and key.controller == "memory":
        return WriteErrorClass.BUSY
    # version 1 says so for CPUs and quota that do not lie within the parent's or around a child's
    if key.is_hierarchical and key.controller != "memory" and version == 1 and number in _ORDER:
        return WriteErrorClass.ORDER
    return WriteErrorClass.DENIED if number == errno.EACCES else WriteErrorClass.REFUSED


def burst_cause(values: CgroupValues, step: CgroupWrite, number: int) -> str:
    """Return text for people if a burst is the cause of a refusal; else nothing."""
    burst = values.burst_above_quota(step) if number == errno.EINVAL else None
    if burst is None:
        return ""
    file = BURST.files(values.version)[0]
    return f": {file} holds {burst}, more than this quota: write 0 to it"


class _RefusalRecord(msgspec.Struct):
    value: CgroupValue
    times: int = 0
    until_s: float = 0.0


class RefusalTracker:
    """Remembers refusals within the targets it is told to keep."""

    def __init__(self) -> None:
        self._of: dict[WriteTarget, _RefusalRecord] = {}
        self._row: dict[str, set[str]] = {}  # by key: groups that refused since one took a value
        self._kinds: dict[str, float] = {}  # by key: until when none is asked
        self._owners: dict[str, tuple[float, str]] = {}  # until when, and why
        self._absent: dict[WriteTarget, float] = {}

    def is_deferred(self, desired: DesiredValue, now_s: float) -> bool:
        """Say whether the kernel is better not asked now. Another value may always be tried."""
        until = self._owners.get(desired.owner)
        if until is not None and now_s < until[0]:
            return True
        if now_s < self._kinds.get(desired.key.name, 0.0):
            return True
        record = self._of.get(desired.target)
        return record is not None and record.value == desired.value and now_s < record.until_s

    def is_missing(self, target: WriteTarget, now_s: float) -> bool:
        """Say whether the file was not there a short while ago."""
        return bool(self._absent) and now_s < self._absent.get(target, 0.0)

    def record_missing(self, target: WriteTarget, now_s: float) -> None:
        """Remember that the file is not there."""
        self._absent[target] = now_s + MISSING_RETRY_S

    def record_refusal(self, desired: DesiredValue, answer: WriteErrorClass, now_s: float) -> bool:
        """Remember a refusal; say whether people are to be told of it now."""
        record = self._of.setdefault(desired.target, _RefusalRecord(desired.value))
        if record.value != desired.value:
            record.value, record.times = desired.value, 0
        record.times += 1
        if answer is WriteErrorClass.BUSY:
            record.until_s = now_s + (
                BUSY_RETRY_S if record.times <= BUSY_RETRIES else FIRST_RETRY_S
            )
            return record.times == BUSY_REPORTED
        record.until_s = now_s + min(
            FIRST_RETRY_S * 2.0 ** min(record.times - 1, 10), LONGEST_RETRY_S
        )
        if answer is WriteErrorClass.REFUSED:
            row = self._row.setdefault(desired.key.name, set())
            row.add(desired.cgroup)
            if len(row) >= REFUSING_GROUPS:
                self._kinds[desired.key.name] = now_s + LONGEST_RETRY_S
                row.clear()
        return record.times == 1

    def record_denial(self, owner: str, why: str, now_s: float) -> bool:
        """Stop an owner whose writes are not permitted at all; say whether it was not yet."""
        new = now_s >= self._owners.get(owner, (0.0, ""))[0]
        self._owners[owner] = now_s + LONGEST_RETRY_S, why
        return new

    def record_success(self, desired: DesiredValue) -> None:
        """Forget what stood against a wish that the kernel has taken now."""
        self._of.pop(desired.target, None)
        self._row.pop(desired.key.name, None)

    def suspended_writes(self, now_s: float) -> tuple[tuple[str, str], ...]:
        """Return what is not written at all now: owner or key, and why."""
        owners = [(name, why) for name, (until, why) in self._owners.items() if now_s < until]
        kinds = [
            (key, f"{REFUSING_GROUPS} groups in a row refused it")
            for key, until in self._kinds.items()
            if now_s < until
        ]
        return (*sorted(owners), *sorted(kinds))

    def retain(self, targets: frozenset[WriteTarget]) -> None:
        """Forget all other targets."""
        self._of = {target: one for target, one in self._of.items() if target in targets}
        self._absent = {target: s for target, s in self._absent.items() if target in targets}


REVERTS = 3  # within

WINDOW_S = 60.0  # then only one a window, and people are told


class _Overwrites(msgspec.Struct):
    times: deque[float]  # of ours put back
    contested: bool = False


class OverwriteTracker:
    """Counts values that somebody else put in the place of ours."""

    def __init__(self) -> None:
        self._of: dict[WriteTarget, _Overwrites] = {}
        self.reverts = 0  # of all targets since the start

    def may_write(self, target: WriteTarget, now_s: float) -> bool:
        """Count a value that is not ours; say whether to put ours back now."""
        record = self._of.setdefault(target, _Overwrites(deque(maxlen=REVERTS)))
        times = record.times
        if record.contested and now_s - times[-1] < WINDOW_S:
            return False
        times.append(now_s)
        self.reverts += 1
        often = len(times) == REVERTS and now_s - times[0] <= WINDOW_S
        record.contested = often or (record.contested and now_s - times[-2] < 2 * WINDOW_S)
        return True

    def contested_targets(self, now_s: float) -> tuple[WriteTarget, ...]:
        """Return the targets that somebody else keeps writing; a quiet window ends that."""
        return tuple(
            target
            for target, record in self._of.items()
            if record.contested and now_s - record.times[-1] < 2 * WINDOW_S
        )

    def retain(self, targets: frozenset[WriteTarget]) -> None:
        """Forget all other targets."""
        self._of = {target: record for target, record in self._of.items() if target in targets}
