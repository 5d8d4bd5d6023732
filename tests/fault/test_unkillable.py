"""Workers that do not die: a tracer keeps their end from us, as a call stuck in a driver does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.probe.life import Timing
from tests.fault.watched import Watched, go, nothing_left, scene

__all__ = ["nothing_left"]
pytestmark = pytest.mark.usefixtures("nothing_left")

# PTRACE_SEIZE (0x4206): a traced process is not reaped by its parent before the tracer is done
TRACER = (
    "import ctypes, sys; "
    "print(ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), 0, 0), flush=True); "
    "sys.stdin.read()"
)
GRASP_S = 1.5  # time to take hold of a process before it is to be killed


class Grip:
    """Keeps a process from being reaped until released."""

    def __init__(self, pid: int) -> None:
        self._tracer = subprocess.Popen(
            [sys.executable, "-c", TRACER, str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._tracer.stdout is not None
        self.holds = self._tracer.stdout.readline() == b"0\n"

    def release(self) -> None:
        """Let the process go."""
        self._tracer.communicate()


def test_a_process_that_does_not_die_is_left_and_at_most_two_are_there(tmp_path: Path) -> None:
    async def test(grips: ExitStack) -> None:
        file = scene(tmp_path / "a", {"in": "sample", "do": "hang"})
        worker = Watched(file, Timing(sample_deadline_s=GRASP_S), skip_waits=True)
        held: list[int] = []
        for _ in range(2):
            pid = (await worker.until_state("ready")).pid
            assert pid is not None
            grip = Grip(pid)
            grips.callback(grip.release)
            if not grip.holds:
                pytest.skip("this kernel does not let one process trace another")
            held.append(pid)
            await worker.until(lambda states: states[-1].reason == "Unkillable")
            assert worker.states[-1].state == "stalled"
            assert str(pid) in worker.states[-1].message
        assert len(set(held)) == 2
        # no third one is started, however long it takes
        until_s = worker.clock.mono_s + 3600
        while worker.clock.mono_s < until_s:
            await asyncio.sleep(0)
        assert (worker.states[-1].reason, worker.states[-1].restarts) == ("Unkillable", 1)
        scene(file)
        grips.close()
        assert (await worker.until_state("ready")).pid not in held
        await worker.client.stop()

    with ExitStack() as grips:
        go(test(grips))
