"""The whole agent at one second's interval on a busy node: millicores and memory.

The workers' share is shown in rows of their own. Scraped once in fifteen seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.harness import Row
from bench.node.busy_node import RunningAgent, busy_node, running_agent

WARM_S, MEASURED_S, SCRAPE_EVERY_S = 8.0, 30.0, 15.0


def _millicores(agent: RunningAgent, pids: list[int | None]) -> list[float]:
    before = [agent.cpu_s(pid) for pid in pids]
    began_s = time.monotonic()
    while (elapsed_s := time.monotonic() - began_s) < MEASURED_S:
        time.sleep(min(SCRAPE_EVERY_S, MEASURED_S - elapsed_s))
        agent.scrape()
    elapsed_s = time.monotonic() - began_s
    used = [agent.cpu_s(pid) - s for pid, s in zip(pids, before, strict=True)]
    return [1000 * s / elapsed_s for s in used]


def rows() -> Iterator[Row]:
    """Yield CPU and memory of the agent, then of each worker."""
    with busy_node() as node, running_agent(node) as agent:
        time.sleep(WARM_S)
        workers = agent.workers()
        own, *theirs = _millicores(agent, [None, *workers])
        kind = node.cgroups.replace(" ", "_")
        yield Row(name=f"steady_cpu_{kind}", metric="millicores", subject=own, gate="subject<=40")
        yield Row(
            name=f"steady_memory_{kind}",
            metric="RSS_KiB",
            subject=agent.rss_kib(),
            gate="subject<=98304",
        )
        for pid, used in zip(workers, theirs, strict=True):
            yield Row(name="steady_cpu_worker", metric="millicores", subject=used)
            yield Row(name="steady_memory_worker", metric="RSS_KiB", subject=agent.rss_kib(pid))
