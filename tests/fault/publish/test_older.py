"""Older servers and CRDs: without apply, without fields that the agent writes, without clocks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from agent.snapshot.publications import WriterPhase
from tests.apiserver.faults import Fault
from tests.apiserver.server import ApiServer
from tests.fault.publish.publishing import (
    NODE,
    device,
    metric,
    node_metric,
    publishing,
    uid_of,
)


def test_a_field_that_an_older_crd_lacks_is_left_out_with_one_warning() -> None:
    async def case(server: ApiServer) -> None:
        server.add_crd("devices", without=["spec.devices.conditions"])
        server.add_crd("nodemetrics", without=["status.nodeMetric.numaUsages"])
        server.put(node_metric(), manager="koord-manager")
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid), metric(0))
            assert {state.phase for state in bench.outbox.states()} == {WriterPhase.IDLE}
            bench.clear()
            for minute in range(1, 6):
                await bench.offer(device(bench.uid), metric(minute))
                await bench.advance(60)
            assert bench.writes() == []
            assert len(bench.writes("nodemetrics")) == 5
            await bench.offer(device(bench.uid, healthy=False), metric(9))
            assert [entry.status for entry in bench.writes()] == [200]
            assert bench.reasons == ["FieldsNotKept"] * 2
            messages = " ".join(message for _, message in bench.messages)
            assert "spec.devices[].conditions" in messages
            assert "status.nodeMetric.numaUsages" in messages

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_the_field_of_an_upgraded_crd_is_written_within_hours_without_more_warnings() -> None:
    async def case(server: ApiServer) -> None:
        server.add_crd("devices", without=["spec.devices.conditions"])
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            bench.clear()
            await bench.advance(13 * 3600)
            assert len(bench.writes()) <= 4
            assert bench.phase() is WriterPhase.IDLE
            assert bench.reasons == ["FieldsNotKept"]
            server.add_crd("devices")
            await bench.advance(7 * 3600)
            assert bench.device()["spec"]["devices"][0]["conditions"]
            assert bench.phase() is WriterPhase.IDLE

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


NAMELESS = Fault(
    resource="devices",
    verb="patch",
    status=500,
    message="failed to create typed patch object (/node-with-a-very-long-name; sched",
    reason="InternalError",
)


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_dry_run_finds_the_fields_that_a_refusal_has_no_room_to_name(is_stored: bool) -> None:
    async def case(server: ApiServer) -> None:
        if is_stored:
            async with publishing(server) as bench:
                await bench.offer(device(bench.uid, healthy=False))
        server.add_crd("devices", without=["spec.devices.conditions"])
        server.faults.add(NAMELESS)
        async with publishing(server) as bench:
            bench.clear()
            await bench.offer(device(bench.uid))
            assert bench.phase() is WriterPhase.IDLE
            assert bench.reasons == ["FieldsNotKept"]
            assert "spec.devices[].conditions" in bench.messages[0][1]
            assert len(bench.device()["spec"]["devices"]) == 2
            assert bench.device()["spec"]["devices"][0]["health"] is True
            methods = [entry.method for entry in bench.writes()]
            assert methods == ["PATCH", "PATCH" if is_stored else "POST", "PATCH"]

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_refusal_that_a_dry_run_does_not_explain_is_reported_once() -> None:
    async def case(server: ApiServer) -> None:
        server.faults.add(replace(NAMELESS, times=0))
        async with publishing(server) as bench:
            bench.clear()
            await bench.offer(device(bench.uid))
            assert bench.phase() is WriterPhase.REFUSED
            await bench.advance(3600)
            assert bench.phase() is WriterPhase.REFUSED
            assert bench.reasons == ["WriteRefused"]
            assert len(bench.writes()) <= 65  # about one each minute
            server.faults.clear()
            await bench.advance(3600)
            assert bench.phase() is WriterPhase.IDLE

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_server_without_server_side_apply_is_reported() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            await bench.advance(600)
            assert bench.phase() is WriterPhase.REFUSED
            assert bench.reasons == ["WriteRefused"]
            assert server.get("Device", NODE) is None

    with ApiServer(nodes=(NODE,), server_side_apply=False) as server:
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
            assert bench.phase() is WriterPhase.IDLE
            assert len(bench.writes()) == 1

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_server_without_a_date_header_is_no_reason_for_a_takeover() -> None:
    async def case(server: ApiServer) -> None:
        body = dict(device(uid_of(server), cards=1).body)
        server.put(body, manager="koordlet")
        server.faults.add(Fault(headers={"Date": "yesterday"}, times=0))
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            await bench.advance(3600)
            assert bench.phase() is WriterPhase.IN_CONFLICT
            assert bench.writes() == []

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))
