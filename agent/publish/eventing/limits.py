"""How many events may be told of each subject, as client-go limits them."""

from __future__ import annotations

from collections import OrderedDict

from agent.kube.bucket import Bucket

MAX_SUBJECTS = 512  # buckets kept; the one that was used least lately goes first, and is full again


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
