"""How long one callback holds the event loop while the page, the metrics and the JSON are asked.

The metrics have all aliases of the agent's own, in both formats, compressed and not.

Milliseconds of the loop thread's own CPU time: time that the machine or another thread took is
not the callback's. The gate is that of every request: two milliseconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator

from bench.harness import Row
from bench.node.busy_agent import SETTLED_S
from bench.node.busy_node import DEADLINE_S, busy_node, running_agent

ROUNDS = 20
PATHS = ("metrics", "", "topology.svg", "api/v1/devices", "healthz?verbose")
ALIASES = "hami,hami_legacy,koordlet,node_exporter"
HEADERS = tuple(
    {"Accept": accept, "Accept-Encoding": coding}
    for accept in ("text/plain", "application/openmetrics-text")
    for coding in ("identity", "gzip")
)


def rows() -> Iterator[Row]:
    """Yield the longest hold."""
    os.environ["XPU_BENCH_HOLDS"] = "1"
    try:
        with busy_node() as node, running_agent(node, XPU_BENCH_ALIASES=ALIASES) as agent:
            time.sleep(SETTLED_S + 1)
            for _ in range(ROUNDS):
                for path in PATHS:
                    for headers in HEADERS if path == "metrics" else ({},):
                        request = urllib.request.Request(agent.url + path, headers=headers)
                        with urllib.request.urlopen(request, timeout=DEADLINE_S) as page:
                            page.read()
            process = agent.process
            process.terminate()
            assert process.stdout is not None
            holds_ms = json.loads(process.stdout.read().splitlines()[-1])
    finally:
        del os.environ["XPU_BENCH_HOLDS"]
    longest_ms = holds_ms[0][0]
    for held_ms, what in holds_ms:
        print(f"# {held_ms:.2f} ms: {what}", file=sys.stderr)
    yield Row(name="loop_hold_longest", metric="cpu_ms", subject=longest_ms, gate="subject<=2")
