"""Answers of any size are cut so that Go can read them; what cannot be sent costs one container."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.snapshot.container import (
    NO_ADJUSTMENT,
    Adjustment,
    HookRequest,
    HookStage,
    LinuxResources,
)
from agent.snapshot.edits import ContainerEdits, DeviceNodeEdit, FolderEdit, MountEdit, RlimitEdit
from proto.gen import nri_plugin_pb2 as nri
from tests.fault.nri.attached import attached, gets_its_grant, granting
from tests.runtime import CONTAINERD_1_7_24, CONTAINERD_2_3, CRIO_1_34, Failed, Version
from tests.runtime.spec import Bind, Node

ALL = Adjustment(
    edits=ContainerEdits(
        nodes=(
            DeviceNodeEdit(host_path="/dev/a", path="/dev/b", major=195, minor=0, file_mode=0o666),
            DeviceNodeEdit(host_path="/dev/c", path="/dev/c", major=10, minor=1),
        ),
        mounts=(MountEdit(host_path="/usr/lib/x", path="/lib/x", options=("bind", "ro")),),
        env=(("A", "1"), ("EMPTY", "")),
        rlimits=(RlimitEdit(name="RLIMIT_MEMLOCK", soft=(1 << 64) - 1, hard=(1 << 64) - 1),),
        folders=(FolderEdit(host_path="/run/x", mode=0o755),),
    ),
    resources=LinuxResources(shares=512, quota_us=-1, cpus="0-3", memory_bytes=1 << 30),
    rdt_class="LS",
)


@pytest.mark.parametrize("version", [CONTAINERD_1_7_24, CONTAINERD_2_3, CRIO_1_34])
def test_each_kind_of_edit_arrives_in_the_container(folder: Path, version: Version) -> None:
    async def everything(request: HookRequest) -> Adjustment:
        return ALL if request.stage is HookStage.CREATE else NO_ADJUSTMENT

    async def run() -> None:
        async with attached(folder, version, hook=everything) as (runtime, _):
            await runtime.plugged()
            pod = runtime.pod("p")
            await runtime.run_pod(pod)
            spec = (await runtime.create(pod, "main")).spec
            assert (spec.env["A"], spec.env["EMPTY"]) == ("1", "")
            assert spec.nodes["/dev/b"] == Node(
                kind="c", major=195, minor=0, mode=0o666, access="rw"
            )
            assert spec.nodes["/dev/c"].mode is None
            assert spec.mounts["/lib/x"] == Bind(
                source="/usr/lib/x", type="bind", options=("bind", "ro")
            )
            assert spec.rlimits["RLIMIT_MEMLOCK"] == ((1 << 64) - 1, (1 << 64) - 1)
            assert (spec.cpu["shares"], spec.cpu["quota"], spec.cpu["cpus"]) == (512, -1, "0-3")
            assert (spec.memory_bytes, spec.rdt_class) == (1 << 30, "LS")
            assert spec.ignored == []

    asyncio.run(run())


@pytest.mark.parametrize("size", [3_000, 4_060, 4_070, 4_086, 4_096, 5_000, 100_000, 3_000_000])
def test_an_answer_of_any_size_is_read_by_go(folder: Path, size: int) -> None:
    async def large(request: HookRequest) -> Adjustment:
        edits = ContainerEdits(env=(("GRANTED", "yes"), ("LARGE", "x" * size)))
        return Adjustment(edits=edits) if request.stage is HookStage.CREATE else NO_ADJUSTMENT

    async def run() -> None:
        async with attached(folder, hook=large) as (runtime, _):
            await runtime.plugged()
            created = await gets_its_grant(runtime)
            assert len(created.spec.env["LARGE"]) == size

    asyncio.run(run())


def test_an_answer_that_no_frame_carries_costs_that_container_alone(folder: Path) -> None:
    async def huge(request: HookRequest) -> Adjustment:
        edits = ContainerEdits(env=(("LARGE", "x" * (5 << 20)),))
        return Adjustment(edits=edits) if request.stage is HookStage.CREATE else NO_ADJUSTMENT

    async def run() -> None:
        async with attached(folder, hook=huge) as (runtime, agent):
            plugin = await runtime.plugged()
            pod = runtime.pod("p")
            await runtime.run_pod(pod)
            with pytest.raises(Failed, match="4194304"):
                await runtime.create(pod, "main")
            assert plugin.state == "synchronized"
            agent.hook = granting
            await gets_its_grant(runtime, "next")

    asyncio.run(run())


def test_cdi_names_reach_a_runtime_that_resolves_them_and_fail_loudly_elsewhere(
    folder: Path,
) -> None:
    async def named(request: HookRequest) -> Adjustment:
        edits = ContainerEdits(cdi=("nvidia.com/gpu=0",))
        return Adjustment(edits=edits) if request.stage is HookStage.CREATE else NO_ADJUSTMENT

    async def made_by(version: Version) -> list[str]:
        async with attached(folder, version, hook=named) as (runtime, _):
            runtime.cdi_names.add("nvidia.com/gpu=0")
            await runtime.plugged()
            pod = runtime.pod("p")
            await runtime.run_pod(pod)
            return (await runtime.create(pod, "main")).spec.cdi

    assert asyncio.run(made_by(CONTAINERD_2_3)) == ["nvidia.com/gpu=0"]
    with pytest.raises(Failed, match="CDI"):
        asyncio.run(made_by(CONTAINERD_1_7_24))


@pytest.mark.parametrize("event", [0, 13, 14, 15, 99, -1])
def test_an_event_that_is_not_known_is_answered(folder: Path, event: int) -> None:
    async def run() -> None:
        async with attached(folder) as (runtime, _):
            plugin = await runtime.plugged()
            change = nri.StateChangeEvent()
            change.pod.id = "p"
            number = event & 0xFFFFFFFFFFFFFFFF
            varint = bytearray([8])
            while number > 0x7F:
                varint.append(number & 0x7F | 0x80)
                number >>= 7
            await plugin.ask("StateChange", bytes([*varint, number]) + change.SerializeToString())
            await gets_its_grant(runtime)

    asyncio.run(run())
