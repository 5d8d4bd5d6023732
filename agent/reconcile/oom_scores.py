"""`oom_score_adj` of all processes of a container, those of child cgroups included."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

import msgspec

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import OOM_HIERARCHY, ChangeLedger, LedgerEntry
from agent.cgroup.processes import OOM_SCORE_ADJ, process_directory, read_oom_score
from agent.cgroup.values import KernelFiles
from agent.clock import Clock
from agent.errors import HostFileError
from agent.reconcile.desired_state import DesiredOomScore
from agent.snapshot.publications import AuditRecord

_ENDED = (errno.ESRCH, errno.ENOENT)
RETRY_S = 60.0  # after a write that was not permitted


class OomScoreWrite(msgspec.Struct, frozen=True, kw_only=True):
    """One process whose value differs from the desired one."""

    pid: int
    old: int
    desired: DesiredOomScore


class OomScores:
    """Compares and writes the values of processes. The ledger has a container's original value."""

    def __init__(self, files: KernelFiles, ledger: ChangeLedger, clock: Clock) -> None:
        self._files = files
        self._ledger = ledger
        self._clock = clock
        self._not_before_s = 0.0
        self.problem = ""  # why writes are suspended; empty while they are not

    def prepare(
        self, desired: Iterable[DesiredOomScore], layout: CgroupLayout, now_s: float
    ) -> tuple[OomScoreWrite, ...]:
        """Return the writes, and record their originals in the ledger, which the caller flushes.

        A container keeps its first recorded original, whatever value its later processes have.
        """
        if now_s < self._not_before_s:
            return ()
        return tuple(write for score in desired for write in self._writes_of(score, layout))

    def apply(self, writes: Iterable[OomScoreWrite], now_s: float) -> tuple[AuditRecord, ...]:
        """Write the values; a process that has ended is no error."""
        audits: list[AuditRecord] = []
        for write in writes:
            if now_s < self._not_before_s:
                break
            path = f"/proc/{write.pid}/{OOM_SCORE_ADJ}"
            number = 0
            try:
                self._files.write(path, str(write.desired.value))
            except HostFileError as error:
                if error.errno in _ENDED:
                    continue
                number, self.problem = (
                    error.errno,
                    f"/proc/PID/{OOM_SCORE_ADJ}: {os.strerror(error.errno)}",
                )
                self._not_before_s = now_s + RETRY_S
            else:
                self.problem = ""
            audits.append(
                AuditRecord(
                    wall_s=self._clock.wall(),
                    owner=write.desired.owner,
                    message=f"set container oom score to {write.desired.value}",
                    path=path,
                    key=OOM_SCORE_ADJ,
                    old=str(write.old),
                    new=str(write.desired.value),
                    errno=number,
                )
            )
        return tuple(audits)

    def _writes_of(self, desired: DesiredOomScore, layout: CgroupLayout) -> list[OomScoreWrite]:
        directory = process_directory(layout, desired.cgroup)
        if directory is None:
            return []
        scores = [(pid, read_oom_score(self._files, pid)) for pid in self._files.pids(directory)]
        writes = [
            OomScoreWrite(pid=pid, old=old, desired=desired)
            for pid, old in scores
            if old is not None and old != desired.value
        ]
        if writes:
            self._record_original(desired, directory, writes[0].old)
        return writes

    def _record_original(self, desired: DesiredOomScore, directory: str, first: int) -> None:
        try:
            inode = self._files.inode(directory)
        except HostFileError:
            return
        recorded = self._ledger.entries.get((OOM_HIERARCHY, desired.cgroup, OOM_SCORE_ADJ))
        entry = recorded
        if entry is None or entry.inode != inode:
            entry = LedgerEntry(
                hierarchy=OOM_HIERARCHY,
                path=desired.cgroup,
                inode=inode,
                key=OOM_SCORE_ADJ,
                owner=desired.owner,
                original=str(first),
            )
        self._ledger.set(entry.with_own_values([str(desired.value)]))
