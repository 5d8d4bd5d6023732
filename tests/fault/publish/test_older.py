"""Older servers and CRDs: without apply, without fields that we write, without clocks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.publish.cluster.state import Phase
from tests.apiserver.faults import Fault
from tests.apiserver.server import ApiServer
from tests.fault.publish.publishing import (
    LATER,
    MANAGER,
    NODE,
    device,
    metric,
    no_device,
    node_metric,
    of_koordlet,
    publishing,
    topology,
    uid_of,
)


def test_a_server_without_apply_is_written_to_by_merge_patches() -> None:
    async def case(server: ApiServer) -> None:
        server.put(node_metric(), manager="koord-manager")
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid), topology(bench.uid), metric(0))
            await bench.offer(device(bench.uid, healthy=False), topology(bench.uid), metric(1))
            assert {state.phase for state in bench.outbox.states()} == {Phase.IDLE}
            assert [entry.method for entry in bench.writes()] == ["PATCH", "POST", "PATCH"]
            assert bench.device()["spec"]["devices"][0]["health"] is False
            statuses = [entry.subresource for entry in bench.writes("nodemetrics")]
            assert statuses == ["status"] * 3
            stored = server.get("NodeMetric", NODE)
            assert stored is not None
            assert stored["status"]["updateTime"] == "2026-01-02T00:01:00Z"
            bench.clear()
            await bench.advance(600)
            assert bench.writes() == []
            assert bench.told == []

    with ApiServer(nodes=(NODE,), server_side_apply=False) as server:
        asyncio.run(case(server))


def test_without_apply_a_restart_writes_nothing_and_what_is_not_wanted_is_nulled() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid, labels={"node.koordinator.sh/gpu-model": "a"}))
            stored = bench.device()
            stored["metadata"]["labels"]["theirs"] = "x"
            server.put(stored, manager="admin")
        async with publishing(server) as bench:
            bench.clear()
            await bench.offer(device(bench.uid, labels={"node.koordinator.sh/gpu-model": "a"}))
            assert bench.writes() == []
            await bench.offer(device(bench.uid))
            labels = bench.device()["metadata"]["labels"]
            assert labels == {"theirs": "x", "node.koordinator.sh/gpu-vendor": "nvidia"}
            await bench.offer(no_device())
            assert server.get("Device", NODE) is None

    with ApiServer(nodes=(NODE,), server_side_apply=False) as server:
        asyncio.run(case(server))


def test_without_apply_other_writers_are_left_alone_all_the_same() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            theirs = bench.device()
            theirs["metadata"]["labels"]["node.koordinator.sh/gpu-model"] = "theirs"
            server.put(theirs, manager="admin")
            await bench.offer(device(bench.uid, healthy=False))
            assert bench.phase() is Phase.IDLE
            labels = bench.device()["metadata"]["labels"]
            assert labels["node.koordinator.sh/gpu-model"] == "theirs"
            server.put(of_koordlet(bench.uid), manager="koordlet")
            bench.clear()
            await bench.advance(250)
            assert bench.phase() is Phase.HELD
            assert bench.writes() == []
            assert bench.reasons == ["WriteConflict"]
            server.faults.add(LATER)
            await bench.advance(70)
            assert bench.phase() is Phase.IDLE
            assert bench.reasons == ["WriteConflict", "WriteTakenOver"]

    with ApiServer(nodes=(NODE,), server_side_apply=False) as server:
        asyncio.run(case(server))


@pytest.mark.parametrize("applies", [True, False])
def test_a_field_that_an_older_crd_lacks_is_left_out_with_one_warning(applies: bool) -> None:
    async def case(server: ApiServer) -> None:
        server.add_crd("devices", without=["spec.devices.conditions"])
        server.add_crd("nodemetrics", without=["status.nodeMetric.numaUsages"])
        server.put(node_metric(), manager="koord-manager")
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid), metric(0))
            assert {state.phase for state in bench.outbox.states()} == {Phase.IDLE}
            bench.clear()
            for minute in range(1, 6):
                await bench.offer(device(bench.uid), metric(minute))
                await bench.advance(60)
            assert bench.writes() == []
            assert len(bench.writes("nodemetrics")) == 5
            await bench.offer(device(bench.uid, healthy=False), metric(9))
            assert [entry.status for entry in bench.writes()] == [200]
            assert bench.reasons == ["FieldsNotKept"] * 2
            told = " ".join(message for _, message in bench.told)
            assert "spec.devices[].conditions" in told
            assert "status.nodeMetric.numaUsages" in told

    with ApiServer(nodes=(NODE,), server_side_apply=applies) as server:
        asyncio.run(case(server))


@pytest.mark.parametrize("applies", [True, False])
def test_a_crd_that_was_upgraded_gets_the_field_within_hours_and_one_that_was_not_no_warning(
    applies: bool,
) -> None:
    async def case(server: ApiServer) -> None:
        server.add_crd("devices", without=["spec.devices.conditions"])
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            bench.clear()
            await bench.advance(13 * 3600)
            assert len(bench.writes()) <= 4
            assert bench.phase() is Phase.IDLE
            assert bench.reasons == ["FieldsNotKept"]
            server.add_crd("devices")
            await bench.advance(7 * 3600)
            assert bench.device()["spec"]["devices"][0]["conditions"]
            assert bench.phase() is Phase.IDLE

    with ApiServer(nodes=(NODE,), server_side_apply=applies) as server:
        asyncio.run(case(server))


def test_a_refusal_that_has_no_room_for_the_names_of_fields_falls_back_to_a_merge() -> None:
    async def case(server: ApiServer) -> None:
        server.add_crd("devices", without=["spec.devices.conditions"])
        message = "failed to create typed patch object (/node-with-a-very-long-name; sched"
        refused = Fault(verb="patch", status=500, message=message, reason="InternalError")
        server.faults.add(refused)
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            assert bench.phase() is Phase.IDLE
            assert bench.reasons == ["FieldsNotKept"]
            assert len(bench.device()["spec"]["devices"]) == 2

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_value_that_the_server_changes_each_time_is_written_once() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:

            def webhook(body: Any) -> Any:
                if body.get("kind") == "Device":
                    body["metadata"]["labels"]["node.koordinator.sh/gpu-vendor"] = "NVIDIA"
                return body

            server.faults.add(Fault(resource="devices", edit=webhook, times=0))
            await bench.offer(device(bench.uid))
            await bench.advance(600)
            assert bench.phase() is Phase.IDLE
            assert len(bench.writes()) == 1

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_server_that_does_not_tell_its_time_is_no_reason_to_take_anything_over() -> None:
    async def case(server: ApiServer) -> None:
        body = dict(device(uid_of(server), cards=1).body)
        server.put(body, manager="koordlet")
        server.faults.add(Fault(headers={"Date": "yesterday"}, times=0))
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            await bench.advance(3600)
            assert bench.phase() is Phase.HELD
            assert bench.writes() == []

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_what_was_merged_can_be_applied_by_a_later_server() -> None:
    async def case() -> None:
        with ApiServer(nodes=(NODE,), server_side_apply=False) as old:
            async with publishing(old) as bench:
                await bench.offer(device(bench.uid))
            stored, uid = bench.device(), bench.uid
        with ApiServer(nodes=(NODE,), garbage_collection=False) as new:
            new.put(stored, manager=MANAGER)
            async with publishing(new, uid=uid) as bench:
                await bench.offer(device(uid))
                assert bench.writes() == []
                await bench.offer(device(uid, healthy=False))
                assert bench.phase() is Phase.IDLE
                assert bench.told == []

    asyncio.run(case())
