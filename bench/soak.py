"""Virtual hours of a busy node in one process: whether memory, descriptors or threads grow.

Only the clock is accelerated: every second has its cycle, every minute its report, its prediction
and a scraped page, while a pod a second comes and goes. Growth is the slope of a line through the
resident memory after each virtual minute, once the history and the models have reached their size.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from statistics import linear_regression

from agent.command_line import raise_open_file_limit
from bench.harness import Row
from bench.node.monitored_node import monitored_node, open_descriptors

MINUTE_S = 60
WARM_MINUTES = 45  # half an hour of history; models of pods that are gone last as long
# the allocator settles for an hour more: in one hour that would look like growth
HOURS = float(os.environ.get("XPU_BENCH_SOAK_HOURS", "3"))
PODS_PER_S = 1


def rows() -> Iterator[Row]:
    """Yield the growth of each."""
    raise_open_file_limit()
    with tempfile.TemporaryDirectory() as folder, monitored_node(folder) as (node, warnings):
        resident_mb: list[float] = []
        for minute in range(WARM_MINUTES + round(60 * HOURS)):
            if minute == WARM_MINUTES:
                warnings.clear()
                descriptors, threads = open_descriptors(), threading.active_count()
            for _ in range(MINUTE_S):
                node.replace_pods(PODS_PER_S)
                node.advance(1.0)
                node.monitor.cycle()
            node.report()
            node.page()
            resident_mb.append(_resident_mb())
        descriptors = open_descriptors() - descriptors
        threads = threading.active_count() - threads
    measured = resident_mb[WARM_MINUTES:]
    slope = linear_regression([minute / 60 for minute in range(len(measured))], measured).slope
    print(
        f"# resident: {resident_mb[0]:.1f} MB after the first minute, {measured[0]:.1f} warm, "
        f"{measured[-1]:.1f} at the end",
        file=sys.stderr,
    )
    for text in sorted(set(warnings)):
        print(f"# {text}", file=sys.stderr)
    yield Row(name="soak_memory", metric="MB_per_virtual_hour", subject=slope, gate="subject<=1")
    yield Row(name="soak_descriptors", metric="gained", subject=descriptors, gate="subject<=0")
    yield Row(name="soak_threads", metric="gained", subject=threads, gate="subject<=0")
    yield Row(name="soak_warnings", metric="logged", subject=len(warnings), gate="subject<=0")


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
