"""What a session says of itself, for metrics, checks and the page."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

UNANSWERED = "none"  # code of a request that got no answer


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """How the API server has answered so far; replaced whole, so any thread may read it.

    Times are monotonic seconds.
    """

    reachable: bool | None = None  # None: nobody asked yet. A refusal (403) is an answer too
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
