"""What evictions did lately: limits per minute, pods that end, pods that a budget protects.

All strategies share one history, so that no pod is requested twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from agent.qos.eviction.amounts import CPU_FEATURES, EvictionFeature
from agent.snapshot.pod import EvictionOutcome, EvictionRequest, EvictionResult

REMEMBERED_S = 120.0  # an evicted pod, and one that is terminating, counts as ending
KILLED_REMEMBERED_S = 30.0  # its containers may be started again after that
BLOCKED_S = 30.0  # a pod that a budget protects is not requested again
THROTTLED_S = 10.0  # without a wait from the API server
IN_FLIGHT_S = 60.0  # a request without a result counts as one without an answer
RATE_WINDOW_S = 60.0

CPU_LOOP, MEMORY_LOOP = "cpu", "memory"


class InFlightRequest(msgspec.Struct, frozen=True):
    """A request without a result."""

    request: EvictionRequest
    at_s: float


class EvictionHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Times are monotonic, pods are named by their uid."""

    last_s: Mapping[str, float] = {}  # the last eviction of each loop
    times_s: tuple[float, ...] = ()  # of evictions within the last minute
    in_flight: Mapping[str, InFlightRequest] = {}
    ending_until_s: Mapping[str, float] = {}  # until then, their amounts count as released
    blocked_until_s: Mapping[str, float] = {}
    hold_until_s: float = 0.0  # the API server takes no requests, or permits none

    def is_in_flight(self, loop: str) -> bool:
        """Return whether a request of a loop has no result."""
        return any(loop_of(one.request) == loop for one in self.in_flight.values())

    def ending(self, now_s: float) -> frozenset[str]:
        """Return the pods whose amounts count as released."""
        ending = (uid for uid, until_s in self.ending_until_s.items() if until_s > now_s)
        return frozenset((*ending, *self.in_flight))

    def spent(self) -> int:
        """Return how many evictions of this minute's limit are used."""
        return len(self.times_s) + len(self.in_flight)


def loop_of(request: EvictionRequest) -> str:
    """Return the loop that made a request."""
    return CPU_LOOP if EvictionFeature(request.feature) in CPU_FEATURES else MEMORY_LOOP


def record_requests(
    history: EvictionHistory, requests: Iterable[EvictionRequest], now_s: float
) -> EvictionHistory:
    """Return the history with requests that are sent now."""
    new = {request.pod.uid: InFlightRequest(request, now_s) for request in requests}
    if not new:
        return history
    return msgspec.structs.replace(history, in_flight={**history.in_flight, **new})


def advance_history(
    history: EvictionHistory,
    now_s: float,
    results: Iterable[EvictionResult],
    terminating: frozenset[str],
) -> EvictionHistory:
    """Return the history after results, without what is too old to count.

    `terminating` are the uids of pods that end now. Such a pod counts as released for two minutes
    only: its end may be stuck.
    """
    history = _record_results(history, now_s, results)
    ending = {
        uid: until_s
        for uid, until_s in history.ending_until_s.items()
        if until_s > now_s or uid in terminating
    }
    for uid in terminating:
        ending.setdefault(uid, now_s + REMEMBERED_S)
    return msgspec.structs.replace(
        history,
        times_s=tuple(at_s for at_s in history.times_s if now_s - at_s < RATE_WINDOW_S),
        ending_until_s=ending,
        blocked_until_s={
            uid: until_s for uid, until_s in history.blocked_until_s.items() if until_s > now_s
        },
    )


def _record_results(
    history: EvictionHistory, now_s: float, results: Iterable[EvictionResult]
) -> EvictionHistory:
    in_flight = dict(history.in_flight)
    answers = [one for one in results if in_flight.pop(one.request.pod.uid, None) is not None]
    for uid, one in tuple(in_flight.items()):
        if now_s - one.at_s > IN_FLIGHT_S:
            del in_flight[uid]
            answers.append(EvictionResult(request=one.request, outcome=EvictionOutcome.UNKNOWN))
    history = msgspec.structs.replace(history, in_flight=in_flight)
    for result in answers:
        history = _record_result(history, result, now_s)
    return history


_REMEMBERED_S: Final[Mapping[EvictionOutcome, float]] = {
    EvictionOutcome.EVICTED: REMEMBERED_S,
    EvictionOutcome.PLANNED: REMEMBERED_S,
    EvictionOutcome.GONE: REMEMBERED_S,
    EvictionOutcome.UNKNOWN: KILLED_REMEMBERED_S,
    EvictionOutcome.KILLED: KILLED_REMEMBERED_S,
}


def _record_result(
    history: EvictionHistory, result: EvictionResult, now_s: float
) -> EvictionHistory:
    uid, outcome = result.request.pod.uid, result.outcome
    if result.holds_up_others:
        wait_s = THROTTLED_S if result.retry_after_s is None else result.retry_after_s
        return msgspec.structs.replace(history, hold_until_s=now_s + wait_s)
    remembered_s = _REMEMBERED_S.get(outcome)
    if remembered_s is None:
        blocked = {**history.blocked_until_s, uid: now_s + BLOCKED_S}
        return msgspec.structs.replace(history, blocked_until_s=blocked)
    ending = {**history.ending_until_s, uid: now_s + remembered_s}
    history = msgspec.structs.replace(history, ending_until_s=ending)
    if outcome is EvictionOutcome.GONE:
        return history
    if outcome is EvictionOutcome.UNKNOWN:
        history = msgspec.structs.replace(history, hold_until_s=now_s + THROTTLED_S)
    return msgspec.structs.replace(
        history,
        times_s=(*history.times_s, now_s),
        last_s={**history.last_s, loop_of(result.request): now_s},
    )
