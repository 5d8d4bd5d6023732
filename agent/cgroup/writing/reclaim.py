"""A memory limit below what is in use, on version 2: reclaim first, so that nobody is killed.

Version 2 takes such a limit at once. What it cannot reclaim in a few attempts it makes room for by
killing processes of the group. Lowering `memory.high` reclaims as well and never kills.
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

CHUNK_BYTES = 64 << 20  # reclaimed by one write, which lasts as long as that takes


def limit_memory(values: CgroupValues, ledger: Ledger, step: Step, used: int) -> None:
    """Reclaim a part of what is too much; write the limit once the rest fits below it.

    `memory.high` is in the ledger while it is lowered, and holds its old value afterwards. Raise
    `HostFileError` with EBUSY while more is in use than the limit, and `LedgerError`.
    """
    wish = step.wish
    path = values.paths(wish.cgroup, wish.key)[0]
    entry, high = _record(values, ledger, step, used)
    if entry is None or high is None:
        raise HostFileError(path, errno.EBUSY)
    try:
        for level in _levels(used, int(str(step.after)), high):
            values.write(_write_of(wish, level))
            if values.used_above(step) is None:
                values.write(step)
                return
    finally:
        with suppress(HostFileError):  # the group is gone; else the ledger has it undone later
            original = HIGH.kept(entry.original)
            values.write(_write_of(wish, original if isinstance(original, int) else high))
            ledger.drop(entry, "undone")
    raise HostFileError(path, errno.EBUSY)


def _record(
    values: CgroupValues, ledger: Ledger, step: Step, used: int
) -> tuple[Entry | None, int | None]:
    """Put `memory.high` into the ledger; return the entry and what the file holds."""
    cgroup = step.wish.cgroup
    inode = values.inode(cgroup, HIGH)
    try:
        high = values.value(cgroup, HIGH)
    except ParseError:
        high = None
    if inode is None or not isinstance(high, int):
        return None, None
    known = ledger.entries.get((values.hierarchy(HIGH), cgroup, HIGH.name))
    entry = Entry(
        hierarchy=values.hierarchy(HIGH),
        path=cgroup,
        inode=inode,
        key=HIGH.name,
        owner=step.wish.owner,
        # an entry of a run that was killed here has the true original
        original=known.original if known and known.inode == inode else HIGH.keep(high),
        ours=tuple(HIGH.keep(level) for level in _levels(used, int(str(step.after)), high)),
    )
    ledger.set(entry)
    ledger.flush()
    return entry, high


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
