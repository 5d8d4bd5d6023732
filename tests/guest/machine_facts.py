"""What both sides of the virtual machine know: who runs in it, and how much it uses."""

from __future__ import annotations

import time

KINDS = ("busy", "held", "throttled")
POD = {kind: f"{number:08x}-1111-4111-8111-111111111111" for number, kind in enumerate(KINDS, 1)}
CONTAINER = {kind: f"{number:064x}" for number, kind in enumerate(KINDS, 0xA)}
SLICE = "kubepods"

BUSY_S = 1.0  # of CPU time
QUOTA = "10000 50000"  # microseconds in each period, and the period
QUOTA_BUSY_S = 0.2  # of CPU time: twenty periods

HELD_NODE = 2
HELD_BYTES = 32 << 20
FILE = "pages"  # in the share: its page cache is the container's
FILE_BYTES = 16 << 20
# in the share: a file for each part that fills the page cache, of which nothing is cached before
UNREAD_FILES = {
    part: f"unread-{part}" for part in ("session", "restore", "memory_reclaim", "limits")
}

_WORK = 20_000  # entries


def work_s() -> float:
    """Return how long a piece of the agent's kind of work takes here: text to values and back."""
    best_s = float("inf")
    for _ in range(3):
        began_s = time.monotonic()
        lines = [f"{n}: {n * 7:x}" for n in range(_WORK)]
        sorted((value, int(name)) for name, value in (line.split(": ") for line in lines))
        best_s = min(best_s, time.monotonic() - began_s)
    return best_s
