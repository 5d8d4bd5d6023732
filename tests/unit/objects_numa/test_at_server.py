"""The object at a strict API server, beside another writer's part and over restarts of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent.objects.node_resource_topology import V1ALPHA1, V1ALPHA2, TopologyPublisher
from agent.snapshot.cluster import KubeletView
from agent.snapshot.publications import DesiredObject, WriterPhase
from tests.apiserver.server import ApiServer
from tests.clustered import KUBELET, NAME, node, pod, snapshot
from tests.fault.publish.publishing import Bench, publishing

Tree = Any
PLURAL = "noderesourcetopologies"
NFD = "node-feature-discovery-topology-updater"
STATIC = KubeletView(
    cpu_manager_policy="static",
    reserved_cpus=frozenset((0,)),
    topology_policy="restricted",
    topology_scope="pod",
)
Case = Callable[[Bench, ApiServer], Awaitable[None]]


def desired_object(
    server: ApiServer, version: str = V1ALPHA2, kubelet: KubeletView | None = STATIC
) -> DesiredObject:
    pods = (pod("pinned", "1,5", "LSR"),)
    now = snapshot(owner=node(uid=uid(server)), kubelet=kubelet, pods=pods, versions=(version,))
    (desired,) = TopologyPublisher().render(now, 0.0)
    return desired


def uid(server: ApiServer) -> str:
    stored_object: Tree = server.get("Node", NAME)
    return str(stored_object["metadata"]["uid"])


def stored(server: ApiServer) -> Tree:
    stored_object = server.get("NodeResourceTopology", NAME)
    assert stored_object is not None
    return stored_object


def run(server: ApiServer, *cases: Case) -> None:
    """Run each case with an agent of its own, as after a restart."""

    async def one(case: Case) -> None:
        async with publishing(server, uid=uid(server)) as bench:
            await case(bench, server)

    for case in cases:
        asyncio.run(one(case))


async def writes_nothing(bench: Bench, server: ApiServer) -> None:
    bench.clear()
    await bench.offer(desired_object(server))
    await bench.advance(3600)
    assert bench.phase() is WriterPhase.IDLE
    assert bench.writes(PLURAL) == []


async def silent_kubelet(bench: Bench, server: ApiServer) -> None:
    bench.clear()
    before = stored(server)
    await bench.offer(desired_object(server, kubelet=None))
    await bench.advance(3600)
    assert bench.writes(PLURAL) == []
    assert stored(server) == before


async def publish(bench: Bench, server: ApiServer) -> None:
    await bench.offer(desired_object(server))
    assert bench.phase() is WriterPhase.IDLE
    assert [entry.dropped for entry in bench.writes(PLURAL)] == [()]  # it knows every field


def test_a_restart_writes_nothing_also_while_the_kubelet_is_silent() -> None:
    with ApiServer(nodes=(NAME,)) as server:
        run(server, publish, writes_nothing, silent_kubelet, writes_nothing)
        assert stored(server)["topologyPolicies"] == ["RestrictedPodLevel"]


def test_either_version_is_accepted_and_one_manager_stands_for_both() -> None:
    async def both(bench: Bench, server: ApiServer) -> None:
        for version in (V1ALPHA1, V1ALPHA2, V1ALPHA1):
            await bench.offer(desired_object(server, version))
            assert {state.phase for state in bench.outbox.states()} == {WriterPhase.IDLE}
        managers = {entry["manager"] for entry in stored(server)["metadata"]["managedFields"]}
        assert managers == {"xpu-agent"}

    with ApiServer(nodes=(NAME,)) as server:
        run(server, both)


def test_an_old_server_has_the_older_version() -> None:
    async def older(bench: Bench, server: ApiServer) -> None:
        await bench.offer(desired_object(server, V1ALPHA1))
        assert bench.phase() is WriterPhase.IDLE
        assert "attributes" not in stored(server)

    with ApiServer(nodes=(NAME,), topology_versions=("v1alpha1",)) as server:
        run(server, older)


def others(server: ApiServer) -> Tree:
    """What NFD's updater applies: the machine's zones with a device plug-in's resource."""
    own: Tree = desired_object(server, kubelet=KUBELET).body
    gpu = {"name": "nvidia.com/gpu", "capacity": "4", "allocatable": "4", "available": "1"}
    zones = [{**zone, "resources": [*zone["resources"], gpu]} for zone in own["zones"]]
    return {
        "apiVersion": own["apiVersion"],
        "kind": own["kind"],
        "metadata": {"name": NAME, "labels": {"theirs": "x"}, "annotations": {"theirs": "y"}},
        "zones": zones,
        "attributes": [
            *own["attributes"],
            {"name": "nodeTopologyPodsFingerprint", "value": "pfp0v001"},
        ],
    }


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_fields_of_another_writer_survive_the_agents_writes(first: str) -> None:
    async def beside(bench: Bench, server: ApiServer) -> None:
        server.apply(others(server), manager=NFD, force=True)  # as NFD does
        await bench.offer(desired_object(server))
        stored_object = stored(server)
        assert stored_object["metadata"]["labels"]["theirs"] == "x"
        assert stored_object["metadata"]["annotations"]["theirs"] == "y"
        assert {r["name"] for r in stored_object["zones"][0]["resources"]} > {
            "cpu",
            "nvidia.com/gpu",
        }
        assert stored_object["attributes"] == [
            {"name": "topologyManagerPolicy", "value": "restricted"},
            {"name": "topologyManagerScope", "value": "pod"},
            {"name": "nodeTopologyPodsFingerprint", "value": "pfp0v001"},
        ]
        bench.clear()
        await bench.advance(3600)
        assert bench.writes(PLURAL) == []

    with ApiServer(nodes=(NAME,)) as server:
        run(server, *((publish, beside) if first == "ours" else (beside,)))
