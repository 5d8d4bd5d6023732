"""A client of the fake vendor with a real worker, watched from the start to the end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path

import psutil
import pytest
import yaml
from msgspec.structs import replace

from agent.clock import ManualClock, SystemClock
from agent.snapshot.inventory import DeviceEvent
from agent.snapshot.node import VendorState
from agent.workers.client import VendorClient
from agent.workers.lifecycle import WorkerTiming
from agent.workers.process import WorkerSpec
from plugins.vendors.fake.vendor import FakeSettings, FakeVendor
from tests.direct_messages import DirectMessages
from tests.patience import PATIENCE_S

DEADLINE_S = PATIENCE_S  # of a whole test; nothing here waits for it when all is well
SHORT_S = 0.5  # deadline of a call that is sure to hang
DEVICE = {"uuid": "FAKE-0", "minor": 0, "core_percent": 40}
States = list[VendorState]


class Watched:
    """A client of the fake vendor and everything that it published."""

    def __init__(
        self,
        file: Path,
        timing: WorkerTiming,
        *,
        skip_waits: bool,
        tape: Path | None = None,
    ) -> None:
        self.states: States = []
        self.events: list[DeviceEvent] = []
        self._changed = asyncio.Event()
        self.clock = clock = ManualClock()

        async def skip(seconds: float) -> None:
            clock.advance(seconds)
            await asyncio.sleep(0)

        self.client = VendorClient(
            WorkerSpec(
                vendor="fake",
                settings=FakeSettings(file=str(file)),
                tape=str(tape) if tape else None,
            ),
            FakeVendor().detect(None, FakeSettings(file=str(file))),  # type: ignore[arg-type]  # it asks no host
            messages=DirectMessages(self._on_state, self._on_events),
            timing=timing,
            clock=clock if skip_waits else SystemClock(),
            sleep=skip if skip_waits else asyncio.sleep,
            spread=lambda: 1.0,
        )
        self.task = asyncio.create_task(self.client.run())

    def _on_state(self, state: VendorState) -> None:
        self.states.append(state)
        self._changed.set()

    def _on_events(self, vendor: str, events: tuple[DeviceEvent, ...]) -> None:
        assert vendor == "fake"
        self.events.extend(events)
        self._changed.set()

    async def until(self, holds: Callable[[States], bool]) -> None:
        while not holds(self.states):
            self._changed.clear()
            await self._changed.wait()

    async def until_state(self, *names: str) -> VendorState:
        await self.until(lambda states: states[-1:] != [] and states[-1].state in names)
        return self.states[-1]

    def reasons(self) -> set[str]:
        return {state.reason for state in self.states if state.reason}


def scene(file: Path, *misbehave: Mapping[str, object], **more: object) -> Path:
    """Write a file of one fake device that behaves so."""
    file.write_text(
        yaml.safe_dump(
            {"devices": [DEVICE], "misbehave": [dict(fault) for fault in misbehave], **more}
        )
    )
    return file


def go(test: Coroutine[None, None, None]) -> None:
    """Run a test's coroutine within the deadline."""

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test

    asyncio.run(bounded())


def _fds() -> set[str]:
    result = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of this listing
            result.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return result


@pytest.fixture
def nothing_left() -> Iterator[None]:
    gc.collect()  # descriptors of earlier tests must not be closed during this one
    fds, children = _fds(), psutil.Process().children(recursive=True)
    yield
    assert _fds() - fds == set()
    assert psutil.Process().children(recursive=True) == children


QUICK = WorkerTiming(sample_every_s=0.01)


def hurried(where: str) -> WorkerTiming:
    """Return times with a short deadline for the method that is sure to hang, and no other."""
    return {
        "open": replace(QUICK, open_deadline_s=SHORT_S * 4),  # a process must have started in it
        "discover": replace(QUICK, discover_deadline_s=SHORT_S),
        "sample": replace(QUICK, sample_deadline_s=SHORT_S),
    }[where]
