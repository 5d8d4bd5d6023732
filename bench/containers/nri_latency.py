"""How long the runtime waits for CreateContainer, and what an answer costs.

Latency: 3,000 paced questions of 6.7 KB, each for a new container with a grant, to the whole agent
while it collects, is scraped and decodes pods that change, seen from the runtime. Peer: a gRPC
echo, limit: a bare socket, each in an idle process, asked in turn with the agent in one run.

CPU of one call, of the answering process: `echo` is the same message sent back, by the plug-in's
frames and calls and by gRPC's; `answer` is the whole plug-in with an adjustment of nine nodes,
six variables and four mounts, held against the same echo, which decides nothing.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from bench.cluster.busy_citizen import NODE, busy_citizen, known_pod
from bench.cluster.control import Control
from bench.containers.bare_runtime import BareRuntime
from bench.containers.messages import creation, pod, pod_object
from bench.containers.peers import Ask, cpu_s, folder, grpc_echo, plugin_alone, socket_echo
from bench.harness import Row, compare
from bench.node.busy_agent import SETTLED_S
from bench.node.busy_node import RunningAgent
from bench.usage.cgroup_trees import PODS
from proto.gen import nri_plugin_pb2 as nri

CALLS = 3000
PACE_S = 0.004
WARM = 200
BLOCK = 300  # of one, then of the other
CPU_CALLS = 600
CPU_ROUNDS = 5
SCRAPE_EVERY_S = 1.0
CHANGES_A_SECOND = 20
ANSWER_BYTES = 700


def rows() -> Iterator[Row]:
    """Yield latency with a busy agent, then CPU."""
    subject, peer, limit = busy_latencies()
    for name, taken_s in (("agent", subject), ("gRPC", peer), ("socket", limit)):
        blocks = (taken_s[at : at + BLOCK] for at in range(0, CALLS, BLOCK))
        reports = " ".join(f"{_quantile_ms(block, 0.99):.2f}" for block in blocks)
        print(f"# p99 of each {BLOCK} calls, {name}, ms: {reports}", file=sys.stderr)
    for name, share, gate in (
        ("p50", 0.5, ""),
        ("p99", 0.99, "subject<=2"),
        ("p99.9", 0.999, "subject<=10"),
        ("longest", 1.0, "subject<=1500"),
    ):
        yield Row(
            name=f"nri_latency_{name}",
            metric="ms",
            subject=_quantile_ms(subject, share),
            peer=_quantile_ms(peer, share),
            limit=_quantile_ms(limit, share),
            gate=gate,
        )
    yield from cpu_rows()


def cpu_rows() -> Iterator[Row]:
    """Yield the CPU time of one answer."""
    question = creation(pod(), 1)
    with (
        plugin_alone("ttrpc_echo") as (ours, ours_runtime),
        plugin_alone() as (plugin, plugin_runtime),
        grpc_echo() as (echo, ask_echo),
        socket_echo(len(question), ANSWER_BYTES) as (bare, ask_bare),
    ):
        peer = _cost(echo, lambda: ask_echo(CPU_CALLS, 0))
        limit = _cost(bare, partial(_often, ask_bare, question))
        for name, pid, runtime, gate in (
            ("nri_cpu_echo", ours, ours_runtime, "ratio_peer<=0.2"),
            ("nri_cpu_answer", plugin, plugin_runtime, "ratio_peer<=1"),
        ):
            subject = _cost(pid, partial(_often, partial(_create, runtime), question))
            yield compare(
                name,
                "us_a_call",
                subject,
                peer=peer,
                limit=limit,
                gate=gate,
                rounds=CPU_ROUNDS,
            )


def busy_latencies() -> tuple[list[float], list[float], list[float]]:
    """Return the seconds of each call: to the agent, over gRPC, over a bare socket."""
    question = creation(pod(), 1)
    with (
        folder() as own,
        BareRuntime(own) as runtime,
        busy_citizen(XPU_BENCH_NRI=str(runtime.path)) as (agent, control),
        grpc_echo() as (_, ask_echo),
        socket_echo(len(question), ANSWER_BYTES) as (_, ask_bare),
    ):
        runtime.register()
        sandbox = pod()
        control.put(pod_object(sandbox, NODE))  # a pod that nobody lists is given no card
        runtime.ask("RunPodSandbox", nri.RunPodSandboxRequest(pod=sandbox).SerializeToString())
        time.sleep(SETTLED_S)
        chosen: tuple[list[float], list[float], list[float]] = [], [], []
        with kept_busy(agent, control):
            ask_echo(WARM, PACE_S)
            for number in range(CALLS):
                chosen[0].append(_new_container(runtime, creation(sandbox, number)))
                chosen[2].append(ask_bare(question))
                time.sleep(PACE_S)
                if number % BLOCK == BLOCK - 1:
                    chosen[1].extend(ask_echo(BLOCK, PACE_S))
        return chosen


def _create(runtime: BareRuntime, question: bytes) -> float:
    return runtime.ask("CreateContainer", question)[0]


def _new_container(runtime: BareRuntime, question: bytes) -> float:
    """Ask for a container, see that its grant is in the answer, and have it stopped."""
    took_s, payload = runtime.ask("CreateContainer", question)
    if not nri.CreateContainerResponse.FromString(payload).HasField("adjust"):
        raise RuntimeError("the container did not get what it was granted")
    requests = nri.CreateContainerRequest.FromString(question)
    container_request = nri.StopContainerRequest(pod=requests.pod, container=requests.container)
    runtime.ask("StopContainer", container_request.SerializeToString())
    return took_s


@contextmanager
def kept_busy(agent: RunningAgent, control: Control) -> Iterator[None]:
    """Scrape the agent and change its pods all the while, from another process."""
    work = multiprocessing.get_context("fork").Process(
        target=_keep_busy, args=(agent, control.another()), daemon=True
    )
    work.start()
    try:
        yield
        if not work.is_alive():
            raise RuntimeError("nobody kept the agent busy")
    finally:
        work.terminate()
        work.join()


def _keep_busy(agent: RunningAgent, control: Control) -> None:
    number = 0
    while True:
        agent.scrape()
        for _ in range(CHANGES_A_SECOND):
            number += 1
            control.put(known_pod(number % PODS, number))
            time.sleep(SCRAPE_EVERY_S / CHANGES_A_SECOND)


def _often(ask: Ask, question: bytes) -> None:
    for _ in range(CPU_CALLS):
        ask(question)


def _cost(pid: int, work: Callable[[], object]) -> Callable[[], float]:
    """Return the figure of what a process used for one of the calls of some work."""

    def figure() -> float:
        before_s = cpu_s(pid)
        work()
        return (cpu_s(pid) - before_s) / CPU_CALLS * 1e6

    return figure


def _quantile_ms(taken_s: list[float], share: float) -> float:
    """Return the least time that this share of the calls did not exceed."""
    ordered = sorted(taken_s)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3
