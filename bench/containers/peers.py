"""The plug-in alone, a gRPC echo and a bare socket, each in a process of its own, and their CPU."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.containers.bare_runtime import BareRuntime

DEADLINE_S = 30.0

Ask = Callable[[bytes], float]  # a question -> seconds
AskOften = Callable[[int, float], list[float]]  # how often, seconds between -> seconds of each


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process with all its threads, as exactly as the kernel counts."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def process(module: str, *arguments: str) -> Iterator[int]:
    """Run a module until the block ends; yield its process id."""
    command = [sys.executable, "-m", f"bench.containers.beside.{module}", *arguments]
    child = subprocess.Popen(command)
    try:
        yield child.pid
    finally:
        child.terminate()
        child.wait(DEADLINE_S)


@contextmanager
def folder() -> Iterator[Path]:
    """Make a folder whose name leaves room for a socket's."""
    with tempfile.TemporaryDirectory(prefix="nri-") as name:
        yield Path(name)


@contextmanager
def plugin_alone(module: str = "plugin") -> Iterator[tuple[int, BareRuntime]]:
    """Run the plug-in with a fixed answer, or its echo, registered."""
    with (
        folder() as own,
        BareRuntime(own) as runtime,
        process(module, str(runtime.path)) as pid,
    ):
        runtime.register()
        yield pid, runtime


@contextmanager
def grpc_echo() -> Iterator[tuple[int, AskOften]]:
    """Run the echo over gRPC, and who asks it."""
    with folder() as own, process("grpc_echo", str(own / "s")) as pid:
        command = [sys.executable, "-m", "bench.containers.beside.grpc_asker", str(own / "s")]
        asker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert asker.stdin is not None
        assert asker.stdout is not None
        to, of = asker.stdin, asker.stdout

        def ask(count: int, pace_s: float) -> list[float]:
            to.write(f"{count} {pace_s}\n")
            chosen: list[float] = json.loads(of.readline())
            return chosen

        try:
            yield pid, ask
        finally:
            asker.terminate()
            asker.wait(DEADLINE_S)


@contextmanager
def socket_echo(requests: int, answered: int) -> Iterator[tuple[int, Ask]]:
    """Run the echo over a bare socket."""
    with (
        folder() as own,
        process("socket_echo", str(own / "s"), str(requests), str(answered)) as pid,
        socket.socket(socket.AF_UNIX) as connection,
    ):
        _connect(connection, own / "s")

        def ask(question: bytes) -> float:
            began_s = time.perf_counter()
            connection.sendall(question)
            connection.recv(answered, socket.MSG_WAITALL)
            return time.perf_counter() - began_s

        yield pid, ask


def _connect(connection: socket.socket, path: Path) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            connection.connect(str(path))
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.02)
        else:
            return
