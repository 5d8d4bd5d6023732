"""How often something may be done: a bucket of tokens, as client-go has them."""

from __future__ import annotations


class Bucket:
    """Holds tokens up to `burst`; one more comes every `refill_s` seconds. Full at the start."""

    def __init__(self, burst: int, refill_s: float) -> None:
        self._refill_s = refill_s
        self._spare_s = (burst - 1) * refill_s
        self._full_s = 0.0  # monotonic; when it will be full again

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until there is a token; 0: there is one."""
        return max(0.0, self._full_s - self._spare_s - now_s)

    def take(self, now_s: float) -> bool:
        """Take a token, if there is one."""
        if self.wait_s(now_s) > 0:
            return False
        self.reserve(now_s)
        return True

    def reserve(self, now_s: float) -> float:
        """Take a token, also one that is yet to come; return the seconds until it is there."""
        wait_s = self.wait_s(now_s)
        self._full_s = max(self._full_s, now_s) + self._refill_s
        return wait_s
