"""Sets memory limits below what is in use, on version 2: reclaims first, so that nobody is killed.

Version 2 takes such a limit at once, and kills processes of the group if a few attempts to reclaim
are not enough. Lowering `memory.high` also reclaims, and never kills.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress

from agent.cgroup.ledger.entry import MAX_OURS, Entry
from agent.cgroup.ledger.journal import Ledger
from agent.cgroup.values.keys import HIGH
from agent.cgroup.writing.values import CgroupValues
from agent.cgroup.writing.wish import Step, Wish
from agent.errors import HostFileError, ParseError

CHUNK_BYTES = 64 << 20  # that one write reclaims; the write returns when that is done


def limit_memory(values: CgroupValues, ledger: Ledger, step: Step, used: int) -> None:
    """Reclaim memory above the limit, `MAX_OURS` chunks at most; write the limit if the use fits.

    `memory.high` is in the ledger while it is lowered, and holds its old value afterwards. Raise
    `HostFileError` with EBUSY while more is in use than the limit, and `LedgerError`.
    """
    wish = step.wish
    path = values.paths(wish.cgroup, wish.key)[0]
    high = _memory_high(values, wish.cgroup)
    inode = values.inode(wish.cgroup, HIGH)
    if high is None or inode is None:
        raise HostFileError(path, errno.EBUSY)
    levels = tuple(_levels(used, int(str(step.after)), high))
    entry = _record(values, ledger, wish, inode, high, levels)
    try:
        for level in levels:
            values.write(_write_of(wish, level))
            if values.used_above(step) is None:
                values.write(step)
                return
    finally:
        with suppress(HostFileError):  # the group is gone, or the ledger's entry is undone later
            original = HIGH.kept(entry.original)
            values.write(_write_of(wish, original if isinstance(original, int) else high))
            ledger.drop(entry, "undone")
    raise HostFileError(path, errno.EBUSY)


def _memory_high(values: CgroupValues, cgroup: str) -> int | None:
    try:
        high = values.value(cgroup, HIGH)
    except ParseError:
        return None
    return high if isinstance(high, int) else None


def _record(
    values: CgroupValues, ledger: Ledger, wish: Wish, inode: int, high: int, levels: tuple[int, ...]
) -> Entry:
    """Put `memory.high` and the levels that it is lowered to into the ledger."""
    hierarchy = values.hierarchy(HIGH)
    previous = ledger.entries.get((hierarchy, wish.cgroup, HIGH.name))
    original = HIGH.keep(high)
    if previous is not None and previous.inode == inode:
        original = previous.original  # the entry of a run that was killed here has the true one
    entry = Entry(
        hierarchy=hierarchy,
        path=wish.cgroup,
        inode=inode,
        key=HIGH.name,
        owner=wish.owner,
        original=original,
        ours=tuple(HIGH.keep(level) for level in levels),
    )
    ledger.set(entry)
    ledger.flush()
    return entry


def _levels(used: int, limit: int, high: int) -> Iterator[int]:
    """Yield values for `memory.high`, from below the use down to the limit at most."""
    for number in range(1, MAX_OURS + 1):
        level = max(used - number * CHUNK_BYTES, limit)
        yield min(level, high)
        if level == limit:
            return


def _write_of(wish: Wish, level: int) -> Step:
    own = Wish(cgroup=wish.cgroup, key=HIGH, value=level, owner=wish.owner)
    return Step(wish=own, file=HIGH.name, text=HIGH.text(2, level), after=level, last=True)
