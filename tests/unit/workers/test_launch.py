from __future__ import annotations

import os
import resource
import selectors
import signal

import pytest

from agent.workers.process import WorkerSpec, launch
from agent.workers.protocol import encode_start
from tests.patience import PATIENCE_S


def descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")


@pytest.mark.parametrize("left", range(6))
def test_a_start_for_which_descriptors_are_short_keeps_none(left: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    entries = [os.dup(0) for _ in range(left)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (entries[-1] + 1 if entries else 0, hard))
        for fd in entries:
            os.close(fd)
        with pytest.raises(OSError, match="Too many open files"):
            launch(WorkerSpec(vendor="fake"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        before = len(descriptors())
        spares = [os.dup(0) for _ in range(left)]
        assert sorted(spares) == sorted(entries)
        assert len(descriptors()) == before + left
        for fd in spares:
            os.close(fd)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_worker_has_no_file_that_the_agent_left_inheritable() -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    spec = WorkerSpec(vendor="fake")
    process = launch(spec)
    try:
        os.write(process.stdin, encode_start("fake", spec.settings, events=False))
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(PATIENCE_S), "no answer within the deadline"
        folder = f"/proc/{process.pid}/fd"
        files = {os.readlink(f"{folder}/{number}") for number in os.listdir(folder)}
        assert os.readlink(f"/proc/self/fd/{writing}") not in files
    finally:
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
        for fd in (reading, writing, process.stdin, process.stdout, process.stderr):
            os.close(fd)
