"""Sets memory limits below the current usage, in steps that take a bounded time.

The kernel applies a limit of version 2 at once, and kills processes of the group if a few attempts
to reclaim are not enough. Lowering `memory.high` also reclaims, and never kills; the program that
writes it waits meanwhile.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

from agent.cgroup.keys import HIGH
from agent.cgroup.ledger import MAX_NEW_VALUES, ChangeLedger, LedgerEntry
from agent.cgroup.values import CgroupValues
from agent.cgroup.write_plan import CgroupWrite, DesiredValue
from agent.errors import HostFileError, ParseError
from agent.host.files import LiveHostFiles

RECLAIM = "memory.reclaim"  # since Linux 5.19
# less than requested was reclaimed; the group was removed, or the kernel lacks the file
INCOMPLETE = (errno.EAGAIN, errno.EINTR, errno.ENOENT, errno.ENODEV)
CHUNK_BYTES = 64 << 20  # reclaimed by one write, which returns when that is done
BUDGET_S = 0.2  # of one run: after that, `memory.high` is lowered further in the next one


def limit_memory(
    values: CgroupValues,
    ledger: ChangeLedger,
    step: CgroupWrite,
    used: int,
    is_late: Callable[[], bool],
) -> None:
    """Reclaim memory above the limit in bounded steps; write the limit if the usage is below it.

    What was reclaimed until it is late stays so: the next attempt begins there.

    `memory.high` is in the ledger while it is lowered, and has its old value afterwards: that of
    another strategy, or the original. Raises `HostFileError` with EBUSY while the usage exceeds the
    limit, and `LedgerError`.
    """
    desired = step.desired
    path = values.paths(desired.cgroup, desired.key)[0]
    high = _memory_high(values, desired.cgroup)
    inode = values.inode(desired.cgroup, HIGH)
    if high is None or inode is None:
        raise HostFileError(path, errno.EBUSY)
    levels = tuple(_high_levels(used, int(str(step.value_after)), high))
    entry = _record(values, ledger, desired, inode, high, levels)
    is_of_another = entry.owner != desired.owner
    try:
        for level in levels:
            values.write(_high_step(desired, level))
            if values.memory_above_limit(step) is None:
                values.write(step)
                return
            if is_late():
                break
    finally:
        # the group was removed, or the ledger's entry is undone later
        with suppress(HostFileError):
            original = high if is_of_another else HIGH.from_ledger(entry.original)
            values.write(_high_step(desired, original if isinstance(original, int) else high))
            if not is_of_another:
                ledger.drop(entry, "undone")
    raise HostFileError(path, errno.EBUSY)


def lower_high(
    values: CgroupValues, ledger: ChangeLedger, step: CgroupWrite, is_late: Callable[[], bool]
) -> bool:
    """Write `memory.high`, below the usage in bounded steps; return whether it is reached.

    Each step is in the ledger before it is written, so that it is not taken for another program's.
    Raises `HostFileError` and `LedgerError`.
    """
    used, limit = values.memory_above_high(step), step.value_after
    entry = ledger.entries.get((values.hierarchy(HIGH), *step.desired.target))
    high = None if used is None else _memory_high(values, step.desired.cgroup)
    if used is None or entry is None or high is None or not isinstance(limit, int):
        values.write(step)
        return True
    if is_late():
        return False
    levels = tuple(_high_levels(min(used, high), limit, high))
    texts = [HIGH.to_ledger(level) for level in levels]
    ledger.set(entry.with_own_values(texts, in_force=HIGH.text_among(high, entry.own_values)))
    ledger.flush()
    for level in levels:
        values.write(_high_step(step.desired, level, values.version))
        if level == limit or is_late():
            return level == limit
    return False


def _memory_high(values: CgroupValues, cgroup: str) -> int | None:
    try:
        high = values.read_value(cgroup, HIGH)
    except ParseError:
        return None
    return high if isinstance(high, int) else None


def _record(
    values: CgroupValues,
    ledger: ChangeLedger,
    desired: DesiredValue,
    inode: int,
    high: int,
    levels: tuple[int, ...],
) -> LedgerEntry:
    """Put `memory.high` and the values to which it is lowered into the ledger."""
    hierarchy = values.hierarchy(HIGH)
    entry = ledger.entries.get((hierarchy, desired.cgroup, HIGH.name))
    if entry is None or entry.inode != inode:
        entry = LedgerEntry(
            hierarchy=hierarchy,
            path=desired.cgroup,
            inode=inode,
            key=HIGH.name,
            owner=desired.owner,
            original=HIGH.to_ledger(high),
        )
    # else it is that of another strategy, or of a run that was killed here: its original is right
    texts = [HIGH.to_ledger(level) for level in levels]
    entry = entry.with_own_values(texts, in_force=HIGH.text_among(high, entry.own_values))
    ledger.set(entry)
    ledger.flush()
    return entry


def _high_levels(used: int, limit: int, high: int) -> Iterator[int]:
    """Yield values for `memory.high`, from below the usage down to the limit."""
    for number in range(1, MAX_NEW_VALUES + 1):
        level = max(used - number * CHUNK_BYTES, limit)
        yield min(level, high)
        if level == limit:
            return


def _high_step(desired: DesiredValue, level: int, version: int = 2) -> CgroupWrite:
    desired_high = DesiredValue(cgroup=desired.cgroup, key=HIGH, value=level, owner=desired.owner)
    return CgroupWrite(
        desired=desired_high,
        file=HIGH.name,
        text=HIGH.text(version, level),
        value_after=level,
        is_last=True,
    )


class MemoryReclaimer:
    """Writes `memory.reclaim` on a thread of its own: the kernel works until it is done.

    `reclaim` belongs to one thread. A request is skipped while the one before it is in progress.
    """

    def __init__(self, root: LiveHostFiles) -> None:
        self._root = root
        self._thread: threading.Thread | None = None
        self.problem = ""  # of the last write, for people

    def reclaim(self, directory: str, size_bytes: int) -> bool:
        """Begin to reclaim memory of a cgroup; return whether the last request is done."""
        if self._thread is not None and self._thread.is_alive():
            return False
        self._thread = threading.Thread(
            target=self._write, args=(f"{directory}/{RECLAIM}", size_bytes), daemon=True
        )
        self._thread.start()
        return True

    def wait(self, timeout_s: float) -> None:
        """Wait for the request in progress."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _write(self, path: str, size_bytes: int) -> None:
        self.problem = ""
        try:
            descriptor = os.open(self._root.path(path), os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, str(size_bytes).encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno not in INCOMPLETE:
                self.problem = f"{path}: {error.strerror}"
