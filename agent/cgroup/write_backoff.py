"""Delays writes that the kernel refused, and writes to files that another program also writes."""

from __future__ import annotations

import enum
import errno
from collections import deque

import msgspec

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import BURST, CPUS, CgroupKey, CgroupValue
from agent.cgroup.values import CgroupValues
from agent.cgroup.write_plan import CgroupWrite, DesiredValue, WriteTarget

FIRST_RETRY_S, LONGEST_RETRY_S = 60.0, 3600.0
# for a limit below the usage, or below that of a group below: it may shrink at any moment
BUSY_RETRY_S = 1.0
BUSY_REPORTED = 3  # refusals in a row, without less usage, before the limit is reported

# refusals after which a limit is tried less often: each attempt reclaims page cache
BUSY_RETRIES = 60
# different values in a row that a file refused: later ones wait, too, as where a program's group
# below has more than any value that a strategy computes anew each second
REFUSED_VALUES = 5
REFUSING_GROUPS = 3  # that refuse one key, and none accepts it, before it counts as unsupported
MISSING_RETRY_S = 60.0  # for a missing file: controllers may be enabled later


class WriteErrorClass(enum.Enum):
    """Classes of errno, by the reaction to them."""

    GONE = "gone"  # the group was removed, or the kernel lacks the file: no report
    REFUSED = "refused"  # this value in this file: retry with growing pauses
    ORDER = "order"  # the value of another group conflicts: plan again, once
    BELOW = "below"  # a group below has more: retry once in the next cycle, then as REFUSED
    BUSY = "busy"  # in use: retry in the next cycle
    DENIED = "denied"  # all writes of this kind: the owner stops
    AGAIN = "again"


_DENIED = (errno.EROFS, errno.EPERM)

_ORDER = (errno.EBUSY, errno.EACCES, errno.ENOSPC, errno.EINVAL)


def classify_error(number: int, key: CgroupKey, version: int) -> WriteErrorClass:
    """Return the class of an errno for a write of this key."""
    if number == errno.ENODEV and key.device:  # not a whole disk, or it was removed
        return WriteErrorClass.REFUSED
    if number in (errno.ENOENT, errno.ENODEV):
        return WriteErrorClass.GONE
    if number in (errno.EAGAIN, errno.EINTR):
        return WriteErrorClass.AGAIN
    if number in _DENIED:
        return WriteErrorClass.DENIED
    if number == errno.EBUSY and key.controller == "memory":
        return WriteErrorClass.BUSY
    # version 1 returns these for CPUs and quota outside the parent's or inside a child's
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


class RefusalCause(msgspec.Struct, frozen=True):
    """Why a write was refused."""

    text: str = ""  # for people
    is_below: bool = False  # a group below has more, which may be one that was removed just now


def nesting_cause(values: CgroupValues, step: CgroupWrite, number: int) -> RefusalCause:
    """Return the cause of a refusal if it is the value of another group; else an empty one.

    On version 1, CPUs and quota of a group lie within those of all groups above it.
    """
    key, value = step.desired.key, step.value_after
    is_nested = (key is CPUS and number in (errno.EACCES, errno.EBUSY)) or (
        isinstance(value, Bandwidth) and number == errno.EINVAL
    )
    if values.version != 1 or not is_nested:
        return RefusalCause()
    limit = values.limiting_group(step.desired.cgroup, key, value)
    if limit is None:
        return RefusalCause(": a group below it has more", is_below=True)
    group, above = limit
    return RefusalCause(f": {group} above it has {key.to_ledger(above)}")


class _RefusalRecord(msgspec.Struct):
    value: CgroupValue
    cause: str = ""  # of the last refusal, for people
    values: int = 1  # different ones in a row, with the last
    times: int = 0
    until_s: float = 0.0
    least_used: int | None = None  # bytes, of all refusals of a memory limit

    def covers(self, desired: DesiredValue, in_force: CgroupValue | None = None) -> bool:
        """Return whether the file is expected to refuse this value, too.

        A file that cannot be lowered below `in_force` may well be raised, and the reverse.
        """
        if self.value == desired.value:
            return True
        if self.values < REFUSED_VALUES:
            return False
        key = desired.key
        return (
            in_force is None
            or not key.is_hierarchical
            or key.is_looser(desired.value, in_force) == key.is_looser(self.value, in_force)
        )


class RefusalTracker:
    """Tracks refusals of targets, until `retain` drops the target."""

    def __init__(self) -> None:
        self._records: dict[WriteTarget, _RefusalRecord] = {}
        self._accepted_keys: set[str] = set()  # the kernel supports them: one group took a value
        # by key that no group has accepted: groups that refused
        self._refusing_groups: dict[str, set[str]] = {}
        self._suspended_keys: dict[str, float] = {}  # by key: end of the pause
        self._suspended_owners: dict[
            str, tuple[float, str]
        ] = {}  # end of the pause, and the reason
        self._missing_files: dict[WriteTarget, float] = {}

    def is_deferred(self, desired: DesiredValue, now_s: float, in_force: CgroupValue) -> bool:
        """Return whether the write should wait.

        Another value than the refused one need not, before the file refused several of them.
        """
        if not (self._suspended_owners or self._suspended_keys or self._records):
            return False
        if self.is_suspended(desired, now_s):
            return True
        record = self._records.get(desired.target)
        return record is not None and now_s < record.until_s and record.covers(desired, in_force)

    def is_suspended(self, desired: DesiredValue, now_s: float) -> bool:
        """Return whether no value of this owner, or of this key, is written now."""
        until_s, _ = self._suspended_owners.get(desired.owner, (0.0, ""))
        return now_s < until_s or now_s < self._suspended_keys.get(desired.key.name, 0.0)

    def explain(self, desired: DesiredValue, now_s: float) -> str:
        """Return why the value is not written now; empty if it may be written."""
        until_s, reason = self._suspended_owners.get(desired.owner, (0.0, ""))
        if now_s < until_s:
            return f"{desired.owner} does not write for {until_s - now_s:.0f} s: {reason}"
        until_s = self._suspended_keys.get(desired.key.name, 0.0)
        if now_s < until_s:
            groups = f"{REFUSING_GROUPS} groups in a row refused {desired.key.name}"
            return f"{groups}; the next attempt is in {until_s - now_s:.0f} s"
        if self.is_missing(desired.target, now_s):
            return "there is no such file"
        record = self._records.get(desired.target)
        if record is None or not record.covers(desired):
            return ""
        times = "once" if record.times == 1 else f"{record.times} times"
        refused = f"it was refused {times}"
        if record.value != desired.value:
            refused = f"{record.values} other values were refused in a row"
        cause = f" ({record.cause})" if record.cause else ""
        left_s = max(0.0, record.until_s - now_s)
        return f"{refused}{cause}; the next attempt is in {left_s:.0f} s"

    def is_refused(self, desired: DesiredValue) -> bool:
        """Return whether the kernel refused this value when it was last written."""
        record = self._records.get(desired.target)
        return record is not None and record.value == desired.value

    def is_missing(self, target: WriteTarget, now_s: float) -> bool:
        """Return whether the file was missing a short while ago."""
        return bool(self._missing_files) and now_s < self._missing_files.get(target, 0.0)

    def record_missing(self, target: WriteTarget, now_s: float) -> None:
        """Record that the file is missing."""
        self._missing_files[target] = now_s + MISSING_RETRY_S

    def record_refusal(
        self,
        desired: DesiredValue,
        error_class: WriteErrorClass,
        cause: str,
        now_s: float,
        used: int | None = None,
    ) -> bool:
        """Record a refusal and its cause; return whether to report it now.

        `used` is the memory usage, in bytes, above a limit. While it falls from one attempt to the
        next, memory is being reclaimed, and the limit is not refused for good.
        """
        record = self._records.setdefault(desired.target, _RefusalRecord(desired.value))
        is_other = record.value != desired.value
        if is_other:
            record.value, record.least_used = desired.value, None
            record.values += 1
            if record.values <= REFUSED_VALUES or error_class is WriteErrorClass.BUSY:
                record.times = 0
        if used is not None and (record.least_used is None or used < record.least_used):
            record.times, record.least_used = 0, used
        record.times, record.cause = record.times + 1, cause
        if error_class is WriteErrorClass.BUSY:
            record.until_s = now_s + (
                BUSY_RETRY_S if record.times <= BUSY_RETRIES else FIRST_RETRY_S
            )
            return record.times == BUSY_REPORTED
        times = record.times
        if error_class is WriteErrorClass.BELOW and record.values == 1:
            times -= 1  # a group that was removed counts for the kernel some 20 ms longer
        if times == 0:
            record.until_s = now_s + BUSY_RETRY_S
            return False
        record.until_s = now_s + min(FIRST_RETRY_S * 2.0 ** min(times - 1, 10), LONGEST_RETRY_S)
        if error_class is WriteErrorClass.REFUSED and desired.key.name not in self._accepted_keys:
            groups = self._refusing_groups.setdefault(desired.key.name, set())
            groups.add(desired.cgroup)
            if len(groups) >= REFUSING_GROUPS:
                self._suspended_keys[desired.key.name] = now_s + LONGEST_RETRY_S
                groups.clear()
        return is_other or times == 1

    def record_denial(self, owner: str, reason: str, now_s: float) -> bool:
        """Stop an owner whose writes are not permitted at all; return whether that is new."""
        is_new = now_s >= self._suspended_owners.get(owner, (0.0, ""))[0]
        self._suspended_owners[owner] = now_s + LONGEST_RETRY_S, reason
        return is_new

    def record_success(self, desired: DesiredValue) -> None:
        """Remove the records of a value that the kernel has accepted."""
        self._accepted_keys.add(desired.key.name)
        if self._records or self._refusing_groups:
            self._records.pop(desired.target, None)
            self._refusing_groups.pop(desired.key.name, None)

    def suspended_writes(self, now_s: float) -> tuple[tuple[str, str], ...]:
        """Return the owners and keys that are not written now, with the reason."""
        owners = [
            (name, reason)
            for name, (until, reason) in self._suspended_owners.items()
            if now_s < until
        ]
        keys = [
            (key, f"{REFUSING_GROUPS} groups in a row refused it")
            for key, until in self._suspended_keys.items()
            if now_s < until
        ]
        return (*sorted(owners), *sorted(keys))

    def retain(self, targets: frozenset[WriteTarget]) -> None:
        """Drop all other targets."""
        self._records = {
            target: record for target, record in self._records.items() if target in targets
        }
        self._missing_files = {
            target: s for target, s in self._missing_files.items() if target in targets
        }


REVERTS = 3  # within `WINDOW_S`

WINDOW_S = 60.0  # after that only one write per window, and a report


class _Overwrites(msgspec.Struct):
    times: deque[float]  # when the agent restored its value
    is_contested: bool = False


class OverwriteTracker:
    """Counts values that another program wrote over the agent's."""

    def __init__(self) -> None:
        self._records: dict[WriteTarget, _Overwrites] = {}
        self.reverts = 0  # of all targets since the start

    def may_write(self, target: WriteTarget, now_s: float) -> bool:
        """Count a value that is not the agent's.

        Return whether to restore the agent's value now.
        """
        record = self._records.setdefault(target, _Overwrites(deque(maxlen=REVERTS)))
        times = record.times
        if record.is_contested and now_s - times[-1] < WINDOW_S:
            return False
        times.append(now_s)
        self.reverts += 1
        has_many_writes = len(times) == REVERTS and now_s - times[0] <= WINDOW_S
        record.is_contested = has_many_writes or (
            record.is_contested and now_s - times[-2] < 2 * WINDOW_S
        )
        return True

    def contested_targets(self, now_s: float) -> tuple[WriteTarget, ...]:
        """Return the targets that another program keeps writing; a quiet window ends that."""
        return tuple(
            target
            for target, record in self._records.items()
            if record.is_contested and now_s - record.times[-1] < 2 * WINDOW_S
        )

    def retain(self, targets: frozenset[WriteTarget]) -> None:
        """Drop all other targets."""
        self._records = {
            target: record for target, record in self._records.items() if target in targets
        }
