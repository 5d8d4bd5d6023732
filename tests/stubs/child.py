"""A vendor's session in a process of its own, asked through the agent's wire format."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory
from agent.workers.call_journal import LibraryCall
from agent.workers.load import load_vendor
from agent.workers.protocol import (
    DiscoverReply,
    ErrorReply,
    EventsMessage,
    LineSplitter,
    MethodRequest,
    OpenReply,
    SampleReply,
    WorkerMessage,
    decode_reply,
    encode_message,
    encode_start,
)
from tests.patience import PATIENCE_S
from tests.stubs.nursery import Forked, is_readable
from tests.vendors import split_settings

ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Child:
    """A worker process that serves a session; every answer has a deadline."""

    vendor: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    settings: Mapping[str, object] = field(default_factory=dict)
    forked: bool = False  # from the nursery, instead of a fresh interpreter
    journal: str = ""  # path of the file for the call in progress
    hung_call: LibraryCall | None = None  # that ended the process before this one
    events: list[DeviceEvent] = field(default_factory=list)
    _number: int = 0
    _process: Forked | subprocess.Popen[bytes] | None = None
    _lines: list[bytes] = field(default_factory=list)
    _splitter: LineSplitter = field(default_factory=lambda: LineSplitter("a stub"))

    def __enter__(self) -> Child:
        records = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG")}
        environment = {**records, "PYTHONPATH": str(ROOT), **self.environment}
        if self.forked:
            self._process = Forked(self.arguments, environment)
        else:
            self._process = subprocess.Popen(
                [sys.executable, *self.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=ROOT,
                env=environment,
            )
        self._say(
            encode_start(
                self.vendor,
                *split_settings(load_vendor(self.vendor).description, self.settings),
                events=True,
                journal=self.journal,
                hung_call=self.hung_call,
            )
        )
        assert isinstance(self._reply(time.monotonic() + PATIENCE_S), OpenReply)
        return self

    def __exit__(self, *_: object) -> None:
        process = self.process
        process.kill()
        process.wait(10)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()

    @property
    def process(self) -> Forked | subprocess.Popen[bytes]:
        """Return the process, which runs between enter and exit."""
        assert self._process is not None
        return self._process

    def _say(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def _reply(self, deadline_s: float) -> WorkerMessage:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while not self._lines:
            ready = is_readable(fd, max(0.0, deadline_s - time.monotonic()))
            if not ready:
                raise TimeoutError
            data = os.read(fd, 65536)
            if not data:
                raise EOFError
            self._lines += self._splitter.feed(data)
        return decode_reply(self.vendor, self._lines.pop(0))

    def ask(self, method: str, deadline_s: float = PATIENCE_S, device: str = "") -> WorkerMessage:
        """Return the answer; `TimeoutError` if late, `EOFError` if the process died."""
        self._number += 1
        method_request = MethodRequest(self._number, method, device)  # type: ignore[arg-type]  # tests ask nonsense too
        self._say(encode_message(method_request))
        until_s = time.monotonic() + deadline_s
        while True:
            reply = self._reply(until_s)
            if not isinstance(reply, EventsMessage):
                return reply
            self.events += reply.events

    def discover(self) -> Inventory:
        """Return the inventory; an error of the session fails the test."""
        reply = self.ask("discover")
        assert isinstance(reply, DiscoverReply), reply
        return reply.inventory

    def sample(self) -> tuple[DeviceSample, ...]:
        """Return the samples; an error of the session fails the test."""
        reply = self.ask("sample")
        assert isinstance(reply, SampleReply), reply
        return reply.samples

    def wait_event(self, deadline_s: float = PATIENCE_S) -> DeviceEvent:
        """Return the next event that was pushed."""
        until_s = time.monotonic() + deadline_s
        while not self.events:
            reply = self._reply(until_s)
            assert not isinstance(reply, ErrorReply), reply
            if isinstance(reply, EventsMessage):
                self.events += reply.events
        return self.events.pop(0)


def on_tree(
    vendor: str, environment: Mapping[str, str], tree: Path, settings: Mapping[str, object]
) -> Child:
    """Return a child whose session sees `tree` as the machine's root."""
    arguments = ["-m", "tests.stubs.worker", vendor, str(tree)]
    return Child(vendor, arguments, environment, settings, forked=True)


def real_worker(
    vendor: str, environment: Mapping[str, str], settings: Mapping[str, object]
) -> Child:
    """Return the agent's own worker; its host is this machine."""
    arguments = ["-m", "agent.workers.worker", "--vendor", vendor]
    return Child(vendor, arguments, environment, settings)
