"""Follows one kind of object at the API server, and records how that goes.

Follows one kind of object at the API server for as long as it is let.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from agent.clock import Clock
from agent.kube.api import ApiClient, ApiRequest
from agent.kube.errors import ApiError
from agent.kube.watch import machine
from agent.kube.watch.cache import DecodedObject, WatchCache
from agent.kube.watch.decoder import (
    ListPage,
    WatchDecoder,
    WatchedKind,
    WatchedObject,
    WatchLine,
    classify_failure,
)
from agent.kube.watch.machine import (
    PAGE_OBJECTS,
    CacheEffect,
    DelayCommand,
    DelayOver,
    ListCommand,
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

FAILURES_BEFORE_WARNING = 3  # failures in a row: streams break, and that alone is no news


class WatchStatusTracker:
    """Keeps the state of one watch. Each kind of trouble is said once, and its end too."""

    def __init__(self, resource: str, clock: Clock) -> None:
        """Begin with nothing known."""
        self._clock = clock
        self._in_a_row = 0
        self._said: WatchPhase | None = None
        self.state = WatchStatus(resource=resource)

    def set_phase(self, phase: WatchPhase, objects: int, malformed: int) -> None:
        """Show where the machine stands, and what it has."""
        self._set(phase=phase, objects=objects, malformed=malformed)

    def stream_opened(self) -> None:
        """Count a stream that the server has accepted; what was wrong before it is over."""
        self._set(
            watches=self.state.watches + 1,
            last_error="",
            streaming=True,
            last_contact_s=self._clock.monotonic(),
        )

    def stream_ended(self) -> None:
        """Note that the server ended the stream in order: all that it changed has arrived."""
        self._set(last_contact_s=self._clock.monotonic())

    def stream_closed(self) -> None:
        """Note that no stream is open."""
        self._set(streaming=False)

    def record_contact(self, *, events: int = 0, bookmarks: int = 0) -> None:
        """Take note that the server has spoken."""
        self._in_a_row = 0
        self._set(
            events=self.state.events + events,
            bookmarks=self.state.bookmarks + bookmarks,
            last_error="",
            last_contact_s=self._clock.monotonic(),
            absent_s=None,
        )
        if self._said is not None:
            self._said = None
            log.info("watch_restored", extra={"resource": self.state.resource})

    def count_list(self) -> None:
        """Count a complete list."""
        relists = self.state.relists + self.state.synced
        self._set(lists=self.state.lists + 1, relists=relists, synced=True)

    def record_failure(self, phase: WatchPhase, error: str) -> None:
        """Count a failure; say it when it lasts, or at once when a person must act."""
        self._in_a_row += 1
        self._set(errors=self.state.errors + 1, last_error=error)
        if phase is WatchPhase.ABSENT:
            self._set(absent_s=self._clock.monotonic())
        telling = (
            phase in (WatchPhase.ABSENT, WatchPhase.FORBIDDEN)
            or self._in_a_row == FAILURES_BEFORE_WARNING
        )
        if telling and self._said is not phase:
            self._said = phase
            fields = {"resource": self.state.resource, "state": phase.value, "error": error}
            log.warning("watch_failed", extra=fields)

    def _set(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)


W = TypeVar("W", bound=WatchedObject)

T = TypeVar("T")

LIST_DEADLINE_S = 60.0  # a server gives up a request after a minute itself

OPEN_DEADLINE_S = 30.0

OVERTIME_S = 60.0  # beyond what a stream was asked to last

EARLY_S = 5.0  # a stream that ends less before its time ended at its time

SLICE_BYTES = 64 << 10  # decoded before the loop's other work has its turn

OBJECT_BYTES = 4 << 10  # what an object costs beside its bytes

SLICE_OBJECTS = 32


class Reflector(Generic[W, T]):
    """A view of one kind of object that follows the server's. Belongs to the loop thread."""

    def __init__(
        self,
        kind: WatchedKind[W, T],
        api: ApiClient,
        *,
        on_change: Callable[[Mapping[str, T]], None],
        clock: Clock,
        field_selector: str = "",
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        uniform: Uniform = random.uniform,
        idle_s: float | None = None,
    ) -> None:
        """Begin without a view. `on_change` gets whole views: the first, then each that differs.

        If it raises, `run` ends with that; run again, it goes on where it was, and tells the whole
        view again as soon as the server says anything.
        A quiet stream is healthy: many servers send no bookmarks. The connection's keepalive ends a
        dead one, and the server ends each at the time that it was asked for. One that is quiet for
        `idle_s` is opened anew; by default that is a minute after that time.
        """
        self._api = api
        self._kind = kind
        self._selector: Pairs = (("fieldSelector", field_selector),) if field_selector else ()
        self._on_change = on_change
        self._clock = clock
        self._sleep = sleep
        self._uniform = uniform
        self._idle_s = idle_s
        self._reader = WatchDecoder(f"GET {kind.resource.path()}", kind.body_type)
        self._view: WatchCache[W, T] = WatchCache(kind.resource.plural, kind.convert)
        self._account = WatchStatusTracker(kind.resource.plural, clock)
        self._step = WatchTransition(ListWatchState(), DelayCommand(0.0))
        self._settled = asyncio.Event()
        self._untold = False
        self._slice_bytes = 0

    @property
    def kind(self) -> str:
        """Return the kind of the objects, as in their `kind`."""
        return self._kind.resource.kind

    @property
    def state(self) -> WatchStatus:
        """How it does; may be read on any thread."""
        return self._account.state

    @property
    def view(self) -> Mapping[str, T]:
        """The objects by `namespace/name`, or name; empty until `state.synced`."""
        return self._view.mapping

    async def wait_settled(self) -> None:
        """Return when there is a view, or the server said that there is none to be had."""
        await self._settled.wait()

    async def run(self) -> None:
        """Follow the server until cancelled. Errors of the API are dealt with here, all of them."""
        self._step = self._answer(DelayOver())
        while True:
            match self._step.command:
                case ListCommand() as command:
                    await self._list(command)
                case StreamCommand() as command:
                    await self._follow(command)
                case DelayCommand(seconds):
                    await self._sleep(seconds)
                    self._tell(DelayOver())
                case ReadCommand():
                    raise AssertionError("told to read where no stream is open")

    async def _list(self, command: ListCommand) -> None:
        try:
            response = await self._api.call(self._list_request(command))
            page = self._reader.decode_page(response.body)
        except ApiError as error:
            self._failed(classify_failure(error), str(error))
            return
        step = self._answer(_page_summary(page, len(response.body)))
        if step.effect is CacheEffect.DROP:
            self._take(step)
            self._account.record_failure(
                step.state.phase, "a list without end, or of too many objects"
            )
            return
        self._account.record_contact()
        for why in page.unreadable:
            self._view.count_unreadable(why)
        for first in range(0, len(page.objects), SLICE_OBJECTS):
            self._view.stage(page.objects[first : first + SLICE_OBJECTS])
            await asyncio.sleep(0)
        self._take(step)

    async def _follow(self, command: StreamCommand) -> None:
        opened_s: float | None = None
        try:
            idle_s = self._idle_s or command.timeout_s + OVERTIME_S
            async with self._api.stream(self._stream_request(command), idle_s) as lines:
                opened_s = self._clock.monotonic()
                self._account.stream_opened()
                async for data in lines:
                    self._line(data, opened_s)
                    if not isinstance(self._step.command, ReadCommand):
                        return
                    if self._lasted_s(opened_s) > command.timeout_s + OVERTIME_S:
                        break
                    await self._breathe(len(data))
        except ApiError as error:
            self._failed(classify_failure(error, self._lasted_s(opened_s)), str(error))
        else:
            self._account.stream_ended()
            lasted_s = self._lasted_s(opened_s)
            early = lasted_s < command.timeout_s - EARLY_S
            self._tell(StreamEnd(lasted_s=lasted_s, is_early=early))
        finally:
            self._account.stream_closed()

    def _line(self, data: bytes, opened_s: float) -> None:
        line: WatchLine[W] = self._reader.decode_line(data)
        if line.failure is not None:
            failure = replace(line.failure, lasted_s=self._lasted_s(opened_s))
            self._failed(failure, line.error)
            return
        if line.unreadable:
            self._view.count_unreadable(line.unreadable)
        bookmark = line.event.type == "BOOKMARK"
        self._account.record_contact(bookmarks=int(bookmark), events=int(not bookmark))
        self._tell(line.event, line.item)

    def _failed(self, failure: WatchFailure, error: str) -> None:
        self._tell(failure)
        phase = self._step.state.phase
        self._account.record_failure(phase, error)
        if phase in (WatchPhase.ABSENT, WatchPhase.FORBIDDEN):
            self._settled.set()

    def _tell(self, told: WatchInput, found: DecodedObject[W] | None = None) -> None:
        self._take(self._answer(told), found)

    def _answer(self, told: WatchInput) -> WatchTransition:
        return machine.step(self._step.state, told, self._uniform)

    def _take(self, step: WatchTransition, found: DecodedObject[W] | None = None) -> None:
        """Do what the machine says of the view, and stand where it stands."""
        self._step = step
        changed = False
        if step.effect is CacheEffect.REPLACE:
            changed = self._view.replace() or not self.state.synced
            self._account.count_list()
        elif step.effect is CacheEffect.DROP:
            self._view.drop()
        elif found is not None and step.effect is CacheEffect.PUT:
            changed = self._view.put(found)
        elif found is not None and step.effect is CacheEffect.REMOVE:
            changed = self._view.remove(found)
        self._account.set_phase(step.state.phase, len(self.view), self._view.malformed)
        if changed or self._untold:
            self._untold = True
            self._on_change(self.view)
            self._untold = False
            self._settled.set()

    async def _breathe(self, size_bytes: int) -> None:
        """Let the loop's other work have its turn: a full buffer never makes a stream wait."""
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
        begin: Pairs = ()
        if command.version in (None, "0"):
            begin = (("limit", str(PAGE_OBJECTS)),)
        if command.version is not None:
            begin += (("resourceVersion", command.version),)
        if command.token:
            begin += (("continue", command.token),)
        return ApiRequest(
            method="GET",
            path=self._path(),
            query=(*self._selector, *begin),
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
