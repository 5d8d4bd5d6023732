"""A worker by itself: what it inherits, and that it never outlives who started it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agent.workers.process import WorkerSpec
from agent.workers.protocol import (
    EmptyReply,
    MethodRequest,
    OpenReply,
    WorkerMessage,
    decode_reply,
    encode_message,
    encode_start,
)
from plugins.vendors.fake.vendor import FakeSettings
from tests.fault.workers.watched import nothing_left, scene
from tests.patience import PATIENCE_S

__all__ = ["nothing_left"]
pytestmark = pytest.mark.usefixtures("nothing_left")

DEADLINE_S = PATIENCE_S
PARENT = """
import subprocess, sys
worker = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
worker.stdin.write(sys.argv[1].encode())
worker.stdin.flush()
print(worker.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    spec = WorkerSpec(vendor="fake", settings=FakeSettings(file=str(scene(tmp_path / "a"))))
    process = subprocess.Popen(
        spec.arguments(),
        env=spec.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    _say(process, encode_start(spec.vendor, spec.settings, events=True))
    with process:
        yield process
        process.kill()


def _say(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(line)
    process.stdin.flush()


def _hear(process: subprocess.Popen[bytes]) -> WorkerMessage:
    assert process.stdout is not None
    return decode_reply("fake", process.stdout.readline())


def _kinds(pid: int) -> list[str]:
    """Name what each descriptor beyond the first three is."""
    folder = Path(f"/proc/{pid}/fd")
    modes = {int(item.name): item.stat().st_mode for item in folder.iterdir()}
    kinds = {stat.S_ISFIFO: "pipe", stat.S_ISSOCK: "socket"}
    return sorted(
        next((kind for check, kind in kinds.items() if check(mode)), "other")
        for number, mode in modes.items()
        if number > 2
    )


def test_a_worker_inherits_its_pipes_and_nothing_else(
    worker: subprocess.Popen[bytes],
) -> None:
    assert _hear(worker) == OpenReply()
    assert _kinds(worker.pid) == ["pipe", "pipe"]
    assert os.readlink(f"/proc/{worker.pid}/fd/0") == "/dev/null"
    assert os.readlink(f"/proc/{worker.pid}/fd/1") == os.readlink(f"/proc/{worker.pid}/fd/2")


def test_a_worker_ends_at_a_close_request(worker: subprocess.Popen[bytes]) -> None:
    assert _hear(worker) == OpenReply()
    _say(
        worker, encode_message(MethodRequest(1, "ping")) + encode_message(MethodRequest(2, "close"))
    )
    assert [_hear(worker), _hear(worker)] == [EmptyReply(1), EmptyReply(2)]
    assert worker.wait(DEADLINE_S) == 0


def test_a_worker_ends_when_its_requests_end(worker: subprocess.Popen[bytes]) -> None:
    assert _hear(worker) == OpenReply()
    assert worker.stdin is not None
    worker.stdin.close()
    assert worker.wait(DEADLINE_S) == 0


def test_a_worker_that_is_talked_nonsense_to_says_so_and_ends(
    worker: subprocess.Popen[bytes],
) -> None:
    assert _hear(worker) == OpenReply()
    _say(worker, b"hello\n")
    assert worker.wait(DEADLINE_S) == 0
    assert worker.stderr is not None
    assert b"Garbage" in worker.stderr.read()


def test_a_worker_dies_with_the_agent_even_in_the_middle_of_a_call(tmp_path: Path) -> None:
    file = scene(tmp_path / "a", {"in": "open", "do": "print"}, {"in": "open", "do": "hang"})
    start = encode_start("fake", FakeSettings(file=str(file)), events=False).decode()
    command = [*WorkerSpec(vendor="fake").arguments()]
    command[command.index("--parent") + 1] = "0"  # it is the child of a child of ours
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, start, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        assert parent.stderr.readline() == b"a library prints in open\n"
        parent.kill()
        _, alive = psutil.wait_procs([worker], DEADLINE_S)
    assert alive == []


def test_a_worker_whose_agent_is_gone_before_it_starts_ends_at_once() -> None:
    arguments = list(WorkerSpec(vendor="fake").arguments())
    arguments[arguments.index("--parent") + 1] = "1"
    outcome = subprocess.run(
        arguments, input=b"", capture_output=True, timeout=DEADLINE_S, check=False
    )
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, b"", b"")
