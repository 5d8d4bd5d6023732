"""Registration that hangs, is refused or cut off is tried again, later each time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.fault.nri.attached import attached, gets_its_grant
from tests.runtime.ways import Way

STEPS = ("registration", "configure", "synchronize")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("way", ["hang", "refuse", "drop"])
def test_a_registration_that_fails_at_any_step_is_tried_again_and_succeeds(
    folder: Path, step: str, way: Way
) -> None:
    async def run() -> None:
        # a hanging runtime closes by its own limit, as the real one does
        async with attached(folder, registration_s=0.2, request_s=1.0) as (runtime, agent):
            setattr(runtime.ways, step, way)
            first = await runtime.dialled()
            if way == "hang" and step != "registration":
                reached = {"configure": "registered", "synchronize": "configured"}[step]
                while first.state != reached:
                    await asyncio.sleep(0.001)
                first.close("the runtime gave up")
            await first.closed.wait()
            setattr(runtime.ways, step, "answer")
            await runtime.plugged()
            await agent.synchronized()
            await gets_its_grant(runtime)
            assert agent.slept

    asyncio.run(run())


def test_the_waits_begin_anew_after_a_registration_that_came_as_far_as_the_pods(
    folder: Path,
) -> None:
    async def run() -> None:
        async with attached(folder) as (runtime, agent):
            plugin = await runtime.plugged()
            runtime.ways.registration = "drop"
            plugin.close("the runtime ends")
            await runtime.dialled(6)
            runtime.ways.registration = "answer"
            plugin = await runtime.plugged()
            await agent.synchronized()
            assert max(agent.slept) >= 8.0
            agent.slept.clear()
            plugin.close("the runtime ends")
            await runtime.plugged()
            assert agent.slept == [1.0]

    asyncio.run(run())


def test_a_runtime_that_never_answers_is_left_and_dialled_again_later_each_time(
    folder: Path,
) -> None:
    async def run() -> None:
        async with attached(folder, registration_s=0.05) as (runtime, agent):
            runtime.ways.registration = "hang"
            await runtime.dialled(5)
            waits = [slept for slept in agent.slept if slept >= 1.0]
            assert waits == sorted(waits)
            assert waits[-1] > waits[0]
            assert not agent.view.is_synchronized

    asyncio.run(run())


def test_a_refusal_says_why(folder: Path) -> None:
    async def run() -> None:
        async with attached(folder) as (runtime, agent):
            runtime.ways.registration = "refuse"
            view = await agent.until(lambda now: now.state == "refused")
            assert view.reason
            assert "invalid plugin name" in view.message

    asyncio.run(run())


def test_no_socket_is_waited_for(folder: Path) -> None:
    async def run() -> None:
        async with attached(folder) as (runtime, agent):
            runtime.kill()
            runtime.socket.unlink()
            await agent.until(lambda view: view.state == "waiting" and bool(view.reason))
            await runtime.listen()
            await agent.synchronized()
            await gets_its_grant(runtime)

    asyncio.run(run())
