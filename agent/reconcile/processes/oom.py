"""`oom_score_adj` of all processes of a container: those of groups below it too."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable

import msgspec

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger.entry import OOM, Entry
from agent.cgroup.ledger.journal import Ledger
from agent.cgroup.ledger.processes import KEY, directory, score
from agent.cgroup.writing.audit import Audit
from agent.cgroup.writing.kernel import KernelFiles
from agent.errors import HostFileError
from agent.reconcile.looked import OomWish

_ENDED = (errno.ESRCH, errno.ENOENT)
RETRY_S = 60.0  # after a write that was not permitted


class ScoreWrite(msgspec.Struct, frozen=True, kw_only=True):
    """One process that has another value."""

    pid: int
    old: int
    wish: OomWish


class OomScores:
    """Compares and writes the values of processes. The ledger keeps a container's first one."""

    def __init__(self, files: KernelFiles, ledger: Ledger, wall_s: Callable[[], float]) -> None:
        self._files = files
        self._ledger = ledger
        self._wall_s = wall_s
        self._not_before_s = 0.0
        self.problem = ""  # why nothing is written, while nothing is

    def prepare(
        self, wishes: Iterable[OomWish], layout: CgroupLayout, now_s: float
    ) -> tuple[ScoreWrite, ...]:
        """Return the writes; put what they will change into the ledger, which the caller flushes.

        A container whose first value was remembered keeps it, whatever its later processes have.
        """
        if now_s < self._not_before_s:
            return ()
        return tuple(write for wish in wishes for write in self._of(wish, layout))

    def apply(self, writes: Iterable[ScoreWrite], now_s: float) -> tuple[Audit, ...]:
        """Make the writes; a process that has ended is no error."""
        audits: list[Audit] = []
        for one in writes:
            if now_s < self._not_before_s:
                break
            path = f"/proc/{one.pid}/{KEY}"
            number = 0
            try:
                self._files.write(path, str(one.wish.value))
            except HostFileError as error:
                if error.errno in _ENDED:
                    continue
                number, self.problem = error.errno, f"/proc/PID/{KEY}: {os.strerror(error.errno)}"
                self._not_before_s = now_s + RETRY_S
            else:
                self.problem = ""
            audits.append(
                Audit(
                    wall_s=self._wall_s(),
                    owner=one.wish.owner,
                    message=f"set container oom score to {one.wish.value}",
                    path=path,
                    key=KEY,
                    old=str(one.old),
                    new=str(one.wish.value),
                    errno=number,
                )
            )
        return tuple(audits)

    def _of(self, wish: OomWish, layout: CgroupLayout) -> list[ScoreWrite]:
        place = directory(layout, wish.cgroup)
        if place is None:
            return []
        found = [(pid, score(self._files, pid)) for pid in self._files.pids(place)]
        writes = [
            ScoreWrite(pid=pid, old=old, wish=wish)
            for pid, old in found
            if old is not None and old != wish.value
        ]
        if writes:
            self._remember(wish, place, writes[0].old)
        return writes

    def _remember(self, wish: OomWish, place: str, first: int) -> None:
        try:
            inode = self._files.inode(place)
        except HostFileError:
            return
        known = self._ledger.entries.get((OOM, wish.cgroup, KEY))
        entry = known
        if entry is None or entry.inode != inode:
            entry = Entry(
                hierarchy=OOM,
                path=wish.cgroup,
                inode=inode,
                key=KEY,
                owner=wish.owner,
                original=str(first),
            )
        self._ledger.set(msgspec.structs.replace(entry, ours=(*entry.ours, str(wish.value))))
