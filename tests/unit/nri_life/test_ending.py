"""The end of the plug-in, and two of them: one connection for a node, nothing left unanswered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.clock import ManualClock
from agent.config.containers import NriSettings
from agent.nri.plugin import NriPlugin
from agent.snapshot.container import Adjustment, HookRequest
from agent.snapshot.edits import ContainerEdits
from tests.patience import PATIENCE_S
from tests.runtime import CONTAINERD_2_3, Runtime
from tests.runtime.handler import FunctionHandler
from tests.unit.nri.talk import never, nothing
from tests.unit.nri_life.plugin_scene import life, play


def test_two_agents_of_one_node_have_one_connection_and_the_second_takes_over() -> None:
    async def through(folder: Path) -> None:
        lock = str(folder / "nri.lock")
        async with (
            Runtime(folder, CONTAINERD_2_3) as runtime,
            life(folder, lock=lock) as first,
            life(folder, lock=lock) as second,
        ):
            await runtime.plugged()
            await first.until("synchronized")
            await second.until("waiting", "AnotherAgent")
            await first.plugin.stop()
            await first.running
            await runtime.plugged()
            await second.until("synchronized")
            assert len(runtime.seen) == 2

    play(through)


def test_an_unusable_lock_is_reported_and_no_connection_made() -> None:
    async def through(folder: Path) -> None:
        async with Runtime(folder, CONTAINERD_2_3) as runtime:
            async with life(folder, lock=str(folder / "none" / "lock")) as own_values:
                view = await own_values.until("waiting", "NoLock")
                assert "No such file or directory; see node.run_dir" in view.message
            assert runtime.seen == []

    play(through)


@pytest.mark.parametrize("while_asked", [False, True])
def test_it_ends_soon_in_whatever_it_waits(while_asked: bool) -> None:
    async def through(folder: Path) -> None:
        async with (
            Runtime(folder, CONTAINERD_2_3) as runtime,
            life(folder, answer=never) as own_values,
        ):
            await runtime.plugged()
            await own_values.until("synchronized")
            pod = runtime.pod("web")
            task = asyncio.create_task(runtime.run_pod(pod))
            if while_asked:
                async with asyncio.timeout(PATIENCE_S):
                    while not own_values.plugin.statistics.in_flight:
                        await asyncio.sleep(0.001)
            await own_values.plugin.stop()
            await own_values.running
            assert (own_values.plugin.view.state, own_values.plugin.view.reason) == (
                "waiting",
                "Stopped",
            )
            await task  # the runtime goes on without us

    play(through)


def test_a_request_before_the_end_is_still_answered() -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def slow(request: HookRequest) -> Adjustment:
        begun.set()
        await gate.wait()
        return Adjustment(edits=ContainerEdits(env=(("GRANTED", request.stage.value),)))

    async def through(folder: Path) -> None:
        async with (
            Runtime(folder, CONTAINERD_2_3) as runtime,
            life(folder, answer=slow) as own_values,
        ):
            await runtime.plugged()
            pod = runtime.pod("web")
            runtime.pods.append(pod)
            task = asyncio.create_task(runtime.create(pod, "main"))
            await begun.wait()
            stopping = asyncio.create_task(own_values.plugin.stop())
            await asyncio.sleep(0)
            gate.set()
            assert (await task).spec.env["GRANTED"] == "PreCreateContainer"
            await stopping

    play(through)


def test_it_may_be_stopped_before_it_began() -> None:
    async def through(folder: Path) -> None:
        settings = NriSettings(socket=str(folder / "nri.sock"))
        idle = NriPlugin(settings, handler=FunctionHandler(nothing), clock=ManualClock())
        await idle.stop()
        await idle.run()
        assert idle.statistics.connections == 0

    play(through)
