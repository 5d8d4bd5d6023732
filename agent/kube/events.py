"""The sink of Kubernetes events: renders, sends and retries them.

Rendered events are `events.k8s.io/v1`, within all limits of its validation.
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
from typing import Protocol

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
from agent.wire_formats.api_values import MAX_MESSAGE, clean_text, condition_reason
from agent.wire_formats.event import Event, EventReporter, involved_object
from agent.wire_formats.json_values import JsonDict

log = logging.getLogger(__name__)

BACKOFF = Backoff(base_s=1.0, max_s=60.0)
FORBIDDEN_S = 3600.0  # longest pause between two tries without the right to write events
# short at first: an API server that starts refuses all requests before it has read the roles
FORBIDDEN_BACKOFF = Backoff(base_s=60.0, max_s=FORBIDDEN_S)
BLOCKED_S = 5.0  # between checks whether events may be sent


class ObjectUids(Protocol):
    """The uids of the objects of one reporter, by which `kubectl describe` finds their events."""

    def uid(self, kind: str) -> str:
        """Return the uid of the object of a kind; empty while it is unknown."""
        ...


class EventSink:
    """Queues events, bounded, and sends them in order.

    `offer` and `state` may be called from any thread, everything else from the loop thread.
    """

    def __init__(
        self,
        api: ApiClient,
        reporter: EventReporter,
        clock: Clock,
        *,
        uids: ObjectUids | None = None,
        may_send: Callable[[], bool] = lambda: True,
        deadline_s: float = 10.0,
        backoff: Backoff = BACKOFF,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`may_send` returns whether the Node of the reporter's name is this machine.

        Events wait until it is. Without `uids` only events of pods have the uid of their object.
        """
        self._api = api
        self._reporter = reporter
        self._clock = clock
        self._uids = uids
        self._may_send = may_send
        self._deadline_s = deadline_s
        self._backoff = backoff
        self._uniform = uniform
        self._lock = threading.Lock()  # guards the backlog and `_loop`
        self._backlog = EventBacklog()
        self._loop: asyncio.AbstractEventLoop | None = None  # of `run`
        self._has_offers = asyncio.Event()
        self._failures = 0
        self._refusals = 0  # in a row, without the right
        self._unlucky = 0  # failures in a row that may be caused by a single event
        self._not_before_s = 0.0
        self._state = EventSinkState()

    @property
    def state(self) -> EventSinkState:
        """Return counters and the last error, for metrics and checks."""
        with self._lock:
            return msgspec.structs.replace(self._state, counts=self._backlog.counts)

    def offer(self, events: Iterable[Event]) -> None:
        """Queue events, from any thread; returns at once."""
        now_s = self._clock.monotonic()
        with self._lock:
            for event in events:
                self._backlog.offer(event, now_s)
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._has_offers.set)

    async def run(self) -> None:
        """Send events as they come, until cancelled; unsent events are then lost."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
        try:
            while True:
                self._has_offers.clear()
                wait_s = await self.step()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._has_offers.wait(), wait_s)
        finally:
            with self._lock:
                self._loop = None

    async def step(self) -> float | None:
        """Send all due events; return the seconds until the next one, `None` if none waits."""
        while True:
            now_s = self._clock.monotonic()
            if now_s < self._not_before_s:
                return self._not_before_s - now_s
            with self._lock:
                item = self._backlog.next(now_s, self._unlucky)
                if item is None:
                    return self._backlog.wait_s(now_s)
            if not self._may_send():
                return BLOCKED_S
            await self._send(item)

    async def _send(self, item: PendingEvent) -> None:
        try:
            await self._api.call(self._request(item))
        except ApiError as error:
            of_pod = item.event.pod is not None
            outcome = classify_event_error(error, creating=not item.sent_count, of_pod=of_pod)
            if outcome in (EventOutcome.RETRY, EventOutcome.FORBIDDEN):
                self._postpone(error, off=outcome is EventOutcome.FORBIDDEN)
                return
            if outcome is EventOutcome.REFUSED:
                log.warning(
                    "event_refused", extra={"reason": item.event.reason, "error": str(error)}
                )
            self._record_outcome(item, outcome)
        else:
            self._record_outcome(item, EventOutcome.EXISTS)

    def _request(self, item: PendingEvent) -> ApiRequest:
        event, namespace = item.event, item.event.namespace
        if item.sent_count:
            body: JsonDict = {"series": event_series(item.count, item.first_s, item.last_s)}
            name = event_name(event, self._reporter.name, item.first_s)
            method, path, content_type = "PATCH", EVENTS.path(name, namespace), MERGE_PATCH_TYPE
        else:
            is_own = event.pod is None and event.target is None
            uid = self._uids.uid(event.object_kind) if is_own and self._uids is not None else ""
            times = (item.count, item.first_s, item.last_s)
            body = event_object(event, self._reporter, uid, *times)
            method, path, content_type = "POST", EVENTS.path(namespace=namespace), JSON_TYPE
        return ApiRequest(
            method=method,
            path=path,
            body=msgspec.json.encode(body),
            content_type=content_type,
            deadline_s=self._deadline_s,
        )

    def _record_outcome(self, item: PendingEvent, outcome: EventOutcome) -> None:
        """Record the server's answer about this event: the server is reachable."""
        if self._state.error:
            log.info("events_told_again")
        self._failures = self._refusals = self._unlucky = 0
        now_s = self._clock.monotonic()
        with self._lock:
            self._state = EventSinkState()
            if outcome is EventOutcome.RENEW:
                self._backlog.mark_missing(item)
            elif outcome is EventOutcome.REFUSED:
                self._backlog.mark_refused(item)
            else:
                self._backlog.mark_sent(item, now_s)

    def _postpone(self, error: ApiError, *, off: bool) -> None:
        """Retry later; log a change of the state, not each failure."""
        self._failures += 1
        if isinstance(error, (ServerError, BadResponse, Conflict)):
            self._unlucky += 1  # perhaps only this event fails: another one is tried next
        self._refusals = self._refusals + 1 if off else 0
        backoff, failures = (
            (FORBIDDEN_BACKOFF, self._refusals) if off else (self._backoff, self._failures)
        )
        wait_s = backoff.wait_s(failures, error.retry_after_s, self._uniform)
        self._not_before_s = self._clock.monotonic() + wait_s
        if not self._state.error or off is not self._state.is_forbidden:
            log.warning("events_off" if off else "events_wait", extra={"error": str(error)})
        with self._lock:
            self._state = EventSinkState(error=str(error), is_forbidden=off)


NAMESPACE_TERMINATING = "NamespaceTerminating"  # reason of a cause: no permission is missing


class EventOutcome(enum.Enum):
    """What to do with an event after the server's answer."""

    EXISTS = "exists"  # the object exists: an earlier answer was lost
    RENEW = "renew"  # its object is gone: create a new one
    REFUSED = "refused"  # this event can never be sent; others can
    FORBIDDEN = "forbidden"  # no event can be sent until the permission is granted
    RETRY = "retry"  # the error is not caused by the event


def classify_event_error(error: ApiError, *, creating: bool, of_pod: bool) -> EventOutcome:
    """Return what an error of a POST (`creating`) or of a PATCH means for the event.

    `of_pod`: the event is in a namespace of users. Such a namespace has quotas and admission rules
    of its own, which answer 403 too: that must not stop the events of the node.
    """
    if isinstance(error, Forbidden):
        ending = any(cause.reason == NAMESPACE_TERMINATING for cause in error.causes)
        return EventOutcome.REFUSED if ending or of_pod else EventOutcome.FORBIDDEN
    if isinstance(error, NotFound):  # of a POST: the namespace is missing
        return EventOutcome.REFUSED if creating else EventOutcome.RENEW
    if isinstance(error, (Invalid, TooLarge)):
        return EventOutcome.REFUSED
    if isinstance(error, Conflict) and creating:
        return EventOutcome.EXISTS
    return EventOutcome.RETRY


MAX_NOTE_BYTES = 1024
MAX_EVENT_NAME = 253
MAX_INSTANCE = 128
ACTION = "Observe"  # a required field: what the reporter did
_YEAR_10000_S = 253_402_300_800
_NOT_NAME = re.compile(r"[^a-z0-9.-]+")


def micro_time(wall_s: float) -> str:
    """Format Unix seconds as `metav1.MicroTime`: UTC, exactly six digits, `Z`.

    A time outside of the calendar becomes the epoch.
    """
    is_valid = math.isfinite(wall_s) and 0 <= wall_s < _YEAR_10000_S - 1
    seconds, micros = divmod(round((wall_s if is_valid else 0.0) * 1_000_000), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{micros:06d}Z"


def note_text(message: str) -> str:
    """Return the text within its byte limit, cut between two characters."""
    text = clean_text(message, MAX_MESSAGE)
    return text.encode()[:MAX_NOTE_BYTES].decode("utf-8", "ignore")


def event_name(event: Event, reporter_name: str, first_s: float) -> str:
    """Return the name of the object: equal for one series of one reporter, else different.

    The reporter therefore finds an object again whose creation was not acknowledged.
    """
    identity = "\0".join((reporter_name, *event.series, micro_time(first_s)))
    digest = hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest()[:16]
    about = event.target or event.pod
    subject = _NOT_NAME.sub("-", about.name if about is not None else reporter_name)
    subject = subject[: MAX_EVENT_NAME - len(digest) - 1].strip("-.")
    # each part between dots begins and ends with a letter or a digit
    subject = re.sub(r"[-.]*\.[-.]*", ".", subject)
    return f"{subject}.{digest}" if subject else digest


def event_series(count: int, first_s: float, last_s: float) -> JsonDict:
    """Return the fields that a repeat changes; the last time is never before the first."""
    return {"count": count, "lastObservedTime": micro_time(max(first_s, last_s))}


def event_object(
    event: Event, reporter: EventReporter, uid: str, count: int, first_s: float, last_s: float
) -> JsonDict:
    """Return the whole object, with its series if the event was repeated already."""
    body: JsonDict = {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {
            "name": event_name(event, reporter.name, first_s),
            "namespace": event.namespace,
        },
        "eventTime": micro_time(first_s),
        "type": event.type,
        "reason": condition_reason(event.reason),
        "action": ACTION,
        "note": note_text(event.message),
        "regarding": involved_object(event, reporter.name, uid),
        "reportingController": reporter.component,
        "reportingInstance": reporter.name[:MAX_INSTANCE],
    }
    if count > 1:
        body["series"] = event_series(count, first_s, last_s)
    return body
