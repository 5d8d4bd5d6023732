"""From a fault that the driver reports to the API server's answer to the Device that shows it.

As `fault_to_cr`, in a cluster: sixteen cards of the NVML stub, each fails once with Xid 79; TLS on
loopback, the server in a process of its own, wall clock. The agent's share includes the 50 ms in
which it waits for further changes. Peer: a poller that asks all cards each three seconds and
replaces the Device, as koordlet does. Limit: one process hears the event, another is told through
a pipe and sends one patch of the same bytes over a connection that is kept.
"""

from __future__ import annotations

import os
import random
import select
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from agent.kube.api import APPLY_PATCH_TYPE, FIELD_MANAGER
from agent.kube.resources import DEVICES
from bench.cluster.control import Control, acknowledged_s, kept_connection
from bench.cluster.write_server import Served, api_server
from bench.harness import Row
from bench.node.stub_node import CARDS, DEADLINE_S, StubNode, running, stub_node
from tests.apiserver.log import Logged
from tests.fault.nvml_stub import build

NODE = "node-a"
AGENTS = 12  # each sees sixteen faults
RELAYED = 100
SETTLED_S = 2.5  # after the start of a process
APART_S = (0.2, 0.4)  # between two faults of an agent
POLLS = 12
POLL_S = 3.0
XID = 8


class Cluster:
    """The node with its cards, and the API server it belongs to."""

    def __init__(self, node: StubNode, served: Served) -> None:
        """Take both; the server knows the Node."""
        self.node, self.served = node, served
        self.control = Control(served)
        self.device = b""  # as the agent wrote it last

    @contextmanager
    def agent(self, window_ms: int = 50) -> Iterator[None]:
        """Run a fresh agent on the node with all cards well."""
        self.node.begin()
        with tempfile.TemporaryDirectory(prefix="xpu-bench-out-") as out:
            arguments = (str(self.node.tree), str(build()), out, str(window_ms))
            self.node.surroundings = self.control.environment(NODE, Path(out))
            with running(self.node, "bench.node.stub_agent", *arguments):
                time.sleep(SETTLED_S)
                yield

    def agent_ms(self, agents: int = AGENTS, window_ms: int = 50) -> list[float]:
        """Return how long each fault took."""
        chosen: list[float] = []
        chance = random.Random(1)
        for _ in range(agents):
            with self.agent(window_ms):
                self.control.forget()
                began = []
                for card in range(CARDS):
                    began.append(time.time())
                    self.node.play(f"event {card} type={XID} data=79 at=0")
                    time.sleep(chance.uniform(*APART_S))
                chosen += self._shown_ms(began)
        return chosen

    def poller_ms(self) -> list[float]:
        """Return how long each of a few faults took until the poller had written it."""
        self.node.begin()
        chance = random.Random(2)
        module = ("bench.cluster.beside.naive_citizen", str(POLL_S), NODE, self.served.kubeconfig)
        with running(self.node, *module):
            time.sleep(SETTLED_S)
            self.control.forget()
            began = []
            for card in range(POLLS):
                began.append(time.time())
                self.node.play(f"field {card} 230 u32 2")
                time.sleep(POLL_S + chance.uniform(0.2, 1.0))
            return self._shown_ms(began)

    def relay_ms(self) -> list[float]:
        """Return how long each fault took through a pipe and one patch."""
        self.node.begin()
        chance = random.Random(3)
        chosen: list[float] = []
        connection = kept_connection(self.served)
        path = f"{DEVICES.path(NODE)}?fieldManager={FIELD_MANAGER}&force=true"
        headers = {"Authorization": f"Bearer {self.served.token}", "Content-Type": APPLY_PATCH_TYPE}
        with running(self.node, "bench.node.event_relay") as relay:
            assert relay.stdout is not None
            fd = relay.stdout.fileno()
            _byte(fd)
            for number in range(RELAYED):
                time.sleep(chance.uniform(*APART_S))
                body = self.device.replace(b"GPU-", b"GPU%d-" % (number % 2))
                began_s = time.monotonic()
                self.node.play(f"event {number % CARDS} type={XID} data={number} at=0")
                _byte(fd)
                connection.request("PATCH", path, body, headers)
                answer = connection.getresponse()
                answer.read()
                chosen.append((time.monotonic() - began_s) * 1e3)
                assert answer.status == 200, answer.status
        connection.close()
        return chosen

    def _shown_ms(self, began: list[float]) -> list[float]:
        """Return for each fault how long it took to be in a Device that the server took."""
        writes = acknowledged_s(self.control.requests(), DEVICES.plural)
        chosen = []
        for number, began_s in enumerate(began, 1):
            shown = [at_s for at_s, write in writes if _bad(write) >= number]
            if not shown:
                raise RuntimeError(f"fault {number} is in none of {len(writes)} Devices")
            chosen.append((shown[0] - began_s) * 1e3)
        self.device = msgspec.json.encode(writes[-1][1].body)
        return chosen


def _bad(write: Logged) -> int:
    return sum(not card["health"] for card in write.body["spec"]["devices"])


def _byte(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(DEADLINE_S * 1000) or not os.read(fd, 1):
        raise RuntimeError("the relay says nothing")


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def rows() -> Iterator[Row]:
    """Yield p50 and p99 of all three, and the agent's share without its window."""
    with stub_node() as node, api_server(NODE) as served:
        cluster = Cluster(node, served)
        agent = cluster.agent_ms()
        relayed = cluster.relay_ms()
        at_once = cluster.agent_ms(2, window_ms=0)
        polled = cluster.poller_ms()  # last: the agent would leave the Device to it
    for name, of, gate in (
        ("fault_to_ack_p50", statistics.median, ""),
        ("fault_to_ack_p99", _p99, "subject<=100,ratio_peer<=0.1"),
    ):
        yield Row(
            name=name,
            metric="wall_ms",
            subject=of(agent),
            peer=of(polled),
            limit=of(relayed),
            gate=gate,
        )
    yield Row(
        name="fault_to_ack_no_window",
        metric="wall_ms",
        subject=statistics.median(at_once),
        limit=statistics.median(relayed),
    )
