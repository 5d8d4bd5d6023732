"""The whole agent under its limits, while peers hold thousands of unfinished connections."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.process.agent import EIGHT_CARDS, Agent, started_by
from tests.realgroups import MOUNT, needs_v1

LIMIT_BYTES = 256 << 20  # of the manifest
DESCRIPTORS = 64
HEADER = b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 8000
FLOOD = 2000
MAX_SOCKETS = 64
OFTEN = {"XPU_AGENT_PUBLISH__INTERVAL_S": "1"}


@contextmanager
def limited_memory() -> Iterator[tuple[str, ...]]:
    """Yield what starts a command in a memory group of the manifest's size."""
    group = MOUNT / "memory" / f"xpu-agent-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
        yield ("sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group))
    finally:
        group.rmdir()


def hold(agent: Agent, count: int, data: bytes) -> list[socket.socket]:
    """Open so many connections that each send these bytes and no more."""
    where = urlsplit(agent.url)
    peers = []
    for _ in range(count):
        peers.append(socket.create_connection((str(where.hostname), where.port or 0), 60))
        try:
            peers[-1].sendall(data)
        except OSError:
            continue  # hung up on already
    return peers


def sockets(pid: int) -> int:
    """Return how many sockets a process holds."""
    fds = Path("/proc", str(pid), "fd").iterdir()
    return sum(os.readlink(fd).startswith("socket:") for fd in fds)


def answers(agent: Agent) -> None:
    """Check probes, metrics and that the loops go on."""
    assert agent.get("livez") == (200, "ok\n")
    agent.wait_until(lambda: agent.get("readyz") == (200, "ok\n"), "ready")
    assert "xpu_agent_build_info" in agent.get("metrics")[1]
    published = agent.out / "device.yaml"
    published.unlink()
    agent.wait_until(published.exists, "the Device published again")


@needs_v1
def test_unfinished_headers_use_up_neither_memory_nor_the_answers(tmp_path: Path) -> None:
    with limited_memory() as prefix:
        arguments = ("--host", str(EIGHT_CARDS))
        with started_by(prefix, tmp_path / "out", *arguments, **OFTEN) as agent:
            peers = hold(agent, FLOOD, HEADER)
            answers(agent)
            assert sockets(agent.process.pid) < MAX_SOCKETS
            for peer in peers:
                peer.close()
            assert agent.end() == 0


@pytest.mark.parametrize("data", [b"", HEADER], ids=["nothing", "half a header"])
def test_with_few_descriptors_probes_and_publishing_go_on(tmp_path: Path, data: bytes) -> None:
    limit = ("sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$0" "$@"')
    with started_by(limit, tmp_path / "out", "--host", str(EIGHT_CARDS), **OFTEN) as agent:
        peers = hold(agent, 2 * DESCRIPTORS, data)
        answers(agent)
        for peer in peers:
            peer.close()
        assert agent.end() == 0
