"""How long the kubelet waits for Allocate, which holds up the admission of every pod of the node.

2,000 paced calls for one to eight of eight cards to the whole agent while it collects, is scraped
and decodes pods that change, seen from the kubelet. Peer: a gRPC echo on asyncio of the question,
limit: a bare socket with the bytes of question and answer, each in an idle process, asked call by
call in turn with the agent.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench.cluster.busy_citizen import busy_citizen
from bench.containers.bare_kubelet import BareKubelet
from bench.containers.nri_latency import kept_busy
from bench.containers.peers import folder, process, socket_echo
from bench.harness import Row
from bench.node.busy_agent import SETTLED_S
from tests.kubelet.endpoint import Endpoint
from tests.kubelet.manager import FakeKubelet

CARDS = 8
CALLS = 2000
PACE_S = 0.004
WARM = 200
RESOURCE = "nvidia.com/gpu"
QUESTION, ANSWER_BYTES = b"q" * 180, 220  # of four or five cards


def rows() -> Iterator[Row]:
    """Yield the latency with a busy agent."""
    subject, peer, limit = busy_latencies()
    for name, share, gate in (
        ("p50", 0.5, ""),
        ("p99", 0.99, "subject<=5"),
        ("p99.9", 0.999, ""),
        ("longest", 1.0, ""),
    ):
        yield Row(
            name=f"allocate_latency_{name}",
            metric="ms",
            subject=_quantile_ms(subject, share),
            peer=_quantile_ms(peer, share),
            limit=_quantile_ms(limit, share),
            gate=gate,
        )


def busy_latencies() -> tuple[list[float], list[float], list[float]]:
    """Return the seconds of each call: to the agent, to the echo, over a bare socket."""
    with (
        folder() as own,
        _kubelet(own) as registered,
        busy_citizen(XPU_BENCH_KUBELET=str(own)) as (agent, control),
        process("allocate_echo", str(own / "echo")),
        socket_echo(len(QUESTION), ANSWER_BYTES) as (_, ask_bare),
    ):
        endpoint = registered()
        time.sleep(SETTLED_S)
        ids = sorted(endpoint.devices)
        agent_kubelet, echo_kubelet = BareKubelet(endpoint.path), BareKubelet(str(own / "echo"))
        chosen: tuple[list[float], list[float], list[float]] = [], [], []
        with kept_busy(agent, control), closing(agent_kubelet), closing(echo_kubelet):
            for number in range(WARM + CALLS):
                some = ids[: number % CARDS + 1]
                for kubelet, seconds in ((agent_kubelet, chosen[0]), (echo_kubelet, chosen[1])):
                    seconds.append(kubelet.allocate(some))
                chosen[2].append(ask_bare(QUESTION))
                time.sleep(PACE_S)
        return chosen[0][WARM:], chosen[1][WARM:], chosen[2][WARM:]


@contextmanager
def _kubelet(own: Path) -> Iterator[Callable[[], Endpoint]]:
    """Run the strict kubelet on a thread; yield who waits for the agent's cards."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="kubelet", daemon=True)
    thread.start()
    kubelet = FakeKubelet(own)

    def registered() -> Endpoint:
        wait = kubelet.resource(RESOURCE, healthy=CARDS)
        return asyncio.run_coroutine_threadsafe(wait, loop).result()

    asyncio.run_coroutine_threadsafe(kubelet.start(), loop).result()
    try:
        yield registered
    finally:
        asyncio.run_coroutine_threadsafe(kubelet.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _quantile_ms(taken_s: list[float], share: float) -> float:
    """Return the least time that this share of the calls did not exceed."""
    ordered = sorted(taken_s)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3
