from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory
from agent.workers import worker
from agent.workers.protocol import (
    AgentMessage,
    EmptyReply,
    ErrorReply,
    MethodRequest,
    WorkerMessage,
    decode_reply,
)
from agent.workers.worker import EVENTS_STUCK, AgentPipe, SessionServer
from tests.patience import PATIENCE_S

DEADLINE_S = PATIENCE_S


class Hanging:
    """A session whose wait for events returns when the test says so."""

    def __init__(self) -> None:
        self.entered, self.returns = threading.Event(), threading.Event()

    def discover(self) -> Inventory:
        return Inventory(vendor="x")

    def sample(self) -> tuple[DeviceSample, ...]:
        return ()

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        del wait_s
        self.entered.set()
        self.returns.wait(DEADLINE_S)
        return ()

    def close(self) -> None:
        self.returns.set()


def _replies(session: Hanging) -> list[WorkerMessage]:
    """Ask three times while the session waits for events; return all that was said."""

    def asks() -> Iterator[AgentMessage]:
        assert session.entered.wait(DEADLINE_S)
        yield from (MethodRequest(1, "ping"), MethodRequest(2, "ping"), MethodRequest(3, "close"))

    reading, writing = os.pipe()
    SessionServer(AgentPipe(writing), session).run(asks(), events=True)
    session.returns.set()
    data = os.read(reading, 65536)
    for fd in (reading, writing):  # nothing more is written: the watcher is told to end
        os.close(fd)
    return [decode_reply("x", line) for line in data.splitlines()]


def test_a_wait_for_events_that_hangs_is_reported_once_and_requests_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "EVENTS_STUCK_S", 0.0)
    reports, *answers = _replies(Hanging())
    assert isinstance(reports, ErrorReply)
    assert (reports.id, reports.kind) == (0, EVENTS_STUCK)
    assert answers == [EmptyReply(1), EmptyReply(2), EmptyReply(3)]


def test_a_wait_for_events_within_its_time_is_not_reported() -> None:
    assert _replies(Hanging()) == [EmptyReply(1), EmptyReply(2), EmptyReply(3)]
