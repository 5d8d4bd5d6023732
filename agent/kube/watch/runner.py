"""Follows one kind of object at the API server for as long as it is let."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from msgspec.structs import replace

from agent.clock import Clock
from agent.kube.base import Api, Request
from agent.kube.errors import ApiError
from agent.kube.watch import machine
from agent.kube.watch.account import Account, WatchState
from agent.kube.watch.machine import PAGE_OBJECTS, Uniform
from agent.kube.watch.state import (
    Due,
    Effect,
    Ended,
    Failure,
    Follow,
    Input,
    List,
    Page,
    Phase,
    Read,
    State,
    Step,
    Wait,
)
from agent.kube.watch.view import Found, View
from agent.kube.watch.wire import Body, Kind, Line, ListPage, Reader, failure_of
from agent.model.device import Pairs

W = TypeVar("W", bound=Body)
T = TypeVar("T")

LIST_DEADLINE_S = 60.0  # a server gives up a request after a minute itself
OPEN_DEADLINE_S = 30.0
OVERTIME_S = 60.0  # beyond what a stream was asked to last
EARLY_S = 5.0  # a stream that ends less before its time ended at its time
SLICE_BYTES = 64 << 10  # decoded before the loop's other work has its turn
OBJECT_BYTES = 4 << 10  # what an object costs beside its bytes
SLICE_OBJECTS = 32


class Watch(Generic[W, T]):
    """A view of one kind of object that follows the server's. Belongs to the loop thread."""

    def __init__(
        self,
        kind: Kind[W, T],
        api: Api,
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
        self._reader = Reader(f"GET {kind.resource.path()}", kind.wire)
        self._view: View[W, T] = View(kind.resource.plural, kind.make)
        self._account = Account(kind.resource.plural, clock)
        self._step = Step(State(), Wait(0.0))
        self._settled = asyncio.Event()
        self._untold = False
        self._slice_bytes = 0

    @property
    def kind(self) -> str:
        """Return the kind of the objects, as in their `kind`."""
        return self._kind.resource.kind

    @property
    def state(self) -> WatchState:
        """How it does; may be read on any thread."""
        return self._account.state

    @property
    def view(self) -> Mapping[str, T]:
        """The objects by `namespace/name`, or name; empty until `state.synced`."""
        return self._view.mapping

    async def settled(self) -> None:
        """Return when there is a view, or the server said that there is none to be had."""
        await self._settled.wait()

    async def run(self) -> None:
        """Follow the server until cancelled. Errors of the API are dealt with here, all of them."""
        self._step = self._answer(Due())
        while True:
            match self._step.command:
                case List() as command:
                    await self._list(command)
                case Follow() as command:
                    await self._follow(command)
                case Wait(seconds):
                    await self._sleep(seconds)
                    self._tell(Due())
                case Read():
                    raise AssertionError("told to read where no stream is open")

    async def _list(self, command: List) -> None:
        try:
            response = await self._api.call(self._list_request(command))
            page = self._reader.page(response.body)
        except ApiError as error:
            self._failed(failure_of(error), str(error))
            return
        step = self._answer(_told(page, len(response.body)))
        if step.effect is Effect.DROP:
            self._take(step)
            self._account.failed(step.state.phase, "a list without end, or of too many objects")
            return
        self._account.heard()
        for why in page.nameless:
            self._view.unreadable(why)
        for first in range(0, len(page.objects), SLICE_OBJECTS):
            self._view.stage(page.objects[first : first + SLICE_OBJECTS])
            await asyncio.sleep(0)
        self._take(step)

    async def _follow(self, command: Follow) -> None:
        opened_s: float | None = None
        try:
            idle_s = self._idle_s or command.timeout_s + OVERTIME_S
            async with self._api.stream(self._stream_request(command), idle_s) as lines:
                opened_s = self._clock.monotonic()
                self._account.opened()
                async for data in lines:
                    self._line(data, opened_s)
                    if not isinstance(self._step.command, Read):
                        return
                    if self._lasted_s(opened_s) > command.timeout_s + OVERTIME_S:
                        break
                    await self._breathe(len(data))
        except ApiError as error:
            self._failed(failure_of(error, self._lasted_s(opened_s)), str(error))
        else:
            self._account.ended()
            lasted_s = self._lasted_s(opened_s)
            early = lasted_s < command.timeout_s - EARLY_S
            self._tell(Ended(lasted_s=lasted_s, early=early))
        finally:
            self._account.closed()

    def _line(self, data: bytes, opened_s: float) -> None:
        line: Line[W] = self._reader.line(data)
        if line.failure is not None:
            failure = replace(line.failure, lasted_s=self._lasted_s(opened_s))
            self._failed(failure, line.error)
            return
        if line.nameless:
            self._view.unreadable(line.nameless)
        bookmark = line.event.type == "BOOKMARK"
        self._account.heard(bookmarks=int(bookmark), events=int(not bookmark))
        self._tell(line.event, line.found)

    def _failed(self, failure: Failure, error: str) -> None:
        self._tell(failure)
        phase = self._step.state.phase
        self._account.failed(phase, error)
        if phase in (Phase.ABSENT, Phase.FORBIDDEN):
            self._settled.set()

    def _tell(self, told: Input, found: Found[W] | None = None) -> None:
        self._take(self._answer(told), found)

    def _answer(self, told: Input) -> Step:
        return machine.step(self._step.state, told, self._uniform)

    def _take(self, step: Step, found: Found[W] | None = None) -> None:
        """Do what the machine says of the view, and stand where it stands."""
        self._step = step
        changed = False
        if step.effect is Effect.REPLACE:
            changed = self._view.replace() or not self.state.synced
            self._account.listed()
        elif step.effect is Effect.DROP:
            self._view.drop()
        elif found is not None and step.effect is Effect.PUT:
            changed = self._view.put(found)
        elif found is not None and step.effect is Effect.REMOVE:
            changed = self._view.remove(found)
        self._account.stands(step.state.phase, len(self.view), self._view.malformed)
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

    def _list_request(self, command: List) -> Request:
        begin: Pairs = ()
        if command.version in (None, "0"):
            begin = (("limit", str(PAGE_OBJECTS)),)
        if command.version is not None:
            begin += (("resourceVersion", command.version),)
        if command.token:
            begin += (("continue", command.token),)
        return Request(
            method="GET",
            path=self._path(),
            query=(*self._selector, *begin),
            deadline_s=LIST_DEADLINE_S,
        )

    def _stream_request(self, command: Follow) -> Request:
        return Request(
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


def _told(page: ListPage[W], size_bytes: int) -> Page:
    return Page(
        version=page.version,
        token=page.token,
        objects=len(page.objects) + len(page.nameless),
        bytes=size_bytes,
    )
