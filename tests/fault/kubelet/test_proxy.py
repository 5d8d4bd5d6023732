"""The proxy of the pod-resources socket, asked as a monitor asks: over a real socket, by gRPC."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc import aio

from agent.kubelet.pod_resources_proxy import PodResourcesChannel, PodResourcesProxy
from agent.kubelet.pod_resources_socket import TEMPORARY_PREFIX, ProxySocketFile
from agent.snapshot.cluster import ClusterView
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore
from agent.snapshot.pod import KubeQos, PodView
from agent.wire_formats.device_allocated import ANNOTATION
from proto.gen import podresources_v1_pb2 as pb
from tests.fault.kubelet.fake_grpc import FakePodResources
from tests.patience import PATIENCE_S

ALLOCATED = PodView(
    uid="u",
    name="p",
    namespace="ns",
    qos=KubeQos.BURSTABLE,
    annotations=((ANNOTATION, '{"gpu":[{"minor":0,"id":"GPU-1"}]}'),),
)
LISTED = pb.PodResources(name="p", namespace="ns", containers=[pb.ContainerResources(name="c")])


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder with a short name, which pytest's are not: a socket's address has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="proxy-") as folder:
        yield Path(folder)


NO_PODS = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))


class Node:
    """A kubelet, the proxy before it, and a monitor."""

    def __init__(self, folder: Path) -> None:
        (folder / "kubelet").mkdir()
        self.kubelet = FakePodResources(folder / "kubelet")
        self.kubelet.listed.pod_resources.append(LISTED)
        self.channel = PodResourcesChannel(str(self.kubelet.path), deadline_s=5)
        self.folder = folder / "koordlet" / "pod-resources"
        self.path = self.folder / "kubelet.sock"
        self.store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))
        self.list_pods(ALLOCATED)
        self.proxy = self.another()

    def another(self) -> PodResourcesProxy:
        return PodResourcesProxy(str(self.folder), self.channel, self.store)

    def list_pods(self, *pods: PodView) -> None:
        self.store.put(cluster=ClusterView(pods=pods))

    async def ask(self, method: str, request: bytes = b"") -> bytes:
        async with aio.insecure_channel(
            f"unix:{self.path}", (("grpc.use_local_subchannel_pool", 1),)
        ) as channel:
            call: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                f"/v1.PodResourcesLister/{method}"
            )
            reply: bytes = await call(request, timeout=PATIENCE_S)
            return reply

    async def devices(self) -> list[str]:
        reply = pb.ListPodResourcesResponse.FromString(await self.ask("List"))
        entries = reply.pod_resources[0].containers[0].devices
        return [f"{entry.resource_name}={','.join(entry.device_ids)}" for entry in entries]

    async def refusal(self, method: str) -> grpc.StatusCode:
        with pytest.raises(aio.AioRpcError) as caught:
            await self.ask(method)
        return caught.value.code()


def on_node(folder: Path, test: Callable[[Node], Awaitable[None]]) -> Node:
    node = Node(folder)

    async def live() -> None:
        async with node.kubelet.running():
            try:
                await test(node)
            finally:
                await node.proxy.stop()
                await node.channel.close()

    asyncio.run(live())
    return node


def test_a_monitor_sees_our_grants_and_the_socket_is_roots_alone(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.proxy.check()
        assert node.proxy.state.is_serving
        assert await node.devices() == ["nvidia.com/gpu=GPU-1"]
        node.list_pods()  # the next answer is of the pods known by then
        assert await node.devices() == []
        assert stat.S_IMODE(node.path.stat().st_mode) == 0o600
        assert os.listdir(node.folder) == ["kubelet.sock"]
        assert node.proxy.state.calls == (("List OK", 2),)

    node = on_node(tmp_path, test)
    assert os.listdir(node.folder) == []  # nothing is left behind


def test_the_other_methods_are_handed_through(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        node.kubelet.allocatable.cpu_ids.extend([1, 2])
        await node.proxy.check()
        resources_response = pb.AllocatableResourcesResponse.FromString(
            await node.ask("GetAllocatableResources")
        )
        assert list(resources_response.cpu_ids) == [1, 2]
        resources_request = pb.GetPodResourcesRequest(pod_name="p", pod_namespace="ns")
        got = await node.ask("Get", resources_request.SerializeToString())
        assert pb.GetPodResourcesResponse.FromString(got).pod_resources == LISTED
        assert await node.refusal("Get") is grpc.StatusCode.UNKNOWN  # no such pod, as it says

    on_node(tmp_path, test)


def test_what_an_old_kubelet_lacks_the_proxy_lacks(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.kubelet.stop()
        node.kubelet.offered = {"List"}
        await node.kubelet.start()
        await node.proxy.check()
        assert await node.refusal("Get") is grpc.StatusCode.UNIMPLEMENTED

    on_node(tmp_path, test)


def test_while_the_kubelet_is_away_the_answer_is_unavailable_and_never_an_empty_list(
    tmp_path: Path,
) -> None:
    async def test(node: Node) -> None:
        await node.proxy.check()
        await node.kubelet.stop()
        assert await node.refusal("List") is grpc.StatusCode.UNAVAILABLE
        assert await node.refusal("GetAllocatableResources") is grpc.StatusCode.UNAVAILABLE
        assert ("List UNAVAILABLE", 1) in node.proxy.state.calls
        await node.kubelet.start()
        assert await node.devices() == ["nvidia.com/gpu=GPU-1"]

    on_node(tmp_path, test)


def test_an_invalid_list_is_an_error_of_the_agent(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        node.kubelet.raw = b"\xff\xff"
        await node.proxy.check()
        assert await node.refusal("List") is grpc.StatusCode.INTERNAL

    on_node(tmp_path, test)


def test_a_proxy_that_listens_already_is_left_alone(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.proxy.check()
        second = node.another()
        await second.check()
        assert not second.state.is_serving
        assert "another proxy" in second.state.error
        await second.stop()
        assert await node.devices() == ["nvidia.com/gpu=GPU-1"]
        await node.proxy.stop()
        await second.check()
        assert second.state.is_serving
        assert await node.devices() == ["nvidia.com/gpu=GPU-1"]
        await second.stop()

    on_node(tmp_path, test)


def test_what_a_killed_agent_left_is_replaced(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        (node.folder / f"{TEMPORARY_PREFIX}left").mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(node.path))
        await node.proxy.check()
        assert await node.devices() == ["nvidia.com/gpu=GPU-1"]
        assert os.listdir(node.folder) == ["kubelet.sock"]

    on_node(tmp_path, test)


def test_a_socket_that_was_removed_is_made_again(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.proxy.check()
        node.path.unlink()
        await node.proxy.check()
        assert await node.devices() == ["nvidia.com/gpu=GPU-1"]

    on_node(tmp_path, test)


def test_the_socket_of_a_successor_outlives_the_stop_of_its_predecessor(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.proxy.check()
        node.path.unlink()  # as koordlet does when it starts
        successor = node.another()
        await successor.check()
        await node.proxy.stop()
        assert await node.devices() == ["nvidia.com/gpu=GPU-1"]
        await successor.stop()

    on_node(tmp_path, test)


def test_something_else_in_its_place_is_not_removed(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        node.folder.mkdir(parents=True)
        node.path.write_text("precious")
        await node.proxy.check()
        assert "no socket" in node.proxy.state.error
        assert node.path.read_text() == "precious"
        node.path.unlink()
        await node.proxy.check()
        assert node.proxy.state.is_serving
        assert node.proxy.state.error == ""

    on_node(tmp_path, test)


def test_a_folder_that_cannot_be_created_is_reported_with_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    proxy = PodResourcesProxy(
        str(tmp_path / "file" / "below"), PodResourcesChannel("/nowhere"), NO_PODS
    )
    asyncio.run(proxy.check())
    assert "kubelet.pod_resources_proxy_dir" in proxy.state.error


def test_a_path_that_is_too_long_for_a_socket_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    proxy = PodResourcesProxy(str(folder), PodResourcesChannel("/nowhere"), NO_PODS)
    asyncio.run(proxy.check())
    assert "longer than" in proxy.state.error
    assert os.listdir(folder) == []


def test_it_serves_until_it_is_cancelled(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        looks = asyncio.Semaphore(0)

        async def sleep(_: float) -> None:
            looks.release()
            await asyncio.sleep(0.001)

        task = asyncio.create_task(node.proxy.run(sleep))
        for _ in range(3):
            await looks.acquire()
        assert await node.devices() == ["nvidia.com/gpu=GPU-1"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not node.path.exists()

    on_node(tmp_path, test)


def test_a_start_that_is_cancelled_leaves_nothing_that_serves(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        start = asyncio.create_task(node.proxy.check())
        while not any(Path(node.folder).glob("*")):  # the start of the server follows in this turn
            assert not start.done()
            await asyncio.sleep(0)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert os.listdir(node.folder) == []

    on_node(tmp_path, test)


def test_the_file_is_removed_only_while_it_is_the_agents(tmp_path: Path) -> None:
    file = ProxySocketFile(str(tmp_path))
    # as the server's: open until after `remove`, so that no new file gets its inode number
    with socket.socket(socket.AF_UNIX) as listener:
        with file.create() as address:
            listener.bind(address.removeprefix("unix:"))
        assert file.is_in_place()
        file.path.unlink()
        file.path.touch()
        assert not file.is_in_place()
        file.remove()
        assert file.path.exists()
