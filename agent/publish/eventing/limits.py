"""How many events may be told: buckets of tokens, as client-go limits them."""

from __future__ import annotations

from collections import OrderedDict

MAX_SUBJECTS = 512  # buckets kept; the one that was used least lately goes first, and is full again


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
        self._full_s = max(self._full_s, now_s) + self._refill_s
        return True


class Buckets:
    """A bucket for each subject that is asked for."""

    def __init__(self, burst: int, refill_s: float) -> None:
        self._burst = burst
        self._refill_s = refill_s
        self._buckets: OrderedDict[tuple[str, ...], Bucket] = OrderedDict()

    def of(self, subject: tuple[str, ...]) -> Bucket:
        """Return the subject's bucket."""
        bucket = self._buckets.setdefault(subject, Bucket(self._burst, self._refill_s))
        self._buckets.move_to_end(subject)
        while len(self._buckets) > MAX_SUBJECTS:
            self._buckets.popitem(last=False)
        return bucket
