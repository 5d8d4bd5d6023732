"""Every runtime that is out there is served as its version wants."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.snapshot.container import ContainerState, HookStage
from tests.fault.nri.attached import attached, gets_its_grant
from tests.runtime import CONTAINERD_2_3, VERSIONS, Version, by_bytes, header_first, whole
from tests.runtime.ways import Cut


@pytest.mark.parametrize("version", VERSIONS, ids=lambda v: f"{v.runtime}-{v.release}")
def test_a_pods_whole_life_is_served_by_each_version(folder: Path, version: Version) -> None:
    async def run() -> None:
        async with attached(folder, version, pods=3) as (runtime, agent):
            plugin = await runtime.plugged()
            assert (await agent.synchronized()).nri_version == version.nri
            assert (agent.view.runtime, len(agent.view.sandboxes)) == (version.runtime, 3)
            assert plugin.events & ~version.events == 0
            created = await gets_its_grant(runtime)
            await runtime.start(created)
            view = await agent.until(lambda now: now.containers[created.id].pid is not None)
            assert view.containers[created.id].state is ContainerState.RUNNING
            assert view.containers[created.id].pid == created.message.pid
            await runtime.update(created, cpu={"shares": 512})
            assert created.spec.cpu["shares"] == 512
            await runtime.stop_pod(created.pod)
            await runtime.remove_pod(created.pod)
            view = await agent.until(lambda now: created.id not in now.containers)
            assert created.pod.id not in view.sandboxes
            stages = [request.stage for request in agent.asked]
            assert stages == [
                HookStage.RUN_POD,
                HookStage.CREATE,
                HookStage.UPDATE,
                HookStage.REMOVE_POD,
            ]
            assert {entry.code for entry in runtime.log} == {0}

    asyncio.run(run())


def test_a_runtime_that_names_no_time_limits_is_served(folder: Path) -> None:
    async def run() -> None:
        async with attached(folder) as (runtime, _):
            runtime.tell_limits = False
            await runtime.plugged()
            await gets_its_grant(runtime)

    asyncio.run(run())


@pytest.mark.parametrize("cut", [whole, header_first, by_bytes])
def test_frames_may_be_cut_anywhere(folder: Path, cut: Cut) -> None:
    async def run() -> None:
        async with attached(folder) as (runtime, _):
            runtime.ways.pieces = cut
            await runtime.plugged()
            await gets_its_grant(runtime)

    asyncio.run(run())


def test_bytes_may_come_one_by_one(folder: Path) -> None:
    async def run() -> None:
        async with attached(folder) as (runtime, _):
            runtime.ways.dribble = 1
            await runtime.plugged()
            await gets_its_grant(runtime)

    asyncio.run(run())


def test_fields_that_are_not_known_are_passed_over(folder: Path) -> None:
    async def run() -> None:
        async with attached(folder) as (runtime, agent):
            runtime.ways.extra = bytes.fromhex("c23e03616263 c83e05".replace(" ", ""))
            await runtime.plugged()
            created = await gets_its_grant(runtime)
            assert agent.view.containers[created.id].name == "main"

    asyncio.run(run())


def test_configure_may_overtake_the_answer_to_the_registration(folder: Path) -> None:
    async def run() -> None:
        async with attached(folder, CONTAINERD_2_3) as (runtime, _):
            runtime.ways.configure_first = True
            await runtime.plugged()
            await gets_its_grant(runtime)

    asyncio.run(run())
