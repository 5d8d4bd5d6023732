"""Asks all hooks about one request, merges their answers, and does what the answer needs.

Which hook wins where two set one field is written down in `merge_answers`; order decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from agent.allocation.index import AllocationIndex, allocation_annotation
from agent.clock import Clock
from agent.config.containers import ENFORCE_MODES, EnforceSettings
from agent.containers.folders import FolderError, make_folders
from agent.containers.hooks import Hook
from agent.loop import log_failure
from agent.messages import EventReported, MessageQueue
from agent.snapshot.allocation import AllocationRefused
from agent.snapshot.container import (
    NO_ADJUSTMENT,
    NO_RESOURCES,
    SYNCHRONIZED,
    Adjustment,
    HookRequest,
    HookStage,
    LinuxResources,
    PodSandbox,
    RuntimeView,
)
from agent.snapshot.edits import NO_EDITS, ContainerEdits, ContainerNote
from agent.snapshot.edits import merge_edits as merged_edits
from agent.snapshot.node import NodeSnapshot, SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodRef
from agent.wire_formats.annotations import AnnotationError

log = logging.getLogger(__name__)

POD_FILES_DEADLINE_S = 0.2  # of a new pod's files; what is late is done by the next cycle
MAX_PENDING_PODS = 64  # pods whose files wait for the thread; beyond it is left to the next cycle
FOLDERS_DEADLINE_S = 0.3


OFF, PLAN, ON = ENFORCE_MODES

BAD_ANNOTATION = "BadAnnotation"

HOOK_FAILED = "HookFailed"

MAX_ERROR = 200  # characters of what a hook raised


class DispatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one question.

    `answers` has, by hook, what `adjustment` was put together from, and `planned` what hooks in
    `plan` mode would have changed: nothing of that is in `adjustment`. `failures` are bugs, to be
    counted. `spent_s` has every hook that was asked.
    """

    adjustment: Adjustment = NO_ADJUSTMENT
    answers: Answers = ()
    planned: Answers = ()
    failures: tuple[HookFailure, ...] = ()
    duration_s: tuple[tuple[str, float], ...] = ()


def hook_modes(hooks: Iterable[Hook], enforce: EnforceSettings) -> Mapping[str, str]:
    """Return each hook's mode, which is never more than `enforce.mode`.

    A hook without a switch of its own follows that one.
    """
    return {
        hook.name: min(getattr(enforce.hooks, hook.name, ON), enforce.mode, key=ENFORCE_MODES.index)
        for hook in hooks
    }


def adjust(
    hooks: Iterable[Hook],
    request: HookRequest,
    snapshot: NodeSnapshot,
    modes: Mapping[str, str],
    now_s: Callable[[], float],
) -> DispatchResult:
    """Ask the hooks of this stage, in their order, and put their answers together. Never raises.

    The order decides nothing: see `merge` for who wins. A hook that is not in `modes` is off.
    `now_s` is monotonic, for what each took.
    """
    asked: list[tuple[str, str, _HookAnswer]] = []
    spent_s: list[tuple[str, float]] = []
    for hook in hooks:
        mode = modes.get(hook.name, OFF)
        if mode == OFF or request.stage not in hook.stages:
            continue
        begun_s = now_s()
        asked.append((mode, hook.name, _ask_hook(hook, request, snapshot)))
        spent_s.append((hook.name, now_s() - begun_s))
    on, planned = _answers_in_mode(asked, ON), _answers_in_mode(asked, PLAN)
    whole, conflicts = merge_answers(on)
    bugs = (HookFailure(name, answer.bug) for _, name, answer in asked if answer.bug)
    return DispatchResult(
        adjustment=whole,
        answers=on,
        planned=planned,
        failures=(*bugs, *conflicts),
        duration_s=tuple(spent_s),
    )


def _answers_in_mode(asked: Iterable[tuple[str, str, _HookAnswer]], mode: str) -> Answers:
    """Return what the hooks of a mode have to say, without those that say nothing."""
    return tuple(
        (name, answer.adjustment)
        for of_mode, name, answer in asked
        if of_mode == mode
        and answer.adjustment is not NO_ADJUSTMENT
        and answer.adjustment != NO_ADJUSTMENT
    )


class _HookAnswer(msgspec.Struct, frozen=True):
    adjustment: Adjustment = NO_ADJUSTMENT
    bug: str = ""


def _ask_hook(hook: Hook, request: HookRequest, snapshot: NodeSnapshot) -> _HookAnswer:
    try:
        return _HookAnswer(hook.adjust(request, snapshot))
    except AllocationRefused as refused:
        return _HookAnswer(_refusal(hook, refused.reason, str(refused)))
    except AnnotationError as bad:
        return _HookAnswer(_refusal(hook, BAD_ANNOTATION, f"{hook.name}: {bad}"))
    except Exception as error:  # noqa: BLE001 - a hook's bug must not cost the others their say
        bug = f"{type(error).__name__}: {error}"[:MAX_ERROR]
        if hook.required and allocation_annotation(request.pod) is not None:
            # to run without what was granted is worse than not to run
            words = f"{hook.name} has a bug ({type(error).__name__}): see the agent's log"
            return _HookAnswer(
                Adjustment(failed=f"{HOOK_FAILED}: {words}", reason=HOOK_FAILED), bug
            )
        note = f"the hook {hook.name} has failed, what it sets is missing ({type(error).__name__})"
        return _HookAnswer(_note(HOOK_FAILED, note), bug)


def _refusal(hook: Hook, reason: str, message: str) -> Adjustment:
    if hook.required:
        return Adjustment(failed=message, reason=reason)
    return _note(reason, message)


def _note(reason: str, message: str) -> Adjustment:
    return Adjustment(edits=ContainerEdits(notes=(ContainerNote(reason=reason, message=message),)))


T = TypeVar("T")

Answers = tuple[tuple[str, Adjustment], ...]  # by hook, in the order they were asked

# the pinned are not throttled, whatever else is said; a scaled quota stands for the one it scales
QUOTA_PRECEDENCE = ("cpuset", "cpu_normalization", "batch_resources")


class HookFailure(msgspec.Struct, frozen=True):
    """A bug of a hook, or of two that say different things of one field."""

    hook: str  # its name; several are joined by commas
    error: str


class _AnswerMerge:
    """One merge in progress."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.failures: list[HookFailure] = []

    def agreed_value(self, field: str, said: Iterable[T | None]) -> T | None:
        """Return the value that all who set the field agree on; `None` for two values."""
        given = [
            (hook, value)
            for (hook, _), value in zip(self.answers, said, strict=True)
            if value is not None
        ]
        if len({value for _, value in given}) > 1:
            hooks = ",".join(hook for hook, _ in given)
            self.failures.append(HookFailure(hooks, f"different values of {field}"))
            return None
        return given[0][1] if given else None

    def quota(self) -> LinuxResources:
        """Return quota and period of one hook: each means nothing without the other."""
        every = [(hook, answer.resources) for hook, answer in self.answers]
        said = {hook: one for hook, one in every if one.quota_us is not None}
        if said.keys() <= set(QUOTA_PRECEDENCE):
            return next((said[name] for name in QUOTA_PRECEDENCE if name in said), LinuxResources())
        pairs = [
            None if one.quota_us is None else (one.quota_us, one.period_us) for _, one in every
        ]
        quota_us, period_us = self.agreed_value("quota_us", pairs) or (None, None)
        return LinuxResources(quota_us=quota_us, period_us=period_us)

    def edits(self) -> tuple[ContainerEdits, str, str]:
        """Return all edits, or why they cannot be made together: reason and message."""
        try:
            return merged_edits([answer.edits for _, answer in self.answers]), "", ""
        except AllocationRefused as refused:
            hooks = ",".join(hook for hook, answer in self.answers if answer.edits != NO_EDITS)
            self.failures.append(HookFailure(hooks, str(refused)))
            return NO_EDITS, refused.reason, str(refused)


def _is_complete(said: LinuxResources) -> bool:
    """Say whether a period comes with its quota, without which it means nothing."""
    return said.period_us is None or said.quota_us is not None


def merge_answers(answers: Answers) -> tuple[Adjustment, tuple[HookFailure, ...]]:
    """Return one adjustment, and the fields that two hooks set to different values.

    Such a field is left out: neither is right. Edits that contradict each other refuse the
    container, as those of two vendors do; so does any hook's refusal, in the words of the first.
    """
    if not answers:
        return NO_ADJUSTMENT, ()
    if len(answers) == 1 and _is_complete(answers[0][1].resources):
        return answers[0][1], ()  # as nearly always
    merging = _AnswerMerge(answers)
    all_of = [answer for _, answer in answers]
    edits, reason, failed = merging.edits()
    quota = merging.quota()
    for answer in reversed(all_of):
        if answer.failed:
            reason, failed = answer.reason, answer.failed
    whole = Adjustment(
        edits=edits,
        resources=LinuxResources(
            shares=merging.agreed_value("shares", [a.resources.shares for a in all_of]),
            quota_us=quota.quota_us,
            period_us=quota.period_us,
            cpus=merging.agreed_value("cpus", [a.resources.cpus for a in all_of]),
            memory_bytes=merging.agreed_value(
                "memory_bytes", [a.resources.memory_bytes for a in all_of]
            ),
        ),
        rdt_class=merging.agreed_value("rdt_class", [a.rdt_class for a in all_of]),
        oom_score_adj=merging.agreed_value("oom_score_adj", [a.oom_score_adj for a in all_of]),
        bvt_warp_ns=merging.agreed_value("bvt_warp_ns", [a.bvt_warp_ns for a in all_of]),
        core_group=merging.agreed_value("core_group", [a.core_group for a in all_of]),
        reason=reason,
        failed=failed,
    )
    return whole, tuple(merging.failures)


class HookStatistics:
    """What hooks did so far. Counters since the agent's start; belongs to the loop thread."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()  # bugs
        self.planned: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()  # containers that were kept from starting
        self.spent_s: defaultdict[str, float] = defaultdict(float)

    def count(self, result: DispatchResult) -> None:
        """Take in one answer."""
        for name, seconds in result.duration_s:
            self.calls[name] += 1
            self.spent_s[name] += seconds
        self.planned.update(name for name, _ in result.planned)
        self.failures.update(failure.hook for failure in result.failures)
        if result.adjustment.failed:
            self.refusals[result.adjustment.reason] += 1


class PodFiles(Protocol):
    """Files of pods on the host, as the service for containers keeps them."""

    def write_pod(self, request: HookRequest) -> object:
        """Write a new pod's own files; blocks, on the thread that writes files of pods."""
        ...

    def record_requested_values(self, request: HookRequest) -> None:
        """Record what was requested for a container whose answer changed it; quick."""
        ...

    def prioritise_missed_pods(self, before: RuntimeView, now: RuntimeView) -> None:
        """Handle first the pods whose containers started without an answer; quick."""
        ...


class ContainerAdjuster:
    """Answers the container runtime from the snapshot, and keeps the runtime's part of it.

    Implements `agent.nri.runtime_view.RuntimeHandler`. Belongs to the loop thread.
    """

    def __init__(
        self,
        hooks: Iterable[Hook],
        modes: Mapping[str, str],
        store: SnapshotStore,
        clock: Clock,
        *,
        messages: MessageQueue,
        pod_files: PodFiles,
        files: Executor,
        index: AllocationIndex,
    ) -> None:
        """Create it; `pod_files.write_pod` runs on `files`, the one thread for files of pods.

        `index` is that of the devices hook.
        """
        self._hooks = tuple(hooks)
        self._modes = modes
        self._store = store
        self._clock = clock
        self._messages = messages
        self._pod_files = pod_files
        self._files_executor = files
        self._index = index
        self._pending_writes: set[asyncio.Future[object]] = set()
        self.counters = HookStatistics()

    def adjust(self, request: HookRequest) -> Adjustment | Awaitable[Adjustment]:
        """Return the answer: at once, or when the folders and files that it needs are made.

        A folder that cannot be made keeps the container from starting: its mount would fail. Files
        of a pod that take longer are left to the next cycle.
        """
        snapshot = self._store.current
        result = adjust(self._hooks, request, snapshot, self._modes, self._clock.monotonic)
        self.counters.count(result)
        for failure in result.failures:
            log.error("hook_failed", extra={"hook": failure.hook, "error": failure.error})
        answer = result.adjustment
        for note in answer.edits.notes:
            self._report_event(request, note.reason, note.message)
        if answer.failed:
            self._report_event(request, answer.reason, f"{_subject(request)}: {answer.failed}")
            return answer
        if request.container is None:
            writes = request.stage is HookStage.RUN_POD and _changes_pod_files(answer)
            return self._write_pod_files(request, answer) if writes else answer
        if answer.resources != NO_RESOURCES:
            self._pod_files.record_requested_values(request)
        return self._make_folders(request, answer) if answer.edits.folders else answer

    def view_changed(self, view: RuntimeView) -> None:
        """Put the runtime's view into the snapshot, with the time of its last change of state."""
        before = self._store.current.runtime.value
        turned = (before.state == SYNCHRONIZED) is not (view.state == SYNCHRONIZED)
        is_new = turned or before.turned_s is None
        view = replace(view, turned_s=self._clock.wall() if is_new else before.turned_s)
        snapshot = self._store.put(runtime=SnapshotPart(view, self._clock.monotonic()))
        if view.sandboxes is not before.sandboxes:
            self._index.tables(snapshot)  # before the requests for containers of a new pod
        if view.missed is not before.missed:
            self._pod_files.prioritise_missed_pods(before, view)

    async def _write_pod_files(self, request: HookRequest, answer: Adjustment) -> Adjustment:
        if len(self._pending_writes) >= MAX_PENDING_PODS:
            return answer
        event_loop = asyncio.get_running_loop()
        work = event_loop.run_in_executor(self._files_executor, self._pod_files.write_pod, request)
        self._pending_writes.add(work)
        work.add_done_callback(self._pending_writes.discard)
        # a bug: the next cycle writes what is missing
        work.add_done_callback(lambda done: log_failure(done, log, "pod_files_not_written"))
        await asyncio.wait({work}, timeout=POD_FILES_DEADLINE_S)
        return answer

    async def _make_folders(self, request: HookRequest, answer: Adjustment) -> Adjustment:
        making: Awaitable[None] = asyncio.to_thread(partial(make_folders, answer.edits.folders))
        try:
            async with asyncio.timeout(FOLDERS_DEADLINE_S):
                await making
        except FolderError as error:
            why = str(error)
        except TimeoutError:
            why = f"{answer.edits.folders[0].host_path}: not made within {FOLDERS_DEADLINE_S:g} s"
        else:
            return answer
        self._report_event(request, "FolderNotMade", f"{_subject(request)}: {why}")
        self.counters.refusals["FolderNotMade"] += 1
        return Adjustment(failed=f"FolderNotMade: {why}", reason="FolderNotMade")

    def _report_event(self, request: HookRequest, reason: str, message: str) -> None:
        self._messages.put(EventReported(reason, message, _pod_reference(request.pod)))


def _changes_pod_files(answer: Adjustment) -> bool:
    """Say whether anything of a pod is to be written."""
    return answer.resources != NO_RESOURCES or answer.bvt_warp_ns is not None


def _pod_reference(pod: PodSandbox) -> PodRef:
    return PodRef(namespace=pod.namespace or "default", name=pod.name, uid=pod.uid)


def _subject(request: HookRequest) -> str:
    return f"container {request.container.name}" if request.container is not None else "the pod"
