"""The agent's client outlives what a stub library does to the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path

import pytest

from agent.clock import SystemClock
from agent.snapshot.node import VendorState
from agent.workers.client import VendorClient
from agent.workers.lifecycle import WorkerTiming
from agent.workers.process import WorkerSpec
from plugins.vendors.cambricon.settings import CambriconSettings
from tests.direct_messages import DirectMessages
from tests.patience import PATIENCE_S
from tests.stubs.stub import Stub
from tests.unit.cambricon.cards import machine

DEADLINE_S = PATIENCE_S
TIMING = WorkerTiming(sample_every_s=0.02, sample_deadline_s=0.5)
CALL = "call.cndevGetDevicePowerInfo"  # of each sample


class Client:
    """A client of the Cambricon vendor on the stub, with every state that it was in."""

    def __init__(self, stub: Stub) -> None:
        self.states: list[VendorState] = []
        self._changed = asyncio.Event()
        self.client = VendorClient(
            WorkerSpec(
                vendor="cambricon", settings=CambriconSettings(library_path=str(stub.installed()))
            ),
            (),
            messages=DirectMessages(self._heard, lambda _vendor, _events: None),
            timing=TIMING,
            clock=SystemClock(),
            sleep=asyncio.sleep,
            spread=lambda: 0.1,
        )
        self.task = asyncio.create_task(self.client.run())

    def _heard(self, state: VendorState) -> None:
        self.states.append(state)
        self._changed.set()

    async def until(self, *names: str, after: int = 0) -> VendorState:
        """Return the first state of one of the names after so many others."""
        while True:
            states = [state for state in self.states[after:] if state.state in names]
            if states:
                return states[0]
            self._changed.clear()
            await self._changed.wait()


def _go(test: Coroutine[None, None, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test

    asyncio.run(bounded())


@pytest.mark.parametrize("behaviour", ["hang 1", "sleep_ms 60000", "abort 1", "abort 11"])
def test_a_worker_that_a_library_takes_down_is_replaced_and_its_cards_stay_known(
    behaviour: str, tmp_path: Path
) -> None:
    async def test() -> None:
        stub = Stub("cndev", tmp_path)
        stub.play(*machine(2))
        watched = Client(stub)
        first = await watched.until("ready")
        what, _, value = behaviour.partition(" ")
        before = len(watched.states)
        stub.add(f"{CALL}.{what} {value}")
        down = await watched.until("stalled", "restarting", after=before)
        stub.play(*machine(2))
        again = await watched.until("ready", after=watched.states.index(down))
        await watched.client.stop()
        assert down.inventory.value is not None
        assert first.inventory.value is not None
        assert down.inventory.value.devices == first.inventory.value.devices
        assert again.pid != first.pid
        assert again.restarts > first.restarts

    _go(test())
