"""The agent stops in the middle of each phase: at once, whole, and the runtime goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.snapshot.container import NO_ADJUSTMENT, Adjustment, HookRequest
from tests.fault.nri.attached import Agent, granting
from tests.patience import PATIENCE_S
from tests.runtime import CONTAINERD_2_3, Runtime

PHASES = ("registration", "configure", "synchronize")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_stop_during_a_registration_that_hangs_is_done_at_once(
    folder: Path, phase: str, cancelled: bool
) -> None:
    async def run() -> None:
        async with Runtime(folder, CONTAINERD_2_3) as runtime:
            setattr(runtime.ways, phase, "hang")
            agent = Agent(runtime.socket, granting)
            plugin = await runtime.dialled()
            while plugin.state == "dialled" and phase != "registration":
                await asyncio.sleep(0.001)
            await stopped(agent, cancelled=cancelled)
            await plugin.closed.wait()

    asyncio.run(run())


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_stop_while_there_is_no_socket_is_done_at_once(folder: Path, cancelled: bool) -> None:
    async def run() -> None:
        agent = Agent(folder / "nri.sock", granting)
        await agent.until(lambda view: view.state == "waiting" and bool(view.reason))
        await stopped(agent, cancelled=cancelled)

    asyncio.run(run())


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_stop_between_two_questions_closes_the_connection(folder: Path, cancelled: bool) -> None:
    async def run() -> None:
        async with Runtime(folder, CONTAINERD_2_3) as runtime:
            agent = Agent(runtime.socket, granting)
            plugin = await runtime.plugged()
            await agent.synchronized()
            await stopped(agent, cancelled=cancelled)
            await plugin.closed.wait()
            assert not agent.view.is_synchronized
            pod = runtime.pod("p")
            await runtime.run_pod(pod)
            assert (await runtime.create(pod, "main")).missed == []

    asyncio.run(run())


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_stop_in_the_middle_of_a_question_leaves_no_task_and_no_hang(
    folder: Path, cancelled: bool
) -> None:
    event = asyncio.Event()

    async def stuck(_: HookRequest) -> Adjustment:
        event.set()
        await asyncio.Event().wait()
        return NO_ADJUSTMENT

    async def run() -> None:
        async with Runtime(folder, CONTAINERD_2_3) as runtime:
            agent = Agent(runtime.socket, stuck)
            await runtime.plugged()
            creation = asyncio.ensure_future(runtime.create(runtime.pod("p"), "main"))
            await event.wait()
            await stopped(agent, cancelled=cancelled)
            await creation
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not [task for task in others if "agent" in repr(task)]

    asyncio.run(run())


def test_a_stop_may_be_requested_twice_and_before_the_start(folder: Path) -> None:
    async def run() -> None:
        async with Runtime(folder, CONTAINERD_2_3) as runtime:
            agent = Agent(runtime.socket, granting)
            await agent.plugin.stop()
            await stopped(agent, cancelled=False)
            await agent.plugin.stop()

    asyncio.run(run())


async def stopped(agent: Agent, *, cancelled: bool) -> None:
    """End the plug-in by its stop or by cancelling it; both must be quick."""
    if not cancelled:
        await agent.end()
        return
    agent.task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(asyncio.CancelledError):
            await agent.task
