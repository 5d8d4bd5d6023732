"""What the kernel would not take, and when it is asked again."""

from __future__ import annotations

import enum
import errno

import msgspec

from agent.cgroup.values.keys import BURST, Key, Value
from agent.cgroup.writing.values import CgroupValues
from agent.cgroup.writing.wish import Step, Target, Wish

FIRST_S, LONGEST_S = 60.0, 3600.0
SOON_S = 1.0  # a limit below what is in use: the group may shrink any moment
BUSY_TOLD = 3  # refusals of that kind in a row until people are told
BUSY_SOON = 60  # refusals after which a limit is tried less often: each try reclaims page cache
KINDS_IN_A_ROW = 3  # groups that refuse one key until it counts as unsupported
ABSENT_S = 60.0  # a file that is not there is looked for again: controllers get enabled


class Answer(enum.Enum):
    """Classes of errno, by what is to be done about them."""

    GONE = "gone"  # the group, or the file on this kernel: silence
    REFUSED = "refused"  # this value, here: less and less often
    ORDER = "order"  # a neighbour's value is in the way: plan again, once
    BUSY = "busy"  # in use: the next round
    DENIED = "denied"  # all writes of this kind: the owner stops
    AGAIN = "again"


_DENIED = (errno.EROFS, errno.EPERM)
_ORDER = (errno.EBUSY, errno.EACCES, errno.ENOSPC, errno.EINVAL)


def classify(number: int, key: Key, version: int) -> Answer:
    """Return what an errno means for a write of this key."""
    if number in (errno.ENOENT, errno.ENODEV):
        return Answer.GONE
    if number in (errno.EAGAIN, errno.EINTR):
        return Answer.AGAIN
    if number in _DENIED:
        return Answer.DENIED
    if number == errno.EBUSY and key.controller == "memory":
        return Answer.BUSY
    # version 1 says so for CPUs and quota that do not lie within the parent's or around a child's
    if key.leveled and key.controller != "memory" and version == 1 and number in _ORDER:
        return Answer.ORDER
    return Answer.DENIED if number == errno.EACCES else Answer.REFUSED


def burst_cause(values: CgroupValues, step: Step, number: int) -> str:
    """Return text for people if a burst is the cause of a refusal; else nothing."""
    burst = values.burst_above(step) if number == errno.EINVAL else None
    if burst is None:
        return ""
    file = BURST.files(values.version)[0]
    return f": {file} holds {burst}, more than this quota: write 0 to it"


class _Refusal(msgspec.Struct):
    value: Value
    times: int = 0
    until_s: float = 0.0


class Refusals:
    """Remembers refusals within the targets it is told to keep."""

    def __init__(self) -> None:
        self._of: dict[Target, _Refusal] = {}
        self._row: dict[str, set[str]] = {}  # by key: groups that refused since one took a value
        self._kinds: dict[str, float] = {}  # by key: until when none is asked
        self._owners: dict[str, tuple[float, str]] = {}  # until when, and why
        self._absent: dict[Target, float] = {}

    def holds(self, wish: Wish, now_s: float) -> bool:
        """Say whether the kernel is better not asked now. Another value may always be tried."""
        until = self._owners.get(wish.owner)
        if until is not None and now_s < until[0]:
            return True
        if now_s < self._kinds.get(wish.key.name, 0.0):
            return True
        known = self._of.get(wish.target)
        return known is not None and known.value == wish.value and now_s < known.until_s

    def absent(self, target: Target, now_s: float) -> bool:
        """Say whether the file was not there a short while ago."""
        return bool(self._absent) and now_s < self._absent.get(target, 0.0)

    def not_there(self, target: Target, now_s: float) -> None:
        """Remember that the file is not there."""
        self._absent[target] = now_s + ABSENT_S

    def refused(self, wish: Wish, answer: Answer, now_s: float) -> bool:
        """Remember a refusal; say whether people are to be told of it now."""
        known = self._of.setdefault(wish.target, _Refusal(wish.value))
        if known.value != wish.value:
            known.value, known.times = wish.value, 0
        known.times += 1
        if answer is Answer.BUSY:
            known.until_s = now_s + (SOON_S if known.times <= BUSY_SOON else FIRST_S)
            return known.times == BUSY_TOLD
        known.until_s = now_s + min(FIRST_S * 2.0 ** min(known.times - 1, 10), LONGEST_S)
        if answer is Answer.REFUSED:
            row = self._row.setdefault(wish.key.name, set())
            row.add(wish.cgroup)
            if len(row) >= KINDS_IN_A_ROW:
                self._kinds[wish.key.name] = now_s + LONGEST_S
                row.clear()
        return known.times == 1

    def denied(self, owner: str, why: str, now_s: float) -> bool:
        """Stop an owner whose writes are not permitted at all; say whether it was not yet."""
        new = now_s >= self._owners.get(owner, (0.0, ""))[0]
        self._owners[owner] = now_s + LONGEST_S, why
        return new

    def took(self, wish: Wish) -> None:
        """Forget what stood against a wish that the kernel has taken now."""
        self._of.pop(wish.target, None)
        self._row.pop(wish.key.name, None)

    def stopped(self, now_s: float) -> tuple[tuple[str, str], ...]:
        """Return what is not written at all now: owner or key, and why."""
        owners = [(name, why) for name, (until, why) in self._owners.items() if now_s < until]
        kinds = [
            (key, f"{KINDS_IN_A_ROW} groups in a row refused it")
            for key, until in self._kinds.items()
            if now_s < until
        ]
        return (*sorted(owners), *sorted(kinds))

    def keep(self, targets: frozenset[Target]) -> None:
        """Forget all other targets."""
        self._of = {target: one for target, one in self._of.items() if target in targets}
        self._absent = {target: s for target, s in self._absent.items() if target in targets}
