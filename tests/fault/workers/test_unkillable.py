"""Workers that do not die: the kernel keeps them asleep, as a call stuck in a driver does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.workers.client import MAX_STUCK
from agent.workers.lifecycle import WorkerTiming
from tests.fault.workers.watched import QUICK, Watched, go, nothing_left, scene

__all__ = ["nothing_left"]
pytestmark = pytest.mark.usefixtures("nothing_left")

FREEZER = Path("/sys/fs/cgroup/freezer")
# PTRACE_SEIZE (0x4206): a traced process is not reaped by its parent before the tracer is done
TRACER = (
    "import ctypes, sys; "
    "print(ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), 0, 0), flush=True); "
    "sys.stdin.read()"
)
GRASP_S = 1.5  # time to take hold of a process before it is to be killed

Hold = Callable[[int], None]


@contextlib.contextmanager
def asleep() -> Iterator[Hold]:
    """Put processes into uninterruptible sleep: the freezer of version 1 does just that."""
    folders: list[Path] = []

    def hold(pid: int) -> None:
        folder = FREEZER / f"xpu-agent-test-{pid}"
        folder.mkdir()
        folders.append(folder)
        (folder / "cgroup.procs").write_text(str(pid))
        (folder / "freezer.state").write_text("FROZEN")

    try:
        yield hold
    finally:
        for folder in folders:
            (folder / "freezer.state").write_text("THAWED")
        for folder in folders:
            _remove(folder)


def _remove(folder: Path) -> None:
    for _ in range(100):
        with contextlib.suppress(OSError):  # who was killed in it leaves in a moment
            folder.rmdir()
            return
        time.sleep(0.05)


@contextlib.contextmanager
def traced() -> Iterator[Hold]:
    """Keep processes from being reaped, where the kernel has no freezer for us."""
    with ExitStack() as tracers:

        def hold(pid: int) -> None:
            tracer = subprocess.Popen(
                [sys.executable, "-c", TRACER, str(pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            tracers.callback(tracer.communicate)
            assert tracer.stdout is not None
            if tracer.stdout.readline() != b"0\n":
                pytest.skip("this kernel does not let one process trace another")

        yield hold


HOLDERS = [
    pytest.param(
        asleep,
        marks=pytest.mark.skipif(not os.access(FREEZER, os.W_OK), reason="no freezer to write to"),
        id="in uninterruptible sleep",
    ),
    pytest.param(traced, id="not reaped"),
]


async def _leave_three(worker: Watched, hold: Hold) -> list[int]:
    """Have a worker that hangs replaced, until no more is started; return who was left."""
    entries: list[int] = []
    for _ in range(MAX_STUCK):
        ready = await worker.until_state("ready")
        assert ready.pid is not None
        hold(ready.pid)
        entries.append(ready.pid)
        await worker.until(lambda states: states[-1].reason == "Unkillable")
    return entries


@pytest.mark.parametrize("holder", HOLDERS)
def test_three_processes_that_do_not_die_are_left_and_no_fourth_is_started(
    tmp_path: Path, holder: Callable[[], contextlib.AbstractContextManager[Hold]]
) -> None:
    async def test(holding: ExitStack) -> None:
        good = Watched(scene(tmp_path / "good"), QUICK, skip_waits=False)
        file = scene(tmp_path / "a", {"in": "sample", "do": "hang"})
        worker = Watched(file, WorkerTiming(sample_deadline_s=GRASP_S), skip_waits=True)
        entries = await _leave_three(worker, holding.enter_context(holder()))
        last = worker.states[-1]
        assert (last.state, last.restarts, len(set(entries))) == ("stalled", 2, 3)
        assert all(str(pid) in last.message for pid in entries)
        assert last.message.endswith("hangs in the kernel and cannot be ended: no more is started")
        assert last.inventory.value is not None
        output = len(good.states)
        until_s = worker.clock.mono_s + 3600
        while worker.clock.mono_s < until_s:
            await asyncio.sleep(0)
        assert worker.states[-1].restarts == 2
        await good.until(lambda states: len(states) > output + 5)
        scene(file)
        holding.close()
        assert (await worker.until_state("ready")).pid not in entries
        await asyncio.gather(worker.client.stop(), good.client.stop())
        assert not good.reasons()

    with ExitStack() as holding:
        go(test(holding))


@pytest.mark.skipif(not os.access(FREEZER, os.W_OK), reason="no freezer to write to")
def test_a_release_says_which_process_still_holds_the_driver(tmp_path: Path) -> None:
    async def test(holding: ExitStack) -> None:
        hold = holding.enter_context(asleep())
        file = scene(tmp_path / "a", {"in": "sample", "do": "hang"})
        worker = Watched(file, WorkerTiming(sample_deadline_s=60), skip_waits=False)
        pid = (await worker.until_state("ready")).pid
        assert pid is not None
        hold(pid)
        await worker.client.release(600.0)
        released = await worker.until_state("released")
        assert f"but process {pid} hangs in the kernel" in released.message
        holding.close()
        await worker.client.stop()

    with ExitStack() as holding:
        go(test(holding))
