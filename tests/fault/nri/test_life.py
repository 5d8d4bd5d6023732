"""The runtime restarts, hangs, is slow or half gone; others are at it too."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from agent.snapshot.container import Adjustment, HookRequest
from proto.gen import nri_container_pb2 as pb
from tests.fault.nri.attached import ALLOCATED, Agent, attached, gets_its_grant, granting
from tests.runtime import CONTAINERD_2_3, Failed, Rival, Runtime


def test_a_runtime_that_restarts_is_served_again(folder: Path) -> None:
    async def run() -> None:
        async with attached(folder) as (runtime, agent):
            for times in range(1, 6):
                await runtime.plugged()
                await agent.synchronized()
                created = await gets_its_grant(runtime, f"p{times}")
                await runtime.restart()
                await agent.until(lambda view: not view.is_synchronized)
                assert created.id in agent.view.containers  # it lives on without its runtime
            await runtime.plugged()
            assert agent.plugin.statistics.registrations == 6

    asyncio.run(run())


def test_a_runtime_that_shuts_its_plug_ins_down_is_answered_and_dialled_again(
    folder: Path,
) -> None:
    async def run() -> None:
        async with attached(folder) as (runtime, agent):
            plugin = await runtime.plugged()
            await plugin.ask("Shutdown", b"")
            await plugin.closed.wait()
            await runtime.plugged()
            await agent.synchronized()
            await gets_its_grant(runtime)

    asyncio.run(run())


def test_a_runtime_that_is_killed_in_the_middle_of_a_question_is_served_again(
    folder: Path,
) -> None:
    event = asyncio.Event()

    async def stuck(_: HookRequest) -> Adjustment:
        event.set()
        await asyncio.Event().wait()
        return ALLOCATED

    async def run() -> None:
        async with attached(folder, hook=stuck) as (runtime, agent):
            await runtime.plugged()
            creation = asyncio.ensure_future(runtime.create(runtime.pod("p"), "main"))
            await event.wait()
            runtime.kill()
            assert (await creation).missed
            agent.hook = granting
            await runtime.listen()
            await runtime.plugged()
            await agent.synchronized()
            await gets_its_grant(runtime, "next")
            assert agent.plugin.statistics.in_flight == 0

    asyncio.run(run())


def test_a_socket_that_is_replaced_while_the_old_one_says_nothing_is_found(folder: Path) -> None:
    async def run() -> None:
        async with attached(folder) as (runtime, agent):
            old = await runtime.plugged()
            await agent.synchronized()
            old.pause()  # the old runtime hangs and its socket's file is another's by now
            os.rename(runtime.socket, folder / "old.sock")
            other = Runtime(folder, CONTAINERD_2_3)
            async with other:
                await other.plugged()
                await agent.until(lambda view: view.is_synchronized)
                await gets_its_grant(other)

    asyncio.run(run())


def test_a_runtime_that_reads_nothing_for_a_while_keeps_its_plug_in(folder: Path) -> None:
    async def run() -> None:
        async with attached(folder) as (runtime, agent):
            plugin = await runtime.plugged()
            plugin.pause()
            creation = asyncio.ensure_future(runtime.create(runtime.pod("p"), "main"))
            while not agent.asked:
                await asyncio.sleep(0.001)
            plugin.go_on()
            assert (await creation).spec.env["GRANTED"] == "yes"

    asyncio.run(run())


@pytest.mark.parametrize("half", ["read", "write", "both"])
def test_a_half_open_connection_is_noticed_and_replaced(folder: Path, half: str) -> None:
    async def run() -> None:
        async with attached(folder, request_s=0.5) as (runtime, agent):
            plugin = await runtime.plugged()
            await agent.synchronized()
            plugin.half_close(half)  # type: ignore[arg-type]  # one of the three
            container = await runtime.create(runtime.pod("p"), "main")
            assert container.missed
            await runtime.plugged()
            await agent.synchronized()
            await gets_its_grant(runtime, "next")

    asyncio.run(run())


def test_of_two_agents_one_is_connected_and_the_other_takes_over(folder: Path) -> None:
    async def run() -> None:
        lock = str(folder / "lock")
        async with Runtime(folder, CONTAINERD_2_3) as runtime:
            first = Agent(runtime.socket, granting, lock=lock)
            await runtime.plugged()
            second = Agent(runtime.socket, granting, lock=lock)
            await second.until(lambda view: bool(view.reason))
            await gets_its_grant(runtime)
            assert len(runtime.seen) == 1
            await first.end()
            await runtime.plugged()
            await second.synchronized()
            await gets_its_grant(runtime, "next")
            await second.end()

    asyncio.run(run())


def test_a_container_that_is_gone_between_two_calls_is_out_of_the_next_full_picture(
    folder: Path,
) -> None:
    async def run() -> None:
        async with attached(folder, pods=2) as (runtime, agent):
            plugin = await runtime.plugged()
            created = await gets_its_grant(runtime)
            await runtime.start(created)
            runtime.forget(created)
            await plugin.ask("StopContainer", b"")  # of nobody
            plugin.close("the runtime found its own mistake")
            await runtime.plugged()
            view = await agent.synchronized()
            assert created.id not in view.containers
            assert len(view.containers) == 2

    asyncio.run(run())


def test_an_unknown_container_may_be_updated_stopped_and_removed(
    folder: Path,
) -> None:
    async def run() -> None:
        async with attached(folder) as (runtime, agent):
            await runtime.plugged()
            (pod,) = runtime.populate(pods=1)
            container = pod.containers[0]
            await runtime.update(container, cpu={"quota": 50_000})
            await runtime.stop(container)
            await runtime.remove(container)
            await runtime.remove_pod(pod)
            assert {entry.code for entry in runtime.log} == {0}
            assert pod.id not in agent.view.sandboxes

    asyncio.run(run())


def test_another_plug_in_that_sets_the_same_field_fails_that_container_alone(
    folder: Path,
) -> None:
    def same(pod: pb.PodSandbox, _: pb.Container) -> pb.ContainerAdjustment:
        container_adjustment = pb.ContainerAdjustment()
        if pod.name == "fought-over":
            container_adjustment.env.add(key="GRANTED", value="no")
        return container_adjustment

    async def run() -> None:
        async with attached(folder) as (runtime, agent):
            plugin = await runtime.plugged()
            runtime.rivals.append(Rival("90", "rival", same))
            pod = runtime.pod("fought-over")
            await runtime.run_pod(pod)
            with pytest.raises(Failed, match="both tried to set"):
                await runtime.create(pod, "main")
            await agent.until(lambda view: not view.containers)
            assert plugin.state == "synchronized"
            await gets_its_grant(runtime, "peaceful")

    asyncio.run(run())


def test_a_pod_that_another_plug_in_refuses_is_forgotten(folder: Path) -> None:
    async def run() -> None:
        async with attached(folder) as (runtime, agent):
            await runtime.plugged()
            created = await gets_its_grant(runtime)
            await runtime.stop_pod(created.pod)
            await runtime.remove_pod(created.pod)
            await agent.until(lambda view: not view.sandboxes and not view.containers)

    asyncio.run(run())


def test_a_container_that_exits_at_once_does_not_stay_in_the_picture(folder: Path) -> None:
    async def run() -> None:
        async with attached(folder) as (runtime, agent):
            await runtime.plugged()
            await agent.synchronized()
            pod = runtime.pod("p")
            await runtime.run_pod(pod)
            init = await runtime.create(pod, "init")
            await runtime.start(init, exits=True)
            main = await runtime.create(pod, "main")
            await runtime.start(main)
            assert list(agent.view.containers) == [main.id]

    asyncio.run(run())
