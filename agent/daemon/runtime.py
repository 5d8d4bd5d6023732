"""Settings of the process itself, made once while it starts."""

from __future__ import annotations

import gc
import resource
import sys

WANTED_FILES = 65536
SWITCH_INTERVAL_S = 0.001  # the loop thread gets its turn while the collector computes
# cycles are rare (a closed connection leaves some). Looking through ten thousand new objects was
# seen to take up to 3.6 ms, which a container's creation waits for; two thousand take a fifth
GC_THRESHOLDS = (2_000, 50, 100)


def hurry() -> None:
    """Collect no garbage until `settle`: a start makes none, and looking for it costs a tenth."""
    gc.disable()


def settle() -> None:
    """Freeze what start-up made, collect seldom, switch threads often."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def allow_files() -> None:
    """Allow many open files, as far as the hard limit goes.

    To be done before a collector is built, which keeps as many descriptors as it finds allowed,
    and after the workers were started, which need few.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
