"""How long a new NodeSLO takes from the API server to the files of the node, in seconds.

From the moment before the object is put to the moment when the quota of the best-effort class has
changed on this machine's own kernel: the watch, the decision, the ledger's sync and the write. One
round suppresses, the next one gives all back. Needs root, version 1 and a unified hierarchy.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator

from bench.harness import Row
from tests.process.cluster.live_node import LiveNode, live_node, wait_until

ROUNDS = 20
REST_S = 0.73  # between two changes: no multiple of the agent's period


def rows() -> Iterator[Row]:
    """Yield the median and the longest way."""
    with live_node() as node:
        burner = node.add_pod("burner", "BE", "/besteffort")
        node.prepare_burners(burner, os.cpu_count() or 1).begin()
        _change_s(node, enable=True)  # the first usage of all
        _change_s(node, enable=False)
        times_s = [_change_s(node, enable=number % 2 == 0) for number in range(ROUNDS)]
    yield Row(
        name="slo_reaction_median",
        metric="seconds",
        subject=statistics.median(times_s),
        gate="subject<=1",
    )
    yield Row(
        name="slo_reaction_longest", metric="seconds", subject=max(times_s), gate="subject<=1"
    )


def _change_s(node: LiveNode, *, enable: bool) -> float:
    time.sleep(REST_S)
    begin_s = time.monotonic()
    node.ask(enable=enable, cpuSuppressPolicy="cfsQuota")
    wait_until(lambda: (node.quota_us() != -1) is enable, "the quota of the NodeSLO")
    return time.monotonic() - begin_s
