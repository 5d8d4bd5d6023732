"""Ten pods a second come and go: what a cycle costs, and what stays open.

The peer is a cycle in which no pod comes or goes. Both are taken in turn in one run, and each
figure is the 99th percentile of the thread's own CPU time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from agent.command_line import raise_open_file_limit
from bench.harness import Row
from bench.node.monitored_node import MonitoredNode, monitored_node, open_descriptors

PODS_PER_S = 10
ROUNDS, CYCLES = 6, 60  # a round has so many cycles of each kind
SETTLED = 5  # cycles before the first round


def rows() -> Iterator[Row]:
    """Yield the dearest cycles, descriptors that stay open, and errors."""
    raise_open_file_limit()
    before = open_descriptors()
    with monitored_node() as (node, warnings):
        for _ in range(SETTLED):
            _cycle_ms(node, 0)
        warnings.clear()  # what this machine lacks is logged once, at the start
        baseline, unmeasured = open_descriptors(), 0
        steady_ms: list[float] = []
        churn_ms: list[float] = []
        for _ in range(ROUNDS):
            steady_ms += [_cycle_ms(node, 0) for _ in range(CYCLES)]
            for _ in range(CYCLES):
                churn_ms.append(_cycle_ms(node, PODS_PER_S))
                unmeasured += node.unmeasured_pods()
        _cycle_ms(node, 0)
        gained = open_descriptors() - baseline
    for text in sorted(set(warnings)):
        print(f"# {text}", file=sys.stderr)
    yield Row(
        name="cgroup_churn",
        metric="p99_cpu_ms",
        subject=_p99(churn_ms),
        peer=_p99(steady_ms),
        gate="ratio_peer<=2",
    )
    yield Row(name="cgroup_churn_descriptors", metric="gained", subject=gained, gate="subject<=0")
    yield Row(
        name="cgroup_churn_closed",
        metric="descriptors_gained",
        subject=open_descriptors() - before,
        gate="subject<=0",
    )
    yield Row(
        name="cgroup_churn_errors",
        metric="warnings+unmeasured_pods",
        subject=len(warnings) + unmeasured,
        gate="subject<=0",
    )


def _cycle_ms(node: MonitoredNode, replaced_pods: int) -> float:
    if replaced_pods:
        node.replace_pods(replaced_pods)
    node.advance(1.0)
    begin_s = time.thread_time()
    node.monitor.cycle()
    return (time.thread_time() - begin_s) * 1e3


def _p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]
