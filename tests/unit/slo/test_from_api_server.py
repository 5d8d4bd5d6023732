"""A NodeSLO from an API server that fills in, prunes and deletes, up to what is in force."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from agent.clock import SystemClock
from agent.kube.endpoint import InClusterTarget
from agent.kube.resources import OWN_NODE_SLO
from agent.kube.session import open_session
from agent.kube.watch.reflector import Reflector, WatchScope
from agent.slo.status import build_slo_view
from agent.snapshot.slo import NodeSloView
from tests.apiserver import ApiServer
from tests.patience import PATIENCE_S
from tests.unit.slo.wire import Tree

NODE = "node-0"


def node_slo(spec: Tree) -> Tree:
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeSLO",
        "metadata": {"name": NODE},
        "spec": spec,
    }


class SloViews:
    """What is in force after each word of the server."""

    def __init__(self) -> None:
        self._views: asyncio.Queue[NodeSloView] = asyncio.Queue()
        self.view = NodeSloView()

    def hear(self, objects: Mapping[str, object]) -> None:
        self.view = build_slo_view(objects.get(NODE), self.view)
        self._views.put_nowait(self.view)

    async def next(self) -> NodeSloView:
        async with asyncio.timeout(PATIENCE_S):
            return await self._views.get()


@asynccontextmanager
async def following(api: ApiServer) -> AsyncIterator[SloViews]:
    clock, reports = SystemClock(), SloViews()
    target = InClusterTarget(url=api.url, folder=str(api.serviceaccount_dir))
    session = await open_session(target, clock, {})
    watch = Reflector(
        OWN_NODE_SLO,
        session,
        on_change=reports.hear,
        clock=clock,
        scope=WatchScope(field_selector=f"metadata.name={NODE}"),
    )
    task = asyncio.create_task(watch.run())
    try:
        yield reports
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await session.close()


async def lifetime(api: ApiServer) -> list[NodeSloView]:
    views = []
    async with following(api) as reports:
        views.append(await reports.next())
        network = {"lsClass": {"networkQOS": {"enable": True}}}
        await asyncio.to_thread(api.put, node_slo({"resourceQOSStrategy": network}))
        views.append(await reports.next())
        wrong = {"cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": "9"}, "newer": {"a": 1}}
        await asyncio.to_thread(api.put, node_slo(wrong), checked=False)
        views.append(await reports.next())
        await asyncio.to_thread(api.delete, "nodeslos", NODE)
        views.append(await reports.next())
    return views


def test_a_node_slo_is_followed_from_absence_to_deletion() -> None:
    with ApiServer(nodes=(NODE,)) as api:
        absent, filled, wrong, deleted = asyncio.run(lifetime(api))
    assert (absent, deleted) == (NodeSloView(), NodeSloView())
    network = filled.slo.resource_qos.ls_class.network
    assert (network.ingress_limit, network.ingress_request) == (100, 0)  # the schema's, not ours
    assert filled.slo.resource_qos.be_class.network.ingress_limit == 0
    assert (filled.found, filled.refused, filled.unknown_fields) == (True, (), 0)
    assert filled.resource_version
    assert (wrong.refused_count, wrong.unknown_fields) == (1, 1)
    assert wrong.refused[0].path == "spec.cpuBurstStrategy.cpuBurstPercent"
    burst = wrong.slo.cpu_burst
    assert (burst.policy, burst.cpu_burst_percent) == ("auto", 1000)
