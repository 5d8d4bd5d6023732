"""Our start while a vendor is still answering: the inventory of this boot is served meanwhile."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.fault.deviceplugin.stage import GPU, QUICK, Stage, gpus, on_stage
from tests.kubelet.admission import NotAdmitted


async def served_once(stage: Stage) -> None:
    """Have an earlier life of the agent serve seven healthy cards of eight, and end."""
    stage.table.offered = (gpus(8, sick=(2,)),)
    await stage.kubelet.start()
    await stage.start()
    await stage.kubelet.resource(GPU, healthy=7)
    path = Path(stage.state_dir, "device-plugin.json")
    await stage.kubelet.until(lambda: path.exists() and b"GPU-7" in path.read_bytes(), "kept")
    await stage.stop()
    await stage.kubelet.until(lambda: stage.kubelet.allocatable(GPU) == 0, "unhealthy")
    stage.table.offered = ()
    stage.vendor = "starting"


def test_the_inventory_of_this_boot_is_served_until_the_vendor_answers() -> None:
    async def test(stage: Stage) -> None:
        await served_once(stage)
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=7)
        stage.vendor = "ready"
        stage.offer(gpus(8))
        await stage.kubelet.resource(GPU, healthy=8)
        assert len(stage.kubelet.registered) == 2  # one for each life

    on_stage(test)


def test_an_allocation_waits_for_the_vendors_answer() -> None:
    async def test(stage: Stage) -> None:
        await served_once(stage)
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=7)

        async def answer() -> None:
            stage.vendor = "ready"
            stage.offer(gpus(8))

        import asyncio

        asyncio.get_running_loop().call_later(0.1, lambda: asyncio.ensure_future(answer()))
        await stage.kubelet.admit("pod-1", "main", {GPU: 2})

    on_stage(test, msgspec.structs.replace(QUICK, inventory_wait_s=20.0))


def test_an_allocation_is_refused_when_the_vendor_does_not_answer_in_time() -> None:
    async def test(stage: Stage) -> None:
        await served_once(stage)
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=7)
        with pytest.raises(NotAdmitted, match="InventoryAwaited: nvidia has not answered"):
            await stage.kubelet.admit("pod-1", "main", {GPU: 2})

    on_stage(test)


def test_the_inventory_of_another_boot_is_not_used() -> None:
    async def test(stage: Stage) -> None:
        await served_once(stage)
        stage.boot_id = "6f1c1a52-0000-4000-8000-000000000002"
        await stage.start()
        stage.table.offered = (gpus(4),)
        await stage.kubelet.resource(GPU, healthy=4)
        assert {len(one.devices) for one in stage.kubelet.lists[GPU][1:]} == {4}

    on_stage(test)


def test_a_vendor_that_says_nothing_for_long_has_no_healthy_device() -> None:
    async def test(stage: Stage) -> None:
        await served_once(stage)
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=0)
        assert stage.kubelet.capacity(GPU) == 8

    on_stage(test, msgspec.structs.replace(QUICK, cache_lifetime_s=0.2))


def test_a_vendor_that_answers_without_a_card_removes_it_from_the_cached_inventory() -> None:
    async def test(stage: Stage) -> None:
        await served_once(stage)
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=7)
        stage.vendor = "ready"
        stage.offer()
        await stage.kubelet.until(lambda: stage.kubelet.capacity(GPU) == 0, "no device")

    on_stage(test)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"version": 9}', b"\xff" * 100])
def test_a_damaged_file_is_put_aside_and_stops_nothing(damage: bytes) -> None:
    async def test(stage: Stage) -> None:
        folder = Path(stage.state_dir)
        folder.mkdir()
        (folder / "device-plugin.json").write_bytes(damage)
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        assert (folder / "device-plugin.json.bad").read_bytes() == damage

    on_stage(test)


def test_without_a_folder_nothing_is_stored() -> None:
    async def test(stage: Stage) -> None:
        stage.state_dir = ""
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)

    on_stage(test)
