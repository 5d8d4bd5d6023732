"""A server that fails: what is written comes through once it can, and nothing piles up."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

from agent.snapshot.publications import WriterPhase
from tests.apiserver.faults import Fault
from tests.apiserver.server import ApiServer
from tests.fault.publish.publishing import (
    NODE,
    device,
    metric,
    node_metric,
    publishing,
    topology,
)


def test_a_server_that_is_down_gets_only_the_newest_content() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            server.stop()
            for healthy in (True, False, True, False):
                await bench.offer(device(bench.uid, healthy=healthy))
            assert bench.phase() is WriterPhase.PENDING
            assert bench.state().error
            assert bench.state().pending_since_s is not None
            server.start()
            await bench.advance(60)
            assert bench.phase() is WriterPhase.IDLE
            assert len(bench.writes()) == 1
            assert bench.device()["spec"]["devices"][0]["health"] is False

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_six_hours_without_a_server_end_in_one_read_and_one_write_for_each_object() -> None:
    async def case(server: ApiServer) -> None:
        server.put(node_metric(), manager="koord-manager")
        async with publishing(server) as bench:
            await bench.offer(metric(0), device(bench.uid))
            server.stop()
            for minute in range(1, 6 * 60):
                await bench.offer(metric(minute), device(bench.uid, healthy=minute % 7 > 0))
                await bench.advance(60)
            last = metric(6 * 60)
            bench.clear()
            server.start()
            await bench.offer(last, device(bench.uid, healthy=False))
            await bench.advance(31)
            for resource in ("devices", "nodemetrics"):
                assert [entry.verb for entry in bench.requests(resource)] == ["get", "patch"]
            stored = server.get("NodeMetric", NODE)
            assert stored is not None
            assert stored["status"]["updateTime"] == "2026-01-02T06:00:00Z"

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


@pytest.mark.parametrize("status", [429, 503])
def test_a_delay_that_the_server_requests_is_granted(status: int) -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            server.faults.add(Fault(resource="devices", status=status, retry_after_s=120, times=1))
            await bench.offer(device(bench.uid))
            await bench.offer(device(bench.uid, healthy=False))
            await bench.advance(119)
            assert len(bench.requests()) == 1
            await bench.advance(40)
            assert bench.phase() is WriterPhase.IDLE
            assert len(bench.writes()) == 1
            assert bench.messages == []

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


@pytest.mark.parametrize(
    "fault",
    [
        Fault(verb="patch", reset=True),
        Fault(verb="patch", lose_answer=True),
        Fault(verb="patch", status=500, message="etcdserver: request timed out"),
        Fault(verb="patch", cut_after_bytes=100),
        Fault(verb="patch", status=502, html=True, raw="<html>bad gateway</html>"),
        Fault(verb="patch", status=200, raw="[1]"),
        Fault(verb="get", status=200, raw="{}}"),
        Fault(verb="get", reset=True),
        Fault(verb="patch", status=401),
    ],
    ids=lambda fault: str(msgspec.to_builtins(fault)),
)
def test_a_call_that_fails_is_made_again_after_a_look(fault: Fault) -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            server.faults.add(fault)
            await bench.offer(device(bench.uid))
            await bench.advance(40)
            assert bench.phase() is WriterPhase.IDLE
            assert len(bench.device()["spec"]["devices"]) == 2
            assert bench.state().failed <= 1
            assert bench.messages == []

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


@pytest.mark.parametrize(("status", "most"), [(409, 200), (500, 90), (429, 90), (503, 90)])
def test_a_server_that_reads_but_never_writes_gets_fewer_and_fewer_requests(
    status: int, most: int
) -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            broken = server.faults.add(Fault(verb="patch", status=status, times=0))
            await bench.offer(device(bench.uid))
            await bench.advance(600)
            assert bench.phase() is WriterPhase.PENDING
            assert bench.state().error
            assert len(bench.requests()) <= most
            server.faults.remove(broken)
            await bench.advance(60)
            assert bench.phase() is WriterPhase.IDLE

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_few_conflicts_in_a_row_hold_an_object_for_about_a_second() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            server.faults.add(Fault(verb="patch", status=409, times=3))
            await bench.offer(device(bench.uid))
            await bench.advance(2)
            assert bench.phase() is WriterPhase.IDLE
            assert len(bench.device()["spec"]["devices"]) == 2

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_slow_server_holds_up_one_object_only_and_its_newest_content_is_the_next_write() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid), topology(bench.uid))
            bench.clear()
            slow = server.faults.add(Fault(verb="patch", resource="devices", delay_s=0.3))
            bench.outbox.offer("slow", (device(bench.uid, healthy=False),))
            await asyncio.to_thread(server.wait_until, lambda: server.faults.hits(slow))
            for cards in (3, 4, 5):
                bench.outbox.offer("slow", (device(bench.uid, cards=cards),))
            bench.outbox.offer("quick", (topology(bench.uid, pool="1-3"),))
            await asyncio.to_thread(
                server.wait_until, lambda: bench.writes("noderesourcetopologies")
            )
            await bench.settle()
            assert [len(entry.body["spec"]["devices"]) for entry in bench.writes()] == [2, 5]

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_rotated_token_goes_unnoticed() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            server.rotate_token()
            await bench.offer(device(bench.uid, healthy=False))
            assert bench.phase() is WriterPhase.IDLE
            assert bench.state().failed == 0

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


@pytest.mark.parametrize("status", [413, 422, 400])
def test_a_refused_content_is_reported_once_and_other_content_is_tried_at_once(
    status: int,
) -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            cause = {"field": "spec.devices[0].conditions[0].reason", "message": "must match"}
            refused = Fault(verb="patch", status=status, causes=(cause,), times=0)
            server.faults.add(refused)
            await bench.offer(device(bench.uid))
            assert bench.phase() is WriterPhase.REFUSED
            await bench.advance(600)
            assert len(bench.writes()) <= 11
            ((reason, message),) = bench.messages
            assert reason == "WriteRefused"
            assert "spec.devices[0].conditions[0].reason" in message
            server.faults.remove(refused)
            await bench.offer(device(bench.uid, healthy=False))
            assert bench.phase() is WriterPhase.IDLE

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


@pytest.mark.parametrize("status", [422, 403])
def test_a_refusal_with_changing_text_is_reported_once(status: int) -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            for request in range(9):
                cause = {"field": "spec.devices", "message": f"not by request {request}"}
                text = f"admission webhook denied request {request}"
                fault = Fault(verb="patch", status=status, causes=(cause,), message=text)
                server.faults.add(fault)
            await bench.offer(device(bench.uid))
            await bench.offer(device(bench.uid, healthy=False))
            await bench.advance(450)
            assert len(bench.writes()) >= 7
            ((_, message),) = bench.messages
            assert "ClusterRole" not in message  # nobody lacks a right

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


@pytest.mark.parametrize("skip", range(6))
@pytest.mark.parametrize("lost", [True, False])
def test_an_agent_that_is_killed_at_any_call_leaves_nothing_that_the_next_one_cannot_mend(
    skip: int, lost: bool
) -> None:
    async def case(server: ApiServer) -> None:
        struck = Fault(resource="devices", skip=skip, lose_answer=lost, hang=not lost)
        server.faults.add(struck)
        async with publishing(server) as bench:
            for cards in (1, 2, 3):
                bench.outbox.offer("killed", (device(bench.uid, cards=cards),))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(bench.settle(), 0.3)
        server.faults.clear()
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid, cards=3))
            assert bench.phase() is WriterPhase.IDLE
            assert len(bench.device()["spec"]["devices"]) == 3
            assert len(bench.device()["metadata"]["managedFields"]) == 1

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))
