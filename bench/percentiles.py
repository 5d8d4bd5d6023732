"""The percentiles of a report's longest window against a sort of the same values.

The limit is the interpreter's sort, which is in C. The peer is the standard library's.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator

from agent.snapshot.usage import NodeUsage, UsageSample
from agent.usage.history import UsageHistory, UsageReportPolicy
from bench.counters import cpu_ms
from bench.harness import Row, compare

SECONDS = 1801  # the moments of half an hour
REPEATS = 20  # reports a figure, so that the clock's tick does not matter
POLICY = UsageReportPolicy(aggregate_s=60.0, windows_s=(SECONDS - 1,))


def _history() -> tuple[UsageHistory, list[list[float]]]:
    """Return half an hour of the node's and the system's CPU and memory, and the same values."""
    values, history = random.Random(1), UsageHistory()
    series: list[list[float]] = [[], [], [], []]
    for second in range(SECONDS):
        node = NodeUsage(
            cpu_cores=values.uniform(60, 80),
            memory_bytes=2**39 + values.randrange(2**30),
            system_cpu_cores=values.expovariate(1.0),
            system_memory_bytes=2**33 + values.randrange(2**30),
        )
        history.add(float(second), UsageSample(node=node))
        amounts = (
            *(node.cpu_cores, node.memory_bytes),
            *(node.system_cpu_cores, node.system_memory_bytes),
        )
        for one, amount in zip(series, amounts, strict=True):
            one.append(float(amount or 0))
    return history, series


def rows() -> Iterator[Row]:
    """Yield the CPU time of the percentiles of all four series."""
    history, series = _history()
    now_s = float(SECONDS - 1)
    if not history.report(now_s, POLICY).aggregates[0].node:
        raise AssertionError("the report lacks percentiles")

    def ours() -> None:
        for _ in range(REPEATS):
            history.report(now_s, POLICY)

    def sort_all() -> None:
        for _ in range(REPEATS):
            for one in series:
                sorted(one)

    def plainly() -> None:
        for one in series:
            statistics.mean(one)
            statistics.quantiles(one, n=100)

    yield compare(
        "percentiles",
        "cpu_ms",
        lambda: cpu_ms(ours) / REPEATS,
        peer=lambda: cpu_ms(plainly),
        limit=lambda: cpu_ms(sort_all) / REPEATS,
        gate="ratio_limit<=2.5",
    )
