from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.slo.status import build_slo_view
from agent.snapshot.cluster import MetricCollectPolicy
from agent.snapshot.slo import NodeSloView
from agent.wire_formats.cluster_objects import (
    NodeMetricObject,
    NodeSloObject,
    metric_policy,
    parse_duration_s,
    slo_json,
)

META = {"name": "n", "uid": "u", "resourceVersion": "12", "generation": 3}


def slo(text: str) -> object:
    data = f'{{"metadata": {json.dumps(META)}, "spec": {text}}}'
    return slo_json(msgspec.json.decode(data, type=NodeSloObject))


def policy(output: object) -> MetricCollectPolicy:
    data = json.dumps({"metadata": META, "spec": {"metricCollectPolicy": output}, "status": 7})
    return metric_policy(msgspec.json.decode(data, type=NodeMetricObject))


def test_a_node_slo_keeps_its_spec_as_it_is() -> None:
    spec = b'{"resourceUsedThresholdWithBE": {"enable": "perhaps"}, "extensions": {"x": [1]}}'
    assert slo(spec.decode()) == {
        "metadata": {"resourceVersion": "12", "generation": 3},
        "spec": msgspec.Raw(spec),
    }


@pytest.mark.parametrize("text", ["7", "null", '"x"', "[]"])
def test_a_spec_that_is_no_object_is_judged_where_the_values_are(text: str) -> None:
    view = build_slo_view(slo(text), NodeSloView())
    assert view.problem or view.found


def test_a_node_slo_without_a_spec_requests_nothing() -> None:
    text = msgspec.json.decode(json.dumps({"metadata": META}), type=NodeSloObject)
    assert build_slo_view(slo_json(text), NodeSloView()).resource_version == "12"


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, '"\\ud800"'])
def test_a_spec_that_nobody_can_decode_is_refused(text: str) -> None:
    with pytest.raises((msgspec.DecodeError, RecursionError)):
        slo(text)


def test_a_policy_is_read_whole() -> None:
    output = {
        "aggregateDurationSeconds": 300,
        "reportIntervalSeconds": 60,
        "nodeAggregatePolicy": {"durations": ["5m0s", "10m0s", "0.5h"]},
        "nodeMemoryCollectPolicy": "usageWithPageCache",
    }
    assert policy(output) == MetricCollectPolicy(
        aggregate_s=300,
        report_interval_s=60,
        durations_s=(300, 600, 1800),
        memory="usageWithPageCache",
    )


@pytest.mark.parametrize("said", [None, {}])
def test_a_node_metric_without_a_policy_says_nothing(said: object) -> None:
    assert policy(said) == MetricCollectPolicy()


def test_each_implausible_value_counts_as_absent() -> None:
    output = {
        "aggregateDurationSeconds": -5,
        "reportIntervalSeconds": True,
        "nodeAggregatePolicy": {"durations": ["5m", 7, "soon", "-1h", "1ms"]},
        "nodeMemoryCollectPolicy": "guess",
    }
    assert policy(output) == MetricCollectPolicy(durations_s=(300,))
    assert policy({"nodeAggregatePolicy": {"durations": "5m"}}) == MetricCollectPolicy()
    assert (
        policy({"nodeAggregatePolicy": [], "reportIntervalSeconds": "60"}) == MetricCollectPolicy()
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m0s", 300.0),
        ("1h", 3600.0),
        ("1.5h", 5400.0),
        ("1h2m3.5s", 3723.5),
        ("300ms", 0.3),
        ("-2s", -2.0),
        ("0", 0.0),
        (".5s", 0.5),
        ("2µs", 2e-6),
        ("", None),
        ("5", None),
        ("5 m", None),
        ("m", None),
        ("5m 3s", None),
        ("١s", None),
        ("1" * 100 + "s", None),
    ],
)
def test_durations_are_gos(text: str, seconds: float | None) -> None:
    duration_s = parse_duration_s(text)
    assert duration_s == (None if seconds is None else pytest.approx(seconds))


@given(st.text(alphabet="0123456789.hmsuµn+- ", max_size=80))
def test_no_text_makes_a_duration_raise(text: str) -> None:
    parse_duration_s(text)
