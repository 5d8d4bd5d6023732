"""What the kubelet is listed, and when: health at once, all else in good time, no half lists."""

from __future__ import annotations

import msgspec

from agent.deviceplugin.resources import KubeletDevice, KubeletResource
from tests.fault.deviceplugin.stage import GPU, QUICK, Stage, gpus, on_stage

SLOWLY = msgspec.structs.replace(QUICK, list_interval_s=3600.0)


def test_health_is_sent_at_once_regardless_of_the_age_of_the_last_list() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        for sick in ((3,), (3, 4), (), (0,), ()):  # flapping, too
            stage.offer(gpus(8, sick=sick))
            await stage.kubelet.resource(GPU, healthy=8 - len(sick))
            assert stage.kubelet.capacity(GPU) == 8

    on_stage(test, SLOWLY)


def test_a_list_that_lacks_an_allocated_device_is_sent_at_once() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        await stage.kubelet.admit("pod-1", "main", {GPU: 6})
        stage.offer(gpus(4))
        await stage.kubelet.resource(GPU, healthy=4)
        stage.offer(gpus(8))

    on_stage(test, SLOWLY)


def test_new_devices_come_together_in_one_list() -> None:
    async def test(stage: Stage) -> None:
        stage.table.offered = (gpus(1),)
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=1)
        for count in range(2, 9):
            one = gpus(8)
            stage.offer(msgspec.structs.replace(one, devices=one.devices[:count]))
        await stage.kubelet.resource(GPU, healthy=8)
        assert len(stage.kubelet.lists[GPU]) == 2

    on_stage(test, msgspec.structs.replace(QUICK, list_interval_s=0.3))


def test_equal_lists_are_sent_once() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        for _ in range(20):
            stage.offer(gpus(8))
        stage.offer(gpus(8, sick=(7,)))
        await stage.kubelet.resource(GPU, healthy=7)
        assert len(stage.kubelet.lists[GPU]) == 2

    on_stage(test)


def test_a_resource_that_is_offered_no_more_has_no_devices_and_may_come_back() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        stage.offer()
        await stage.kubelet.resource(GPU, healthy=0)
        assert stage.kubelet.capacity(GPU) == 0
        stage.offer(gpus(8))
        await stage.kubelet.resource(GPU, healthy=8)
        assert len(stage.kubelet.registered) == 1

    on_stage(test)


def test_a_device_without_a_numa_node_has_no_topology() -> None:
    async def test(stage: Stage) -> None:
        stage.table.offered = (gpus(2, numa=False),)
        await stage.kubelet.start()
        await stage.start()
        endpoint = await stage.kubelet.resource(GPU, healthy=2)
        assert not any(device.HasField("topology") for device in endpoint.devices.values())

    on_stage(test)


def test_a_thousand_devices_and_replicas_are_listed_whole() -> None:
    async def test(stage: Stage) -> None:
        devices = tuple(KubeletDevice(id=f"GPU-{n // 10}::{n % 10}") for n in range(1000))
        stage.table.offered = (KubeletResource(name=GPU, vendor="nvidia", devices=devices),)
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=1000)
        container = await stage.kubelet.admit("pod-1", "main", {GPU: 3})
        assert all("::" in one for one in container.ids[GPU])

    on_stage(test)


def test_a_list_is_never_larger_than_the_kubelet_takes() -> None:
    async def test(stage: Stage) -> None:
        devices = tuple(KubeletDevice(id=f"{n:063d}", numa_nodes=(n % 2,)) for n in range(50_000))
        stage.table.offered = (KubeletResource(name=GPU, vendor="nvidia", devices=devices),)
        await stage.kubelet.start()
        await stage.start()
        endpoint = await stage.kubelet.resource(GPU)
        assert 30_000 < len(endpoint.devices) < 50_000
        assert endpoint.lists[0].ByteSize() <= 4 << 20

    on_stage(test, msgspec.structs.replace(QUICK, offer_check_s=5.0))


def test_a_slow_reader_gets_the_newest_list_and_not_all_that_were_between() -> None:
    async def test(stage: Stage) -> None:
        stage.kubelet.slow_reader = 0.2
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        for sick in range(200):
            stage.offer(gpus(8, sick=(sick % 7,)))
        stage.offer(gpus(8, sick=tuple(range(8))))
        await stage.kubelet.resource(GPU, healthy=0)
        assert len(stage.kubelet.lists[GPU]) < 10

    on_stage(test)


def test_resources_have_a_server_each_and_do_not_wait_for_each_other() -> None:
    async def test(stage: Stage) -> None:
        rdma = KubeletResource(
            name="rdma/hca", vendor="rdma", devices=(KubeletDevice(id="mlx5_0"),)
        )
        stage.table.offered = (gpus(8), rdma)
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        await stage.kubelet.resource("rdma/hca", healthy=1)
        assert len(stage.sockets()) == 2
        stage.offer(gpus(8, sick=(0,)), rdma)
        await stage.kubelet.resource(GPU, healthy=7)
        assert len(stage.kubelet.lists["rdma/hca"]) == 1

    on_stage(test)
