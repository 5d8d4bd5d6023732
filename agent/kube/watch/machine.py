"""The pure state machine of list and watch: states, inputs, commands, transitions.

The rules are those of the Kubernetes API. The first list accepts any version that the server has in
its cache (`resourceVersion=0`). A later list asks for no older version than the last seen one,
without pages: then the server answers from its cache. Pages, and the most recent version, may be
read from etcd, which for one node's pods means the pods of all nodes; therefore they are requested
only after the server refused a version.

A stream that ends is continued at the version of its last event or bookmark. Every request, except
the pages of a list and the watch right after it, comes after a random wait: nodes that lost their
server together must not come back together.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable

import msgspec

from agent.kube.flow_control import Backoff
from agent.snapshot.cluster import WatchPhase


class ListLimits(msgspec.Struct, frozen=True):
    """The largest list that is accepted; a larger one is tried again, slowly."""

    objects: int = 8192
    pages: int = 64
    bytes: int = 64 << 20


NODE_LIMITS = ListLimits()  # more than the objects of one node


class ListWatchState(msgspec.Struct, frozen=True, kw_only=True):
    """The state from which the next command follows."""

    limits: ListLimits = NODE_LIMITS
    phase: WatchPhase = WatchPhase.WAITING
    version: str = ""  # to watch from; empty: list first
    token: str = ""  # of the next page
    pages: int = 0  # of the list in progress
    objects: int = 0
    bytes: int = 0
    floor: str = ""  # a list must not be older than this version; empty: any version
    recent: bool = False  # list the most recent version
    doubt_s: float | None = (
        None  # quiet time since a stream broke; None: none broke since the last event
    )
    failures: int = 0  # in a row, without 410
    refused_answers: int = 0  # those of them that are `ANSWERED`
    expiries: int = 0  # 410, and versions older than the last seen one, in a row


class DelayOver(msgspec.Struct, frozen=True):
    """A wait is over; also the first input."""


class PageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A complete page of a list."""

    version: str  # never empty
    token: str  # empty: the last page
    objects: int
    bytes: int


class WatchEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a stream, other than ERROR; the version is empty if it is unreadable."""

    type: str
    version: str


class WatchFailureReason(enum.Enum):
    """The kinds of failures, by the reaction to them."""

    EXPIRED = "expired"  # 410, of any request: list again
    ABSENT = "absent"  # 404
    FORBIDDEN = "forbidden"  # 403
    REFUSED = "refused"  # 400, 422: the server refuses this version, or has not reached it
    ANSWERED = "answered"  # 5xx, invalid answers: repeat the request
    UNAVAILABLE = "unavailable"  # 401, 429, 502, 503: the same, and the version is not doubted
    UNREACHABLE = "unreachable"  # no answer, or a stream that broke


class WatchFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A call failed, or a stream broke after so many seconds."""

    reason: WatchFailureReason
    retry_after_s: float | None = None
    lasted_s: float = 0.0


class StreamEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The server closed the stream in order; `is_early`: before the requested time."""

    lasted_s: float
    is_early: bool = False


WatchInput = DelayOver | PageSummary | WatchEvent | WatchFailure | StreamEnd


class ListCommand(msgspec.Struct, frozen=True):
    """Request a page, or with a minimum version the whole list, which has no pages then.

    Version `0` means any version; `None` the most recent one, or that of the token.
    """

    version: str | None
    token: str


class StreamCommand(msgspec.Struct, frozen=True):
    """Open a stream from a version."""

    version: str
    timeout_s: int


class ReadCommand(msgspec.Struct, frozen=True):
    """Continue with the open stream."""


class DelayCommand(msgspec.Struct, frozen=True):
    """Close the stream, wait for so long, then send `DelayOver`."""

    seconds: float


WatchCommand = ListCommand | StreamCommand | ReadCommand | DelayCommand


class CacheEffect(enum.Enum):
    """What the last input means for the view."""

    NONE = "none"
    STAGE = "stage"  # store the page aside
    REPLACE = "replace"  # store the page aside, and make all staged pages the view
    DROP = "drop"  # forget the staged pages; the view stays
    UPDATE = "update"
    REMOVE = "remove"


class WatchTransition(msgspec.Struct, frozen=True):
    """The result of one input."""

    state: ListWatchState
    command: WatchCommand
    effect: CacheEffect = CacheEffect.NONE


Uniform = Callable[[float, float], float]

PAGE_OBJECTS = 500
STREAM_S = (300.0, 600.0)  # range of the requested duration, drawn for each stream
STEADY_S = 10.0  # a stream that lasted this long ends a row of failures
MAX_REFUSED_ANSWERS = 10  # refused requests in a row until the version itself is doubted

# A server that was restored from a backup accepts a watch from a version that it has not reached
# yet, and sends nothing until then. Restoring breaks all streams. Quiet streams that end at their
# requested time are normal.
DOUBT_S = 1500.0

RETRY = Backoff()

# of 5,000 nodes that must list again, 500 a second do
RELIST = Backoff(base_s=10.0, max_s=60.0)

# for what only an administrator changes: a CRD, a role
SLOW = Backoff(base_s=30.0, max_s=300.0)


def step(
    state: ListWatchState, watch_input: WatchInput, uniform: Uniform = random.uniform
) -> WatchTransition:
    """Return the transition for one input."""
    match watch_input:
        case DelayOver():
            return _next_request(state, uniform)
        case PageSummary():
            return _on_page(state, watch_input, uniform)
        case WatchEvent():
            return _on_event(state, watch_input, uniform)
        case WatchFailure():
            return _on_failure(_after_stream(state, watch_input.lasted_s), watch_input, uniform)
        case StreamEnd():
            return _on_stream_end(_after_stream(state, watch_input.lasted_s), watch_input, uniform)


def is_older_version(version: str, than: str) -> bool:
    """Return whether a version is certainly older than another.

    Since Kubernetes 1.35, versions that are decimal numbers have an order; others can only be equal
    or not. The result is a hint: an apparently older object is never dropped for it, but listed
    again.
    """
    if not (version.isascii() and than.isascii() and version.isdecimal() and than.isdecimal()):
        return False
    return (len(version), version) < (len(than), than)


def _next_request(state: ListWatchState, uniform: Uniform) -> WatchTransition:
    if state.version:
        return _follow(state, uniform)
    version = None if state.token or state.recent else state.floor or "0"
    return WatchTransition(
        _replace(state, phase=WatchPhase.LISTING), ListCommand(version, state.token)
    )


def _follow(
    state: ListWatchState, uniform: Uniform, effect: CacheEffect = CacheEffect.NONE
) -> WatchTransition:
    command = StreamCommand(state.version, round(uniform(*STREAM_S)))
    return WatchTransition(_replace(state, phase=WatchPhase.WATCHING), command, effect)


def _on_page(state: ListWatchState, page: PageSummary, uniform: Uniform) -> WatchTransition:
    listed = _replace(
        state,
        token=page.token,
        pages=state.pages + 1,
        objects=state.objects + page.objects,
        bytes=state.bytes + page.bytes,
    )
    limits = state.limits
    is_endless = page.token and (page.token == state.token or listed.pages >= limits.pages)
    if is_endless or listed.objects > limits.objects or listed.bytes > limits.bytes:
        return _retry_slowly(_replace(state, recent=True), WatchPhase.WAITING, uniform)
    if page.token:
        return WatchTransition(listed, ListCommand(None, page.token), CacheEffect.STAGE)
    next_state = _replace(_reset_list(state), version=page.version, recent=False)
    return _follow(next_state, uniform, CacheEffect.REPLACE)


def _on_event(state: ListWatchState, event: WatchEvent, uniform: Uniform) -> WatchTransition:
    if not event.version:
        return WatchTransition(state, ReadCommand())
    if is_older_version(event.version, state.version):
        return _relist(state, uniform)
    effect = CacheEffect.NONE
    if event.type in ("ADDED", "MODIFIED"):
        effect = CacheEffect.UPDATE
    elif event.type == "DELETED":
        effect = CacheEffect.REMOVE
    return WatchTransition(
        _replace(state, version=event.version, doubt_s=None), ReadCommand(), effect
    )


def _on_stream_end(state: ListWatchState, ended: StreamEnd, uniform: Uniform) -> WatchTransition:
    """Continue the stream; a stream that the server closes at once counts as a failure."""
    if ended.is_early:
        state = _with_doubt(state)
    if _is_doubtful(state):
        return _relist(state, uniform)
    failures = 0 if ended.lasted_s >= STEADY_S else state.failures + 1
    wait = DelayCommand(RETRY.wait_s(max(failures, 1), None, uniform))
    return WatchTransition(_replace(state, phase=WatchPhase.WAITING, failures=failures), wait)


def _on_failure(state: ListWatchState, failure: WatchFailure, uniform: Uniform) -> WatchTransition:
    match failure.reason:
        case WatchFailureReason.EXPIRED:  # of a list: its version or token has expired
            return _relist(_replace(state, recent=state.recent or not state.version), uniform)
        case WatchFailureReason.ABSENT:
            return _retry_slowly(state, WatchPhase.ABSENT, uniform, failure.retry_after_s)
        case WatchFailureReason.FORBIDDEN:
            return _retry_slowly(state, WatchPhase.FORBIDDEN, uniform, failure.retry_after_s)
    state = _with_doubt(state)
    if _is_doubtful(state):
        return _relist(state, uniform)
    failures = state.failures + 1
    wait = DelayCommand(RETRY.wait_s(failures, failure.retry_after_s, uniform))
    # a server restored from a backup refuses versions that it has not reached, with various errors
    refused = state.refused_answers + (failure.reason is WatchFailureReason.ANSWERED)
    waiting = _replace(state, phase=WatchPhase.WAITING, failures=failures, refused_answers=refused)
    if failure.reason is WatchFailureReason.REFUSED or refused >= MAX_REFUSED_ANSWERS:
        waiting = _replace(_reset_list(waiting), recent=True, refused_answers=0)
        return WatchTransition(waiting, wait, CacheEffect.DROP)
    return WatchTransition(waiting, wait)


def _relist(state: ListWatchState, uniform: Uniform) -> WatchTransition:
    expiries = state.expiries + 1
    waiting = _replace(_reset_list(state), phase=WatchPhase.WAITING, expiries=expiries)
    return WatchTransition(
        waiting, DelayCommand(RELIST.wait_s(expiries, None, uniform)), CacheEffect.DROP
    )


def _retry_slowly(
    state: ListWatchState, phase: WatchPhase, uniform: Uniform, retry_after_s: float | None = None
) -> WatchTransition:
    failures = state.failures + 1
    waiting = _replace(_reset_list(state), phase=phase, failures=failures)
    return WatchTransition(
        waiting, DelayCommand(SLOW.wait_s(failures, retry_after_s, uniform)), CacheEffect.DROP
    )


def _reset_list(state: ListWatchState) -> ListWatchState:
    """Forget the list and the watch; the next list must not be older than the last version."""
    floor = state.version or state.floor
    return _replace(
        state, version="", token="", pages=0, objects=0, bytes=0, floor=floor, doubt_s=None
    )


def _after_stream(state: ListWatchState, lasted_s: float) -> ListWatchState:
    if lasted_s < STEADY_S:
        return state
    doubt_s = None if state.doubt_s is None else state.doubt_s + lasted_s
    return _replace(state, failures=0, refused_answers=0, expiries=0, doubt_s=doubt_s)


def _with_doubt(state: ListWatchState) -> ListWatchState:
    """Return the state after a stream broke: the server may have been restored meanwhile."""
    return _replace(state, doubt_s=0.0) if state.doubt_s is None else state


def _is_doubtful(state: ListWatchState) -> bool:
    return state.doubt_s is not None and state.doubt_s >= DOUBT_S


_replace = msgspec.structs.replace
