"""The process itself: its settings, made once while it starts, and the last thing that it does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

log = logging.getLogger(__name__)

WANTED_FILES = 65536
SWITCH_INTERVAL_S = 0.001  # the loop thread gets its turn while the collector computes
# cycles are rare (a closed connection leaves some): ten thousand new objects are looked through in
# less than a millisecond, which no request notices
GC_THRESHOLDS = (10_000, 20, 50)


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


async def done_within(deadline_s: float, work: Callable[[], None]) -> bool:
    """Do what may hang, on a thread that the process can end without; say whether it is done."""
    event_loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def run() -> None:
        try:
            work()
        finally:
            with contextlib.suppress(RuntimeError):  # the loop ended before the work did
                event_loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name="ending", daemon=True).start()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(done.wait(), deadline_s)
    return done.is_set()


def end_hanging(status: int, failed: BaseException | None) -> NoReturn:
    """End the process although a thread hangs, in the kernel or in a question for an address."""
    log.error("thread_stuck_at_stop", extra={"error": str(failed)} if failed else {})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
