"""From the start of the process to the first Device file of an eight-card host, wall clock.

Peer: an agent that imports its libraries before it looks at anything, up to that point only.
Limit: an interpreter that starts and ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Row, compare

HOST = Path(__file__).parents[1] / "fixtures" / "hosts" / "qemu-4numa-8xh100"
DEADLINE_S = 30.0
EAGER = "import aiohttp.web, asyncio, msgspec, prometheus_client, psutil, yaml, pynvml"


def first_device_ms() -> float:
    """Start the agent and wait for `device.yaml`; end it by its own process id."""
    with tempfile.TemporaryDirectory(prefix="xpu-bench-") as folder:
        out = Path(folder) / "out"
        command = [str(Path(sys.executable).with_name("xpu-agent")), "run", "--standalone"]
        command += ["--host", str(HOST), "--out", str(out), "--listen", "127.0.0.1:0"]
        began_s = time.monotonic()
        agent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not (out / "device.yaml").exists():
                if agent.poll() is not None or time.monotonic() - began_s > DEADLINE_S:
                    raise RuntimeError(f"no Device file; the agent's status is {agent.poll()}")
                time.sleep(0.001)
            return (time.monotonic() - began_s) * 1e3
        finally:
            if agent.poll() is None:
                os.kill(agent.pid, signal.SIGTERM)
                agent.wait(DEADLINE_S)


def interpreter_ms(code: str) -> float:
    """Time a fresh interpreter that runs `code`."""
    began_s = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", code], check=True
    )  # a timeout would be waited for in steps
    return (time.monotonic() - began_s) * 1e3


def rows() -> Iterator[Row]:
    """Yield the one row."""
    yield compare(
        "startup_first_device",
        "wall_ms",
        first_device_ms,
        peer=lambda: interpreter_ms(EAGER),
        limit=lambda: interpreter_ms("pass"),
        gate="subject<=600",
    )
