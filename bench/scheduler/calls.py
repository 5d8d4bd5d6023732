"""Wall time of filter and prioritize calls of a busy cluster; peer: each node decided anew.

Between two calls a pod is bound and another one ends, so that two nodes differ from before.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Iterator

from agent.clock import SystemClock
from bench.harness import Row
from bench.scheduler.cluster import bodies, cluster, pod_on, requests
from plugins.scheduler.cluster_state import ClusterState
from plugins.scheduler.decisions import DecisionMaker
from plugins.scheduler.devices.allocator import NodeRefused, filter_node
from plugins.scheduler.devices.device_table import GPU
from plugins.scheduler.devices.scores import ScoringStrategy, node_score
from plugins.scheduler.server.extender import Extender
from plugins.scheduler.server.extender_wire import decode_nodes_request

SIZES = ((1000, "subject<=2"), (5000, "subject<=6,ratio_peer<=0.2"), (10_000, "subject<=12"))
CALLS = 300
WARM_CALLS = 40
PEER_CALLS = 5
MAX_MEMORY_MIB = 128


def rows() -> Iterator[Row]:
    """Yield the 99th percentile of both calls for each size, and the memory of the largest."""
    before_mib = resident_mib()
    for size, gate in SIZES:
        rng = random.Random(size)
        state = cluster(size, rng)
        names = list(state.node_names())
        extender = Extender(DecisionMaker(state), SystemClock())
        sent = list(bodies(names))
        calls: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
            ("filter", lambda body, e=extender: e.filter(decode_nodes_request(body))),  # type: ignore[misc]
            ("prioritize", lambda body, e=extender: e.prioritize(decode_nodes_request(body))),  # type: ignore[misc]
        )
        for verb, call in calls:
            peer_ms = _scan_ms(state, names) if verb == "filter" else None
            durations_ms = _durations_ms(call, state, sent, rng)
            subject = percentile(durations_ms, 0.99)
            row_gate = gate if peer_ms is not None else gate.partition(",")[0]
            yield Row(
                name=f"scheduler_{verb}_{size}_p99",
                metric="wall_ms",
                subject=subject,
                peer=peer_ms,
                gate=row_gate,
            )
            yield Row(
                name=f"scheduler_{verb}_{size}_p50",
                metric="wall_ms",
                subject=percentile(durations_ms, 0.5),
            )
    yield Row(
        name="scheduler_memory_10000",
        metric="MiB",
        subject=resident_mib() - before_mib,
        gate=f"subject<={MAX_MEMORY_MIB}",
    )


def _durations_ms(
    call: Callable[[bytes], bytes], state: ClusterState, sent: list[bytes], rng: random.Random
) -> list[float]:
    durations: list[float] = []
    bound: list[str] = []
    names = list(state.node_names())
    for number in range(WARM_CALLS + CALLS):
        _update(state, names, bound, number, rng)
        body = sent[number % len(sent)]
        begun_s = time.perf_counter()
        call(body)
        if number >= WARM_CALLS:
            durations.append((time.perf_counter() - begun_s) * 1e3)
    for uid in bound:
        state.remove_pod(uid)
    return durations


def _update(
    state: ClusterState, names: list[str], bound: list[str], number: int, rng: random.Random
) -> None:
    """Bind a pod, and end one of those bound before."""
    node, minor = rng.choice(names), rng.randrange(8)
    if (GPU, minor) not in state.state(node).usage.amounts:
        uid = f"new-{number}"
        state.set_pod(pod_on(node, minor, uid))
        bound.append(uid)
    if len(bound) > 20:
        state.remove_pod(bound.pop(0))


def _scan_ms(state: ClusterState, names: list[str]) -> float:
    """Return what it takes to decide each node anew, as the median of a few calls."""
    durations: list[float] = []
    strategy = ScoringStrategy()
    for request in requests()[:PEER_CALLS]:
        begun_s = time.perf_counter()
        for name in names:
            node = state.state(name)
            try:
                filter_node(node, request)
            except NodeRefused:
                continue
            if node.table is not None:
                node_score(node.table, node.usage, request, strategy)
        durations.append((time.perf_counter() - begun_s) * 1e3)
    return percentile(durations, 0.5)


def percentile(values: list[float], fraction: float) -> float:
    """Return the nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def resident_mib() -> float:
    """Return the largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
