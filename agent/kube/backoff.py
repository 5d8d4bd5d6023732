"""How long to wait before the next try: exponential, with full jitter, and the server's word."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

MAX_EXPONENT = 16


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the wait; figures of client-go's reflector."""

    base_s: float = 0.8
    max_s: float = 30.0

    def wait_s(
        self,
        failures: int,
        retry_after_s: float | None = None,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> float:
        """Return the wait after so many failures in a row.

        Anything from a tenth of the ceiling to the ceiling, which doubles from `base_s`: a fleet
        that lost its server together must not come back together. What the server asked for is
        waited for first: it asks the same of all, most often one second. A long wait is spread
        over a quarter of itself.
        """
        ceiling_s = min(self.max_s, self.base_s * 2.0 ** min(max(failures - 1, 0), MAX_EXPONENT))
        wait_s = uniform(ceiling_s / 10, ceiling_s)
        if retry_after_s is None:
            return wait_s
        return retry_after_s + max(wait_s, retry_after_s * uniform(0.0, 0.25))
