"""What people are told: each thing once a pod, and what holds on as a condition."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from agent.cgroup.ledger.undo import Undone
from agent.cgroup.values.keys import BY_NAME, Value
from agent.cgroup.writing.audit import Audit
from agent.cgroup.writing.result import Prepared
from agent.cgroup.writing.values import CgroupValues
from agent.cgroup.writing.wish import Target
from agent.cgroup.writing.writer import Writer
from agent.model.grant.edits import Note
from agent.model.runtime.seen import SandboxSeen
from agent.model.snapshot import NodeSnapshot
from agent.reconcile.looked import Looked
from agent.reconcile.report import Condition, PodNote

MAX_NOTES = 32  # of one pod
MAX_FAILURES = 256  # bugs of hooks, each with its text
LATE = "AnswerCameLate"


class Telling:
    """Remembers what was told of pods that are still there."""

    def __init__(self) -> None:
        self._told: dict[str, set[Note]] = {}
        self._planned: dict[Target, Value] = {}
        self._failures: set[tuple[str, str]] = set()
        self._contested = ""  # as long as anything is: the same words, however much changes

    def new(self, pod: SandboxSeen, notes: Iterable[Note]) -> tuple[PodNote, ...]:
        """Return the notes that were not told of this pod yet."""
        fresh = []
        for note in notes:
            told = self._told.setdefault(pod.uid, set())
            if note not in told and len(told) < MAX_NOTES:
                told.add(note)
                fresh.append(
                    PodNote(uid=pod.uid, namespace=pod.namespace, name=pod.name, note=note)
                )
        return tuple(fresh)

    def failures(self, looked: Iterable[Looked]) -> tuple[tuple[str, str], ...]:
        """Return the bugs of hooks that were not told yet."""
        found = {(one.hook, one.error) for each in looked for one in each.failures}
        fresh = found - self._failures
        if len(self._failures) < MAX_FAILURES:
            self._failures |= fresh
        return tuple(sorted(fresh))

    def marked(
        self, snapshot: NodeSnapshot, looked: Iterable[Looked], marked: Collection[str]
    ) -> tuple[PodNote, ...]:
        """Return notes on pods whose answers came late, and that were granted devices."""
        if not marked:
            return ()
        note = Note(
            reason=LATE,
            message="the runtime made a container of this pod before it was told of its devices:"
            " environment, mounts and devices come with a new container only",
        )
        granted = snapshot.grants.value.pods
        pods = (one.place.pod for one in looked)
        late = [pod for pod in pods if pod.uid in marked and pod.uid in granted]
        return tuple(told for pod in late for told in self.new(pod, (note,)))

    def planned(self, values: CgroupValues, ready: Prepared, wall_s: float) -> tuple[Audit, ...]:
        """Return records of values that would be written, of each value of a file once."""
        audits = []
        for wish in ready.wishes:
            if self._planned.get(wish.target) == wish.value:
                continue
            self._planned[wish.target] = wish.value
            old = ready.found[wish.target]
            audits.append(
                Audit(
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

    def undone(
        self, values: CgroupValues, done: Iterable[Undone], wall_s: float
    ) -> tuple[Audit, ...]:
        """Return records of what was put back."""
        return tuple(
            Audit(
                wall_s=wall_s,
                owner=one.entry.owner,
                message=f"put back: {one.state}{': ' if one.detail else ''}{one.detail}",
                path=_path(values, one),
                key=one.entry.key,
                old=one.current,
                new=one.target or one.entry.original,
            )
            for one in done
            if one.state in ("restored", "refused", "foreign")
        )

    def conditions(self, writer: Writer, now_s: float) -> list[Condition]:
        """Return what holds on: owners and files that are stopped, files that others write too."""
        found = [
            Condition(reason="WritesStopped", message=f"{what}: {why}")
            for what, why in writer.refusals.stopped(now_s)
        ]
        contested = sorted(writer.foreign.contested(now_s))
        if not contested:
            self._contested = ""
        elif not self._contested:
            self._contested = "/".join(contested[0])
        if self._contested:
            message = f"files of pods are written by somebody else too, as {self._contested}"
            found.append(Condition(reason="ForeignWriter", message=message))
        return found

    def keep(self, uids: Collection[str]) -> None:
        """Forget pods that are gone."""
        self._told = {uid: told for uid, told in self._told.items() if uid in uids}

    def keep_planned(self, targets: frozenset[Target]) -> None:
        """Forget files that are gone."""
        self._planned = {t: value for t, value in self._planned.items() if t in targets}


def _path(values: CgroupValues, one: Undone) -> str:
    key = BY_NAME.get(one.entry.key)
    paths = () if key is None else values.paths(one.entry.path, key)
    return paths[0] if paths else one.entry.path
