"""Kubelets that begin again, folders and sockets that go, and ourselves that begin again."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading

import msgspec
import pytest

from agent.deviceplugin.allocations import (
    AllocationTable,
    CheckpointStamp,
    read_device_checkpoint,
)
from agent.deviceplugin.context import ChangeCondition
from agent.deviceplugin.server import ResourceServer
from agent.deviceplugin.servicer import ResourceServicer
from proto.gen import deviceplugin_v1beta1_pb2 as pb
from tests.fault.deviceplugin.stage import GPU, QUICK, Stage, gpus, on_stage
from tests.patience import PATIENCE_S

# so that only the kernel's news can be what was reacted to
DEAF_TO_POLLS = msgspec.structs.replace(QUICK, poll_s=3600.0, absent_s=3600.0)


def test_a_kubelet_that_restarts_finds_every_device_again() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        await stage.start()
        first = await stage.kubelet.resource(GPU, healthy=8)
        container = await stage.kubelet.admit("pod-1", "main", {GPU: 2})
        for _ in range(3):
            await stage.kubelet.restart()
            first = await stage.kubelet.resource(GPU, healthy=8, not_this=first)
        again = await stage.kubelet.admit("pod-1", "main", {GPU: 2})
        assert again.ids == container.ids
        assert stage.kubelet.allocatable(GPU) == 8
        assert len(stage.sockets()) == 1

    on_stage(test)


def test_the_kernel_reports_a_new_kubelet_at_once() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        await stage.start()
        first = await stage.kubelet.resource(GPU, healthy=8)
        await stage.kubelet.restart()
        await stage.kubelet.resource(GPU, healthy=8, not_this=first)

    on_stage(test, DEAF_TO_POLLS)


def test_without_events_of_the_kernel_a_scan_finds_the_new_kubelet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "agent.deviceplugin.kubelet_folder.WATCH_MASK", 0
    )  # which the kernel refuses

    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        await stage.start()
        first = await stage.kubelet.resource(GPU, healthy=8)
        await stage.kubelet.restart()
        await stage.kubelet.resource(GPU, healthy=8, not_this=first)

    on_stage(test)


def test_a_wiped_folder_is_served_in_again_by_another_file() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        await stage.start()
        first = await stage.kubelet.resource(GPU, healthy=8)
        stage.kubelet.wipe()
        second = await stage.kubelet.resource(GPU, healthy=8, not_this=first)
        assert second.name != first.name
        assert first.ended == "OK"  # before the second was registered, or it would complain

    on_stage(test, DEAF_TO_POLLS)


def test_a_replaced_folder_is_followed() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        await stage.start()
        first = await stage.kubelet.resource(GPU, healthy=8)
        for _ in range(3):  # its inode number may come again
            await stage.kubelet.replace_folder()
            first = await stage.kubelet.resource(GPU, healthy=8, not_this=first)
        assert len(stage.sockets()) == 1

    on_stage(test)


def test_a_folder_that_is_gone_for_a_while_is_waited_for() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        await stage.start()
        first = await stage.kubelet.resource(GPU, healthy=8)
        await stage.kubelet.stop()
        shutil.rmtree(stage.folder)
        await stage.kubelet.until(lambda: first.ended is not None, "the end of the stream")
        await stage.kubelet.start()
        await stage.kubelet.resource(GPU, healthy=8)

    on_stage(test)


def test_a_replaced_socket_is_registered_at_again() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        await stage.start()
        first = await stage.kubelet.resource(GPU, healthy=8)
        await stage.kubelet.replace_socket()
        await stage.kubelet.resource(GPU, healthy=8, not_this=first)

    on_stage(test, DEAF_TO_POLLS)


def test_a_socket_that_nobody_listens_at_is_no_kubelet() -> None:
    async def test(stage: Stage) -> None:
        stage.folder.mkdir(exist_ok=True)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(stage.folder / "kubelet.sock"))  # of one that was killed
        await stage.start()
        await stage.kubelet.until(lambda: stage.stands("waiting", "KubeletAway"), "away")
        await stage.kubelet.start()
        await stage.kubelet.resource(GPU, healthy=8)

    on_stage(test)


def test_a_stream_that_the_kubelet_leaves_is_registered_again() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        await stage.start()
        first = await stage.kubelet.resource(GPU, healthy=8)
        stage.kubelet.drop(GPU)
        second = await stage.kubelet.resource(GPU, healthy=8, not_this=first)
        assert second.name != first.name

    on_stage(test)


def test_a_plugin_that_loses_stream_after_stream_stops_and_reports_it() -> None:
    async def test(stage: Stage) -> None:
        stage.kubelet.closes_old = True
        await stage.kubelet.start()
        await stage.start()
        last = None
        for _ in range(3):
            last = await stage.kubelet.resource(GPU, not_this=last)
            stage.kubelet.drop(GPU)
        await stage.kubelet.until(lambda: stage.stands("conflict", "StreamsEnded"), "conflict")
        await stage.kubelet.until(lambda: stage.sockets() == [], "the end of the server")
        assert [reason for reason, _ in stage.reported_events] == ["DevicePluginConflict"]

    on_stage(test, msgspec.structs.replace(QUICK, refused_retry_s=3600.0))


def test_the_next_agent_serves_when_the_one_before_has_ended() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        await stage.start()
        first = await stage.kubelet.resource(GPU, healthy=8)
        following = Stage(stage.folder.parent, stage.pace)
        following.kubelet = stage.kubelet
        await stage.stop()  # as the holder of the node's lock does, before the next one starts
        await following.start()
        await stage.kubelet.resource(GPU, healthy=8, not_this=first)
        await following.stop()

    on_stage(test)


@pytest.mark.parametrize("turns", range(1, 3))
def test_a_stop_in_the_middle_of_a_servers_start_ends_it(turns: int) -> None:
    async def test(stage: Stage) -> None:
        stage.folder.mkdir()
        site, bell = stage.site(), ChangeCondition()
        holding = AllocationTable(site.clock, lambda: None)
        answering = ResourceServicer(gpus(8), site, bell, holding, live=True)
        start = asyncio.create_task(ResourceServer(answering, site, bell).start(1))
        for _ in range(turns):  # of the loop; in the first the server has begun to start
            await asyncio.sleep(0)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert stage.sockets() == []

    on_stage(test)


def test_our_own_start_after_a_stop_finds_the_kubelet_ready() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        last = None
        for _ in range(3):
            await stage.start()
            last = await stage.kubelet.resource(GPU, healthy=8, not_this=last)
            await stage.stop()
            await stage.kubelet.until(lambda: stage.kubelet.allocatable(GPU) == 0, "unhealthy")
            assert last.ended == "OK"
            assert stage.kubelet.capacity(GPU) == 8  # for the grace period
            assert stage.sockets() == []

    on_stage(test)


def test_sockets_of_an_agent_that_was_killed_are_removed_and_those_of_others_stay() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        for name in ("xpu-agent-nvidia.com-gpu.1.sock", "other.sock"):
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(stage.folder / name))
        (stage.folder / "xpu-agent-note.txt").write_text("not a socket")
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        assert stage.sockets() == ["xpu-agent-nvidia.com-gpu.1.sock"]
        assert (stage.folder / "other.sock").exists()
        assert (stage.folder / "xpu-agent-note.txt").exists()

    on_stage(test)


def test_a_file_name_at_which_another_process_listens_is_left_alone() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        with socket.socket(socket.AF_UNIX) as theirs:
            theirs.bind(str(stage.folder / "xpu-agent-nvidia.com-gpu.1.sock"))
            theirs.listen()
            await stage.start()
            endpoint = await stage.kubelet.resource(GPU, healthy=8)
            assert endpoint.name == "xpu-agent-nvidia.com-gpu.2.sock"

    on_stage(test)


def test_a_plug_in_that_dies_between_registration_and_stream_leaves_nothing() -> None:
    async def test(stage: Stage) -> None:
        stage.kubelet.half_open = True
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.until(lambda: bool(stage.kubelet.past), "a registration")
        await stage.stop()
        assert stage.sockets() == []
        stage.kubelet.half_open = False
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)

    on_stage(test)


def test_a_stop_while_the_kubelet_hangs_is_quick() -> None:
    async def test(stage: Stage) -> None:
        stage.kubelet.hold_register.set()
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.until(lambda: bool(stage.kubelet.registered), "a registration")
        async with asyncio.timeout(PATIENCE_S):
            await stage.stop()
        assert stage.sockets() == []

    on_stage(test, msgspec.structs.replace(QUICK, register_s=3600.0))


def test_a_kubelet_that_died_before_it_wrote_may_request_the_pod_again() -> None:
    async def test(stage: Stage) -> None:
        stage.table.pod_uid = "pod-1"
        await stage.kubelet.start()
        plugin = await stage.start()
        first = await stage.kubelet.resource(GPU, healthy=8)
        request = pb.AllocateRequest()
        request.container_requests.add(devices_ids=["GPU-0"])
        await first.call("Allocate", request.SerializeToString())
        assert [allocation.pod_uid for allocation in plugin.view().held] == ["pod-1"]
        await stage.kubelet.restart()
        await stage.kubelet.resource(GPU, healthy=8, not_this=first)
        assert plugin.view().held == ()

    on_stage(test)


def test_the_devices_of_pods_are_read_before_any_are_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pod may have another device than the kubelet accounts: only its checkpoint says so."""
    offered: list[int] = []

    async def test(stage: Stage) -> None:
        def read(folder: str, known: CheckpointStamp | None, *, with_nodes: bool) -> object:
            assert stage.plugin is not None
            offered.append(len(stage.plugin.view().resources))
            return read_device_checkpoint(folder, known, with_nodes=with_nodes)

        monkeypatch.setattr("agent.deviceplugin.plugin.read_device_checkpoint", read)
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        assert offered[0] == 0

    on_stage(test)


def test_a_checkpoint_that_cannot_be_read_in_time_holds_up_the_offer_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = threading.Event()

    def hang(folder: str, known: CheckpointStamp | None, *, with_nodes: bool) -> None:
        del folder, known, with_nodes
        gate.wait()

    async def test(stage: Stage) -> None:
        monkeypatch.setattr("agent.deviceplugin.plugin.read_device_checkpoint", hang)
        await stage.kubelet.start()
        await stage.start()
        try:
            await stage.kubelet.resource(GPU, healthy=8)
        finally:
            gate.set()

    on_stage(test, msgspec.structs.replace(QUICK, prepare_s=0.05))
