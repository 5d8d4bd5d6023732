"""From the start of the process to the first Device that the API server has, wall clock.

Eight cards, TLS on loopback, the server in a process of its own; the moment is that of its answer.
Peer: all libraries first and the Kubernetes client for Python, then one apply of a prepared
Device. Limit: an interpreter with nothing but one PATCH. Neither of them looks at any hardware.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import msgspec

from agent.kube.api import FIELD_MANAGER
from agent.kube.resources import DEVICES
from bench.cluster.control import Control, acknowledged_s
from bench.cluster.write_server import Served, api_server
from bench.harness import Row, compare
from bench.startup import DEADLINE_S, HOST

ROUNDS = 9
LOOK_S = 0.25  # between two looks at the server's log: they take its time
Start = Callable[[str], list[str]]  # the name of a Node -> a command line


class Cluster:
    """A server with a Node for each start."""

    def __init__(self, served: Served, folder: Path) -> None:
        """`folder` is for whatever the processes write."""
        self.served = served
        self._control = Control(served)
        self._folder = folder
        self._numbers = count()
        self.device = folder / "device.json"

    def first_device_ms(self, command: Start) -> float:
        """Start a process for a new Node; return when the server had its Device."""
        name = f"node-{next(self._numbers)}"
        self._control.forget()
        own = self._control.environment(name, self._folder / name)
        began_s = time.time()
        process = subprocess.Popen(
            command(name),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **own},
        )
        try:
            while time.time() - began_s < DEADLINE_S:
                time.sleep(LOOK_S)
                writes = acknowledged_s(self._control.requests(), DEVICES.plural)
                if writes:
                    at_s, write = writes[0]
                    self._keep(write.body)
                    return (at_s - began_s) * 1e3
            raise RuntimeError(f"no Device; the status of {command(name)} is {process.poll()}")
        finally:
            process.terminate()
            process.wait(DEADLINE_S)

    def _keep(self, body: dict[str, object]) -> None:
        """Keep the Device for those that do not make it themselves."""
        bare = {name: part for name, part in body.items() if name != "metadata"}
        self.device.write_bytes(msgspec.json.encode(bare))

    def agent(self, _: str) -> list[str]:
        """Return the agent's command line; its environment names the Node."""
        command = [str(Path(sys.executable).with_name("xpu-agent")), "run", "--host", str(HOST)]
        return [*command, "--listen", "127.0.0.1:0"]

    def eager(self, name: str) -> list[str]:
        """Return the peer's command line."""
        module = [sys.executable, "-m", "bench.cluster.beside.eager_writer"]
        return [*module, self.served.kubeconfig, name, str(self.device)]

    def bare(self, name: str) -> list[str]:
        """Return the limit's command line."""
        url = f"{self.served.url}{DEVICES.path(name)}?fieldManager={FIELD_MANAGER}"
        trust = [self.served.ca_file, f"{self.served.account}/token"]
        script = str(Path(__file__).parent / "beside" / "bare_patch.py")
        return [sys.executable, script, url, *trust, str(self.device)]


def rows() -> Iterator[Row]:
    """Yield the one row."""
    names = [f"node-{number}" for number in range(3 * (ROUNDS + 1))]
    with api_server(*names) as served, tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(served, Path(folder))
        yield compare(
            "cluster_first_device",
            "wall_ms",
            lambda: cluster.first_device_ms(cluster.agent),
            peer=lambda: cluster.first_device_ms(cluster.eager),
            limit=lambda: cluster.first_device_ms(cluster.bare),
            gate="subject<=900,ratio_peer<=1",
            rounds=ROUNDS,
        )
