from __future__ import annotations

import asyncio

import pytest

from agent.model.inventory import DeviceEvent, Inventory
from agent.probe import wire
from agent.probe.process.worker_process import FLOOD, MAX_PUSHED, WorkerProcess

EVENT = DeviceEvent(key="a", reason="Xid79")
OPENED, HAPPENED = wire.encode(wire.Opened()), wire.encode(wire.Happened((EVENT,)))


def _told(*chunks: bytes) -> tuple[str | None, list[DeviceEvent]]:
    """Let a worker say this on its own account; return why it was given up, and its events."""

    async def listen() -> tuple[str | None, list[DeviceEvent]]:
        heard: list[DeviceEvent] = []
        process = WorkerProcess("x", heard.extend)
        for chunk in chunks:
            process.heard(chunk)
        lost = process.lost.result() if process.lost.done() else None
        return (lost.reason if lost else None), heard

    return asyncio.run(listen())


@pytest.mark.parametrize(
    ("chunks", "reason"),
    [
        pytest.param([OPENED], None, id="opened"),
        pytest.param([OPENED, OPENED], wire.GARBAGE, id="opened twice"),
        pytest.param([b"hello\n"], wire.GARBAGE, id="no message"),
        pytest.param([OPENED, wire.encode(wire.Sampled(1, ()))], wire.GARBAGE, id="unasked"),
        pytest.param([OPENED, wire.encode(wire.Failed(9, "a", "b"))], wire.GARBAGE, id="wrong id"),
        pytest.param(
            [wire.encode(wire.Discovered(0, Inventory(vendor="x")))], wire.GARBAGE, id="id 0"
        ),
        pytest.param([b"x" * wire.MAX_LINE, b"y"], wire.TOO_LONG, id="too long"),
        pytest.param([wire.encode(wire.Failed(0, "BadConfig", "b"))], "BadConfig", id="not open"),
        pytest.param([OPENED, wire.encode(wire.Failed(0, "a", "b"))], None, id="events failed"),
        pytest.param([OPENED, HAPPENED * MAX_PUSHED], None, id="many events"),
        pytest.param([OPENED, HAPPENED * (MAX_PUSHED + 1)], FLOOD, id="flood"),
    ],
)
def test_what_a_worker_may_say_unasked(chunks: list[bytes], reason: str | None) -> None:
    assert _told(*chunks)[0] == reason


def test_events_are_handed_on_before_the_next_bytes_are_read() -> None:
    assert _told(OPENED, HAPPENED[:10], HAPPENED[10:])[1] == [EVENT]


def test_nothing_is_believed_after_the_first_nonsense() -> None:
    assert _told(OPENED, b"hello\n", HAPPENED) == (wire.GARBAGE, [])


def test_what_came_before_the_nonsense_counts() -> None:
    assert _told(OPENED + HAPPENED + b"hello\n" + HAPPENED)[1] == [EVENT]
