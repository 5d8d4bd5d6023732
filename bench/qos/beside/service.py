"""A latency-sensitive service: a request each 10 ms, a millisecond of work for each.

Requests come by the clock, whether the one before is done or not. Prints, as JSON, the latency of
each wake-up and of each request in microseconds.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

PERIOD_S = 0.01
WORK_S = 0.001
BLOCK = bytes(16384)


def _blocks_for(work_s: float) -> int:
    """Return how many blocks take that long when nobody interrupts."""
    best_s = min(_timed(50) for _ in range(40)) / 50
    return max(1, round(work_s / best_s))


def _timed(blocks: int) -> float:
    begin_s = time.perf_counter()
    _work(blocks)
    return time.perf_counter() - begin_s


def _work(blocks: int) -> None:
    for _ in range(blocks):
        hashlib.sha256(BLOCK)


def main() -> None:
    """Join the groups of the arguments after the first, which is how long to serve."""
    seconds, groups = float(sys.argv[1]), sys.argv[2:]
    blocks = _blocks_for(WORK_S)
    for group in groups:
        Path(group, "cgroup.procs").write_text("0")
    wakes_us: list[float] = []
    requests_us: list[float] = []
    begin_s = time.monotonic() + PERIOD_S
    for number in range(int(seconds / PERIOD_S)):
        due_s = begin_s + number * PERIOD_S
        pause_s = due_s - time.monotonic()
        if pause_s > 0:
            time.sleep(pause_s)
            wakes_us.append((time.monotonic() - due_s) * 1e6)
        _work(blocks)
        requests_us.append((time.monotonic() - due_s) * 1e6)
    json.dump({"wakes_us": wakes_us, "requests_us": requests_us}, sys.stdout)


if __name__ == "__main__":
    main()
