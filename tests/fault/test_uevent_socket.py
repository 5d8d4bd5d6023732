"""The socket of the kernel's events where it overflows, is refused, or has no library."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.host import uevents
from agent.host.uevents import MAX_BATCH, NOT_TEXT, Uevent, UeventMonitor, UeventsLost
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
NULL = Path("/sys/devices/virtual/mem/null/uevent")
DEADLINE_S = PATIENCE_S

only_root = pytest.mark.skipif(not os.access(NULL, os.W_OK), reason="only root causes events")


@pytest.fixture
def uevent_monitor() -> Iterator[UeventMonitor]:
    listening = UeventMonitor()
    yield listening
    listening.close()


def cause(count: int) -> None:
    with NULL.open("w") as file:
        for _ in range(count):
            file.write("change")
            file.flush()
            file.seek(0)


def count_own(events: list[Uevent | str]) -> int:
    return sum(isinstance(e, Uevent) and e.devpath == "/devices/virtual/mem/null" for e in events)


@pytest.mark.root
@only_root
def test_events_are_taken_a_few_at_a_time_and_none_is_left(uevent_monitor: UeventMonitor) -> None:
    cause(3 * MAX_BATCH)
    result, until_s = 0, time.monotonic() + DEADLINE_S
    while result < 3 * MAX_BATCH:
        assert time.monotonic() < until_s
        events = uevent_monitor.read_events()
        assert len(events) <= MAX_BATCH
        result += count_own(events)


@pytest.mark.root
@only_root
def test_an_overflow_is_reported_and_events_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uevents, "BUFFER_BYTES", 4096)
    small = UeventMonitor()
    cause(500)
    with pytest.raises(UeventsLost):
        small.read_events()
    until_s = time.monotonic() + DEADLINE_S
    while small.read_events():
        assert time.monotonic() < until_s
    cause(1)
    while not count_own(small.read_events()):
        assert time.monotonic() < until_s
    small.close()


def test_a_socket_that_is_closed_holds_no_descriptor() -> None:
    listening = UeventMonitor()
    number = listening.fileno()
    os.fstat(number)
    listening.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


@pytest.mark.parametrize(
    ("before", "why"),
    [
        pytest.param(
            "import agent.host.uevents as module; module.LIBUDEV = 'libudev-absent.so.1'",
            "libudev cannot be loaded",
            id="no libudev",
        ),
        pytest.param(
            "import pyudev, resource; pyudev.Context(); import agent.host.uevents; "
            "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
            "the kernel's events cannot be heard",
            id="no socket",
        ),
        pytest.param(
            "import sys; sys.modules['pyudev'] = None", "cannot be loaded", id="no pyudev"
        ),
    ],
)
def test_a_refused_socket_is_reported_with_its_reason(before: str, why: str) -> None:
    code = (
        f"{before}\nfrom agent.host.uevents import UeventMonitor, UeventsUnavailable\n"
        "try: UeventMonitor()\nexcept UeventsUnavailable as error: print(error)\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert why in outcome.stdout, outcome.stderr


def test_an_event_that_is_not_text_is_counted_and_others_are_received(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library's own decoding fails, as of a network device whose name is no UTF-8."""
    listening = UeventMonitor()
    output = [{b"DEVPATH": b"/devices/x\xff"}, {b"DEVPATH": b"/devices/y"}]

    class Device:
        @property
        def properties(self) -> dict[str, str]:
            fields = {"ACTION": "add", "SUBSYSTEM": "net"}
            return fields | {k.decode(): v.decode() for k, v in output.pop(0).items()}

    class Library:
        def poll(self, _: int) -> Device:
            return Device()

    class Ready:
        def poll(self, _: int) -> bool:
            return bool(output)

    with monkeypatch.context() as patch:
        patch.setattr(listening, "_monitor", Library())
        patch.setattr(listening, "_poll", Ready())
        bad, good = listening.read_events()
    assert bad == NOT_TEXT
    assert isinstance(good, Uevent)
    assert good.devpath == "/devices/y"
    listening.close()
