"""What is waited for: a right, a CRD, the Node, an object that others make. The rest goes on."""

from __future__ import annotations

import asyncio

from agent.snapshot.publications import WriterPhase
from tests.apiserver.rbac import ALL, Rule
from tests.apiserver.server import ApiServer
from tests.fault.publish.publishing import (
    NODE,
    device,
    metric,
    no_device,
    node_metric,
    publishing,
    topology,
)


def test_a_missing_right_blocks_one_resource_and_is_reported_once() -> None:
    async def case(server: ApiServer) -> None:
        server.revoke(ALL)
        topologies = Rule(api_groups=("topology.node.k8s.io",), resources=("*",), verbs=("*",))
        server.grant(topologies)
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid), topology(bench.uid))
            assert bench.state().phase is WriterPhase.FORBIDDEN
            assert bench.state("NodeResourceTopology").phase is WriterPhase.IDLE
            await bench.advance(600)
            ((reason, message),) = bench.messages
            assert reason == "WriteForbidden"
            assert "ClusterRole" in message
            assert len(bench.requests()) <= 12
            server.grant(ALL)
            await bench.advance(70)
            assert bench.state().phase is WriterPhase.IDLE

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_crd_that_appears_later_is_found_and_the_rest_works_meanwhile() -> None:
    async def case(server: ApiServer) -> None:
        server.remove_crd("devices")
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid), topology(bench.uid))
            assert bench.state().phase is WriterPhase.ABSENT
            assert bench.state("NodeResourceTopology").phase is WriterPhase.IDLE
            await bench.advance(1800)
            assert bench.reasons == ["ResourceMissing"]
            assert 20 <= len(bench.requests()) <= 70
            server.add_crd("devices")
            await bench.advance(70)
            assert bench.state().phase is WriterPhase.IDLE
            assert server.get("Device", NODE) is not None

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_no_device_is_desired_and_the_resource_does_not_exist_either() -> None:
    async def case(server: ApiServer) -> None:
        server.remove_crd("devices")
        async with publishing(server) as bench:
            await bench.offer(no_device())
            assert bench.phase() is WriterPhase.IDLE
            assert bench.messages == []

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_node_metric_that_nobody_made_yet_is_waited_for_and_never_made() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            for minute in range(5):
                await bench.offer(metric(minute))
                assert bench.phase() is WriterPhase.WAITING
                await bench.advance(60)
            assert bench.writes("nodemetrics") == []
            server.put(node_metric(), manager="koord-manager")
            bench.outbox.recheck("NodeMetric")
            await bench.settle()
            assert bench.phase() is WriterPhase.IDLE
            assert bench.messages == []
            server.delete("NodeMetric", NODE)
            await bench.offer(metric(9))
            assert bench.phase() is WriterPhase.WAITING
            assert server.get("NodeMetric", NODE) is None

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_node_metric_that_was_made_anew_is_written_as_soon_as_there_is_a_report() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            await bench.offer(metric(0))
            assert bench.phase() is WriterPhase.WAITING
            await bench.offer()  # nothing is told while there is no object
            server.put(node_metric(), manager="koord-manager")
            bench.outbox.recheck("NodeMetric")
            await bench.offer(metric(1))
            assert bench.phase() is WriterPhase.IDLE

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_nothing_is_written_before_the_node_is_known() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server, uid="") as bench:
            await bench.offer(device(""))
            assert bench.phase() is WriterPhase.WAITING
            await bench.advance(600)
            assert bench.requests() == []
            node = server.get("Node", NODE)
            assert node is not None
            bench.uid = node["metadata"]["uid"]
            await bench.offer(device(bench.uid))
            assert bench.phase() is WriterPhase.IDLE

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))
