"""Reports of reconcile cycles, and which of their notes were not reported before.

What people are told: each thing once a pod, and what holds on as a condition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from agent.cgroup.keys import KEYS_BY_NAME, CgroupValue
from agent.cgroup.restore import RestoreResult
from agent.cgroup.values import CgroupValues
from agent.cgroup.write_plan import WritePlan, WriteTarget
from agent.cgroup.writer import CgroupWriter
from agent.reconcile.desired_state import DesiredState
from agent.snapshot.container import PodSandbox
from agent.snapshot.edits import ContainerNote
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.publications import AuditRecord


class PodReportNote(msgspec.Struct, frozen=True, kw_only=True):
    """An event for a pod. Equal notes are told once until they change or the pod goes."""

    uid: str
    namespace: str = ""
    name: str = ""
    note: ContainerNote


class FileCondition(msgspec.Struct, frozen=True, kw_only=True):
    """Something that stays wrong until it is mended; CamelCase reason, as of a Node condition."""

    reason: str
    message: str


class PodReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one pod's files. `left` counts those that are not as wanted."""

    written: int = 0
    left: int = 0
    audits: tuple[AuditRecord, ...] = ()
    notes: tuple[PodReportNote, ...] = ()


class CycleReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one cycle; `pods_later` were put off to the next to keep this one short."""

    pods: int = 0
    pods_later: int = 0
    files: int = 0  # compared
    written: int = 0
    left: int = 0  # not as wanted: refused, held back, or gone
    planned: int = 0  # would be written if the mode of their hooks were on
    failed_hooks: tuple[tuple[str, str], ...] = ()  # hook and error: bugs, new ones only
    notes: tuple[PodReportNote, ...] = ()  # new ones only
    conditions: tuple[FileCondition, ...] = ()  # all that hold now


MAX_NOTES = 32  # of one pod

MAX_FAILURES = 256  # bugs of hooks, each with its text

ANSWER_LATE = "AnswerCameLate"


class ReportHistory:
    """Remembers what was told of pods that are still there."""

    def __init__(self) -> None:
        self._notes: dict[str, set[ContainerNote]] = {}
        self._planned_values: dict[WriteTarget, CgroupValue] = {}
        self._failures: set[tuple[str, str]] = set()
        self._contested = ""  # as long as anything is: the same words, however much changes

    def new_notes(
        self, pod: PodSandbox, notes: Iterable[ContainerNote]
    ) -> tuple[PodReportNote, ...]:
        """Return the notes that were not told of this pod yet."""
        fresh = []
        for note in notes:
            told = self._notes.setdefault(pod.uid, set())
            if note not in told and len(told) < MAX_NOTES:
                told.add(note)
                fresh.append(
                    PodReportNote(uid=pod.uid, namespace=pod.namespace, name=pod.name, note=note)
                )
        return tuple(fresh)

    def new_failures(self, looked: Iterable[DesiredState]) -> tuple[tuple[str, str], ...]:
        """Return the bugs of hooks that were not told yet."""
        found = {(one.hook, one.error) for each in looked for one in each.failures}
        fresh = found - self._failures
        if len(self._failures) < MAX_FAILURES:
            self._failures |= fresh
        return tuple(sorted(fresh))

    def late_notes(
        self, snapshot: NodeSnapshot, looked: Iterable[DesiredState], marked: Collection[str]
    ) -> tuple[PodReportNote, ...]:
        """Return notes on pods whose answers came late, and that were granted devices."""
        if not marked:
            return ()
        note = ContainerNote(
            reason=ANSWER_LATE,
            message="the runtime made a container of this pod before it was told of its devices:"
            " environment, mounts and devices come with a new container only",
        )
        granted = snapshot.grants.value.pods
        pods = (one.managed_pod.pod for one in looked)
        late = [pod for pod in pods if pod.uid in marked and pod.uid in granted]
        return tuple(told for pod in late for told in self.new_notes(pod, (note,)))

    def planned_audits(
        self, values: CgroupValues, ready: WritePlan, wall_s: float
    ) -> tuple[AuditRecord, ...]:
        """Return records of values that would be written, of each value of a file once."""
        audits = []
        for wish in ready.desired:
            if self._planned_values.get(wish.target) == wish.value:
                continue
            self._planned_values[wish.target] = wish.value
            old = ready.current[wish.target]
            audits.append(
                AuditRecord(
                    wall_s=wall_s,
                    owner=wish.owner,
                    message=wish.message,
                    path=values.paths(wish.cgroup, wish.key)[0],
                    key=wish.key.name,
                    old=wish.key.text(values.version, old).strip(),
                    new=wish.key.text(values.version, wish.value).strip(),
                    planned=True,
                )
            )
        return tuple(audits)

    def restored_audits(
        self, values: CgroupValues, done: Iterable[RestoreResult], wall_s: float
    ) -> tuple[AuditRecord, ...]:
        """Return records of what was put back."""
        return tuple(
            AuditRecord(
                wall_s=wall_s,
                owner=one.entry.owner,
                message=f"put back: {one.state}{': ' if one.detail else ''}{one.detail}",
                path=_file_path(values, one),
                key=one.entry.key,
                old=one.current,
                new=one.target or one.entry.original,
            )
            for one in done
            if one.state in ("restored", "refused", "foreign")
        )

    def conditions(self, writer: CgroupWriter, now_s: float) -> list[FileCondition]:
        """Return what holds on: owners and files that are stopped, files that others write too."""
        found = [
            FileCondition(reason="WritesStopped", message=f"{what}: {why}")
            for what, why in writer.refusals.suspended_writes(now_s)
        ]
        contested = sorted(writer.overwrites.contested_targets(now_s))
        if not contested:
            self._contested = ""
        elif not self._contested:
            self._contested = "/".join(contested[0])
        if self._contested:
            message = f"files of pods are written by somebody else too, as {self._contested}"
            found.append(FileCondition(reason="ForeignWriter", message=message))
        return found

    def forget_other_pods(self, uids: Collection[str]) -> None:
        """Forget pods that are gone."""
        self._notes = {uid: told for uid, told in self._notes.items() if uid in uids}

    def forget_other_targets(self, targets: frozenset[WriteTarget]) -> None:
        """Forget files that are gone."""
        self._planned_values = {
            t: value for t, value in self._planned_values.items() if t in targets
        }


def _file_path(values: CgroupValues, one: RestoreResult) -> str:
    key = KEYS_BY_NAME.get(one.entry.key)
    paths = () if key is None else values.paths(one.entry.path, key)
    return paths[0] if paths else one.entry.path
