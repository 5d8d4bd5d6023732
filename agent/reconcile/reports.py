"""Reports of reconcile cycles, and which of their notes were not reported before.

A note is reported once per pod. A lasting problem is a condition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

import msgspec

from agent.cgroup.key_index import find_key
from agent.cgroup.keys import CgroupValue
from agent.cgroup.restore import RestoreResult
from agent.cgroup.values import CgroupValues
from agent.cgroup.write_plan import WritePlan, WriteProblem, WriteTarget, write_record
from agent.cgroup.writer import CgroupWriter
from agent.reconcile.desired_state import DesiredState
from agent.snapshot.container import PodSandbox
from agent.snapshot.edits import ContainerNote
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.publications import AuditRecord, audit_reason
from agent.snapshot.self_check import FileCondition


class PodReportNote(msgspec.Struct, frozen=True, kw_only=True):
    """An event for a pod. Equal notes are reported once, until they change or the pod goes."""

    uid: str
    namespace: str = ""
    name: str = ""
    note: ContainerNote


class PodReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one pod's files.

    `unwritten` counts files that differ from the desired values.
    """

    written: int = 0
    unwritten: int = 0
    audits: tuple[AuditRecord, ...] = ()
    notes: tuple[PodReportNote, ...] = ()


class CycleReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one cycle.

    `pods_later` pods were postponed to the next cycle to keep this one short.
    """

    pods: int = 0
    pods_later: int = 0
    files: int = 0  # compared
    written: int = 0
    unwritten: int = 0  # differ from the desired values: refused, suspended, or without a cgroup
    refused: int = 0  # writes of strategies that the kernel refused in this cycle
    planned: int = 0  # would be written if the mode of their hooks were on
    failed_hooks: tuple[tuple[str, str], ...] = ()  # hook and error: bugs, new ones only
    notes: tuple[PodReportNote, ...] = ()  # new ones only
    conditions: tuple[FileCondition, ...] = ()  # all current ones


MAX_NOTES = 32  # of one pod
MAX_REFUSALS = 8  # conditions about single files
MAX_FAILURES = 256  # bugs of hooks, each with its text
ANSWER_LATE = "AnswerCameLate"


class ReportHistory:
    """Remembers what was reported of the pods that still exist."""

    def __init__(self) -> None:
        self._notes: dict[str, set[ContainerNote]] = {}
        self._planned_values: dict[WriteTarget, CgroupValue] = {}
        self._problems: dict[WriteTarget, WriteProblem] = {}  # of files that belong to no pod
        self._failures: set[tuple[str, str]] = set()
        self._contested = ""  # the example in the message; it stays while any file is contested

    def new_notes(
        self, pod: PodSandbox, notes: Iterable[ContainerNote]
    ) -> tuple[PodReportNote, ...]:
        """Return the notes that were not reported for this pod before."""
        new = []
        for note in notes:
            reported = self._notes.setdefault(pod.uid, set())
            if note not in reported and len(reported) < MAX_NOTES:
                reported.add(note)
                new.append(
                    PodReportNote(uid=pod.uid, namespace=pod.namespace, name=pod.name, note=note)
                )
        return tuple(new)

    def new_failures(self, states: Iterable[DesiredState]) -> tuple[tuple[str, str], ...]:
        """Return the exceptions of hooks that were not reported before."""
        failures = {(failure.hook, failure.error) for each in states for failure in each.failures}
        new = failures - self._failures
        if len(self._failures) < MAX_FAILURES:
            self._failures |= new
        return tuple(sorted(new))

    def late_notes(
        self, snapshot: NodeSnapshot, states: Iterable[DesiredState], prioritized: Collection[str]
    ) -> tuple[PodReportNote, ...]:
        """Return notes on pods that have allocated devices and whose answers came late."""
        if not prioritized:
            return ()
        note = ContainerNote(
            reason=ANSWER_LATE,
            message="the runtime made a container of this pod before it was told of its devices:"
            " environment, mounts and devices come with a new container only",
        )
        allocated = snapshot.allocations.value.pods
        pods = (state.managed_pod.pod for state in states)
        late = [pod for pod in pods if pod.uid in prioritized and pod.uid in allocated]
        return tuple(report for pod in late for report in self.new_notes(pod, (note,)))

    def planned_audits(
        self, values: CgroupValues, plan: WritePlan, wall_s: float
    ) -> tuple[AuditRecord, ...]:
        """Return records of values that would be written, each value of a file once."""
        audits = []
        for desired in plan.desired:
            if self._planned_values.get(desired.target) == desired.value:
                continue
            self._planned_values[desired.target] = desired.value
            record = write_record(
                desired,
                path=values.paths(desired.cgroup, desired.key)[0],
                old=plan.current[desired.target],
                version=values.version,
                wall_s=wall_s,
            )
            audits.append(msgspec.structs.replace(record, planned=True))
        return tuple(audits)

    def restored_audits(
        self, values: CgroupValues, results: Iterable[RestoreResult], wall_s: float
    ) -> tuple[AuditRecord, ...]:
        """Return records of restored values."""
        return tuple(
            AuditRecord(
                wall_s=wall_s,
                owner=result.entry.owner,
                reason=audit_reason(result.entry.owner),
                message=f"put back: {result.state}{': ' if result.detail else ''}{result.detail}",
                path=_file_path(values, result),
                key=result.entry.key,
                old=result.current,
                new=result.target or result.entry.original,
                restore=result.state,
            )
            for result in results
            if result.state in ("restored", "refused", "foreign")
        )

    def record_problems(self, problems: Iterable[WriteProblem]) -> None:
        """Record problems with values of strategies and QoS directories."""
        self._problems.update((problem.desired.target, problem) for problem in problems)

    def conditions(self, writer: CgroupWriter, now_s: float) -> list[FileCondition]:
        """Return conditions for refused and suspended writes, and for files that others write."""
        conditions = [
            FileCondition(reason="WritesStopped", message=f"{target}: {reason}")
            for target, reason in writer.refusals.suspended_writes(now_s)
        ]
        self._problems = {
            target: one
            for target, one in self._problems.items()
            if writer.refusals.is_refused(one.desired)
        }
        conditions += [
            FileCondition(reason=problem.reason, message=problem.message)
            for problem in islice(self._problems.values(), MAX_REFUSALS)
        ]
        contested = sorted(writer.overwrites.contested_targets(now_s))
        if not contested:
            self._contested = ""
        elif not self._contested:
            self._contested = "/".join(contested[0])
        if self._contested:
            message = f"files of pods are written by somebody else too, as {self._contested}"
            conditions.append(FileCondition(reason="ForeignWriter", message=message))
        return conditions

    def forget_other_pods(self, uids: Collection[str]) -> None:
        """Forget pods that no longer exist."""
        self._notes = {uid: notes for uid, notes in self._notes.items() if uid in uids}

    def forget_other_targets(self, targets: frozenset[WriteTarget]) -> None:
        """Forget files that no longer exist."""
        self._planned_values = {
            t: value for t, value in self._planned_values.items() if t in targets
        }


def _file_path(values: CgroupValues, one: RestoreResult) -> str:
    key = find_key(one.entry.key)
    paths = () if key is None else values.paths(one.entry.path, key)
    return paths[0] if paths else one.entry.path
