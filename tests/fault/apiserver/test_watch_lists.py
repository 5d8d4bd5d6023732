"""Lists that fail half-way, kinds that come and go, objects that are not what they should be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from agent.kube.resources import OWN_NODE, OWN_NODE_METRIC, OWN_NODE_SLO
from agent.snapshot.cluster import MetricCollectPolicy, WatchPhase
from tests.apiserver.faults import Fault
from tests.apiserver.server import ApiServer
from tests.fault.apiserver.watching import NODE, Object, pod, watching
from tests.patience import PATIENCE_S

SLO = "slo.koordinator.sh/v1alpha1"


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer(nodes=(NODE,), objects=(pod("a"), pod("b"), pod("x", "other"))) as server:
        yield server


def slo(**spec: object) -> Object:
    return {"apiVersion": SLO, "kind": "NodeSLO", "metadata": {"name": NODE}, "spec": spec}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(verb="list", status=503, times=3), id="503"),
        pytest.param(Fault(verb="list", status=429, retry_after_s=9), id="429"),
        pytest.param(Fault(verb="list", status=500, html=True), id="a page"),
        pytest.param(Fault(verb="list", status=410, reason="Expired"), id="410"),
        pytest.param(Fault(verb="list", status=403), id="403"),
        pytest.param(Fault(verb="list", status=401), id="401"),
        pytest.param(Fault(verb="list", reset=True, times=4), id="reset"),
        pytest.param(Fault(verb="list", cut_after_bytes=200), id="cut"),
        pytest.param(Fault(verb="list", cut_after_bytes=200, cut_by_reset=True), id="reset within"),
        pytest.param(Fault(verb="list", raw="{"), id="half an answer"),
        pytest.param(Fault(verb="list", raw="[]"), id="no list"),
        pytest.param(Fault(verb="list", raw='{"metadata":{},"items":[]}'), id="without a version"),
        pytest.param(Fault(verb="list", raw="x" * 10_000), id="no JSON"),
    ],
)
def test_a_failed_list_is_requested_again(api: ApiServer, fault: Fault) -> None:
    async def follow() -> None:
        api.faults.add(fault)
        async with watching(api) as watcher:
            await watcher.shows("default/a", "default/b")
            assert len(watcher.views) == 1
            # the HTTP library itself asks again after a reset
            assert fault.times // 2 <= watcher.watch.state.errors <= fault.times
            assert len(watcher.waits) == watcher.watch.state.errors
            if fault.retry_after_s is not None:
                assert watcher.waits[0] >= fault.retry_after_s

    asyncio.run(follow())


def test_pages_are_put_together_and_a_token_that_expired_begins_anew() -> None:
    pods = tuple(pod(f"p{i:04}") for i in range(1100))

    async def follow(api: ApiServer) -> None:
        api.app.pages_from_cache = True
        api.faults.add(Fault(verb="list", skip=1, status=410, reason="Expired"))
        async with watching(api) as watcher:
            await watcher.until(lambda: watcher.watch.state.lists == 1)
            assert [len(view) for view in watcher.views] == [1100]
            assert watcher.requests("list") == 2 + 3

    with ApiServer(nodes=(NODE,), objects=pods, validation=False) as api:
        asyncio.run(follow(api))


def test_a_watch_that_expired_is_listed_from_the_cache_whole_and_not_older() -> None:
    pods = tuple(pod(f"p{i:04}") for i in range(600))

    async def follow(api: ApiServer) -> None:
        api.faults.add(Fault(verb="watch", status=410, reason="Expired"))
        async with watching(api) as watcher:
            await watcher.until(lambda: watcher.watch.state.lists == 2)
            first, second = api.requests(verb="list", resource="pods")
            assert first.query["resourceVersion"] == "0"
            assert int(second.query["resourceVersion"]) > 0
            assert "limit" not in second.query
            assert [len(view) for view in watcher.views] == [600]

    with ApiServer(nodes=(NODE,), objects=pods, validation=False) as api:
        asyncio.run(follow(api))


def test_a_missing_crd_is_reported_and_noticed_when_it_is_installed(
    api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def follow() -> None:
        api.remove_crd("nodeslos")
        async with watching(api, OWN_NODE_SLO) as watcher:
            await asyncio.wait_for(watcher.watch.wait_ready(), PATIENCE_S)
            await watcher.until(lambda: watcher.watch.state.errors >= 2)
            assert not watcher.watch.state.synced
            assert min(watcher.waits) >= 3.0
            api.add_crd("nodeslos")
            api.put(slo(extensions={"a": 1}))
            await watcher.shows(NODE)
            assert watcher.watch.state.last_error == ""

    asyncio.run(follow())
    messages = [(r.getMessage(), r.__dict__.get("state")) for r in caplog.records]
    assert messages == [("watch_failed", WatchPhase.ABSENT.value)]


def test_a_crd_that_goes_keeps_what_was_known_until_it_is_back(api: ApiServer) -> None:
    async def follow() -> None:
        api.put(slo())
        async with watching(api, OWN_NODE_SLO) as watcher:
            await watcher.shows(NODE)
            api.remove_crd("nodeslos")
            api.close_watches()
            await watcher.until(lambda: watcher.watch.state.errors >= 2)
            assert "404" in watcher.watch.state.last_error
            api.add_crd("nodeslos")
            api.put(slo(cpuBurstStrategy={"policy": "auto"}))

            def received() -> bool:
                body: Any = watcher.watch.view.get(NODE)
                return bool(body) and bool(body["spec"])

            await watcher.until(received)

    asyncio.run(follow())


def test_one_kind_that_is_forbidden_leaves_the_others_alone(api: ApiServer) -> None:
    async def follow() -> None:
        api.faults.add(Fault(verb="list|watch", resource="nodeslos", status=403, times=0))
        async with watching(api, OWN_NODE_SLO) as slos, watching(api, OWN_NODE) as nodes:
            await nodes.shows(NODE)
            await asyncio.wait_for(slos.watch.wait_ready(), PATIENCE_S)
            assert "403" in slos.watch.state.last_error
            api.faults.clear()
            api.put(slo())
            await slos.shows(NODE)

    asyncio.run(follow())


ODD: list[Object] = [
    {"spec": {"nodeName": NODE, "priority": "high"}},
    {"spec": {"nodeName": NODE, "containers": None, "initContainers": {}}},
    {"spec": {"nodeName": NODE}, "status": 7},
    {"spec": {"nodeName": NODE}, "status": {"containerStatuses": [None]}},
]


@pytest.mark.parametrize("odd", ODD)
def test_a_pod_with_wrong_types_costs_itself_only(api: ApiServer, odd: Object) -> None:
    async def follow() -> None:
        body = {**pod("odd"), **odd}
        api.put(body, checked=False)
        async with watching(api) as watcher:
            await watcher.shows("default/a", "default/b")
            api.put(pod("c"))
            api.put({**body, "metadata": {**body["metadata"], "labels": {"x": "y"}}}, checked=False)
            api.put(pod("d"))
            await watcher.shows("default/a", "default/b", "default/c", "default/d")
            assert watcher.watch.state.malformed == 2
            assert watcher.watch.state.watches == 1

    asyncio.run(follow())


def test_nulls_and_unknown_fields_cost_nothing(api: ApiServer) -> None:
    async def follow() -> None:
        spec = {"nodeName": NODE, "containers": None, "priority": None, "news": [1]}
        body = {**pod("odd"), "spec": spec, "status": {"containerStatuses": None}, "more": {}}
        body["metadata"]["labels"] = None
        api.put(body, checked=False)
        async with watching(api) as watcher:
            await watcher.shows("default/a", "default/b", "default/odd")
            assert watcher.watch.state.malformed == 0

    asyncio.run(follow())


def test_objects_of_a_megabyte_and_a_half_are_followed(api: ApiServer) -> None:
    async def follow() -> None:
        async with watching(api) as watcher:
            await watcher.shows("default/a", "default/b")
            big = pod("big", note="x" * 1000)
            big["status"] = {"conditions": [{"type": "T", "message": "y" * 1_500_000}]}
            api.put(big, checked=False)
            await watcher.shows("default/a", "default/b", "default/big")
            assert watcher.watch.state.watches == 1

    asyncio.run(follow())


def test_a_node_that_was_made_anew_is_another_one(api: ApiServer) -> None:
    async def follow() -> None:
        async with watching(api, OWN_NODE) as watcher:
            await watcher.shows(NODE)
            first = watcher.watch.view[NODE]
            body = api.get("Node", NODE)
            assert body is not None
            api.delete("nodes", NODE)
            await watcher.shows()
            body["metadata"] = {"name": NODE}
            api.put(body)
            await watcher.shows(NODE)
            assert first.uid != watcher.watch.view[NODE].uid != ""

    asyncio.run(follow())


def test_a_node_metric_has_the_report_policy_and_its_status_causes_no_change(
    api: ApiServer,
) -> None:
    async def follow() -> None:
        policy = {"aggregateDurationSeconds": 300, "reportIntervalSeconds": 60}
        metric: Object = {
            "apiVersion": SLO,
            "kind": "NodeMetric",
            "metadata": {"name": NODE},
            "spec": {"metricCollectPolicy": policy},
        }
        api.put(metric)
        async with watching(api, OWN_NODE_METRIC) as watcher:
            await watcher.shows(NODE)
            assert watcher.watch.view[NODE] == MetricCollectPolicy(
                aggregate_s=300, report_interval_s=60
            )
            metric["status"] = {"updateTime": "2026-01-02T03:04:05Z"}
            api.put(metric)
            await watcher.until(lambda: watcher.watch.state.events >= 1)
            assert len(watcher.views) == 1

    asyncio.run(follow())
