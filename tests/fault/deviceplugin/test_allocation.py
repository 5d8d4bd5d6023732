"""The three calls about a container, asked as the kubelet asks and as it should not."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import grpc
import msgspec
import pytest
from grpc import aio

from agent.snapshot.allocation import AllocationRefused, PodAllocation, RefusalReason
from agent.snapshot.device_plugin import ALLOCATION_BUCKETS_S, KubeletAllocation
from agent.snapshot.edits import FolderEdit
from proto.gen import deviceplugin_v1beta1_pb2 as pb
from tests.fault.deviceplugin.stage import GPU, QUICK, Stage, gpus, on_stage, refused
from tests.kubelet.admission import NotAdmitted, NotStarted
from tests.patience import PATIENCE_S


def test_a_container_gets_the_preferred_devices_on_one_numa_node() -> None:
    async def test(stage: Stage) -> None:
        stage.table.advice = ("GPU-6", "GPU-7")
        await stage.kubelet.start()
        plugin = await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        first = await stage.kubelet.admit("pod-1", "main", {GPU: 2})
        assert first.envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-6,GPU-7"}
        stage.table.advice = None
        second = await stage.kubelet.admit("pod-2", "main", {GPU: 2}, aligned=True)
        assert second.ids[GPU] == ["GPU-0", "GPU-1"]
        (figures,) = plugin.statistics()
        assert figures.allocations == (("ok", 2),)
        assert figures.preferred == (("ok", 2),)
        assert len(figures.latency.buckets) == len(ALLOCATION_BUCKETS_S) + 1
        assert figures.latency.buckets[-1] == 2

    on_stage(test)


def test_a_refusal_fails_the_admission_with_its_reason() -> None:
    async def test(stage: Stage) -> None:
        stage.table.refusal = AllocationRefused(
            RefusalReason.DEVICE_NODE_MISSING, "/dev/nvidia3 is not there"
        )
        await stage.kubelet.start()
        plugin = await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        with pytest.raises(NotAdmitted) as caught:
            await stage.kubelet.admit("pod-1", "main", {GPU: 1})
        assert "code = FailedPrecondition desc = DeviceNodeMissing: /dev/nv" in str(caught.value)
        assert plugin.statistics()[0].allocations == (("DeviceNodeMissing", 1),)

    on_stage(test)


def test_a_bug_fails_one_call_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def test(stage: Stage) -> None:
        stage.table.refusal = ZeroDivisionError("a bug")
        await stage.kubelet.start()
        plugin = await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        with pytest.raises(NotAdmitted, match="code = Internal"):
            await stage.kubelet.admit("pod-1", "main", {GPU: 1})
        stage.table.refusal = None
        await stage.kubelet.admit("pod-2", "main", {GPU: 1})
        assert plugin.statistics()[0].allocations == (("bug", 1), ("ok", 1))

    on_stage(test)
    assert "device_plugin_failed" in caplog.text


@pytest.mark.parametrize("advice", [refused("NoLinks"), ZeroDivisionError("a bug")])
def test_without_advice_a_pod_is_admitted_all_the_same(advice: Exception) -> None:
    async def test(stage: Stage) -> None:
        stage.table.advice = advice
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        container = await stage.kubelet.admit("pod-1", "main", {GPU: 3})
        assert len(container.ids[GPU]) == 3

    on_stage(test)


def test_a_start_is_refused_while_another_process_uses_the_card_but_not_for_a_bug() -> None:
    async def test(stage: Stage) -> None:
        stage.table.offered = (msgspec.structs.replace(gpus(8), check_start=True),)
        await stage.kubelet.start()
        plugin = await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        stage.table.start = refused("DeviceBusy", "GPU-0 has process 4711 on it")
        with pytest.raises(NotStarted, match="DeviceBusy: GPU-0 has process 4711"):
            await stage.kubelet.admit("pod-1", "main", {GPU: 1})
        stage.table.start = ZeroDivisionError("a bug")
        await stage.kubelet.admit("pod-1", "main", {GPU: 1})
        stage.table.start = None
        await stage.kubelet.admit("pod-1", "main", {GPU: 1})
        assert plugin.statistics()[0].starts == (("DeviceBusy", 1), ("bug", 1), ("ok", 1))
        assert plugin.statistics()[0].allocations == (("ok", 1),)

    on_stage(test)


def test_calls_in_parallel_are_all_answered() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        await stage.start()
        endpoint = await stage.kubelet.resource(GPU, healthy=8)

        async def one(index: int) -> str:
            request = pb.AllocateRequest()
            request.container_requests.add(devices_ids=[f"GPU-{index % 8}"])
            request.container_requests.add(devices_ids=[f"GPU-{index % 7}"])
            answer = await endpoint.call("Allocate", request.SerializeToString(), 10)
            container_responses = pb.AllocateResponse.FromString(answer).container_responses
            return ",".join(
                container_response.envs["NVIDIA_VISIBLE_DEVICES"]
                for container_response in container_responses
            )

        for begin in range(0, 300, 50):  # sixty-four at once are served, more are refused
            answers = await asyncio.gather(*map(one, range(begin, begin + 50)))
            assert answers == [f"GPU-{n % 8},GPU-{n % 7}" for n in range(begin, begin + 50)]

    on_stage(test)


@pytest.mark.parametrize("method", ["Allocate", "GetPreferredAllocation", "PreStartContainer"])
def test_what_is_no_message_is_refused_and_costs_nothing_else(method: str) -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        await stage.start()
        endpoint = await stage.kubelet.resource(GPU, healthy=8)
        for size in range(200):
            with pytest.raises(aio.AioRpcError) as caught:
                await endpoint.call(method, b"\x0a\xff" + os.urandom(size % 40), 5)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await stage.kubelet.admit("pod-1", "main", {GPU: 1})

    on_stage(test)


def test_the_folders_of_an_answer_are_created_first_or_the_answer_is_not_given(
    tmp_path: Path,
) -> None:
    async def test(stage: Stage) -> None:
        parent = tmp_path / "lib"
        parent.touch()  # a file: no folder can be created below it
        stage.table.folders = (FolderEdit(host_path=str(parent / "x"), mode=0o755),)
        stage.table.pod_uid = "pod-1"
        await stage.kubelet.start()
        plugin = await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        with pytest.raises(NotAdmitted, match=f"NotPrepared: {parent}/x"):
            await stage.kubelet.admit("pod-1", "main", {GPU: 1})
        assert plugin.view().held == ()
        parent.unlink()
        await stage.kubelet.admit("pod-2", "main", {GPU: 1})
        assert (parent / "x").is_dir()

    on_stage(test)


def test_a_pod_that_is_not_known_yet_is_waited_for_and_then_no_longer() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        stage.table.unseen = 2
        await stage.kubelet.admit("pod-1", "main", {GPU: 1})
        assert (stage.table.unseen, len(stage.table.asked)) == (0, 3)
        stage.table.unseen = 1_000_000
        await stage.kubelet.admit("pod-2", "main", {GPU: 1})

    on_stage(test)


def test_allocations_are_known_at_once_and_later_from_the_checkpoint() -> None:
    async def test(stage: Stage) -> None:
        stage.table.pod_uid = "pod-1"
        await stage.kubelet.start()
        plugin = await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        admitted = await stage.kubelet.admit("pod-1", "main", {GPU: 2})
        ids = tuple(sorted(admitted.ids[GPU]))
        written = KubeletAllocation(pod_uid="pod-1", resource=GPU, ids=ids, container="main")
        await stage.kubelet.until(lambda: plugin.view().held == (written,), "the checkpoint")
        assert any(
            allocation.container == "" and sorted(allocation.ids) == list(ids)
            for view in stage.views
            for allocation in view.held
        )
        await stage.kubelet.end("pod-1")
        # its entry leaves the file with the next list, as the real kubelet's does
        stage.offer(gpus(8, sick=(7,)))
        await stage.kubelet.until(lambda: plugin.view().held == (), "the pod's end")

    on_stage(test)


def test_a_damaged_checkpoint_changes_nothing_that_is_known() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        plugin = await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        await stage.kubelet.admit("pod-1", "main", {GPU: 2})
        await stage.kubelet.until(lambda: len(plugin.view().held) == 1, "the checkpoint")
        (stage.folder / "kubelet_internal_checkpoint").write_text('{"Data": {"PodDevi')
        await stage.kubelet.admit("pod-2", "main", {GPU: 2})
        await stage.kubelet.until(lambda: len(plugin.view().held) == 2, "the next checkpoint")

    on_stage(test)


def test_the_socket_is_for_root_alone() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        await stage.start()
        endpoint = await stage.kubelet.resource(GPU, healthy=8)
        assert Path(endpoint.path).stat().st_mode & 0o777 == 0o600

    on_stage(test)


class HangingDisk:
    """Creates no folder until it is released; for the thread that creates folders."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()

    def make_folders(self, folders: Iterable[FolderEdit]) -> None:
        del folders
        self.begun.set()
        self.released.wait(PATIENCE_S)


@pytest.fixture
def hanging_disk(monkeypatch: pytest.MonkeyPatch) -> HangingDisk:
    disk = HangingDisk()
    monkeypatch.setattr("agent.deviceplugin.servicer.make_folders", disk.make_folders)
    return disk


A_FOLDER = FolderEdit(host_path="/var/lib/x", mode=0o755)


def test_a_disk_that_hangs_costs_the_allocation_and_nothing_else(hanging_disk: HangingDisk) -> None:
    async def test(stage: Stage) -> None:
        stage.table.folders = (A_FOLDER,)
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        with pytest.raises(NotAdmitted, match="NotPrepared: not within"):
            await stage.kubelet.admit("pod-1", "main", {GPU: 1})
        stage.offer(gpus(8, sick=(1,)))
        await stage.kubelet.resource(GPU, healthy=7)
        hanging_disk.released.set()

    on_stage(test, msgspec.structs.replace(QUICK, prepare_s=0.1))


def test_a_kubelet_that_leaves_in_the_middle_of_an_allocation_was_given_nothing(
    hanging_disk: HangingDisk,
) -> None:
    async def test(stage: Stage) -> None:
        stage.table.folders = (A_FOLDER,)
        stage.table.pod_uid = "pod-1"
        await stage.kubelet.start()
        plugin = await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        task = asyncio.create_task(stage.kubelet.admit("pod-1", "main", {GPU: 1}))
        assert await asyncio.to_thread(hanging_disk.begun.wait, PATIENCE_S)
        assert len(plugin.view().held) == 1
        task.cancel()
        await stage.kubelet.until(lambda: plugin.view().held == (), "the answer is withdrawn")
        hanging_disk.released.set()

    on_stage(test, msgspec.structs.replace(QUICK, prepare_s=3600.0))


def test_a_grant_that_the_kubelet_gave_to_another_pod_is_reported() -> None:
    async def test(stage: Stage) -> None:
        stage.table.pod_uid = "pod-1"
        stage.grants = {"pod-1": PodAllocation(uid="pod-1", namespace="a", name="granted")}
        await stage.kubelet.start()
        plugin = await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        await stage.kubelet.admit("pod-1", "main", {GPU: 1})
        await stage.kubelet.until(lambda: bool(plugin.view().held), "the checkpoint")
        await stage.kubelet.admit("pod-2", "main", {GPU: 1})
        await stage.kubelet.until(lambda: bool(stage.reported_events), "the event")
        ((reason, text),) = stage.reported_events
        assert reason == "GrantGivenToAnotherPod"
        assert "pod pod-2 was given what a/granted was granted" in text

    on_stage(test)
