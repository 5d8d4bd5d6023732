"""Files of pods and containers kept as the hooks say: one short cycle a second."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from agent.cgroup.cookies import Cookies, KernelCookies
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger.journal import Ledger, LedgerError
from agent.cgroup.paths import BadCgroupPath, of_parent
from agent.cgroup.values.keys import QUOTA
from agent.cgroup.writing.audit import Audit
from agent.cgroup.writing.kernel import KernelFiles
from agent.cgroup.writing.result import Prepared
from agent.cgroup.writing.values import CgroupValues
from agent.cgroup.writing.wish import Target
from agent.cgroup.writing.writer import Writer
from agent.clock import Clock
from agent.errors import ParseError
from agent.hooks.base import Hook
from agent.hooks.dispatch import OFF
from agent.host.files import LiveRoot
from agent.model.grant.edits import Note
from agent.model.runtime.adjustment import NO_RESOURCES, Resources
from agent.model.runtime.request import HookRequest
from agent.model.snapshot import NodeSnapshot
from agent.reconcile.directories import Directories
from agent.reconcile.givens import Givens
from agent.reconcile.leaving import Leaving, pods_of
from agent.reconcile.looked import CoreWish, Looked, look, wanted_of_ons, wanted_targets
from agent.reconcile.places import PodPlace
from agent.reconcile.processes.cores import Cores
from agent.reconcile.processes.oom import OomScores
from agent.reconcile.report import Condition, CycleReport, PodReport
from agent.reconcile.survey import Survey
from agent.reconcile.telling import Telling

MAX_AUDITS = 1024
MAX_PODS = 64  # whose files one cycle writes: the others' turn comes in the next
SCALES = "cpu_normalization"  # the hook that must know what was asked before it


class Reconciler:
    """Compares and writes what hooks want. All of it on the collector thread, but what says so.

    Raises nothing for what a kernel, a disk or a pod may do. `audits` is what was done of late.
    """

    def __init__(
        self,
        *,
        root: LiveRoot,
        ledger: Ledger,
        hooks: tuple[Hook, ...],
        modes: Mapping[str, str],
        clock: Clock,
        cookies: Callable[[], Cookies] = KernelCookies,
    ) -> None:
        """Begin with what the ledger has, which is loaded; touch nothing."""
        self.audits: deque[Audit] = deque(maxlen=MAX_AUDITS)
        self.ledger = ledger
        self._clock = clock
        self._modes = modes
        self._files = KernelFiles(root)
        self._survey = Survey(hooks, modes, clock.monotonic)
        self._leaving = Leaving(modes)
        self._givens = Givens()
        self._telling = Telling()
        self._oom = OomScores(self._files, ledger, clock.wall)
        self._directories = Directories(self._files, ledger, modes, clock.wall)
        self._cores = Cores(self._files, ledger, cookies)
        self._writer: Writer | None = None
        self._planner: Writer | None = None
        self._next = 0  # which pod the next cycle begins with
        self._targets: frozenset[Target] = frozenset()  # all files that are looked at
        self._wanted: frozenset[Target] = frozenset()  # what hooks that are on want, of any kind
        self._pods: frozenset[str] = frozenset()  # whose hooks were asked
        self._disk = ""  # why the ledger is not written
        self._hangs = False  # the ledger's file system does not answer

    def cycle(self, snapshot: NodeSnapshot, layout: CgroupLayout | None) -> CycleReport:
        """Compare and write once. `layout` is the host's; without one nothing is done."""
        if layout is None or layout.root is None:
            return CycleReport(conditions=self._conditions())
        now_s = self._clock.monotonic()
        writer, planner = self._open(layout)
        marked = self._survey.refresh(snapshot, layout.version, self._base)
        looked = self._survey.looked
        if self._survey.changed:
            self._targets = wanted_targets(looked.values()) | self._above()
            self._wanted = wanted_of_ons(looked.values())
            self._pods = pods_of(looked)
            writer.keep(self._targets)
            planner.keep(self._targets)
            self._telling.keep_planned(self._targets)
            self._telling.keep({one.place.pod.uid for one in looked.values()})
        if self._givens.settle(looked, writer, self._survey.formulas):
            self._survey.again()
        notes = self._telling.marked(snapshot, looked.values(), marked)
        above = self._directories.prepare(snapshot, layout, writer, now_s)
        prepared = self._prepare(writer, now_s)
        planned = self._plan_only(planner, looked.values(), now_s)
        scores = self._oom.prepare(
            (wish for one in looked.values() for wish in one.oom), layout, now_s
        )
        cores = tuple(wish for one in looked.values() for wish in one.cores)
        self._cores.remember(cores, layout)
        for _, ready in prepared:
            writer.remember(ready)
        self._leaving.sweep(self.ledger, layout, self._files, now_s)
        self._flush()
        compared = above.compared + sum(ready.compared for _, ready in prepared)
        left, written = above.left + sum(ready.left for _, ready in prepared), 0
        if not self._disk:
            done = self._directories.apply(above, writer, now_s)
            self.audits.extend(done.audits)
            left, written = left + done.left, written + done.written
        for one, ready in prepared:
            if ready.steps:
                report = self._apply(one.place, ready, now_s)
                written, left = written + report.written, left + report.left
                notes += report.notes
        if not self._hangs:
            self.audits.extend(self._oom.apply(scores, now_s))
            self._apply_cores(cores, layout, now_s)
            self._undo(snapshot, writer.values, now_s)
        for one in looked.values():
            notes += self._telling.new(one.place.pod, one.notes)
        return CycleReport(
            pods=len(looked),
            pods_later=max(self._survey.waiting, len(looked) - len(prepared)),
            files=compared,
            written=written,
            left=left,
            planned=planned,
            failed_hooks=self._telling.failures(looked.values()),
            notes=notes,
            conditions=self._conditions(),
        )

    def apply_pod(
        self, request: HookRequest, snapshot: NodeSnapshot, layout: CgroupLayout | None
    ) -> PodReport:
        """Write a new pod's own files before its sandbox runs.

        The hooks are asked here again: the ledger must know which of them wants what.
        """
        if layout is None or layout.root is None:
            return PodReport()
        pod = request.pod
        try:
            cgroup = of_parent(pod.cgroup_parent, pod.uid)
        except BadCgroupPath as error:
            note = Note(reason="BadCgroupPath", message=str(error))
            return PodReport(notes=self._telling.new(pod, (note,)))
        now_s = self._clock.monotonic()
        writer, _ = self._open(layout)
        place = PodPlace(pod=msgspec.structs.replace(pod, cgroup_parent=cgroup), cgroup=cgroup)
        looked = look(place, self._survey.asking(snapshot, layout.version, self._base))
        ready = writer.prepare(looked.wishes, now_s)
        writer.remember(ready)
        self._flush()
        report = self._apply(place, ready, now_s)
        return msgspec.structs.replace(
            report,
            left=report.left + ready.left,
            notes=report.notes + self._telling.new(pod, looked.notes),
        )

    def given(self, uid: str, container: str, asked: Resources, *, runs: bool = False) -> None:
        """Learn what was asked for a container that hooks changed: undoing gives that back.

        `runs`: it is there already, and is asked to have other resources. From any thread.
        """
        learn = self._givens.renew if runs else self._givens.add
        learn(uid, container, asked)

    def mark(self, uid: str) -> None:
        """Have a pod looked at first in the next cycle: its answer came late. From any thread."""
        self._survey.mark(uid)

    def close(self) -> None:
        """Let go of all descriptors; nothing is undone."""
        self._files.close_all()
        self._writer = self._planner = None

    def _open(self, layout: CgroupLayout) -> tuple[Writer, Writer]:
        """Return what writes and what only compares; new ones for a new layout."""
        if self._writer is None or self._planner is None or self._writer.values.layout != layout:
            self._files.close_all()
            values = CgroupValues(self._files, layout)
            self._writer = Writer(values, self.ledger, self._clock.wall)
            self._planner = Writer(values, Ledger(None, ""), self._clock.wall)
        return self._writer, self._planner

    def _base(self, cgroup: str) -> Resources:
        """Return the quota that was asked for a group, before we wrote any."""
        if self._writer is None or self._modes.get(SCALES, OFF) == OFF:
            return NO_RESOURCES
        values = self._writer.values
        entry = self.ledger.entries.get((values.hierarchy(QUOTA), cgroup, QUOTA.name))
        try:
            found = values.value(cgroup, QUOTA) if entry is None else QUOTA.kept(entry.original)
        except ParseError:
            return NO_RESOURCES
        quota_us, period_us = getattr(found, "quota_us", None), getattr(found, "period_us", None)
        return Resources(quota_us=quota_us, period_us=period_us)

    def _apply(self, place: PodPlace, ready: Prepared, now_s: float) -> PodReport:
        if self._writer is None or not ready.steps:
            return PodReport()
        if self._hangs:
            return PodReport(left=len(ready.wishes))
        done = self._writer.apply(ready, now_s)
        self.audits.extend(done.audits)
        notes = tuple(Note(reason=one.reason, message=one.message) for one in done.troubles)
        return PodReport(
            written=done.written,
            left=done.left,
            audits=done.audits,
            notes=self._telling.new(place.pod, notes),
        )

    def _prepare(self, writer: Writer, now_s: float) -> list[tuple[Looked, Prepared]]:
        """Compare the files of pods in turn, until so many are to be written as one cycle may."""
        looked = list(self._survey.looked.values())
        self._next = self._next if self._next < len(looked) else 0
        prepared: list[tuple[Looked, Prepared]] = []
        writes = 0
        for one in (*looked[self._next :], *looked[: self._next]):
            ready = writer.prepare(one.wishes, now_s)
            prepared.append((one, ready))
            writes += bool(ready.steps)
            if writes >= MAX_PODS:
                break
        self._next = (self._next + len(prepared)) % max(len(looked), 1)
        return prepared

    def _plan_only(self, planner: Writer, looked: Iterable[Looked], now_s: float) -> int:
        """Count what hooks in plan mode would write; tell each such value once."""
        ready = [planner.prepare(one.planned, now_s) for one in looked if one.planned]
        for one in ready:
            self.audits.extend(self._telling.planned(planner.values, one, self._clock.wall()))
        return sum(len(one.wishes) for one in ready)

    def _flush(self) -> None:
        """Put the originals on the disk. A disk that refuses them does not stop pods' files.

        Their originals follow from the pods' own specs; limits that are not in force harm others.
        While the disk does not answer, nothing is written: the entries may reach it much later.
        """
        try:
            self.ledger.flush()
        except LedgerError as error:
            self._disk, self._hangs = str(error), error.hangs
            if self._hangs:
                self._disk += ": no file of a pod is written until it does"
        else:
            self._disk, self._hangs = "", False

    def _apply_cores(self, cores: tuple[CoreWish, ...], layout: CgroupLayout, now_s: float) -> None:
        if not self._directories.problem:  # a switch that must be off before there are cookies
            self._cores.apply(cores, layout, now_s)

    def _undo(self, snapshot: NodeSnapshot, values: CgroupValues, now_s: float) -> None:
        looked = self._pods | self._directories.looked(values.layout)
        wanted = self._wanted | self._above() | self._directories.held
        leaving = self._leaving.entries(self.ledger, wanted, looked, snapshot, now_s)
        try:
            done = self._leaving.undo(self.ledger, values, leaving, self._clock.monotonic)
        except LedgerError as error:
            self._disk = str(error)
            return
        self.audits.extend(self._telling.undone(values, done, self._clock.wall()))

    def _above(self) -> frozenset[Target]:
        return frozenset(wish.target for wish in self._directories.wishes)

    def _conditions(self) -> tuple[Condition, ...]:
        found = []
        if self._disk:
            found.append(Condition(reason="LedgerNotWritable", message=self._disk))
        if self.ledger.problem:
            found.append(Condition(reason="LedgerDamaged", message=self.ledger.problem))
        if self.ledger.newer:
            message = f"{len(self.ledger.newer)} lines that this version cannot read"
            found.append(Condition(reason="LedgerOfNewerVersion", message=message))
        if self._oom.problem:
            found.append(Condition(reason="OOMScoreNotWritable", message=self._oom.problem))
        if self._directories.problem:
            found.append(Condition(reason="SwitchRefused", message=self._directories.problem))
        if self._cores.problem:
            found.append(Condition(reason="CoreSchedulingRefused", message=self._cores.problem))
        if self._writer is not None:
            found += self._telling.conditions(self._writer, self._clock.monotonic())
        return tuple(found)
