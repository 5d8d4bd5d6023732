"""Calls all hooks for one request, merges their answers, and applies side effects of the answer.

`merge_answers` defines which hook wins if two set the same field; their order has no effect.
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

POD_FILES_DEADLINE_S = 0.2  # for the files of a new pod; the reconcile loop writes what is late
# pods whose files wait for the thread; beyond it they are left to the reconcile loop
MAX_PENDING_PODS = 64
FOLDERS_DEADLINE_S = 0.3


OFF, PLAN, ON = ENFORCE_MODES
BAD_ANNOTATION = "BadAnnotation"
HOOK_FAILED = "HookFailed"
MAX_ERROR = 200  # characters of an exception's text


class DispatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one request.

    `answers` has the answer of each hook, which `adjustment` combines; `planned` has those of hooks
    in `plan` mode, which are not part of `adjustment`. `failures` are bugs, which are counted.
    `duration_s` has every hook that was called.
    """

    adjustment: Adjustment = NO_ADJUSTMENT
    answers: Answers = ()
    planned: Answers = ()
    failures: tuple[HookFailure, ...] = ()
    duration_s: tuple[tuple[str, float], ...] = ()


def hook_modes(hooks: Iterable[Hook], enforce: EnforceSettings) -> Mapping[str, str]:
    """Return each hook's mode, which is never more than `enforce.mode`.

    A hook without a switch of its own has the mode `enforce.mode`.
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
    """Call the hooks of this stage and merge their answers. Never raises.

    `merge_answers` decides which hook wins. A hook that is not in `modes` is off. `now_s` returns
    monotonic seconds, for the duration of each hook.
    """
    answers: list[tuple[str, Adjustment]] = []
    planned: list[tuple[str, Adjustment]] = []
    failures: list[HookFailure] = []
    spent_s: list[tuple[str, float]] = []
    for hook in hooks:
        mode = modes.get(hook.name, OFF)
        if mode == OFF or request.stage not in hook.stages:
            continue
        start_s = now_s()
        answer = _call_hook(hook, request, snapshot)
        spent_s.append((hook.name, now_s() - start_s))
        if answer.adjustment is not NO_ADJUSTMENT and answer.adjustment != NO_ADJUSTMENT:
            (planned if mode == PLAN else answers).append((hook.name, answer.adjustment))
        if answer.bug:
            failures.append(HookFailure(hook.name, answer.bug))
    adjustment, conflicts = merge_answers(tuple(answers))
    return DispatchResult(
        adjustment=adjustment,
        answers=tuple(answers),
        planned=tuple(planned),
        failures=(*failures, *conflicts),
        duration_s=tuple(spent_s),
    )


class _HookAnswer(msgspec.Struct, frozen=True):
    adjustment: Adjustment = NO_ADJUSTMENT
    bug: str = ""


def _call_hook(hook: Hook, request: HookRequest, snapshot: NodeSnapshot) -> _HookAnswer:
    try:
        return _HookAnswer(hook.adjust(request, snapshot))
    except AllocationRefused as refusal:
        return _HookAnswer(_refusal(hook, refusal.reason, str(refusal)))
    except AnnotationError as bad:
        return _HookAnswer(_refusal(hook, BAD_ANNOTATION, f"{hook.name}: {bad}"))
    except Exception as error:  # noqa: BLE001 - a hook's bug must not drop the other answers
        bug = f"{type(error).__name__}: {error}"[:MAX_ERROR]
        if hook.required and allocation_annotation(request.pod) is not None:
            # running without the allocated devices is worse than not running
            message = f"{hook.name} has a bug ({type(error).__name__}): see the agent's log"
            return _HookAnswer(
                Adjustment(failed=f"{HOOK_FAILED}: {message}", reason=HOOK_FAILED), bug
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

Answers = tuple[tuple[str, Adjustment], ...]  # by hook, in the order of the calls

# a quota removed for pinned pods wins, then the scaled quota, which replaces the one it scales
QUOTA_PRECEDENCE = ("cpuset", "cpu_normalization", "batch_resources")


class HookFailure(msgspec.Struct, frozen=True):
    """A bug of a hook, or of two hooks that set one field to different values."""

    hook: str  # its name; several are joined by commas
    error: str


class _AnswerMerge:
    """One merge in progress."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.failures: list[HookFailure] = []

    def common_value(self, field: str, values: Iterable[T | None]) -> T | None:
        """Return the value that all hooks that set the field agree on; `None` if they differ."""
        set_values = [
            (hook, value)
            for (hook, _), value in zip(self.answers, values, strict=True)
            if value is not None
        ]
        if len({value for _, value in set_values}) > 1:
            hooks = ",".join(hook for hook, _ in set_values)
            self.failures.append(HookFailure(hooks, f"different values of {field}"))
            return None
        return set_values[0][1] if set_values else None

    def quota(self) -> LinuxResources:
        """Return quota and period of the same hook: each means nothing without the other."""
        hook_resources = [(hook, answer.resources) for hook, answer in self.answers]
        by_hook = {
            hook: resources for hook, resources in hook_resources if resources.quota_us is not None
        }
        if by_hook.keys() <= set(QUOTA_PRECEDENCE):
            return next(
                (by_hook[name] for name in QUOTA_PRECEDENCE if name in by_hook), LinuxResources()
            )
        pairs = [
            None if resources.quota_us is None else (resources.quota_us, resources.period_us)
            for _, resources in hook_resources
        ]
        quota_us, period_us = self.common_value("quota_us", pairs) or (None, None)
        return LinuxResources(quota_us=quota_us, period_us=period_us)

    def edits(self) -> tuple[ContainerEdits, str, str]:
        """Return all edits, or reason and message if they contradict each other."""
        try:
            return merged_edits([answer.edits for _, answer in self.answers]), "", ""
        except AllocationRefused as refusal:
            hooks = ",".join(hook for hook, answer in self.answers if answer.edits != NO_EDITS)
            self.failures.append(HookFailure(hooks, str(refusal)))
            return NO_EDITS, refusal.reason, str(refusal)


def _is_complete(resources: LinuxResources) -> bool:
    """Return whether a period comes with its quota, without which it means nothing."""
    return resources.period_us is None or resources.quota_us is not None


def merge_answers(answers: Answers) -> tuple[Adjustment, tuple[HookFailure, ...]]:
    """Return one adjustment, and the fields that two hooks set to different values.

    Such a field is left out. Edits that contradict each other refuse the container, as do those of
    two vendors; a hook's refusal also does, with the message of the first.
    """
    if not answers:
        return NO_ADJUSTMENT, ()
    if len(answers) == 1 and _is_complete(answers[0][1].resources):
        return answers[0][1], ()  # the usual case
    merge = _AnswerMerge(answers)
    adjustments = [answer for _, answer in answers]
    edits, reason, failed = merge.edits()
    quota = merge.quota()
    for answer in reversed(adjustments):
        if answer.failed:
            reason, failed = answer.reason, answer.failed
    adjustment = Adjustment(
        edits=edits,
        resources=LinuxResources(
            shares=merge.common_value("shares", [a.resources.shares for a in adjustments]),
            quota_us=quota.quota_us,
            period_us=quota.period_us,
            cpus=merge.common_value("cpus", [a.resources.cpus for a in adjustments]),
            memory_bytes=merge.common_value(
                "memory_bytes", [a.resources.memory_bytes for a in adjustments]
            ),
        ),
        rdt_class=merge.common_value("rdt_class", [a.rdt_class for a in adjustments]),
        oom_score_adj=merge.common_value("oom_score_adj", [a.oom_score_adj for a in adjustments]),
        bvt_warp_ns=merge.common_value("bvt_warp_ns", [a.bvt_warp_ns for a in adjustments]),
        core_group=merge.common_value("core_group", [a.core_group for a in adjustments]),
        reason=reason,
        failed=failed,
    )
    return adjustment, tuple(merge.failures)


class HookStatistics:
    """Counters of the hooks since the agent's start. Belongs to the loop thread."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()  # bugs
        self.planned: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()  # containers that were refused
        self.spent_s: defaultdict[str, float] = defaultdict(float)

    def count(self, result: DispatchResult) -> None:
        """Count one answer."""
        for name, seconds in result.duration_s:
            self.calls[name] += 1
            self.spent_s[name] += seconds
        for name, _ in result.planned:
            self.planned[name] += 1
        for failure in result.failures:
            self.failures[failure.hook] += 1
        if result.adjustment.failed:
            self.refusals[result.adjustment.reason] += 1


class PodFiles(Protocol):
    """Writes files of pods on the host."""

    def write_pod(self, request: HookRequest) -> object:
        """Write a new pod's own files; blocks, on the thread that writes files of pods."""
        ...

    def record_requested_values(self, request: HookRequest, answers: Answers) -> None:
        """Record the requested values of a container whose answers change them; fast."""
        ...

    def prioritise_missed_pods(self, before: RuntimeView, now: RuntimeView) -> None:
        """Put pods whose containers started without an answer first; fast."""
        ...


class ContainerAdjuster:
    """Answers the container runtime from the snapshot, and stores the runtime's view in it.

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
        """Create it.

        `pod_files.write_pod` runs on `files`, the only thread that writes files of pods.

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
        """Return the answer, at once or when the folders and files that it needs exist.

        A container whose folder cannot be created is refused: its mount would fail. Files of a pod
        that take longer are left to the reconcile loop.
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
            self._pod_files.record_requested_values(request, result.answers)
        return self._make_folders(request, answer) if answer.edits.folders else answer

    def view_changed(self, view: RuntimeView) -> None:
        """Put the runtime's view into the snapshot, with the time of its last change of state."""
        previous = self._store.current.runtime.value
        has_turned = (previous.state == SYNCHRONIZED) is not (view.state == SYNCHRONIZED)
        is_new = has_turned or previous.turned_s is None
        view = replace(view, turned_s=self._clock.wall() if is_new else previous.turned_s)
        snapshot = self._store.put(runtime=SnapshotPart(view, self._clock.monotonic()))
        if view.sandboxes is not previous.sandboxes:
            self._index.tables(snapshot)  # ready before the requests for containers of a new pod
        if view.missed is not previous.missed:
            self._pod_files.prioritise_missed_pods(previous, view)

    async def _write_pod_files(self, request: HookRequest, answer: Adjustment) -> Adjustment:
        if len(self._pending_writes) >= MAX_PENDING_PODS:
            return answer
        event_loop = asyncio.get_running_loop()
        work = event_loop.run_in_executor(self._files_executor, self._pod_files.write_pod, request)
        self._pending_writes.add(work)
        work.add_done_callback(self._pending_writes.discard)
        # a bug: the reconcile loop writes what is missing
        work.add_done_callback(lambda done: log_failure(done, log, "pod_files_not_written"))
        await asyncio.wait({work}, timeout=POD_FILES_DEADLINE_S)
        return answer

    async def _make_folders(self, request: HookRequest, answer: Adjustment) -> Adjustment:
        creation: Awaitable[None] = asyncio.to_thread(partial(make_folders, answer.edits.folders))
        try:
            async with asyncio.timeout(FOLDERS_DEADLINE_S):
                await creation
        except FolderError as error:
            reason = str(error)
        except TimeoutError:
            reason = (
                f"{answer.edits.folders[0].host_path}: not made within {FOLDERS_DEADLINE_S:g} s"
            )
        else:
            return answer
        self._report_event(request, "FolderNotMade", f"{_subject(request)}: {reason}")
        self.counters.refusals["FolderNotMade"] += 1
        return Adjustment(failed=f"FolderNotMade: {reason}", reason="FolderNotMade")

    def _report_event(self, request: HookRequest, reason: str, message: str) -> None:
        self._messages.put(EventReported(reason, message, _pod_reference(request.pod)))


def _changes_pod_files(answer: Adjustment) -> bool:
    """Return whether the answer changes files of a pod, or needs a resctrl group."""
    values = (answer.bvt_warp_ns, answer.rdt_class)
    return answer.resources != NO_RESOURCES or any(value is not None for value in values)


def _pod_reference(pod: PodSandbox) -> PodRef:
    return PodRef(namespace=pod.namespace or "default", name=pod.name, uid=pod.uid)


def _subject(request: HookRequest) -> str:
    return f"container {request.container.name}" if request.container is not None else "the pod"
