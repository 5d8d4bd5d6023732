"""Two agents on one node, as real processes: one holds, the other one takes over."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.app.lock import describe_process, read_holder, try_lock
from tests.process.agent import DEADLINE_S, ROOT

# what a start does before it loads anything else, and the first thing that a stop does
CONTENDER = """
import signal, subprocess, sys, time
from agent.app.lock import describe_process, wait_for_lock
def say(text): print(text, flush=True)
held = wait_for_lock(sys.argv[1], lambda: describe_process("node-a", time.time()), say)
if held is None:
    say("stopped without it")
    sys.exit()
say(f"holds {time.monotonic()} {held.crash_message() or 'after nobody or one that left'}")
child = subprocess.Popen(["sleep", "600"], close_fds=False) if "child" in sys.argv else None
signal.signal(signal.SIGTERM, lambda *_: (held.mark_leaving(), sys.exit()))
if child is not None:
    say(f"child {child.pid}")
signal.pause()
"""


class Contender:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def line(self) -> str:
        """Return its next line."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(DEADLINE_S), "no line within the deadline"
        return self.process.stdout.readline().decode().rstrip()

    def end(self, number: signal.Signals) -> float:
        """Send it a signal; return when, by the clock that all processes share."""
        sent_s = time.monotonic()
        self.process.send_signal(number)
        return sent_s


@contextmanager
def contender(folder: Path, *more: str) -> Iterator[Contender]:
    process = subprocess.Popen(
        [sys.executable, "-c", CONTENDER, str(folder), *more],
        stdout=subprocess.PIPE,
        bufsize=0,  # a line that was read ahead would wake no selector
        cwd=ROOT,
    )
    try:
        yield Contender(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(DEADLINE_S)


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGKILL, "ended without leaving"), (signal.SIGTERM, "after nobody or one that left")],
)
def test_the_second_agent_takes_over_from_one_that_is_killed_or_leaves(
    tmp_path: Path, number: signal.Signals, said: str
) -> None:
    with contender(tmp_path) as first, contender_after(first, tmp_path) as second:
        waiting = second.line()
        assert f"(process {first.process.pid}, node node-a" in waiting
        assert "standing by" in waiting
        ended_s = first.end(number)
        words = second.line().split(maxsplit=2)
        assert words[0] == "holds"
        assert said in words[2]
        if number is signal.SIGKILL:
            assert f"process {first.process.pid}" in words[2]
        after_s = float(words[1]) - ended_s
        print(f"taken over {after_s * 1000:.0f} ms after {number.name}")  # noqa: T201 - a figure
        held_by = read_holder(str(tmp_path))
        assert held_by is not None
        assert (held_by.pid, held_by.state) == (second.process.pid, "running")


@contextmanager
def contender_after(first: Contender, folder: Path) -> Iterator[Contender]:
    """Start another one when the first holds the lock."""
    assert first.line().startswith("holds ")
    with contender(folder) as second:
        yield second


def test_of_three_agents_one_holds_at_any_time(tmp_path: Path) -> None:
    with (
        contender(tmp_path) as first,
        contender_after(first, tmp_path) as second,
        contender(tmp_path) as third,
    ):
        waiting = [second, third]
        for each in waiting:
            assert "standing by" in each.line()
        first.end(signal.SIGKILL)
        with selectors.DefaultSelector() as selector:
            for each in waiting:
                assert each.process.stdout is not None
                selector.register(each.process.stdout, selectors.EVENT_READ, each)
            holding = next(
                each
                for each in (selector.select(DEADLINE_S)[0][0].data for _ in range(2))
                if each.line().startswith("holds ")
            )
        assert try_lock(str(tmp_path), describe_process("node-a", 0.0)) is None
        held_by = read_holder(str(tmp_path))
        assert held_by is not None
        assert held_by.pid == holding.process.pid


def test_a_standby_stops_on_a_signal_and_leaves_the_file_alone(tmp_path: Path) -> None:
    with contender(tmp_path) as first, contender_after(first, tmp_path) as second:
        assert "standing by" in second.line()
        second.end(signal.SIGTERM)
        assert second.line() == "stopped without it"
        assert second.process.wait(DEADLINE_S) == 0
        held_by = read_holder(str(tmp_path))
        assert held_by is not None
        assert held_by.pid == first.process.pid


def test_what_the_holder_started_does_not_keep_the_lock_when_it_is_killed(tmp_path: Path) -> None:
    with contender(tmp_path, "child") as first:
        assert first.line().startswith("holds ")
        child = int(first.line().removeprefix("child "))
        try:
            first.end(signal.SIGKILL)
            first.process.wait(DEADLINE_S)
            lock = try_lock(str(tmp_path), describe_process("node-a", 0.0))
            assert lock is not None
            assert Path(f"/proc/{child}").exists()
            lock.release()
        finally:
            os.kill(child, signal.SIGKILL)
