"""One question of the runtime: hooks decide, folders and files are made, people are told."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial

from agent.clock import Clock
from agent.daemon.containers.folders import FolderNotMade, make_folders
from agent.hooks.base import Hook
from agent.hooks.dispatch import Dispatched, dispatch
from agent.model.runtime.adjustment import NO_RESOURCES, Adjustment
from agent.model.runtime.request import HookRequest, Stage
from agent.model.runtime.seen import SandboxSeen
from agent.model.snapshot import NodeSnapshot
from agent.publish.eventing.event import PodRef

log = logging.getLogger(__name__)

POD_FILES_S = 0.2  # of a new pod's files; what is late is done by the next cycle
MAX_WRITING = 64  # pods whose files wait for the thread; beyond it is left to the next cycle
FOLDERS_S = 0.3

Tell = Callable[[str, str, PodRef | None], None]  # reason, message, pod; quick
WritePod = Callable[[HookRequest], object]  # blocks; for the thread of the files
Given = Callable[[HookRequest], None]  # quick


class HookFigures:
    """What hooks did so far. Counters since the agent's start; belongs to the loop thread."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()  # bugs
        self.planned: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()  # containers that were kept from starting
        self.spent_s: defaultdict[str, float] = defaultdict(float)

    def count(self, found: Dispatched) -> None:
        """Take in one answer."""
        for name, seconds in found.spent_s:
            self.calls[name] += 1
            self.spent_s[name] += seconds
        self.planned.update(name for name, _ in found.planned)
        self.failures.update(failure.hook for failure in found.failures)
        if found.adjustment.failed:
            self.refusals[found.adjustment.reason] += 1


class Asker:
    """Answers from the snapshot. Belongs to the loop thread."""

    def __init__(
        self,
        hooks: Iterable[Hook],
        modes: Mapping[str, str],
        current: Callable[[], NodeSnapshot],
        clock: Clock,
        *,
        tell: Tell,
        write_pod: WritePod,
        given: Given,
        files: Executor,
    ) -> None:
        """`write_pod` runs on `files`, the one thread that writes files of pods."""
        self._hooks = tuple(hooks)
        self._modes = modes
        self._current = current
        self._clock = clock
        self._tell = tell
        self._write_pod = write_pod
        self._given = given
        self._files = files
        self._writing: set[asyncio.Future[object]] = set()
        self.figures = HookFigures()

    def ask(self, request: HookRequest) -> Adjustment | Awaitable[Adjustment]:
        """Return what is changed: at once, or once all that belongs to it is made.

        A folder that cannot be made keeps the container from starting: its mount would. A pod's
        files that take longer are left to the next cycle.
        """
        snapshot = self._current()
        found = dispatch(self._hooks, request, snapshot, self._modes, self._clock.monotonic)
        self.figures.count(found)
        for failure in found.failures:
            log.error("hook_failed", extra={"hook": failure.hook, "error": failure.error})
        answer = found.adjustment
        for note in answer.edits.notes:
            self._tell(note.reason, note.message, _ref(request.pod))
        if answer.failed:
            words = f"{_whose(request)}: {answer.failed}"
            self._tell(answer.reason, words, _ref(request.pod))
            return answer
        if request.container is None:
            writes = request.stage is Stage.RUN_POD and _has_files(answer)
            return self._written(request, answer) if writes else answer
        if answer.resources != NO_RESOURCES:
            self._given(request)
        return self._with_folders(request, answer) if answer.edits.folders else answer

    async def _written(self, request: HookRequest, answer: Adjustment) -> Adjustment:
        if len(self._writing) >= MAX_WRITING:
            return answer
        event_loop = asyncio.get_running_loop()
        work = event_loop.run_in_executor(self._files, self._write_pod, request)
        self._writing.add(work)
        work.add_done_callback(self._writing.discard)
        work.add_done_callback(_tell_if_it_failed)
        await asyncio.wait({work}, timeout=POD_FILES_S)
        return answer

    async def _with_folders(self, request: HookRequest, answer: Adjustment) -> Adjustment:
        making: Awaitable[None] = asyncio.to_thread(partial(make_folders, answer.edits.folders))
        try:
            async with asyncio.timeout(FOLDERS_S):
                await making
        except FolderNotMade as error:
            why = str(error)
        except TimeoutError:
            why = f"{answer.edits.folders[0].host_path}: not made within {FOLDERS_S:g} s"
        else:
            return answer
        self._tell("FolderNotMade", f"{_whose(request)}: {why}", _ref(request.pod))
        self.figures.refusals["FolderNotMade"] += 1
        return Adjustment(failed=f"FolderNotMade: {why}", reason="FolderNotMade")


def _has_files(answer: Adjustment) -> bool:
    """Say whether anything of a pod is to be written."""
    return answer.resources != NO_RESOURCES or answer.bvt_warp_ns is not None


def _ref(pod: SandboxSeen) -> PodRef:
    return PodRef(namespace=pod.namespace or "default", name=pod.name, uid=pod.uid)


def _whose(request: HookRequest) -> str:
    return f"container {request.container.name}" if request.container is not None else "the pod"


def _tell_if_it_failed(work: asyncio.Future[object]) -> None:
    error = None if work.cancelled() else work.exception()
    if error is not None:  # a bug of ours: the next cycle writes what is missing
        log.error("pod_files_not_written", exc_info=error)
