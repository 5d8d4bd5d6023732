"""The agent's process as tests see it: begun, stopped, killed, and asked what it knows."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tests.containerd.runtime.running import Containerd
from tests.patience import PATIENCE_S

UNTIL_S, END_S = PATIENCE_S, PATIENCE_S
STAND_IN = "tests.containerd.agent_side.standin"
ROOT = Path(__file__).resolve().parents[3]


class Proof(msgspec.Struct):
    verdict: str
    details: list[str]
    way: str


class AgentRecord(msgspec.Struct):
    """What the agent wrote last."""

    pid: int
    state: str
    reason: str
    registrations: int
    late: int
    ends: dict[str, int]
    missed: dict[str, str]
    containers: dict[str, str]
    stopped: list[str]
    told: list[tuple[str, str]]
    proofs: dict[str, Proof]
    refused: dict[str, str]

    @property
    def reasons(self) -> set[str]:
        return {reason for reason, _ in self.told}


class Agent:
    """One agent at a runtime; a new process each time it is begun."""

    def __init__(self, runtime: Containerd, *how: str) -> None:
        self._runtime, self._how = runtime, how
        self._file = runtime.folder / "agent.json"
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> Agent:
        """Begin and wait until the runtime has told of all its pods."""
        self._file.unlink(missing_ok=True)
        with (self._runtime.folder / "agent.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._runtime.apart.prefix,
                    *(sys.executable, "-m", STAND_IN, str(self._runtime.folder), *self._how),
                ],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        self.until(lambda now: now.state == "synchronized")
        return self

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order."""
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def until(self, holds: Callable[[AgentRecord], bool]) -> AgentRecord:
        """Wait until what the agent knows is so; fail with what it knows instead."""
        end_s = time.monotonic() + UNTIL_S
        while True:
            with contextlib.suppress(FileNotFoundError):
                text = msgspec.json.decode(self._file.read_bytes(), type=AgentRecord)
                if holds(text):
                    return text
            if time.monotonic() > end_s or (self._process and self._process.poll() is not None):
                log = (self._runtime.folder / "agent.log").read_text()[-2000:]
                known_text = self._file.read_text() if self._file.exists() else "nothing"
                raise AssertionError(json.dumps(known_text) + "\n" + log)
            time.sleep(0.02)

    def proof(self, container_id: str) -> Proof:
        """Wait for the verdict on a container; one that could not be looked at is none."""
        entries = self.until(
            lambda now: container_id in now.proofs and now.proofs[container_id].verdict != "unknown"
        )
        return entries.proofs[container_id]

    def _signal(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_S)
        self._process = None


@contextlib.contextmanager
def begun(runtime: Containerd, *how: str) -> Iterator[Agent]:
    """An agent that is registered with the runtime."""
    agent = Agent(runtime, *how)
    try:
        yield agent.begin()
    finally:
        with contextlib.suppress(ProcessLookupError):
            if agent._process is not None:
                agent.thaw()
        agent.stop()
