"""Token bucket and exponential back-off, as in client-go's package `flowcontrol`."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable

import msgspec

MAX_EXPONENT = 16


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of the wait; the figures are those of client-go's reflector."""

    base_s: float = 0.8
    max_s: float = 30.0

    def wait_s(
        self,
        failures: int,
        retry_after_s: float | None = None,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> float:
        """Return the wait after this number of failures in a row.

        It is random between a tenth of the ceiling and the ceiling, which doubles from `base_s`:
        nodes that lost their server together must not come back together. The server's requested
        wait comes first, because it is the same for all nodes, most often one second. A long wait
        is spread over a quarter of itself.
        """
        ceiling_s = min(self.max_s, self.base_s * 2.0 ** min(max(failures - 1, 0), MAX_EXPONENT))
        wait_s = uniform(ceiling_s / 10, ceiling_s)
        if retry_after_s is None:
            return wait_s
        return retry_after_s + max(wait_s, retry_after_s * uniform(0.0, 0.25))


class TokenBucket:
    """Holds up to `burst` tokens; one more comes every `refill_s` seconds. Full at the start."""

    def __init__(self, burst: int, refill_s: float) -> None:
        self._refill_s = refill_s
        self._spare_s = (burst - 1) * refill_s
        self._full_s = 0.0  # monotonic; when it will be full again

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until there is a token; 0 if there is one."""
        return max(0.0, self._full_s - self._spare_s - now_s)

    def take(self, now_s: float) -> bool:
        """Take a token, if there is one."""
        if self.wait_s(now_s) > 0:
            return False
        self.reserve(now_s)
        return True

    def reserve(self, now_s: float) -> float:
        """Take a token, also a future one; return the seconds until it is available."""
        wait_s = self.wait_s(now_s)
        self._full_s = max(self._full_s, now_s) + self._refill_s
        return wait_s


MAX_SUBJECTS = 512  # buckets; the least recently used one is dropped, and would be full again


class SubjectBuckets:
    """One bucket for each subject, created at its first use."""

    def __init__(self, burst: int, refill_s: float) -> None:
        self._burst = burst
        self._refill_s = refill_s
        self._buckets: OrderedDict[tuple[str, ...], TokenBucket] = OrderedDict()

    def of(self, subject: tuple[str, ...]) -> TokenBucket:
        """Return the subject's bucket."""
        bucket = self._buckets.setdefault(subject, TokenBucket(self._burst, self._refill_s))
        self._buckets.move_to_end(subject)
        while len(self._buckets) > MAX_SUBJECTS:
            self._buckets.popitem(last=False)
        return bucket
