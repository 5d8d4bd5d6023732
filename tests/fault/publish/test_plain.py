"""Writes that go well: only when changed, only what is ours, and nothing after a restart."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from agent.clock import rfc3339
from agent.objects.device import DevicePublisher
from agent.snapshot.device import Device, Health, HealthState
from agent.snapshot.node import DeviceView
from agent.snapshot.part import SnapshotPart
from agent.snapshot.publications import DesiredObject, WriterPhase
from agent.wire_formats.device_object import HEALTH_ANNOTATION
from tests import clustered
from tests.apiserver.server import ApiServer
from tests.factory import BOOT_S, gpu
from tests.fault.publish.publishing import (
    MANAGER,
    NODE,
    device,
    metric,
    no_device,
    node_metric,
    publishing,
    topology,
    uid_of,
)


def test_an_object_is_made_and_written_only_when_it_changes() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            assert bench.phase() is WriterPhase.IDLE
            assert [entry.verb for entry in bench.requests()] == ["get", "patch"]
            bench.clear()
            for _ in range(30):
                await bench.offer(device(bench.uid))
                await bench.advance(60)
            assert bench.writes() == []
            assert bench.state().last_ack_s is not None
            await bench.offer(device(bench.uid, healthy=False))
            assert [entry.verb for entry in bench.writes()] == ["patch"]
            assert bench.device()["spec"]["devices"][0]["health"] is False
            assert bench.messages == []

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_an_object_of_which_more_will_be_known_is_made_a_second_later_or_when_it_is() -> None:
    async def case(server: ApiServer) -> None:
        plural = "noderesourcetopologies"
        for waits in (True, False):
            server.delete("NodeResourceTopology", NODE)
            async with publishing(server) as bench:
                bench.clear()
                await bench.offer(replace(topology(bench.uid), is_partial=True))
                await bench.advance(0.9)
                assert bench.writes(plural) == []
                if waits:
                    await bench.advance(0.2)
                else:
                    await bench.offer(topology(bench.uid, pool="1-3"))
                assert len(bench.writes(plural)) == 1
                await bench.offer(replace(topology(bench.uid, pool="2-3"), is_partial=True))
                assert len(bench.writes(plural)) == 2
                assert bench.phase() is WriterPhase.IDLE

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_restart_of_an_unchanged_node_writes_nothing() -> None:
    async def case(server: ApiServer) -> None:
        server.put(node_metric(), manager="koord-manager")
        for _ in range(2):
            async with publishing(server) as bench:
                everything = (device(bench.uid), topology(bench.uid), metric(1))
                await bench.offer(*everything)
                assert {state.phase for state in bench.outbox.states()} == {WriterPhase.IDLE}
                first = bench.writes() + bench.writes("nodemetrics")
                bench.clear()
        assert first == []

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_labels_of_others_survive_and_those_of_the_agent_go_when_not_desired() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid, labels={"node.koordinator.sh/gpu-model": "a"}))
            stored = bench.device()
            stored["metadata"]["labels"]["theirs"] = "x"
            stored["metadata"]["annotations"]["theirs"] = "y"
            server.put(stored, manager="admin")
            await bench.offer(device(bench.uid))
            metadata = bench.device()["metadata"]
            assert metadata["labels"] == {
                "theirs": "x",
                "node.koordinator.sh/gpu-vendor": "nvidia",
            }
            assert metadata["annotations"]["theirs"] == "y"

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_node_metric_is_written_once_a_minute_and_only_its_status() -> None:
    async def case(server: ApiServer) -> None:
        server.put(node_metric(), manager="koord-manager")
        async with publishing(server) as bench:
            for minute in range(20):
                await bench.offer(metric(minute))
                await bench.advance(60)
            writes = bench.writes("nodemetrics")
            assert len(writes) == 20
            assert {entry.subresource for entry in writes} == {"status"}
            assert bench.state("NodeMetric").unchanged == 0

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_known_times_of_conditions_are_copied_before_the_comparison() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
        later = device(uid_of(server))
        for entry in later.body["spec"]["devices"]:  # type: ignore[index] # as it is built
            entry["conditions"][0]["lastTransitionTime"] = "2026-01-03T00:00:00Z"
        async with publishing(server) as bench:
            bench.clear()
            await bench.offer(later)
            assert bench.phase() is WriterPhase.IDLE
            assert bench.writes() == []

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_node_without_devices_has_no_device_object() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            assert bench.state().uid == bench.device()["metadata"]["uid"] != ""
            await bench.offer(no_device())
            assert server.get("Device", NODE) is None
            assert bench.phase() is WriterPhase.IDLE
            assert bench.state().uid == ""
            await bench.offer(device(bench.uid))
            assert len(bench.device()["spec"]["devices"]) == 2

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_device_object_in_which_another_has_a_part_is_not_removed() -> None:
    async def case(server: ApiServer) -> None:
        body = dict(device(uid_of(server)).body)
        server.put(body, manager="koordlet")
        async with publishing(server) as bench:
            await bench.offer(no_device())
            assert bench.phase() is WriterPhase.IDLE
            assert bench.writes() == []
            assert bench.device()["metadata"]["managedFields"][0]["manager"] == "koordlet"

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_nothing_is_removed_when_the_agent_ends() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            await bench.outbox.close(1.0)
        assert server.get("Device", NODE) is not None

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_what_is_pending_is_written_when_the_agent_closes() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            server.stop()
            await bench.offer(device(bench.uid))
            assert bench.phase() is WriterPhase.PENDING
            server.start()
            await bench.outbox.close(5.0)
        assert server.get("Device", NODE) is not None

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_our_writes_are_named_in_the_object() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            (entry,) = bench.device()["metadata"]["managedFields"]
            assert (entry["manager"], entry["operation"]) == (MANAGER, "Apply")

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def rendered(uid: str, *cards: Device) -> tuple[DesiredObject, ...]:
    """Return what an agent that has just started publishes of these cards."""
    now = clustered.snapshot(owner=clustered.node(uid=uid))
    now = replace(now, node=replace(now.node, boot_time_s=BOOT_S))
    devices = SnapshotPart(DeviceView(devices=cards), 1.0)
    return DevicePublisher().render(replace(now, devices=devices), 0.0)


def test_a_restarted_agent_that_saw_no_change_keeps_the_times_of_what_it_did_not_see() -> None:
    failed = Health(state=HealthState.FAILED, reason="Xid79", since_s=BOOT_S + 3600)
    forgot = replace(failed, since_s=None)

    async def case(server: ApiServer) -> None:
        node = server.get("Node", clustered.NAME)
        assert node is not None
        uid = node["metadata"]["uid"]
        for health in (failed, forgot, forgot):
            async with publishing(server, uid=uid) as bench:
                await bench.offer(*rendered(uid, gpu(0), gpu(1, health=health)))
                assert bench.phase() is WriterPhase.IDLE
                writes = bench.writes()
                bench.clear()
        assert writes == []
        stored_object = server.get("Device", clustered.NAME)
        assert stored_object is not None
        (condition,) = stored_object["spec"]["devices"][1]["conditions"]
        assert condition["lastTransitionTime"] == rfc3339(BOOT_S + 3600)
        assert rfc3339(BOOT_S + 3600) in stored_object["metadata"]["annotations"][HEALTH_ANNOTATION]

    with ApiServer(nodes=(clustered.NAME,)) as server:
        asyncio.run(case(server))
