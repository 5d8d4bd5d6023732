"""Objects that are not ours alone: of Nodes made anew, and lists that others write too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.snapshot.publications import Json, WriterPhase
from tests.apiserver.server import ApiServer
from tests.fault.publish.publishing import (
    LATER,
    NODE,
    device,
    of_koordlet,
    owner,
    publishing,
    topology,
    uid_of,
)


@pytest.mark.parametrize(
    "odd",
    [
        {"spec": None},
        {"spec": [1, 2]},
        {"spec": {"devices": None, "unknown": {"x": 1}}},
        {"spec": {"devices": ["x", None, {"minor": "three", "conditions": 7}]}},
        {"metadata": {"labels": None, "annotations": None, "ownerReferences": None}},
        {"metadata": {"annotations": {"xpu-agent.io/health": "[[["}}},
    ],
    ids=str,
)
def test_nulls_and_wrong_types_in_the_object_are_written_over(odd: dict[str, Any]) -> None:
    async def case(server: ApiServer) -> None:
        body = dict(device(uid_of(server)).body)
        body["metadata"] = {"name": NODE, **odd.get("metadata", {})}
        server.put({**body, **{k: v for k, v in odd.items() if k != "metadata"}}, checked=False)
        server.faults.add(LATER)
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            await bench.advance(120)
            assert bench.phase() is WriterPhase.IDLE
            assert len(bench.device()["spec"]["devices"]) == 2
            assert len(bench.writes()) <= 2

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_an_object_that_others_filled_with_more_than_a_megabyte_is_written_as_any_other() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            huge = bench.device()
            huge["metadata"]["annotations"]["theirs"] = "x" * 200_000
            huge["status"] = {
                "allocations": [{"type": "gpu", "entries": [{"name": "p" * 1000}] * 1200}]
            }
            server.put(huge, manager="somebody", checked=False)
            await bench.offer(device(bench.uid, healthy=False))
            assert bench.phase() is WriterPhase.IDLE
            stored_object = bench.device()
            assert stored_object["spec"]["devices"][0]["health"] is False
            assert len(stored_object["metadata"]["annotations"]["theirs"]) == 200_000

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_the_object_of_a_node_that_was_made_anew_is_owned_anew() -> None:
    async def case(server: ApiServer) -> None:
        stale = of_koordlet("old-uid")
        stale["metadata"]["ownerReferences"] += [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "theirs", "uid": "their-uid"}
        ]
        server.put(stale, manager="koordlet", checked=False)
        server.faults.add(LATER)
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            assert bench.phase() is WriterPhase.IDLE
            uids = {ref["uid"] for ref in bench.device()["metadata"]["ownerReferences"]}
            assert uids == {"their-uid", bench.uid}

    with ApiServer(nodes=(NODE,), garbage_collection=False) as server:
        asyncio.run(case(server))


def test_our_object_of_a_node_that_was_made_anew_goes_on_with_or_without_a_collector() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            node = server.get("Node", NODE)
            assert node is not None
            server.delete("Node", NODE)
            del node["metadata"]["uid"]
            server.put(node)
            old, bench.uid = bench.uid, uid_of(server)
            assert old != bench.uid
            await bench.offer(device(old, healthy=False))
            assert bench.phase() is WriterPhase.WAITING
            await bench.offer(device(bench.uid))
            assert bench.phase() is WriterPhase.IDLE
            assert bench.device()["metadata"]["ownerReferences"] == owner(bench.uid)

    for collects in (True, False):
        with ApiServer(nodes=(NODE,), garbage_collection=collects) as server:
            asyncio.run(case(server))


def with_their_costs(stored: Json, desired: Json) -> Json:
    """Keep the costs of each zone that somebody else wrote."""
    costs = {zone["name"]: zone.get("costs") for zone in stored["zones"]}  # type: ignore[attr-defined] # of the schema
    zones = [
        {**zone, **({"costs": costs[zone["name"]]} if costs.get(zone["name"]) else {})}
        for zone in desired["zones"]  # type: ignore[attr-defined] # as it is built
    ]
    return {**desired, "zones": zones}


def test_costs_of_zones_by_another_writer_survive_every_write() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            await bench.offer(topology(bench.uid, merge=with_their_costs))
            stored = server.get("NodeResourceTopology", NODE)
            assert stored is not None
            stored["zones"][0]["costs"] = [{"name": "node-0", "value": 10}]
            server.put(stored, manager="nfd")
            await bench.offer(topology(bench.uid, pool="1-3", merge=with_their_costs))
            await bench.advance(200)
            stored_object = server.get("NodeResourceTopology", NODE)
            assert stored_object is not None
            assert stored_object["zones"][0]["costs"] == [{"name": "node-0", "value": 10}]
            pools = stored_object["metadata"]["annotations"]["node.koordinator.sh/cpu-shared-pools"]
            assert pools == "1-3"
            assert bench.phase() is WriterPhase.IDLE

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_topology_that_a_koordlet_keeps_is_left_to_it_whole() -> None:
    async def case(server: ApiServer) -> None:
        theirs = topology(uid_of(server), pool="0-1").body
        zones = [{"name": "node-0", "type": "Node", "resources": []}]
        server.put({**theirs, "zones": zones}, manager="koordlet")
        async with publishing(server) as bench:
            await bench.offer(topology(bench.uid, merge=with_their_costs))
            await bench.advance(180)
            assert bench.phase() is WriterPhase.IN_CONFLICT
            assert bench.writes("noderesourcetopologies") == []
            assert bench.reasons == ["WriteConflict"]

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))
