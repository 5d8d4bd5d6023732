"""What a session says of itself, for metrics, checks and the page."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from agent.clock import Clock
from agent.kube.errors import ApiError, Unreachable

log = logging.getLogger(__name__)

UNANSWERED = "none"  # code of a request that got no answer


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """How the API server has answered so far; replaced whole, so any thread may read it.

    Times are monotonic seconds.
    """

    # what was asked last got an answer, and be it a refusal (403); None: nobody asked yet
    reachable: bool | None = None
    last_answer_s: float | None = None  # an answer of any status
    last_ok_s: float | None = None  # a 2xx
    last_error: str = ""
    last_error_s: float | None = None
    requests: Mapping[tuple[str, str], int] = {}  # (GET, 200), (WATCH, 410), (PATCH, none)
    in_flight: int = 0
    streams: int = 0
    open_connections: int = 0
    opened_connections: int = 0
    retries: int = 0  # second tries: after a 401, or on a connection that had been closed
    token_read_errors: int = 0
    ca_read_errors: int = 0
    # by how much the server's clock is ahead of ours, as far as its Date header shows; 0: within
    # what a time in whole seconds and the way there and back leave open
    clock_skew_s: float | None = None


def clock_skew_s(date_s: float, sent_s: float, received_s: float) -> float:
    """Return how far the server's clock is ahead at least; wall seconds.

    The header is cut to whole seconds and was written somewhere between sending and receiving,
    so the true difference lies between `date - received` and `date + 1 - sent`.
    """
    lowest_s, highest_s = date_s - received_s, date_s + 1 - sent_s
    if lowest_s <= 0 <= highest_s:
        return 0.0
    return lowest_s if lowest_s > 0 else highest_s


class Keeper:
    """Keeps the state of one session. Belongs to the loop thread."""

    def __init__(self, server: str, clock: Clock) -> None:
        """Begin with nothing asked; `server` names it in the log."""
        self._server = server
        self._clock = clock
        self.state = SessionState()

    def began(self, *, stream: bool) -> None:
        """Count a call or a stream that is under way."""
        self._count(1, stream=stream)

    def ended(self, *, stream: bool) -> None:
        """Count it no more."""
        self._count(-1, stream=stream)

    def tried_again(self, times: int) -> None:
        """Count second tries."""
        if times:
            self.state = replace(self.state, retries=self.state.retries + times)

    def answered(self, verb: str, status: int) -> None:
        """Note an answer of any status."""
        now_s = self._clock.monotonic()
        if self.state.reachable is False:
            log.info("server_answers_again", extra={"server": self._server})
        self.state = replace(
            self.state,
            reachable=True,
            last_answer_s=now_s,
            last_ok_s=now_s if 200 <= status < 300 else self.state.last_ok_s,
            requests=self._counted(verb, str(status)),
        )

    def failed(self, verb: str, error: ApiError, *, answered: bool) -> None:
        """Note an error; a server is out of reach only when no answer had begun.

        What broke off after that says little: streams do so whenever something on the way likes.
        """
        state = self.state
        if not answered:
            state = replace(state, requests=self._counted(verb, UNANSWERED))
        gone = isinstance(error, Unreachable) and not answered
        if gone and state.reachable is not False:
            extra = {"server": self._server, "error": str(error)}
            log.warning("server_does_not_answer", extra=extra)
        self.state = replace(
            state,
            reachable=False if gone else state.reachable,
            last_error=str(error),
            last_error_s=self._clock.monotonic(),
        )

    def skewed(self, date_s: float, sent_s: float) -> None:
        """Note the server's clock, of a request sent at `sent_s`; wall seconds."""
        skew_s = clock_skew_s(date_s, sent_s, self._clock.wall())
        self.state = replace(self.state, clock_skew_s=skew_s)

    def _count(self, more: int, *, stream: bool) -> None:
        state = self.state
        if stream:
            self.state = replace(state, streams=state.streams + more)
        else:
            self.state = replace(state, in_flight=state.in_flight + more)

    def _counted(self, verb: str, code: str) -> Mapping[tuple[str, str], int]:
        requests = self.state.requests
        return {**requests, (verb, code): requests.get((verb, code), 0) + 1}
