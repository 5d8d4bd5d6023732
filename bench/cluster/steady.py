"""The agent on a busy node of a cluster: millicores, memory, and how long the loop is held.

As `steady_state` and `loop_hold`, with watches of which 250 pods come, a kubelet that lists them
each ten seconds, one pod a second that changes, and every optional collector, prediction and alias
switched on; once more with a NodeSLO that asks every strategy for something. For the holds, fifty
pods change while the agent does not run, so that it finds all of them at once.
"""

from __future__ import annotations

import json
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from itertools import count

from agent.config.containers import EnforceStrategiesSettings
from agent.kube.resources import NODE_METRICS
from bench.cluster.busy_citizen import NODE, busy_citizen, known_pod
from bench.cluster.control import Control, acknowledged_s
from bench.harness import Row
from bench.loop_hold import PATHS
from bench.node.busy_agent import SETTLED_S
from bench.node.busy_node import DEADLINE_S, RunningAgent
from bench.qos.cycle import SPEC
from bench.steady_state import MEASURED_S, SCRAPE_EVERY_S, WARM_S
from bench.usage.cgroup_trees import PODS

CHANGE_EVERY_S = 1.0
BURSTS = 20
BURST_PODS = 50
BURST_APART_S = 3.0  # usage is reported once a minute
STRATEGIES = {
    f"XPU_AGENT_ENFORCE__STRATEGIES__{field.upper()}": "on"
    for field in EnforceStrategiesSettings.__struct_fields__
}
NODE_SLO = {
    "apiVersion": "slo.koordinator.sh/v1alpha1",
    "kind": "NodeSLO",
    "metadata": {"name": NODE},
    "spec": {
        **SPEC,
        # evictions are decided each second, and none is due
        "resourceUsedThresholdWithBE": {
            "enable": True,
            "cpuSuppressPolicy": "cpuset",
            "cpuEvictThresholdPercent": 100,
            "memoryEvictThresholdPercent": 99,
        },
    },
}


def change(control: Control, pods: int, first: int) -> None:
    """Change so many pods."""
    for number in range(first, first + pods):
        control.put(known_pod(number % PODS, 1 + number))


def millicores(agent: RunningAgent, control: Control) -> float:
    """Return the agent's CPU time while pods change, its workers' not counted."""
    before_s, began_s = agent.cpu_s(), time.monotonic()
    scraped_s = began_s
    for number in count():
        now_s = time.monotonic()
        if now_s - began_s >= MEASURED_S:
            return 1000 * (agent.cpu_s() - before_s) / (now_s - began_s)
        change(control, 1, number)
        if now_s - scraped_s >= SCRAPE_EVERY_S:
            agent.scrape()
            scraped_s = now_s
        time.sleep(CHANGE_EVERY_S)
    raise AssertionError("counting has no end")


def longest_hold_ms() -> float:
    """Return how long the longest callback held the loop, in its own CPU time."""
    with busy_citizen(XPU_BENCH_ALL="1", XPU_BENCH_HOLDS="1") as (agent, control):
        time.sleep(SETTLED_S + 1)
        control.forget()
        for burst in range(BURSTS):
            agent.process.send_signal(signal.SIGSTOP)
            try:
                change(control, BURST_PODS, burst * BURST_PODS)
            finally:
                agent.process.send_signal(signal.SIGCONT)
            for path in PATHS:
                with urllib.request.urlopen(agent.url + path, timeout=DEADLINE_S) as page:
                    page.read()
            time.sleep(BURST_APART_S)
        if not acknowledged_s(control.requests(), NODE_METRICS.plural):
            raise RuntimeError("no report of usage was written meanwhile")
        agent.process.terminate()
        assert agent.process.stdout is not None
        holds: list[tuple[float, str]] = json.loads(agent.process.stdout.read().splitlines()[-1])
    for held_ms, what in holds:
        print(f"# {held_ms:.2f} ms: {what}", file=sys.stderr)
    return holds[0][0]


def rows() -> Iterator[Row]:
    """Yield CPU and memory without and with enforcement, and the longest hold."""
    for name, surroundings in (("steady", {}), ("enforced", STRATEGIES)):
        with busy_citizen(XPU_BENCH_ALL="1", **surroundings) as (agent, control):
            if surroundings:
                control.put(NODE_SLO)
            time.sleep(WARM_S)
            used = millicores(agent, control)
            rss_kib = float(agent.rss_kib())
        yield Row(name=f"cluster_{name}_cpu", metric="millicores", subject=used, gate="subject<=40")
        yield Row(
            name=f"cluster_{name}_memory", metric="RSS_KiB", subject=rss_kib, gate="subject<=98304"
        )
    held_ms = longest_hold_ms()
    yield Row(name="cluster_loop_hold", metric="cpu_ms", subject=held_ms, gate="subject<=2")
