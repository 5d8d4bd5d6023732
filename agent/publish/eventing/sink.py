"""Tells events to the API server, one after another; whoever offers one never waits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import Callable, Iterable

import msgspec

from agent.clock import Clock
from agent.kube.backoff import Backoff
from agent.kube.base import JSON, MERGE, Api, Request
from agent.kube.errors import ApiError, BadAnswer, Conflict, ServerError
from agent.kube.resources import EVENTS
from agent.publish.eventing.backlog import Backlog, Counts, Item
from agent.publish.eventing.event import Dict, Event
from agent.publish.eventing.verdict import Verdict, verdict
from agent.publish.eventing.wire import new_object, object_name, series

log = logging.getLogger(__name__)

BACKOFF = Backoff(base_s=1.0, max_s=60.0)
OFF_S = 3600.0  # without the right to write events, that long until the next try
HELD_S = 5.0  # while nothing may be told, that long until it is asked again

UidOf = Callable[[str], str]  # kind of a cluster-wide object -> its uid; empty: not known


class SinkState(msgspec.Struct, frozen=True):
    """How the telling goes; `error` is that of the last try, empty if it went well."""

    counts: Counts = Counts()
    error: str = ""
    off: bool = False  # the right is lacking


class EventSink:
    """Keeps what could not be told, bounded, and tells it in order when it can.

    `offer` and `state` are for any thread, all else for the loop thread.
    """

    def __init__(
        self,
        api: Api,
        node_name: str,
        clock: Clock,
        *,
        uid_of: UidOf,
        may_tell: Callable[[], bool] = lambda: True,
        deadline_s: float = 10.0,
        backoff: Backoff = BACKOFF,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`uid_of` is asked when an object is made, so that `kubectl describe` finds it.

        `may_tell` says whether the Node of that name is this machine: else its events wait.
        """
        self._api = api
        self._node_name = node_name
        self._clock = clock
        self._uid_of = uid_of
        self._may_tell = may_tell
        self._deadline_s = deadline_s
        self._backoff = backoff
        self._uniform = uniform
        self._lock = threading.Lock()  # of the backlog and of who is woken
        self._backlog = Backlog()
        self._wake: Callable[[], object] | None = None
        self._failures = 0
        self._unlucky = 0  # answers in a row that may be about one event alone
        self._not_before_s = 0.0
        self._state = SinkState()

    @property
    def state(self) -> SinkState:
        """Return counters and the last error, for metrics and checks."""
        with self._lock:
            return msgspec.structs.replace(self._state, counts=self._backlog.counts)

    def offer(self, events: Iterable[Event]) -> None:
        """Take events in, from any thread; returns at once, whatever the API server does."""
        now_s = self._clock.monotonic()
        with self._lock:
            for event in events:
                self._backlog.offer(event, now_s)
            if self._wake is not None:
                self._wake()

    async def run(self) -> None:
        """Tell events as they come, until cancelled; what waits then is lost."""
        offered = asyncio.Event()
        event_loop = asyncio.get_running_loop()
        with self._lock:
            self._wake = lambda: event_loop.call_soon_threadsafe(offered.set)
        try:
            while True:
                offered.clear()
                wait_s = await self.step()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(offered.wait(), wait_s)
        finally:
            with self._lock:
                self._wake = None

    async def step(self) -> float | None:
        """Tell all that is due; return after how many seconds more will be, `None` for nothing."""
        while True:
            now_s = self._clock.monotonic()
            if now_s < self._not_before_s:
                return self._not_before_s - now_s
            with self._lock:
                item = self._backlog.next(now_s, self._unlucky)
                if item is None:
                    return self._backlog.wait_s(now_s)
            if not self._may_tell():
                return HELD_S
            await self._tell(item)

    async def _tell(self, item: Item) -> None:
        try:
            await self._api.call(self._request(item))
        except ApiError as error:
            of_pod = item.event.pod is not None
            found = verdict(error, creating=not item.told, of_pod=of_pod)
            if found in (Verdict.LATER, Verdict.OFF):
                self._put_off(error, off=found is Verdict.OFF)
                return
            if found is Verdict.REFUSED:
                log.warning(
                    "event_refused", extra={"reason": item.event.reason, "error": str(error)}
                )
            self._note(item, found)
        else:
            self._note(item, Verdict.TOLD)

    def _request(self, item: Item) -> Request:
        event, namespace = item.event, item.event.namespace
        if item.told:
            body: Dict = {"series": series(item.count, item.first_s, item.last_s)}
            name = object_name(event, self._node_name, item.first_s)
            method, path, content_type = "PATCH", EVENTS.path(name, namespace), MERGE
        else:
            uid = "" if event.pod is not None else self._uid_of(event.about)
            times = (item.count, item.first_s, item.last_s)
            body = new_object(event, self._node_name, uid, *times)
            method, path, content_type = "POST", EVENTS.path(namespace=namespace), JSON
        return Request(
            method=method,
            path=path,
            body=msgspec.json.encode(body),
            content_type=content_type,
            deadline_s=self._deadline_s,
        )

    def _note(self, item: Item, found: Verdict) -> None:
        """Take note of an answer about this one event: the API server is there and listens."""
        if self._state.error:
            log.info("events_told_again")
        self._failures = self._unlucky = 0
        now_s = self._clock.monotonic()
        with self._lock:
            self._state = SinkState()
            if found is Verdict.RENEW:
                self._backlog.renew(item)
            elif found is Verdict.REFUSED:
                self._backlog.refuse(item)
            else:
                self._backlog.tell(item, now_s)

    def _put_off(self, error: ApiError, *, off: bool) -> None:
        """Try again later; what is said once is the change, not each failure."""
        self._failures += 1
        if isinstance(error, (ServerError, BadAnswer, Conflict)):
            self._unlucky += 1  # perhaps it fails on this one alone: another one is tried next
        wait_s = self._backoff.wait_s(self._failures, error.retry_after_s, self._uniform)
        self._not_before_s = self._clock.monotonic() + (OFF_S if off else wait_s)
        if not self._state.error or off is not self._state.off:
            log.warning("events_off" if off else "events_wait", extra={"error": str(error)})
        with self._lock:
            self._state = SinkState(error=str(error), off=off)
