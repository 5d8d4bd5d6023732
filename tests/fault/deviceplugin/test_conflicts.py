"""Others that have the resource: another vendor's plug-in, or another agent."""

from __future__ import annotations

import asyncio
import socket

import msgspec

from tests.fault.deviceplugin.stage import GPU, QUICK, Stage, on_stage


def test_another_plug_in_of_the_resource_is_not_fought_with() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        with socket.socket(socket.AF_UNIX) as theirs:
            theirs.bind(str(stage.folder / "nvidia-gpu.sock"))
            theirs.listen()
            await stage.start()
            await stage.kubelet.until(lambda: stage.stands("conflict", "AnotherPlugin"), "conflict")
            assert stage.kubelet.registered == []
        (stage.folder / "nvidia-gpu.sock").unlink()
        await stage.kubelet.resource(GPU, healthy=8)

    on_stage(test)


def test_of_two_agents_with_different_locks_one_gives_way() -> None:
    async def test(stage: Stage) -> None:
        stage.kubelet.closes_old = True  # the newest wins
        await stage.kubelet.start()
        other = Stage(stage.folder.parent, stage.pace)
        other.kubelet = stage.kubelet
        both = (stage, other)
        try:
            for one in both:
                await one.start()
            await stage.kubelet.until(
                lambda: any(one.stands("conflict", "StreamsEnded") for one in both), "conflict"
            )
            await stage.kubelet.resource(GPU, healthy=8)
            await stage.kubelet.until(lambda: any(one.stands("watched") for one in both), "one")
        finally:
            await other.stop()
        assert len([reason for one in both for reason, _ in one.reported_events]) == 1
        stage.kubelet.complaints.clear()  # of two agents it may complain

    on_stage(test, msgspec.structs.replace(QUICK, refused_retry_s=3600.0))


def test_a_plugin_that_starts_later_is_reported_and_the_stream_continues() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        await stage.start()
        endpoint = await stage.kubelet.resource(GPU, healthy=8)
        await stage.kubelet.until(lambda: stage.stands("watched"), "watched")
        with socket.socket(socket.AF_UNIX) as theirs:
            theirs.bind(str(stage.folder / "nvidia-gpu.sock"))
            theirs.listen()
            await stage.kubelet.until(lambda: stage.stands("conflict", "AnotherPlugin"), "told")
        assert [reason for reason, _ in stage.reported_events] == ["DevicePluginConflict"]
        await stage.kubelet.until(lambda: stage.stands("watched"), "it has gone")
        assert endpoint.ended is None
        assert stage.kubelet.allocatable(GPU) == 8

    on_stage(test)


def test_streams_that_end_as_soon_as_they_begin_are_ended_streams() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        plugin = await stage.start()

        async def ending() -> None:
            while True:
                if any(counters.streams for counters in plugin.statistics()):
                    stage.kubelet.drop(GPU)
                await asyncio.sleep(0)

        task = asyncio.create_task(ending())
        await stage.kubelet.until(lambda: stage.stands("conflict", "StreamsEnded"), "conflict")
        task.cancel()

    on_stage(test, msgspec.structs.replace(QUICK, refused_retry_s=3600.0))
