"""Whatever stands at the server and whatever is wanted: it is written once, and then no more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.kube.server_side_apply import is_same
from agent.objects.device import DevicePublisher
from agent.objects.node_resource_topology import V1ALPHA2, TopologyPublisher
from agent.snapshot.inventory import Inventory
from agent.snapshot.part import SnapshotPart
from agent.snapshot.publications import DesiredObject, WriterPhase
from tests import clustered
from tests.apiserver.faults import Fault
from tests.apiserver.server import ApiServer
from tests.fault.publish.publishing import LATER, MANAGER, NODE, metric, node_metric, publishing
from tests.hostile import inventories
from tests.unit.objects.test_any_inventory import snap

Tree = Any
KINDS = {"Device": "devices", "NodeResourceTopology": "noderesourcetopologies"}
some = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ODD: st.SearchStrategy[object] = st.sampled_from(
    [None, 0, 1, "", "1k", "1000m", [], {}, [None], ["x"], {"name": "x"}, "{", "[]", True]
)
# which of the places of a body (counted anew) is made odd, and how
CHANGES = st.lists(st.tuples(st.integers(0, 200), ODD), max_size=6)
WRITERS = st.sampled_from(["koordlet", "kubectl-edit", MANAGER])


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with ApiServer(nodes=(clustered.NAME, NODE)) as api_server:
        api_server.faults.add(LATER)
        yield api_server


def places(tree: Tree) -> Iterator[tuple[Tree, Any]]:
    """Yield every place below the top: what holds it, and its key."""
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        yield tree, key
        if isinstance(value, dict | list) and key != "ownerReferences":
            yield from places(value)


def made_odd(body: Tree, changes: list[tuple[int, object]]) -> Tree:
    """Return a copy with odd values in some places; it is still an object with its name."""
    copy = json.loads(json.dumps(body))
    for number, value in changes:
        members = [
            (holder, key)
            for section in ("metadata", *(set(copy) - {"apiVersion", "kind", "metadata"}))
            if isinstance(copy[section], dict | list)
            for holder, key in places(copy[section])
            if key not in ("name", "ownerReferences")
        ]
        if members:
            holder, key = members[number % len(members)]
            holder[key] = json.loads(json.dumps(value))
    return copy


def uid(server: ApiServer) -> str:
    stored_object: Tree = server.get("Node", clustered.NAME)
    return str(stored_object["metadata"]["uid"])


def topology(owner: str) -> DesiredObject:
    pods = (clustered.pod("pinned", "1,5", "LSR"),)
    now = clustered.snapshot(owner=clustered.node(uid=owner), pods=pods, versions=(V1ALPHA2,))
    (desired,) = TopologyPublisher().render(now, 0.0)
    return desired


def device(owner: str, *inventory: Inventory) -> DesiredObject | None:
    now = snap(*inventory)
    cluster = clustered.snapshot(owner=clustered.node(uid=owner)).cluster
    node = replace(now.node, name=clustered.NAME)
    now = replace(now, node=node, cluster=cluster, devices=SnapshotPart(now.devices.value, 1.0))
    return next(iter(DevicePublisher().render(now, 0.0)), None)


def settles(server: ApiServer, desired: DesiredObject, there: Tree, writer: str) -> None:
    """Try it: with what is there, then as an agent that was started again."""
    plural = KINDS[desired.kind]
    server.delete(desired.kind, desired.name)
    if there is not None:
        server.put(there, manager=writer, checked=False)

    async def case(first: bool) -> None:
        async with publishing(server, uid=uid(server)) as bench:
            bench.clear()
            await bench.offer(desired)
            assert bench.phase() is WriterPhase.IDLE, [
                state.error for state in bench.outbox.states()
            ]
            writes = bench.writes(plural)
            assert len(writes) <= (3 if first else 0), [w.body for w in writes]
            bench.clear()
            await bench.advance(200)
            assert bench.phase() is WriterPhase.IDLE, [
                state.error for state in bench.outbox.states()
            ]
            assert bench.writes(plural) == []

    asyncio.run(case(first=True))
    asyncio.run(case(first=False))


@some
@given(
    inventory_list=st.lists(inventories("nvidia"), min_size=1, max_size=2),
    changes=CHANGES,
    writer=WRITERS,
)
def test_any_device_is_written_over_any_other_and_then_no_more(
    server: ApiServer,
    inventory_list: list[Inventory],
    changes: list[tuple[int, object]],
    writer: str,
) -> None:
    first, last = device(uid(server), *inventory_list[:1]), device(uid(server), *inventory_list)
    assume(last is not None)
    assert last is not None
    settles(server, last, made_odd(first.body, changes) if first is not None else None, writer)


@some
@given(changes=CHANGES, writer=WRITERS)
def test_a_topology_is_written_over_any_other_and_then_no_more(
    server: ApiServer, changes: list[tuple[int, object]], writer: str
) -> None:
    desired = topology(uid(server))
    settles(server, desired, made_odd(desired.body, changes), writer)


USE = {"resources": {"cpu": "7", "memory": "2Gi"}}
PARTS: dict[str, list[object]] = {
    "updateTime": ["2026-01-02T00:00:00Z"],
    "nodeMetric": [
        None,
        {},
        {"nodeUsage": USE, "systemUsage": USE},
        {"nodeUsage": {**USE, "devices": [{"health": False}]}, "numaUsages": []},
        {"nodeUsage": {"resources": {"memory": "1024Mi", "cpu": "1000m", "x": "0"}}},
    ],
    "podsMetric": [None, [], [{"name": "p", "podUsage": USE}]],
    "prodReclaimableMetric": [{"resource": USE}, {"resource": {}}],
    "hostApplicationMetric": [[], [{"name": "a", "usage": USE}]],
}
STATUSES = st.fixed_dictionaries(
    {}, optional={name: st.sampled_from(values) for name, values in PARTS.items()}
)


@some
@given(status=STATUSES, writer=WRITERS)
def test_a_status_is_written_over_any_other_and_then_no_more(
    server: ApiServer,
    status: dict[str, object],
    writer: str,
) -> None:
    server.delete("NodeMetric", NODE)
    server.put({**node_metric(), "status": status}, manager=writer, checked=False)

    async def case() -> None:
        for most in (3, 0):
            async with publishing(server) as bench:
                bench.clear()
                await bench.offer(metric(1))
                assert bench.phase() is WriterPhase.IDLE, [
                    state.error for state in bench.outbox.states()
                ]
                await bench.advance(200)
                assert bench.phase() is WriterPhase.IDLE, [
                    state.error for state in bench.outbox.states()
                ]
                assert len(bench.writes("nodemetrics")) <= most
        stored_object = server.get("NodeMetric", NODE)
        assert stored_object is not None
        assert is_same(metric(1).body["status"], stored_object["status"])

    asyncio.run(case())


def canonical(tree: Tree) -> Tree:
    """Return the same as Go would write it: sorted, quantities canonical, nothing empty."""
    if isinstance(tree, dict):
        members = {key: canonical(value) for key, value in sorted(tree.items())}
        return {key: value for key, value in members.items() if value not in (None, {}, [])}
    if isinstance(tree, list):
        return [canonical(value) for value in tree]
    return {"1000m": "1", "1024Mi": "1Gi", "81920Mi": "80Gi"}.get(tree, tree)


def test_a_server_that_writes_everything_in_another_way_is_written_to_once() -> None:
    def spelt(desired: DesiredObject) -> DesiredObject:
        text = json.dumps(desired.body).replace('"1Gi"', '"1024Mi"').replace('"80Gi"', '"81920Mi"')
        return replace(desired, body=json.loads(text.replace('"cpu": "1"', '"cpu": "1000m"')))

    async def case(server: ApiServer) -> None:
        from tests.fault.publish.publishing import device as plain

        server.put(node_metric(), manager="koord-manager")
        async with publishing(server) as bench:
            bench.clear()
            await bench.offer(spelt(metric(0)), spelt(plain(bench.uid)))
            await bench.advance(600)
            assert {state.phase for state in bench.outbox.states()} == {WriterPhase.IDLE}
            assert len(bench.writes("nodemetrics")) == len(bench.writes()) == 1
            assert bench.messages == []

    with ApiServer(nodes=(NODE,)) as server:
        for plural in ("devices", "nodemetrics"):
            server.faults.add(Fault(resource=plural, edit=canonical, times=0))
        asyncio.run(case(server))
