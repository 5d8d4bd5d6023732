"""The sink of Kubernetes events: renders, sends and retries them.

What an error of the API server means for the event that was told, and for all others.

An event as `events.k8s.io/v1` has it: within every limit that its validation knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import hashlib
import logging
import math
import random
import re
import threading
import time
from collections.abc import Callable, Iterable

import msgspec

from agent.clock import Clock
from agent.kube.api import JSON_TYPE, MERGE_PATCH_TYPE, ApiClient, ApiRequest
from agent.kube.errors import (
    ApiError,
    BadResponse,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    ServerError,
    TooLarge,
)
from agent.kube.event_backlog import EventBacklog, PendingEvent
from agent.kube.flow_control import Backoff
from agent.kube.resources import EVENTS
from agent.snapshot.cluster import EventSinkState
from agent.wire_formats.api_values import MAX_MESSAGE, clean_text, reason_text
from agent.wire_formats.event import EVENT_COMPONENT, Event, involved_object
from agent.wire_formats.json_values import JsonDict

log = logging.getLogger(__name__)

BACKOFF = Backoff(base_s=1.0, max_s=60.0)

FORBIDDEN_S = 3600.0  # without the right to write events, that long until the next try

BLOCKED_S = 5.0  # while nothing may be told, that long until it is asked again

UidOf = Callable[[str], str]  # kind of a cluster-wide object -> its uid; empty: not known


class EventSink:
    """Keeps what could not be told, bounded, and tells it in order when it can.

    `offer` and `state` are for any thread, all else for the loop thread.
    """

    def __init__(
        self,
        api: ApiClient,
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
        self._backlog = EventBacklog()
        self._wake: Callable[[], object] | None = None
        self._failures = 0
        self._unlucky = 0  # answers in a row that may be about one event alone
        self._not_before_s = 0.0
        self._state = EventSinkState()

    @property
    def state(self) -> EventSinkState:
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
                return BLOCKED_S
            await self._tell(item)

    async def _tell(self, item: PendingEvent) -> None:
        try:
            await self._api.call(self._request(item))
        except ApiError as error:
            of_pod = item.event.pod is not None
            found = classify_event_error(error, creating=not item.sent_count, of_pod=of_pod)
            if found in (EventOutcome.RETRY, EventOutcome.FORBIDDEN):
                self._put_off(error, off=found is EventOutcome.FORBIDDEN)
                return
            if found is EventOutcome.REFUSED:
                log.warning(
                    "event_refused", extra={"reason": item.event.reason, "error": str(error)}
                )
            self._note(item, found)
        else:
            self._note(item, EventOutcome.EXISTS)

    def _request(self, item: PendingEvent) -> ApiRequest:
        event, namespace = item.event, item.event.namespace
        if item.sent_count:
            body: JsonDict = {"series": event_series(item.count, item.first_s, item.last_s)}
            name = event_name(event, self._node_name, item.first_s)
            method, path, content_type = "PATCH", EVENTS.path(name, namespace), MERGE_PATCH_TYPE
        else:
            uid = "" if event.pod is not None else self._uid_of(event.object_kind)
            times = (item.count, item.first_s, item.last_s)
            body = event_object(event, self._node_name, uid, *times)
            method, path, content_type = "POST", EVENTS.path(namespace=namespace), JSON_TYPE
        return ApiRequest(
            method=method,
            path=path,
            body=msgspec.json.encode(body),
            content_type=content_type,
            deadline_s=self._deadline_s,
        )

    def _note(self, item: PendingEvent, found: EventOutcome) -> None:
        """Take note of an answer about this one event: the API server is there and listens."""
        if self._state.error:
            log.info("events_told_again")
        self._failures = self._unlucky = 0
        now_s = self._clock.monotonic()
        with self._lock:
            self._state = EventSinkState()
            if found is EventOutcome.RENEW:
                self._backlog.mark_missing(item)
            elif found is EventOutcome.REFUSED:
                self._backlog.mark_refused(item)
            else:
                self._backlog.mark_sent(item, now_s)

    def _put_off(self, error: ApiError, *, off: bool) -> None:
        """Try again later; what is said once is the change, not each failure."""
        self._failures += 1
        if isinstance(error, (ServerError, BadResponse, Conflict)):
            self._unlucky += 1  # perhaps it fails on this one alone: another one is tried next
        wait_s = self._backoff.wait_s(self._failures, error.retry_after_s, self._uniform)
        self._not_before_s = self._clock.monotonic() + (FORBIDDEN_S if off else wait_s)
        if not self._state.error or off is not self._state.is_forbidden:
            log.warning("events_off" if off else "events_wait", extra={"error": str(error)})
        with self._lock:
            self._state = EventSinkState(error=str(error), is_forbidden=off)


NAMESPACE_TERMINATING = "NamespaceTerminating"  # reason of a cause; no right is lacking


class EventOutcome(enum.Enum):
    """What to do next."""

    EXISTS = "told"  # the object is there: an answer was lost
    RENEW = "renew"  # its object is gone: write a new one
    REFUSED = "refused"  # this event can never be told; the others can
    FORBIDDEN = "off"  # no event can be told until somebody grants the right
    RETRY = "later"  # nothing is wrong with the event


def classify_event_error(error: ApiError, *, creating: bool, of_pod: bool) -> EventOutcome:
    """Judge an error of a POST (`creating`) or of a PATCH; `of_pod`: in a namespace of users.

    A namespace has quotas and guards of its own, whose answer is 403 too: what one of those
    forbids is no reason to tell nothing of the node.
    """
    if isinstance(error, Forbidden):
        ending = any(cause.reason == NAMESPACE_TERMINATING for cause in error.causes)
        return EventOutcome.REFUSED if ending or of_pod else EventOutcome.FORBIDDEN
    if isinstance(error, NotFound):  # of a POST: the namespace
        return EventOutcome.REFUSED if creating else EventOutcome.RENEW
    if isinstance(error, (Invalid, TooLarge)):
        return EventOutcome.REFUSED
    if isinstance(error, Conflict) and creating:
        return EventOutcome.EXISTS
    return EventOutcome.RETRY


MAX_NOTE_BYTES = 1024

MAX_EVENT_NAME = 253

MAX_INSTANCE = 128

ACTION = "Observe"  # required; what the agent did when it had something to tell

_YEAR_10000_S = 253_402_300_800

_NOT_NAME = re.compile(r"[^a-z0-9.-]+")


def micro_time(wall_s: float) -> str:
    """Format Unix seconds as `metav1.MicroTime`: UTC, exactly six digits, `Z`.

    What no calendar holds is the epoch.
    """
    known = math.isfinite(wall_s) and 0 <= wall_s < _YEAR_10000_S - 1
    seconds, micros = divmod(round((wall_s if known else 0.0) * 1_000_000), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{micros:06d}Z"


def note_text(message: str) -> str:
    """Return the text within its limit of bytes, cut between two characters."""
    text = clean_text(message, MAX_MESSAGE)
    return text.encode()[:MAX_NOTE_BYTES].decode("utf-8", "ignore")


def event_name(event: Event, node_name: str, first_s: float) -> str:
    """Return the name of the object: the same for one series of one agent, else another.

    A write that was done though its answer was lost is so found again.
    """
    identity = "\0".join((node_name, *event.series, micro_time(first_s)))
    digest = hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest()[:16]
    about = _NOT_NAME.sub("-", event.pod.name if event.pod is not None else node_name)
    about = about[: MAX_EVENT_NAME - len(digest) - 1].strip("-.")
    # each part between dots begins and ends with a letter or a digit
    about = re.sub(r"[-.]*\.[-.]*", ".", about)
    return f"{about}.{digest}" if about else digest


def event_series(count: int, first_s: float, last_s: float) -> JsonDict:
    """Return what a repeat changes; the last time is never before the first."""
    return {"count": count, "lastObservedTime": micro_time(max(first_s, last_s))}


def event_object(
    event: Event, node_name: str, uid: str, count: int, first_s: float, last_s: float
) -> JsonDict:
    """Return the whole object; with its series, where it was seen more than once already."""
    body: JsonDict = {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {
            "name": event_name(event, node_name, first_s),
            "namespace": event.namespace,
        },
        "eventTime": micro_time(first_s),
        "type": event.type,
        "reason": reason_text(event.reason),
        "action": ACTION,
        "note": note_text(event.message),
        "regarding": involved_object(event, node_name, uid),
        "reportingController": EVENT_COMPONENT,
        "reportingInstance": node_name[:MAX_INSTANCE],
    }
    if count > 1:
        body["series"] = event_series(count, first_s, last_s)
    return body
