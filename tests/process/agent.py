"""The agent as a process of its own, for tests: started, asked over HTTP, ended by its pid."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
EIGHT_CARDS = ROOT / "fixtures" / "hosts" / "qemu-4numa-8xh100"
NO_DEVICES = ROOT / "fixtures" / "hosts" / "vm-no-devices"
DEADLINE_S = PATIENCE_S
PATIENT = ("--timeout-s", "60")  # of the doctor: a busy machine is no fault of a source


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "agent", *arguments]


def run_agent(*arguments: str, timeout_s: float = DEADLINE_S, **environment: str) -> Any:
    """Run one command to its end."""
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=ROOT,
        env={**os.environ, **environment},
        check=False,
    )


@dataclass
class Agent:
    """A running daemon."""

    process: subprocess.Popen[str]
    out: Path
    lines: list[str] = field(default_factory=list)
    url: str = ""

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=DEADLINE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def snapshot(self) -> Any:
        return json.loads(self.get("api/v1/snapshot")[1])

    def check(self, name: str) -> str:
        """Return what the agent says of one of its checks; empty while it says nothing."""
        lines = self.get("healthz?verbose")[1].splitlines()
        return next((line for line in lines if line[4:].startswith(f"{name} ")), "")

    def vendor(self, name: str) -> Any:
        return next(v for v in self.snapshot()["vendors"] if v["vendor"] == name)

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Ask again and again until it holds; fail after the deadline."""
        until_s = time.monotonic() + DEADLINE_S
        while not holds():
            assert self.process.poll() is None, f"the agent ended while waiting for: {what}"
            assert time.monotonic() < until_s, f"not within {DEADLINE_S} s: {what}"
            time.sleep(0.05)

    def end(self) -> int:
        """Ask it to stop; return its status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)


def running(out: Path, *arguments: str, **environment: str) -> AbstractContextManager[Agent]:
    """Run the daemon on a free port until the block ends."""
    return started_by((), out, *arguments, **environment)


@contextmanager
def started_by(
    prefix: tuple[str, ...], out: Path, *arguments: str, **environment: str
) -> Iterator[Agent]:
    """Run the daemon as `running` does, started by another command."""
    fixed = ("run", "--standalone", "--listen", "127.0.0.1:0", "--out", str(out))
    process = subprocess.Popen(
        [*prefix, *command(*fixed, *arguments)],
        stdout=subprocess.PIPE,
        stderr=(out.parent / "stderr.log").open("w"),
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    agent = Agent(process, out)
    try:
        _wait_for_url(agent)
        yield agent
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(DEADLINE_S)


def _wait_for_url(agent: Agent) -> None:
    assert agent.process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(agent.process.stdout, selectors.EVENT_READ)
        until_s = time.monotonic() + DEADLINE_S
        while not agent.url:
            assert selector.select(until_s - time.monotonic()), "no address within the deadline"
            line = agent.process.stdout.readline()
            assert line, f"the agent ended with {agent.process.wait(DEADLINE_S)}"
            agent.lines.append(line.rstrip())
            if " serves " in line:
                agent.url = line.split()[-1]
