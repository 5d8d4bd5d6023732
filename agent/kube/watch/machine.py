"""What to ask next when one kind of object is followed: pure, told what came, answers what to do.

The rules are those of the Kubernetes API for list and watch. The first list begins with any version
the server has at hand (`resourceVersion=0`). A later one asks for nothing older than what we saw,
and for all in one go: then it is answered from the server's cache. Pages, and what is most recent,
may be read from etcd, pods of all nodes for the sake of one's own; a fleet asks for that only where
a version itself is refused. A stream that ends is taken up at the version of its last event or
bookmark. Every request but the pages of a list and the watch right after it comes after a wait
drawn at random: a fleet that lost its server together does not come back together.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from agent.kube.backoff import Backoff
from agent.kube.watch.state import (
    Due,
    Effect,
    Ended,
    Event,
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
    Why,
)

Uniform = Callable[[float, float], float]

PAGE_OBJECTS = 500
MAX_PAGES = 64
MAX_OBJECTS = 8192
MAX_LIST_BYTES = 64 << 20
STREAM_S = (300.0, 600.0)  # how long a stream may last, drawn anew for each
STEADY_S = 10.0  # a stream that lasted this long ends a row of failures
DOUBT_AFTER = 10  # answers without success until the version itself is doubted
# A server that was restored from a backup accepts a watch from a version that it has yet to reach,
# and sends nothing until then. Restoring it breaks the streams; quiet ones that end at their time
# are normal.
DOUBT_S = 1500.0

RETRY = Backoff()
# of 5,000 nodes that all must list anew, 500 a second do
RELIST = Backoff(base_s=10.0, max_s=60.0)
# for what only an administrator changes: a CRD, a role
SLOW = Backoff(base_s=30.0, max_s=300.0)


def step(state: State, told: Input, uniform: Uniform = random.uniform) -> Step:
    """Say what follows from what came."""
    match told:
        case Due():
            return _ask(state, uniform)
        case Page():
            return _page(state, told, uniform)
        case Event():
            return _event(state, told, uniform)
        case Failure():
            return _failed(_rested(state, told.lasted_s), told, uniform)
        case Ended():
            return _ended(_rested(state, told.lasted_s), told, uniform)


def older(version: str, than: str) -> bool:
    """Say whether a version is certainly older than another.

    Since Kubernetes 1.35 versions that are decimal numbers have an order; all others are only
    equal or not. It is a hint: what looks older is never dropped for it, but listed anew.
    """
    if not (version.isascii() and than.isascii() and version.isdecimal() and than.isdecimal()):
        return False
    return (len(version), version) < (len(than), than)


def _ask(state: State, uniform: Uniform) -> Step:
    if state.version:
        return _follow(state, uniform)
    version = None if state.token or state.recent else state.floor or "0"
    return Step(_with(state, phase=Phase.LISTING), List(version, state.token))


def _follow(state: State, uniform: Uniform, effect: Effect = Effect.NONE) -> Step:
    command = Follow(state.version, round(uniform(*STREAM_S)))
    return Step(_with(state, phase=Phase.WATCHING), command, effect)


def _page(state: State, page: Page, uniform: Uniform) -> Step:
    listed = _with(
        state,
        token=page.token,
        pages=state.pages + 1,
        objects=state.objects + page.objects,
        bytes=state.bytes + page.bytes,
    )
    circular = page.token and (page.token == state.token or listed.pages >= MAX_PAGES)
    if circular or listed.objects > MAX_OBJECTS or listed.bytes > MAX_LIST_BYTES:
        return _slowly(_with(state, recent=True), Phase.WAITING, uniform)
    if page.token:
        return Step(listed, List(None, page.token), Effect.STAGE)
    found = _with(_anew(state), version=page.version, recent=False)
    return _follow(found, uniform, Effect.REPLACE)


def _event(state: State, event: Event, uniform: Uniform) -> Step:
    if not event.version:
        return Step(state, Read())
    if older(event.version, state.version):
        return _list_anew(state, uniform)
    effect = Effect.NONE
    if event.type in ("ADDED", "MODIFIED"):
        effect = Effect.PUT
    elif event.type == "DELETED":
        effect = Effect.REMOVE
    return Step(_with(state, version=event.version, doubt_s=None), Read(), effect)


def _ended(state: State, ended: Ended, uniform: Uniform) -> Step:
    """Take the stream up again; one that the server closes at once is no better than a failure."""
    if ended.early:
        state = _with_doubt(state)
    if _is_doubtful(state):
        return _list_anew(state, uniform)
    failures = 0 if ended.lasted_s >= STEADY_S else state.failures + 1
    wait = Wait(RETRY.wait_s(max(failures, 1), None, uniform))
    return Step(_with(state, phase=Phase.WAITING, failures=failures), wait)


def _failed(state: State, failure: Failure, uniform: Uniform) -> Step:
    match failure.why:
        case Why.EXPIRED:  # of a list: its version or token did not help
            return _list_anew(_with(state, recent=state.recent or not state.version), uniform)
        case Why.ABSENT:
            return _slowly(state, Phase.ABSENT, uniform, failure.retry_after_s)
        case Why.FORBIDDEN:
            return _slowly(state, Phase.FORBIDDEN, uniform, failure.retry_after_s)
    state = _with_doubt(state)
    if _is_doubtful(state):
        return _list_anew(state, uniform)
    failures = state.failures + 1
    wait = Wait(RETRY.wait_s(failures, failure.retry_after_s, uniform))
    # a server restored from a backup refuses versions that it has yet to reach, in its own ways
    doubtful = failure.why is Why.ANSWERED and failures % DOUBT_AFTER == 0
    if failure.why is Why.REFUSED or doubtful:
        waiting = _with(_anew(state), phase=Phase.WAITING, failures=failures, recent=True)
        return Step(waiting, wait, Effect.DROP)
    return Step(_with(state, phase=Phase.WAITING, failures=failures), wait)


def _list_anew(state: State, uniform: Uniform) -> Step:
    expiries = state.expiries + 1
    waiting = _with(_anew(state), phase=Phase.WAITING, expiries=expiries)
    return Step(waiting, Wait(RELIST.wait_s(expiries, None, uniform)), Effect.DROP)


def _slowly(
    state: State, phase: Phase, uniform: Uniform, retry_after_s: float | None = None
) -> Step:
    failures = state.failures + 1
    waiting = _with(_anew(state), phase=phase, failures=failures)
    return Step(waiting, Wait(SLOW.wait_s(failures, retry_after_s, uniform)), Effect.DROP)


def _anew(state: State) -> State:
    """Forget the list under way, and to watch; the next list is not older than what was seen."""
    floor = state.version or state.floor
    return _with(
        state, version="", token="", pages=0, objects=0, bytes=0, floor=floor, doubt_s=None
    )


def _rested(state: State, lasted_s: float) -> State:
    if lasted_s < STEADY_S:
        return state
    doubt_s = None if state.doubt_s is None else state.doubt_s + lasted_s
    return _with(state, failures=0, expiries=0, doubt_s=doubt_s)


def _with_doubt(state: State) -> State:
    """Return the state after a stream broke: the server may have been restored meanwhile."""
    return _with(state, doubt_s=0.0) if state.doubt_s is None else state


def _is_doubtful(state: State) -> bool:
    return state.doubt_s is not None and state.doubt_s >= DOUBT_S


_with = msgspec.structs.replace
