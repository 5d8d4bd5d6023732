"""From a fault that the driver reports to the Device file that shows it, wall clock.

Each event is an Xid 79 of a card that was well. Peer: a poller that asks all cards each three
seconds and writes a file, as koordlet does; each second for the second row. Limit: one process
hears the event, another is told through a pipe and replaces a file of the same size durably.
The agent waits 50 ms for further changes; the row without that window shows its own share.
"""

from __future__ import annotations

import os
import random
import select
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Row
from bench.node.stub_node import (
    CARDS,
    DEADLINE_S,
    StubNode,
    count_writes,
    running,
    running_agent,
    stub_node,
    wait_until_bad,
)

EVENTS = 300
BURST = 100
POLLS = 12  # faults shown to each poller
SETTLED_S = 2.0  # after the start of a process
QUIET_S = 3.0  # without a write: the burst is over
XID = 8
PAUSE_S = (0.05, 0.25)  # between two events
_FATAL = (48, 62, 64, 79, 95, 110, 119)  # Xids that take a card out of service


def agent_ms(node: StubNode, events: int = EVENTS, window_ms: int = 50) -> list[float]:
    """Return how long each event took; an agent sees each card fail once."""
    chosen: list[float] = []
    chance = random.Random(1)
    while len(chosen) < events:
        with running_agent(node, window_ms) as device:
            time.sleep(SETTLED_S)
            for card in range(min(CARDS, events - len(chosen))):
                time.sleep(chance.uniform(*PAUSE_S))
                began_s = time.monotonic()
                node.play(f"event {card} type={XID} data=79 at=0")
                chosen.append((wait_until_bad(device, card + 1) - began_s) * 1e3)
    return chosen


def poller_ms(node: StubNode, interval_s: float) -> list[float]:
    """Return how long each of a few faults took to be in the poller's file."""
    node.begin()
    chosen: list[float] = []
    chance = random.Random(2)
    file = node.folder / "polled.yaml"
    file.unlink(missing_ok=True)
    with running(node, "bench.node.naive_poller", str(interval_s), str(file)):
        wait_until_bad(file, 0)
        for card in range(POLLS):
            time.sleep(chance.uniform(0, interval_s))
            began_s = time.monotonic()
            node.play(f"field {card} 230 u32 2")
            chosen.append((wait_until_bad(file, card + 1) - began_s) * 1e3)
    return chosen


def relay_ms(node: StubNode, size: int) -> list[float]:
    """Return how long each event took through a pipe into a file of that size."""
    node.begin()
    chosen: list[float] = []
    chance = random.Random(3)
    data = os.urandom(size)
    file = node.folder / "relayed"
    with running(node, "bench.node.event_relay") as relay:
        assert relay.stdout is not None
        fd = relay.stdout.fileno()
        _byte(fd)
        for number in range(EVENTS // 3):
            time.sleep(chance.uniform(0, 0.02))
            began_s = time.monotonic()
            node.play(f"event {number % CARDS} type={XID} data={number} at=0")
            _byte(fd)
            _write(file, data)
            chosen.append((time.monotonic() - began_s) * 1e3)
    return chosen


def burst_writes(node: StubNode) -> int:
    """Return how often the Device file is written after `BURST` events at once."""
    with running_agent(node) as device:
        time.sleep(SETTLED_S)
        kinds = [(card, data) for data in _FATAL for card in range(CARDS)]
        node.play(*(f"event {card} type={XID} data={data} at=0" for card, data in kinds[:BURST]))
        writes = count_writes(device, QUIET_S)
        wait_until_bad(device, CARDS)
        return writes


def _byte(fd: int) -> None:
    poll = select.poll()  # `select` knows no descriptor beyond 1023; other benches hold many
    poll.register(fd, select.POLLIN)
    if not poll.poll(DEADLINE_S * 1000) or not os.read(fd, 1):
        raise RuntimeError("the relay says nothing")


def _write(path: Path, data: bytes) -> None:
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def rows() -> Iterator[Row]:
    """Yield p50 and p99 of the agent, pollers and limit, and the writes of a burst."""
    with stub_node() as node:
        with running_agent(node) as device:
            size = device.stat().st_size
        agent, relay = agent_ms(node), relay_ms(node, size)
        each_3s, each_1s = poller_ms(node, 3.0), poller_ms(node, 1.0)
        for name, of, gate in (
            ("fault_to_cr_p50", statistics.median, ""),
            ("fault_to_cr_p99", _p99, "subject<=100"),
        ):
            limit = of(relay)
            yield Row(
                name=name,
                metric="wall_ms",
                subject=of(agent),
                peer=of(each_3s),
                limit=limit,
                gate=gate,
            )
            yield Row(
                name=f"{name}_1s",
                metric="wall_ms",
                subject=of(agent),
                peer=of(each_1s),
                limit=limit,
            )
        at_once = statistics.median(agent_ms(node, 3 * CARDS, window_ms=0))
        limit = statistics.median(relay)
        yield Row(name="fault_to_cr_no_window", metric="wall_ms", subject=at_once, limit=limit)
        yield Row(
            name="fault_burst",
            metric="writes",
            subject=float(burst_writes(node)),
            gate="subject<=5",
        )
