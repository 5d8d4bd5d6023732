from __future__ import annotations

import asyncio

import pytest

from agent.snapshot.inventory import DeviceEvent, Inventory
from agent.workers import protocol
from agent.workers.worker_process import FLOOD, MAX_EVENT_MESSAGES, WorkerProcess

EVENT = DeviceEvent(key="a", reason="Xid79")
OPENED, HAPPENED = (
    protocol.encode_message(protocol.OpenReply()),
    protocol.encode_message(protocol.EventsMessage((EVENT,))),
)


def _run_worker(*chunks: bytes) -> tuple[str | None, list[DeviceEvent]]:
    """Let a worker say this on its own account; return why it was given up, and its events."""

    async def listen() -> tuple[str | None, list[DeviceEvent]]:
        device_events: list[DeviceEvent] = []
        process = WorkerProcess("x", device_events.extend)
        for chunk in chunks:
            process.on_stdout(chunk)
        lost = process.failure.result() if process.failure.done() else None
        return (lost.reason if lost else None), device_events

    return asyncio.run(listen())


@pytest.mark.parametrize(
    ("chunks", "reason"),
    [
        pytest.param([OPENED], None, id="opened"),
        pytest.param([OPENED, OPENED], protocol.GARBAGE, id="opened twice"),
        pytest.param([b"hello\n"], protocol.GARBAGE, id="no message"),
        pytest.param(
            [OPENED, protocol.encode_message(protocol.SampleReply(1, ()))],
            protocol.GARBAGE,
            id="unasked",
        ),
        pytest.param(
            [OPENED, protocol.encode_message(protocol.ErrorReply(9, "a", "b"))],
            protocol.GARBAGE,
            id="wrong id",
        ),
        pytest.param(
            [protocol.encode_message(protocol.DiscoverReply(0, Inventory(vendor="x")))],
            protocol.GARBAGE,
            id="id 0",
        ),
        pytest.param([b"x" * protocol.MAX_LINE, b"y"], protocol.TOO_LONG, id="too long"),
        pytest.param(
            [protocol.encode_message(protocol.ErrorReply(0, "BadConfig", "b"))],
            "BadConfig",
            id="not open",
        ),
        pytest.param(
            [OPENED, protocol.encode_message(protocol.ErrorReply(0, "a", "b"))],
            None,
            id="events failed",
        ),
        pytest.param([OPENED, HAPPENED * MAX_EVENT_MESSAGES], None, id="many events"),
        pytest.param([OPENED, HAPPENED * (MAX_EVENT_MESSAGES + 1)], FLOOD, id="flood"),
    ],
)
def test_messages_that_a_worker_may_send_without_a_request(
    chunks: list[bytes], reason: str | None
) -> None:
    assert _run_worker(*chunks)[0] == reason


def test_events_are_handed_on_before_the_next_bytes_are_read() -> None:
    assert _run_worker(OPENED, HAPPENED[:10], HAPPENED[10:])[1] == [EVENT]


def test_nothing_is_believed_after_the_first_nonsense() -> None:
    assert _run_worker(OPENED, b"hello\n", HAPPENED) == (protocol.GARBAGE, [])


def test_what_came_before_the_nonsense_counts() -> None:
    assert _run_worker(OPENED + HAPPENED + b"hello\n" + HAPPENED)[1] == [EVENT]
