"""The full picture: in one part or many, cut off half-way, and again after each reconnect."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from proto.gen import nri_plugin_pb2 as nri
from tests.fault.nri.attached import attached, gets_its_grant
from tests.runtime import CONTAINERD_1_7_24, CONTAINERD_2_1, CONTAINERD_2_3, Version


def test_five_thousand_containers_come_in_parts_and_are_all_there(folder: Path) -> None:
    async def run() -> None:
        async with attached(folder, CONTAINERD_2_1, pods=1000, request_s=20.0) as (runtime, agent):
            runtime.kill()
            runtime.pods.clear()
            runtime.populate(pods=1000, containers=5)
            await runtime.listen()
            await runtime.plugged()
            view = await agent.until(lambda now: len(now.containers) == 5000)
            assert len(view.sandboxes) == 1000
            parts = [entry for entry in runtime.log if entry.method == "Synchronize"]
            assert len(parts) > 2
            assert {each.sandbox_id for each in view.containers.values()} == set(view.sandboxes)
            assert agent.plugin.statistics.dropped == 0

    asyncio.run(run())


@pytest.mark.parametrize("version", [CONTAINERD_2_1, CONTAINERD_2_3])
@pytest.mark.parametrize("step", [1, 2, 7])
def test_parts_of_any_size_make_one_picture(folder: Path, version: Version, step: int) -> None:
    async def run() -> None:
        async with attached(folder, version) as (runtime, agent):
            runtime.kill()
            runtime.populate(pods=5, containers=3)
            runtime.ways.part_objects = step
            await runtime.listen()
            await runtime.plugged()
            view = await agent.synchronized()
            assert (len(view.sandboxes), len(view.containers)) == (5, 15)
            for observations in agent.views:
                assert len(observations.containers) in (0, 15)  # never half of them

    asyncio.run(run())


def test_half_of_a_picture_is_dropped_when_the_connection_ends(folder: Path) -> None:
    async def run() -> None:
        async with attached(folder) as (runtime, agent):
            await runtime.plugged()
            await agent.synchronized()
            old = runtime.populate(pods=4)
            runtime.ways.part_objects = 1
            runtime.ways.synchronize = "hang"
            runtime.kill()
            await runtime.listen()
            count = len(runtime.seen) + 1
            plugin = await runtime.dialled(count)
            while plugin.state != "configured":
                await asyncio.sleep(0.001)
            half, more = runtime._parts(*runtime.picture())[0]
            assert more
            await plugin.ask("Synchronize", half)
            plugin.close("in the middle of it")
            assert old[0].id not in agent.view.sandboxes
            runtime.forget(old[0].containers[0])
            runtime.pods.remove(old[0])
            runtime.ways.synchronize = "answer"
            await runtime.plugged()
            view = await agent.synchronized()
            assert set(view.sandboxes) == {pod.id for pod in old[1:]}

    asyncio.run(run())


def test_each_reconnect_brings_the_whole_picture_again(folder: Path) -> None:
    async def run() -> None:
        async with attached(folder, pods=3) as (runtime, agent):
            await runtime.plugged()
            await agent.synchronized()
            removed, *_ = runtime.pods
            runtime.kill()
            runtime.pods.remove(removed)
            (come,) = runtime.populate(pods=1)
            await runtime.listen()
            await runtime.plugged()
            view = await agent.until(lambda now: removed.id not in now.sandboxes)
            assert set(view.sandboxes) == {pod.id for pod in runtime.pods}
            assert come.id in view.sandboxes

    asyncio.run(run())


def test_a_runtime_that_is_empty_is_in_step_too(folder: Path) -> None:
    async def run() -> None:
        async with attached(folder, CONTAINERD_1_7_24) as (runtime, agent):
            await runtime.plugged()
            view = await agent.synchronized()
            assert not view.sandboxes
            await gets_its_grant(runtime)

    asyncio.run(run())


def test_pods_and_containers_without_each_other_do_no_harm(folder: Path) -> None:
    async def run() -> None:
        async with attached(folder, pods=2) as (runtime, agent):
            plugin = await runtime.plugged()
            await agent.synchronized()
            pods, containers = runtime.picture()
            containers[0].pod_sandbox_id = "nobody"
            containers[1].id = ""
            pods[0].id = ""
            await plugin.ask(
                "Synchronize", nri.SynchronizeRequest(pods=pods, containers=containers)
            )
            await gets_its_grant(runtime)

    asyncio.run(run())
