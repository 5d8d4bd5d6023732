"""Scores of nodes by load and requests: worked vectors of Koordinator's unit tests, and rules."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from agent.clock import ManualClock, rfc3339
from agent.errors import ParseError
from plugins.scheduler.cluster_state import ClusterState
from plugins.scheduler.decisions import DecisionMaker
from plugins.scheduler.load.load_score import EXPIRED, node_thresholds
from plugins.scheduler.load.load_settings import (
    AggregatedUsage,
    CpuMemory,
    FitPlusSettings,
    FitResource,
    LoadScoreSettings,
    ScarceResourcesSettings,
)
from plugins.scheduler.load.node_loads import LoadCapacity, NodeLoads
from plugins.scheduler.load.pod_load import PodLoad, decode_pod_load
from plugins.scheduler.load.reported_usage import ReportedUsageObject, reported_usage
from plugins.scheduler.server.extender import Extender
from plugins.scheduler.server.extender_wire import decode_nodes_request
from tests.unit.scheduler.vectors import NODES

Object = dict[str, Any]
NOW_S = 1_000_000.0
GIB = 1 << 30
BIG = {"cpu": 96_000, "memory": 512 * GIB}


def pod(
    requests: Object | None = None,
    limits: Object | None = None,
    *,
    name: str = "p",
    node: str = "",
    bound_s: float | None = None,
    containers: list[Object] | None = None,
    init: list[Object] | None = None,
    owner: str = "ReplicaSet",
    labels: Object | None = None,
    annotations: Object | None = None,
) -> PodLoad:
    conditions = []
    if bound_s is not None:
        time = rfc3339(bound_s)
        conditions.append({"type": "PodScheduled", "status": "True", "lastTransitionTime": time})
    one = {"name": "c", "resources": {"requests": requests or {}, "limits": limits or {}}}
    document = {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"u-{name}",
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [{"kind": owner, "controller": True}],
        },
        "spec": {"nodeName": node, "containers": containers or [one], "initContainers": init},
        "status": {"phase": "Pending", "conditions": conditions},
    }
    return decode_pod_load(json.dumps(document).encode())


SIXTEEN = {"cpu": "16", "memory": "32Gi"}


def metric(
    usage: Object | None = None,
    *,
    age_s: float | None = 0.0,
    pods: Object | None = None,
    system: Object | None = None,
    aggregates: dict[tuple[str, str], Object] | None = None,
) -> Object:
    """Return a NodeMetric; `pods` are usages of prod pods by name, `aggregates` by duration."""
    status: Object = {
        "nodeMetric": {
            "nodeUsage": {"resources": usage} if usage else {},
            "systemUsage": {"resources": system or {}},
            "aggregatedNodeUsages": [
                {"duration": duration, "usage": {kind: {"resources": one}}}
                for (duration, kind), one in (aggregates or {}).items()
            ],
        },
        "podsMetric": [
            {
                "namespace": "ns",
                "name": name,
                "priority": "koord-prod",
                "podUsage": {"resources": one},
            }
            for name, one in (pods or {}).items()
        ],
    }
    if age_s is not None:
        status["updateTime"] = rfc3339(NOW_S - age_s)
    return {"metadata": {"name": "n1"}, "status": status}


def loads(
    load: LoadScoreSettings = LoadScoreSettings(enabled=True),  # noqa: B008 - immutable
    document: Object | None = None,
    assigned: tuple[PodLoad, ...] = (),
    *,
    thresholds: str | None = None,
    raw: Object | None = None,
) -> NodeLoads:
    """Return the loads of one node of 96 cores and 512 GiB."""
    result = NodeLoads(
        load, FitPlusSettings(), ScarceResourcesSettings(), ManualClock(wall_s=NOW_S)
    )
    capacity = LoadCapacity(allocatable=BIG, raw_allocatable=raw or BIG, thresholds=thresholds)
    result.set_capacity("n1", capacity)
    if document is not None:
        body = msgspec.json.decode(json.dumps(document).encode(), type=ReportedUsageObject)
        result.set_usage("n1", reported_usage(body))
    for one in assigned:
        result.set_pod(one)
    return result


def score(one: NodeLoads, pod_load: PodLoad) -> int:
    return one.weighted_scores(pod_load, ["n1"])["n1"][0]


def refusal(one: NodeLoads, pod_load: PodLoad) -> str:
    return one.refusals(pod_load, ["n1"]).get("n1", "")


def settings(**changes: Any) -> LoadScoreSettings:
    return LoadScoreSettings(enabled=True, **changes)


# score of LoadAware

BATCH = {"koordinator.sh/priority-class": "koord-batch"}
BATCH_AMOUNTS = {"kubernetes.io/batch-cpu": "16000", "kubernetes.io/batch-memory": "32Gi"}
BUSY = {"cpu": "32", "memory": "10Gi"}


@pytest.mark.parametrize(
    ("name", "wanted", "document", "assigned", "changes", "expected"),
    [
        ("L01", pod(SIXTEEN, SIXTEEN), metric(), (), {}, 90),
        ("L02", pod(SIXTEEN, SIXTEEN), metric(BUSY), (), {}, 72),
        (
            "L03",
            pod(SIXTEEN, SIXTEEN),
            metric(BUSY),
            (pod(SIXTEEN, SIXTEEN, name="new", node="n1", bound_s=NOW_S),),
            {},
            63,
        ),
        ("L04", pod({"cpu": "8", "memory": "16Gi"}, SIXTEEN), metric(), (), {}, 90),
        ("L05", pod(BATCH_AMOUNTS, BATCH_AMOUNTS, labels=BATCH), metric(), (), {}, 90),
        ("L06", pod(SIXTEEN, SIXTEEN), metric(), (), {"dominant_resource_weight": 10}, 85),
        (
            "L06 with weights",
            pod(SIXTEEN, SIXTEEN),
            metric(),
            (),
            {"dominant_resource_weight": 10, "resource_weights": CpuMemory(0, 10)},
            90,
        ),
        ("L07", pod(SIXTEEN, SIXTEEN), metric(age_s=181.0), (), {}, 0),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("L") else "",
)
def test_load_scores_are_those_of_the_vectors(
    name: str,
    wanted: PodLoad,
    document: Object,
    assigned: tuple[PodLoad, ...],
    changes: Object,
    expected: int,
) -> None:
    assert score(loads(settings(**changes), document, assigned), wanted) == expected, name


def test_a_node_without_metric_or_update_time_scores_nothing() -> None:
    assert score(loads(document=None), pod(SIXTEEN)) == 0
    assert score(loads(document=metric(age_s=None)), pod(SIXTEEN)) == 0


def test_a_pod_in_the_reported_usage_is_not_counted_again() -> None:
    old = pod(SIXTEEN, name="old", node="n1", bound_s=NOW_S - 61)
    used = metric(BUSY, pods={"old": {"cpu": "1", "memory": "1Gi"}})
    assert score(loads(document=used, assigned=(old,)), pod(SIXTEEN)) == 72

    recent = pod(SIXTEEN, name="old", node="n1", bound_s=NOW_S - 59)
    assert score(loads(document=used, assigned=(recent,)), pod(SIXTEEN)) < 72


def test_a_recent_pod_counts_by_what_its_estimate_exceeds_its_reported_usage() -> None:
    recent = pod(SIXTEEN, name="new", node="n1", bound_s=NOW_S)
    used = metric(BUSY, pods={"new": {"cpu": "13600m", "memory": "32Gi"}})
    assert score(loads(document=used, assigned=(recent,)), pod(SIXTEEN)) == 72


def test_a_pod_counts_by_its_estimate_until_its_period_ends() -> None:
    old = pod(SIXTEEN, name="old", node="n1", bound_s=NOW_S - 300)
    used = metric(BUSY, pods={"old": {"cpu": "1", "memory": "1Gi"}})

    def with_period(seconds: int) -> int:
        changed = settings(estimated_s_after_scheduled=seconds)
        return score(loads(changed, used, (old,)), pod(SIXTEEN))

    assert with_period(299) == 72
    assert with_period(301) < 72


def test_a_pod_that_ends_or_is_deleted_counts_no_more() -> None:
    new = pod(SIXTEEN, name="new", node="n1", bound_s=NOW_S)
    one = loads(document=metric(BUSY), assigned=(new,))
    assert score(one, pod(SIXTEEN)) == 63

    one.remove_pod(new.uid)
    one.remove_pod(new.uid)
    assert score(one, pod(SIXTEEN)) == 72
    one.set_pod(new)
    one.set_pod(msgspec.structs.replace(new, node=""))
    assert score(one, pod(SIXTEEN)) == 72


def test_a_pod_without_requests_is_estimated_with_the_defaults() -> None:
    factors = CpuMemory(85, 70)
    assert pod().estimate("cpu", factors, allows_own=False) == 250
    assert pod().estimate("memory", factors, allows_own=False) == 200 << 20


def test_an_estimate_is_no_more_than_the_limit_and_follows_the_pod_only_if_allowed() -> None:
    own = pod(
        {"cpu": "10"},
        {"cpu": "10"},
        annotations={"scheduling.koordinator.sh/load-estimated-scaling-factors": '{"cpu":40}'},
    )
    assert own.estimate("cpu", CpuMemory(85, 70), allows_own=False) == 8500
    assert own.estimate("cpu", CpuMemory(85, 70), allows_own=True) == 4000
    assert own.estimate("cpu", CpuMemory(120, 70), allows_own=False) == 10_000


def test_the_aggregate_is_scored_if_one_is_configured() -> None:
    aggregates = {("5m0s", "p95"): BUSY, ("10m0s", "p95"): {"cpu": "96", "memory": "1Gi"}}
    used = metric(aggregates=aggregates)

    def scored(duration_s: int) -> int:
        aggregated = AggregatedUsage(score_aggregation_type="p95", score_duration_s=duration_s)
        return score(loads(settings(aggregated=aggregated), used), pod(SIXTEEN))

    assert scored(300) == 72
    assert scored(0) == 47  # the longest: CPU is full
    assert scored(900) == 90  # missing: nothing, but for estimates


def test_prod_pods_are_scored_by_the_usage_of_prod_pods_if_configured() -> None:
    used = metric(BUSY, pods={"a": {"cpu": "1", "memory": "1Gi"}}, system={"cpu": "31"})
    assert score(loads(settings(scores_prod_usage=True), used), pod(SIXTEEN)) > 72
    with_system = settings(scores_prod_usage=True, prod_usage_includes_system=True)
    assert score(loads(with_system, used), pod(SIXTEEN)) == 72 + 1  # 9 GiB less than BUSY


# filter of LoadAware


def test_a_node_above_a_threshold_is_refused_with_the_pod_in_it() -> None:
    free = pod({"cpu": "1", "memory": "1Gi"})
    used = {"cpu": "62300m", "memory": "10Gi"}  # 64.9 % of 96 cores, 65.8 % with the pod
    assert refusal(loads(document=metric({"cpu": "61"})), free) == ""
    assert refusal(loads(document=metric(used)), free) == "node(s) cpu usage exceed threshold"
    full = metric({"cpu": "1", "memory": "500Gi"})
    assert refusal(loads(document=full), free) == "node(s) memory usage exceed threshold"


def test_pods_of_daemon_sets_pass() -> None:
    full = metric({"cpu": "96"})
    assert refusal(loads(document=full), pod(SIXTEEN, owner="DaemonSet")) == ""


@pytest.mark.parametrize(
    ("changes", "age_s", "expected"),
    [
        ({}, 179.0, "node(s) cpu usage exceed threshold"),
        ({}, 181.0, EXPIRED),
        ({}, None, EXPIRED),
        ({"schedules_when_expired": True}, 181.0, ""),
        ({"filter_expired": False}, 181.0, "node(s) cpu usage exceed threshold"),
        ({"expiration_s": 300}, 181.0, "node(s) cpu usage exceed threshold"),
    ],
)
def test_an_expired_metric_is_treated_as_the_settings_say(
    changes: Object, age_s: float | None, expected: str
) -> None:
    one = loads(settings(**changes), metric({"cpu": "96"}, age_s=age_s))
    assert refusal(one, pod(SIXTEEN)) == expected


def test_a_node_without_metric_passes() -> None:
    assert refusal(loads(document=None), pod(SIXTEEN)) == ""


def test_prod_pods_have_thresholds_of_their_own() -> None:
    changed = settings(prod_usage_thresholds=CpuMemory(30, 0), usage_thresholds=CpuMemory(0, 0))
    used = metric(BUSY, pods={"a": {"cpu": "20", "memory": "1Gi"}})
    assert refusal(loads(changed, used), pod(SIXTEEN)) == "node(s) cpu usage exceed threshold"
    assert refusal(loads(changed, used), pod(BATCH_AMOUNTS, labels=BATCH)) == ""


def test_thresholds_of_aggregates_replace_those_of_the_average() -> None:
    aggregated = AggregatedUsage(
        usage_thresholds=CpuMemory(50, 0), usage_aggregation_type="p95", usage_duration_s=300
    )
    used = metric(aggregates={("5m0s", "p95"): {"cpu": "48", "memory": "1Gi"}})
    reason = "node(s) cpu aggregated usage exceed threshold"
    assert refusal(loads(settings(aggregated=aggregated), used), pod(SIXTEEN)) == reason


def test_thresholds_of_the_node_replace_those_of_the_settings() -> None:
    text = json.dumps({"usageThresholds": {"cpu": 90}})
    used = metric({"cpu": "70", "memory": "500Gi"})
    assert refusal(loads(document=used, thresholds=text), pod(SIXTEEN)) == ""
    aggregate = json.dumps(
        {
            "aggregatedUsage": {
                "usageThresholds": {"cpu": 1},
                "usageAggregationType": "p95",
                "usageAggregatedDuration": "5m",
            }
        }
    )
    assert refusal(loads(document=used, thresholds=aggregate), pod(SIXTEEN)).endswith(
        "cpu aggregated usage exceed threshold"
    )


@pytest.mark.parametrize("text", ["", "[]", '{"usageThresholds":{"cpu":"x"}}', "{"])
def test_an_unreadable_annotation_of_thresholds_is_ignored(text: str) -> None:
    assert node_thresholds(settings(), text) == node_thresholds(settings(), None)


def test_usage_is_compared_with_what_the_node_itself_has() -> None:
    used = metric({"cpu": "40", "memory": "1Gi"})
    half = {"cpu": 48_000, "memory": 512 * GIB}  # the other half is resold
    assert refusal(loads(document=used), pod({"cpu": "1"})) == ""
    assert refusal(loads(document=used, raw=half), pod({"cpu": "1"})) != ""


# NodeResourcesFitPlus

GPU_NAME = "nvidia.com/gpu"


def resource_loads(
    fit_plus: FitPlusSettings = FitPlusSettings(),  # noqa: B008 - immutable
    scarce: ScarceResourcesSettings = ScarceResourcesSettings(),  # noqa: B008 - immutable
    **nodes: Object,
) -> NodeLoads:
    result = NodeLoads(LoadScoreSettings(), fit_plus, scarce, ManualClock(wall_s=NOW_S))
    for name, allocatable in nodes.items():
        result.set_capacity(name, LoadCapacity(allocatable=allocatable, raw_allocatable={}))
    return result


def test_p01_a_gpu_node_in_use_is_preferred_where_gpus_are_to_be_packed() -> None:
    fit_plus = FitPlusSettings(
        enabled=True,
        resources={
            GPU_NAME: FitResource(type="MostAllocated", weight=2),
            "cpu": FitResource(),
            "memory": FitResource(),
        },
    )
    capacity = {**BIG, GPU_NAME: 8}
    one = resource_loads(fit_plus, n1=capacity, n2=capacity)
    one.set_pod(pod({"cpu": "8", GPU_NAME: "4"}, name="old", node="n1"))

    scores = one.weighted_scores(pod({"cpu": "8", GPU_NAME: "1"}), ["n1", "n2"])
    assert scores["n1"][0] > scores["n2"][0]


def test_p01_a_pod_that_requests_none_of_the_resources_scores_the_most() -> None:
    fit_plus = FitPlusSettings(enabled=True, resources={GPU_NAME: FitResource()})
    one = resource_loads(fit_plus, n1=BIG)
    assert one.weighted_scores(pod(SIXTEEN), ["n1"]) == {"n1": (100, 1)}


def container(cpu: str, **more: str) -> Object:
    return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **more}


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        ([container("10")], 10_000),
        ([container("1", restartPolicy="Always")], 3_000),
        ([container("5"), container("1", restartPolicy="Always")], 5_000),
    ],
)
def test_p02_requests_of_a_pod_follow_the_rule_of_kubernetes(
    init: list[Object], expected: int
) -> None:
    one = pod(containers=[container("2")], init=init)
    assert one.requests["cpu"] == one.nonzero["cpu"] == expected


def test_containers_without_requests_count_with_the_defaults_of_kube_scheduler() -> None:
    one = pod(containers=[container("2"), {"name": "d"}])
    assert one.nonzero == {"cpu": 2100, "memory": 400 << 20}


# ScarceResourceAvoidance


@pytest.mark.parametrize(("strict", "expected"), [(False, 75), (True, 0)])
def test_p03_a_pod_that_needs_no_gpu_prefers_a_node_without(strict: bool, expected: int) -> None:
    scarce = ScarceResourcesSettings(enabled=True, resources=[GPU_NAME, "xx.xx/xx"], strict=strict)
    others = {"ephemeral-storage": 1, "pods": 1, "hugepages": 1}
    gpu_node = {**BIG, **others, GPU_NAME: 8}
    one = resource_loads(scarce=scarce, plain={**BIG, **others}, gpu=gpu_node)

    scores = one.weighted_scores(pod({"cpu": "1", "memory": "1Gi"}), ["plain", "gpu"])
    assert scores == {"plain": (100, 1), "gpu": (expected, 1)}
    desired = pod({"cpu": "1", GPU_NAME: "1"})
    assert one.weighted_scores(desired, ["gpu"]) == {"gpu": (100, 1)}


# in the answers to kube-scheduler


def extender(load: LoadScoreSettings, weight: int = 1) -> Extender:
    """Two equal nodes with devices; one of them is busy."""
    state = ClusterState()
    clock = ManualClock()
    result = NodeLoads(load, FitPlusSettings(), ScarceResourcesSettings(), clock)
    for name, cpu in (("idle", "1"), ("busy", "80")):
        state.set_node(name, {})
        state.set_devices(msgspec.structs.replace(NODES["A"], node=name))
        result.set_capacity(name, LoadCapacity(allocatable=BIG, raw_allocatable=BIG))
        document = metric({"cpu": cpu, "memory": "1Gi"})
        document["status"]["updateTime"] = rfc3339(clock.wall())
        body = msgspec.json.decode(json.dumps(document).encode(), type=ReportedUsageObject)
        result.set_usage(name, reported_usage(body))
    return Extender(DecisionMaker(state), clock, result, device_weight=weight)


def call(names: list[str]) -> Any:
    resources = {"requests": {GPU_NAME: "1", **SIXTEEN}}
    document = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"containers": [{"name": "c", "resources": resources}]},
    }
    body = json.dumps({"Pod": document, "NodeNames": names}).encode()
    return decode_nodes_request(body)


def test_a_busy_node_is_refused_with_its_reason_and_the_decision_is_recorded() -> None:
    one = extender(settings())
    answer = json.loads(one.filter(call(["idle", "busy"])))

    assert answer["NodeNames"] == ["idle"]
    assert answer["FailedNodes"] == {"busy": "node(s) cpu usage exceed threshold"}
    record = msgspec.to_builtins(one.log.of_pod("ns", "p"))
    assert "cpu usage exceed" in json.dumps(record)


def test_scores_are_weighted_means_of_the_devices_and_the_load() -> None:
    off = settings(usage_thresholds=CpuMemory())
    mixed = json.loads(extender(off).prioritize(call(["idle", "busy"])))
    devices_only = json.loads(extender(LoadScoreSettings()).prioritize(call(["idle", "busy"])))
    mostly_devices = json.loads(extender(off, 1000).prioritize(call(["idle", "busy"])))

    assert devices_only == [{"Host": "idle", "Score": 10}, {"Host": "busy", "Score": 10}]
    assert mixed == [{"Host": "idle", "Score": 9}, {"Host": "busy", "Score": 7}]
    assert mostly_devices == devices_only


def test_what_is_no_pod_is_refused() -> None:
    with pytest.raises(ParseError):
        decode_pod_load(b"[]")
