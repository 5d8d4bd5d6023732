"""The kubelet's pod-resources socket: old kubelets, its rate limit, restarts, hangs, absence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent.kube.errors import ApiError, BadAnswer, Unreachable
from agent.kubelet.resources.channel import PodResourcesChannel, kubelet_socket
from agent.kubelet.resources.client import PodResourcesClient
from proto.gen import podresources_v1_pb2 as pb
from tests.fault.kubelet.fake_grpc import METHODS, FakePodResources
from tests.patience import PATIENCE_S

Test = Callable[[FakePodResources, PodResourcesClient], Awaitable[None]]
ONE = pb.PodResources(
    name="p",
    namespace="ns",
    containers=[
        pb.ContainerResources(
            name="main",
            devices=[
                pb.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=[uuid])
                for uuid in ("GPU-b", "GPU-a")
            ],
        )
    ],
)


def on_socket(folder: Path, test: Test, deadline_s: float = 10.0) -> FakePodResources:
    kubelet = FakePodResources(folder)
    kubelet.listed.pod_resources.append(ONE)
    kubelet.allocatable.cpu_ids.extend([2, 3])

    async def live() -> None:
        channel = PodResourcesChannel(str(kubelet.path), deadline_s=deadline_s)
        async with kubelet.running():
            try:
                await test(kubelet, PodResourcesClient(channel))
            finally:
                await channel.close()

    asyncio.run(live())
    return kubelet


async def error_of(call: Awaitable[object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await call
    return caught.value


def test_where_the_kubelet_listens() -> None:
    assert kubelet_socket("/var/lib/kubelet/") == "/var/lib/kubelet/pod-resources/kubelet.sock"


def test_devices_of_a_container_are_merged_by_resource(tmp_path: Path) -> None:
    async def test(_: FakePodResources, client: PodResourcesClient) -> None:
        (pod,) = await client.pods()
        (devices,) = pod.containers[0].devices
        assert (devices.resource, devices.ids) == ("nvidia.com/gpu", ("GPU-a", "GPU-b"))
        assert await client.pod("ns", "p") == pod
        assert await client.pod("ns", "other") is None
        allocatable = await client.allocatable()
        assert allocatable is not None
        assert allocatable.cpus == {2, 3}

    on_socket(tmp_path, test)


@pytest.mark.parametrize("gated", [False, True])
def test_an_old_kubelet_that_offers_only_the_list_is_asked_for_the_others_once(
    tmp_path: Path, gated: bool
) -> None:
    async def test(kubelet: FakePodResources, client: PodResourcesClient) -> None:
        await kubelet.stop()
        kubelet.disabled = {"Get", "GetAllocatableResources"} if gated else set()
        kubelet.offered = set(METHODS) if gated else {"List"}
        await kubelet.start()
        for _ in range(3):
            found = await client.pod("ns", "p")
            assert found is not None
            assert found.name == "p"
            assert await client.pod("ns", "other") is None
            assert await client.allocatable() is None
        if gated:
            assert kubelet.calls == {"Get": 1, "GetAllocatableResources": 1, "List": 6}

    on_socket(tmp_path, test)


def test_what_the_rate_limit_refuses_is_asked_again_until_it_is_answered(tmp_path: Path) -> None:
    async def test(kubelet: FakePodResources, client: PodResourcesClient) -> None:
        answers = await asyncio.gather(*(client.pods() for _ in range(40)))
        assert len(answers) == kubelet.calls["List"] == 40
        assert kubelet.refused

    on_socket(tmp_path, test)


def test_a_kubelet_that_hangs_costs_the_deadline(tmp_path: Path) -> None:
    async def test(kubelet: FakePodResources, client: PodResourcesClient) -> None:
        kubelet.hangs = True
        error = await error_of(client.pods())
        assert isinstance(error, Unreachable)
        assert error.reason == "DEADLINE_EXCEEDED"

    on_socket(tmp_path, test, deadline_s=0.3)


def test_a_kubelet_that_restarts_is_reached_at_its_new_socket(tmp_path: Path) -> None:
    async def test(kubelet: FakePodResources, client: PodResourcesClient) -> None:
        kubelet.disabled = {"Get"}
        await client.pods()
        assert await client.pod("ns", "p") is not None
        await kubelet.stop()
        error = await error_of(client.pods())
        assert isinstance(error, Unreachable)
        assert "is the kubelet running?" in str(error)
        kubelet.disabled = set()  # it was upgraded
        await kubelet.start()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    assert await client.pods()
                    break
                except Unreachable:
                    await asyncio.sleep(0.05)
        kubelet.calls.clear()
        assert await client.pod("ns", "p") is not None
        assert kubelet.calls == {"Get": 1}

    on_socket(tmp_path, test)


def test_a_socket_that_nobody_serves_is_unreachable(tmp_path: Path) -> None:
    import socket

    path = tmp_path / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def live() -> None:
        channel = PodResourcesChannel(str(path), deadline_s=5)
        error = await error_of(PodResourcesClient(channel).pods())
        assert isinstance(error, Unreachable)
        await channel.close()

    asyncio.run(live())


def test_a_path_too_long_for_a_socket_is_said(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 120)
    path.touch()

    async def live() -> None:
        error = await error_of(PodResourcesClient(PodResourcesChannel(str(path))).pods())
        assert "longer than" in str(error)

    asyncio.run(live())


@pytest.mark.parametrize("raw", [b"\xff\xff", b"\x0a\x02\x0a\x00" * 4097])
def test_an_answer_that_is_none_of_ours_is_an_error(tmp_path: Path, raw: bytes) -> None:
    async def test(kubelet: FakePodResources, client: PodResourcesClient) -> None:
        kubelet.raw = raw
        assert isinstance(await error_of(client.pods()), BadAnswer)

    on_socket(tmp_path, test)


def test_an_answer_larger_than_the_limit_is_refused_and_not_asked_for_again(
    tmp_path: Path,
) -> None:
    async def test(kubelet: FakePodResources, client: PodResourcesClient) -> None:
        kubelet.raw = b"\x0a" * (17 << 20)
        assert isinstance(await error_of(client.pods()), BadAnswer)
        assert kubelet.calls["List"] == 1

    on_socket(tmp_path, test)
