"""What a writer left that is gone: figures of its own beside ours, and lists that only it kept."""

from __future__ import annotations

import asyncio
from typing import Any

from agent.kube.writer.context import WriterTiming
from agent.snapshot.publications import WriterPhase
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
    uid_of,
)

MEMORY = {"memory": "1Gi"}


def figures_of_koordlet() -> dict[str, Any]:
    """Return a NodeMetric with what only a koordlet tells."""
    status: dict[str, Any] = dict(metric(0, cpu="7").body["status"])  # type: ignore[call-overload] # as it is built
    node = dict(status["nodeMetric"])
    node["nodeUsage"] = {"resources": {"cpu": "7", **MEMORY}, "devices": [{"health": False}]}
    status["nodeMetric"] = node
    status["prodReclaimableMetric"] = {"resource": {"resources": MEMORY}}
    status["hostApplicationMetric"] = [{"name": "gone", "usage": {"resources": MEMORY}}]
    return {**node_metric(), "spec": {"metricCollectPolicy": {}}, "status": status}


def test_figures_of_a_removed_koordlet_do_not_stay_beside_new_ones() -> None:
    async def case(server: ApiServer) -> None:
        server.put(figures_of_koordlet(), manager="koordlet")
        later = server.faults.add(LATER)
        async with publishing(server) as bench:
            await bench.offer(metric(1))
            assert bench.phase() is WriterPhase.IDLE
            stored = server.get("NodeMetric", NODE)
            assert stored is not None
            assert set(stored["status"]) == {"updateTime", "nodeMetric"}
            assert set(stored["status"]["nodeMetric"]["nodeUsage"]) == {"resources"}
            assert "metricCollectPolicy" in stored["spec"]
            assert [entry.verb for entry in bench.writes("nodemetrics")] == ["patch", "patch"]
            assert bench.reasons == ["WriteTakenOver"]
            server.faults.remove(later)
            bench.clear()
            for minute in range(2, 5):
                await bench.offer(metric(minute))
                await bench.advance(60)
            assert len(bench.writes("nodemetrics")) == 3

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_what_another_program_that_lives_adds_to_a_status_is_left_to_it() -> None:
    async def case(server: ApiServer) -> None:
        server.put(node_metric(), manager="koord-manager")
        async with publishing(server) as bench:
            await bench.offer(metric(0))
            stored = server.get("NodeMetric", NODE)
            assert stored is not None
            stored["status"]["prodReclaimableMetric"] = {"resource": {"resources": MEMORY}}
            server.put(stored, manager="predictor")
            for minute in range(1, 5):
                await bench.offer(metric(minute))
                await bench.advance(60)
            assert bench.phase() is WriterPhase.IDLE
            stored_object = server.get("NodeMetric", NODE)
            assert stored_object is not None
            assert stored_object["status"]["prodReclaimableMetric"]
            assert len(bench.writes("nodemetrics")) == 5
            assert bench.messages == []

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_field_that_the_server_restores_is_not_removed_again() -> None:
    async def case(server: ApiServer) -> None:
        server.put(figures_of_koordlet(), manager="koordlet")
        server.faults.add(LATER)

        def webhook(body: Any) -> Any:
            if body.get("kind") == "NodeMetric" and "status" in body:
                body["status"]["prodReclaimableMetric"] = {"resource": {"resources": MEMORY}}
            return body

        server.faults.add(Fault(resource="nodemetrics", edit=webhook, times=0))
        async with publishing(server) as bench:
            for minute in range(5):
                await bench.offer(metric(minute))
                assert bench.phase() is WriterPhase.IDLE
                await bench.advance(60)
            assert len(bench.writes("nodemetrics")) <= 7

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_fields_of_the_agents_own_name_belong_to_it_even_without_takeovers() -> None:
    async def case(server: ApiServer) -> None:
        server.put(dict(device(uid_of(server), cards=1).body), manager=MANAGER)
        async with publishing(server, WriterTiming(takeover_s=0)) as bench:
            await bench.offer(device(bench.uid))
            assert bench.phase() is WriterPhase.IDLE
            assert len(bench.device()["spec"]["devices"]) == 2
            assert bench.messages == []

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_device_that_was_taken_over_is_deleted_with_the_last_card() -> None:
    async def case(server: ApiServer) -> None:
        server.put(of_koordlet(uid_of(server)), manager="koordlet")
        server.faults.add(LATER)
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            writers = [entry["manager"] for entry in bench.device()["metadata"]["managedFields"]]
            assert sorted(writers) == ["koordlet", MANAGER]
            await bench.offer(no_device())
            assert server.get("Device", NODE) is None

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))
