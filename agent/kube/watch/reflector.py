"""Follows one kind of object at the API server, and tracks the status of the watch."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from agent.clock import Clock
from agent.kube.api import ApiClient, ApiRequest
from agent.kube.errors import ApiError
from agent.kube.watch import machine
from agent.kube.watch.cache import DecodedObject, ObjectChanges, WatchCache
from agent.kube.watch.decoder import (
    ListPage,
    WatchDecoder,
    WatchedKind,
    WatchedObject,
    WatchLine,
    classify_failure,
)
from agent.kube.watch.machine import (
    NODE_LIMITS,
    PAGE_OBJECTS,
    CacheEffect,
    DelayCommand,
    DelayOver,
    ListCommand,
    ListLimits,
    ListWatchState,
    PageSummary,
    ReadCommand,
    StreamCommand,
    StreamEnd,
    Uniform,
    WatchFailure,
    WatchInput,
    WatchTransition,
)
from agent.snapshot.cluster import WatchPhase, WatchStatus
from agent.snapshot.device import Pairs

log = logging.getLogger(__name__)

FAILURES_BEFORE_WARNING = 3  # in a row: a single broken stream is normal


class WatchStatusTracker:
    """Updates the status of one watch. Each kind of trouble is logged once, and its end too."""

    def __init__(self, resource: str, clock: Clock) -> None:
        """Start without a view."""
        self._clock = clock
        self._in_a_row = 0
        self._reported_phase: WatchPhase | None = None
        self.state = WatchStatus(resource=resource)

    def set_phase(self, phase: WatchPhase, objects: int, malformed: int) -> None:
        """Record the phase of the machine and the size of the view."""
        self._set(phase=phase, objects=objects, malformed=malformed)

    def stream_opened(self) -> None:
        """Count a stream that the server has accepted; clear the last error."""
        self._set(
            watches=self.state.watches + 1,
            last_error="",
            streaming=True,
            last_contact_s=self._clock.monotonic(),
        )

    def stream_ended(self) -> None:
        """Record that the server ended the stream in order: all its changes have arrived."""
        self._set(last_contact_s=self._clock.monotonic())

    def stream_closed(self) -> None:
        """Record that no stream is open."""
        self._set(streaming=False)

    def record_contact(self, *, events: int = 0, bookmarks: int = 0) -> None:
        """Record that the server has answered."""
        self._in_a_row = 0
        self._set(
            events=self.state.events + events,
            bookmarks=self.state.bookmarks + bookmarks,
            last_error="",
            last_contact_s=self._clock.monotonic(),
            absent_s=None,
        )
        if self._reported_phase is not None:
            self._reported_phase = None
            log.info("watch_restored", extra={"resource": self.state.resource})

    def count_list(self) -> None:
        """Count a complete list."""
        relists = self.state.relists + self.state.synced
        self._set(lists=self.state.lists + 1, relists=relists, synced=True)

    def record_failure(self, phase: WatchPhase, error: str) -> None:
        """Count a failure; log it when it lasts, or at once if a person must act."""
        self._in_a_row += 1
        self._set(errors=self.state.errors + 1, last_error=error)
        if phase is WatchPhase.ABSENT:
            self._set(absent_s=self._clock.monotonic())
        is_reported = (
            phase in (WatchPhase.ABSENT, WatchPhase.FORBIDDEN)
            or self._in_a_row == FAILURES_BEFORE_WARNING
        )
        if is_reported and self._reported_phase is not phase:
            self._reported_phase = phase
            fields = {"resource": self.state.resource, "state": phase.value, "error": error}
            log.warning("watch_failed", extra=fields)

    def _set(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)


W = TypeVar("W", bound=WatchedObject)
T = TypeVar("T")
LIST_DEADLINE_S = 60.0  # the server itself ends a request after a minute
OPEN_DEADLINE_S = 30.0
OVERTIME_S = 60.0  # beyond the requested duration of a stream
EARLY_S = 5.0  # a stream that ends at most so long before its time ended on time
SLICE_BYTES = 64 << 10  # decoded between two turns of the event loop
OBJECT_BYTES = 4 << 10  # the cost of an object beside its bytes
SLICE_OBJECTS = 32


class WatchScope(msgspec.Struct, frozen=True, kw_only=True):
    """Which objects of a kind are followed, and how many may come.

    `recent`: the first list is the most recent state, not that of the server's cache. A stream
    that is quiet for `idle_s` is opened again; the default is a minute after its requested time.
    """

    field_selector: str = ""
    limits: ListLimits = NODE_LIMITS
    recent: bool = False
    idle_s: float | None = None


OF_ONE_NODE = WatchScope()


class Reflector(Generic[W, T]):
    """A view of one kind of object that follows the server's. Belongs to the loop thread."""

    def __init__(
        self,
        kind: WatchedKind[W, T],
        api: ApiClient,
        *,
        on_change: Callable[[Mapping[str, T]], None],
        clock: Clock,
        scope: WatchScope = OF_ONE_NODE,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        uniform: Uniform = random.uniform,
        changes: ObjectChanges[T] | None = None,
    ) -> None:
        """Start without a view. `on_change` gets whole views: the first, then each that differs.

        `changes` gets each change of an object; the view is then edited instead of replaced.

        If `on_change` raises, `run` raises that exception. The next `run` continues from the same
        state and calls `on_change` again after the next input.

        A quiet stream is normal: many servers send no bookmarks. The connection's keepalive ends a
        dead one, and the server ends each stream at its requested time.
        """
        self._api = api
        self._kind = kind
        self._selector: Pairs = (
            (("fieldSelector", scope.field_selector),) if scope.field_selector else ()
        )
        self._on_change = on_change
        self._clock = clock
        self._sleep = sleep
        self._uniform = uniform
        self._idle_s = scope.idle_s
        self._reader = WatchDecoder(f"GET {kind.resource.path()}", kind.body_type)
        self._view: WatchCache[W, T] = WatchCache(
            kind.resource.plural, kind.convert, max_objects=scope.limits.objects, changes=changes
        )
        self._status = WatchStatusTracker(kind.resource.plural, clock)
        self._step = WatchTransition(
            ListWatchState(limits=scope.limits, recent=scope.recent), DelayCommand(0.0)
        )
        self._ready = asyncio.Event()
        self._is_change_pending = False
        self._slice_bytes = 0

    @property
    def kind(self) -> str:
        """Return the kind of the objects, as in their `kind`."""
        return self._kind.resource.kind

    @property
    def state(self) -> WatchStatus:
        """Return the status of the watch; may be read on any thread."""
        return self._status.state

    @property
    def view(self) -> Mapping[str, T]:
        """Return the objects by `namespace/name`, or name; empty until `state.synced`."""
        return self._view.mapping

    async def wait_ready(self) -> None:
        """Wait for a view, or for the server's answer that there is none."""
        await self._ready.wait()

    async def run(self) -> None:
        """Follow the server until cancelled. All errors of the API are handled here."""
        self._step = self._transition(DelayOver())
        while True:
            match self._step.command:
                case ListCommand() as command:
                    await self._list(command)
                case StreamCommand() as command:
                    await self._follow(command)
                case DelayCommand(seconds):
                    await self._sleep(seconds)
                    self._advance(DelayOver())
                case ReadCommand():
                    raise AssertionError("told to read where no stream is open")

    async def _list(self, command: ListCommand) -> None:
        try:
            response = await self._api.call(self._list_request(command))
            page = self._reader.decode_page(response.body)
        except ApiError as error:
            self._handle_failure(classify_failure(error), str(error))
            return
        transition = self._transition(_page_summary(page, len(response.body)))
        if transition.effect is CacheEffect.DROP:
            self._apply(transition)
            self._status.record_failure(
                transition.state.phase, "a list without end, or of too many objects"
            )
            return
        self._status.record_contact()
        for reason in page.unreadable:
            self._view.count_unreadable(reason)
        for first in range(0, len(page.objects), SLICE_OBJECTS):
            self._view.stage(page.objects[first : first + SLICE_OBJECTS])
            await asyncio.sleep(0)
        self._apply(transition)

    async def _follow(self, command: StreamCommand) -> None:
        opened_s: float | None = None
        try:
            idle_s = self._idle_s or command.timeout_s + OVERTIME_S
            async with self._api.stream(self._stream_request(command), idle_s) as lines:
                opened_s = self._clock.monotonic()
                self._status.stream_opened()
                async for data in lines:
                    self._handle_line(data, opened_s)
                    if not isinstance(self._step.command, ReadCommand):
                        return
                    if self._lasted_s(opened_s) > command.timeout_s + OVERTIME_S:
                        break
                    await self._yield_to_loop(len(data))
        except ApiError as error:
            self._handle_failure(classify_failure(error, self._lasted_s(opened_s)), str(error))
        else:
            self._status.stream_ended()
            lasted_s = self._lasted_s(opened_s)
            early = lasted_s < command.timeout_s - EARLY_S
            self._advance(StreamEnd(lasted_s=lasted_s, is_early=early))
        finally:
            self._status.stream_closed()

    def _handle_line(self, data: bytes, opened_s: float) -> None:
        line: WatchLine[W] = self._reader.decode_line(data)
        if line.failure is not None:
            failure = replace(line.failure, lasted_s=self._lasted_s(opened_s))
            self._handle_failure(failure, line.error)
            return
        if line.unreadable:
            self._view.count_unreadable(line.unreadable)
        bookmark = line.event.type == "BOOKMARK"
        self._status.record_contact(bookmarks=int(bookmark), events=int(not bookmark))
        self._advance(line.event, line.item)

    def _handle_failure(self, failure: WatchFailure, error: str) -> None:
        self._advance(failure)
        phase = self._step.state.phase
        self._status.record_failure(phase, error)
        if phase in (WatchPhase.ABSENT, WatchPhase.FORBIDDEN):
            self._ready.set()

    def _advance(self, watch_input: WatchInput, decoded: DecodedObject[W] | None = None) -> None:
        self._apply(self._transition(watch_input), decoded)

    def _transition(self, watch_input: WatchInput) -> WatchTransition:
        return machine.step(self._step.state, watch_input, self._uniform)

    def _apply(self, transition: WatchTransition, decoded: DecodedObject[W] | None = None) -> None:
        """Apply a transition: store its state, and change the view."""
        self._step = transition
        changed = False
        if transition.effect is CacheEffect.REPLACE:
            changed = self._view.replace() or not self.state.synced
            self._status.count_list()
        elif transition.effect is CacheEffect.DROP:
            self._view.drop()
        elif decoded is not None and transition.effect is CacheEffect.UPDATE:
            changed = self._view.update(decoded)
        elif decoded is not None and transition.effect is CacheEffect.REMOVE:
            changed = self._view.remove(decoded)
        self._status.set_phase(transition.state.phase, len(self.view), self._view.malformed)
        if changed or self._is_change_pending:
            self._is_change_pending = True
            self._on_change(self.view)
            self._is_change_pending = False
            self._ready.set()

    async def _yield_to_loop(self, size_bytes: int) -> None:
        """Yield to other work of the loop: reading from a full buffer never waits."""
        self._slice_bytes += size_bytes + OBJECT_BYTES
        if self._slice_bytes >= SLICE_BYTES:
            self._slice_bytes = 0
            await asyncio.sleep(0)

    def _lasted_s(self, opened_s: float | None) -> float:
        return 0.0 if opened_s is None else self._clock.monotonic() - opened_s

    def _path(self) -> str:
        kind = self._kind
        if kind.version is None:
            return kind.resource.path()
        return replace(kind.resource, version=kind.version()).path()

    def _list_request(self, command: ListCommand) -> ApiRequest:
        query: Pairs = ()
        if command.version in (None, "0"):
            query = (("limit", str(PAGE_OBJECTS)),)
        if command.version is not None:
            query += (("resourceVersion", command.version),)
        if command.token:
            query += (("continue", command.token),)
        return ApiRequest(
            method="GET",
            path=self._path(),
            query=(*self._selector, *query),
            deadline_s=LIST_DEADLINE_S,
        )

    def _stream_request(self, command: StreamCommand) -> ApiRequest:
        return ApiRequest(
            method="GET",
            path=self._path(),
            query=(
                *self._selector,
                ("watch", "true"),
                ("allowWatchBookmarks", "true"),
                ("resourceVersion", command.version),
                ("timeoutSeconds", str(command.timeout_s)),
            ),
            deadline_s=OPEN_DEADLINE_S,
        )


def _page_summary(page: ListPage[W], size_bytes: int) -> PageSummary:
    return PageSummary(
        version=page.version,
        token=page.token,
        objects=len(page.objects) + len(page.unreadable),
        bytes=size_bytes,
    )


def is_watched(watches: Mapping[str, Reflector[Any, Any]], kind: str) -> bool:
    """Return whether a watch reports each change of the node's object of a kind.

    It does so also while the API server is away: what changed then arrives when it is back. Where
    the server lacks the kind, the watch finds it when it is installed.
    """
    states = [watch.state for watch in watches.values() if watch.kind == kind]
    return any(
        state.phase is WatchPhase.ABSENT
        or (state.synced and state.phase is not WatchPhase.FORBIDDEN)
        for state in states
    )
