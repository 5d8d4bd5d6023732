from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.snapshot.pod import KubeQos
from agent.wire_formats.pod import ResourceRequirements, compute_qos
from agent.wire_formats.quantities import parse_amount


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", "1"),
        ("500m", "0.5"),
        ("1.5", "1.5"),
        (".5", "0.5"),
        ("2k", "2000"),
        ("1Ki", "1024"),
        ("1e3", "1000"),
        ("1E", "1e18"),
        ("1E2", "100"),
        ("-1", "-1"),
    ],
)
def test_quantities_have_their_value(text: str, value: str) -> None:
    assert parse_amount(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "one", "1 Gi", "1kk", "1e99", "١", "1\n", "NaN"])
def test_what_is_no_quantity_has_none(text: str) -> None:
    assert parse_amount(text) is None


def spec(
    requests: Mapping[str, str] | None = None, limits: Mapping[str, str] | None = None
) -> ResourceRequirements:
    return ResourceRequirements(requests=requests or {}, limits=limits or {})


BOTH = {"cpu": "1", "memory": "1Gi"}
SAME = {"cpu": "1000m", "memory": "1024Mi"}


@pytest.mark.parametrize(
    ("containers", "qos"),
    [
        pytest.param([], KubeQos.BEST_EFFORT, id="no containers"),
        pytest.param([spec()], KubeQos.BEST_EFFORT, id="nothing given"),
        pytest.param([spec({"cpu": "0"})], KubeQos.BEST_EFFORT, id="zero is not given"),
        pytest.param([spec({"nvidia.com/gpu": "1"})], KubeQos.BEST_EFFORT, id="other resources"),
        pytest.param([spec(BOTH, BOTH)], KubeQos.GUARANTEED, id="equal"),
        pytest.param([spec(SAME, BOTH)], KubeQos.GUARANTEED, id="equal, spelt otherwise"),
        pytest.param([spec(BOTH, BOTH), spec()], KubeQos.BURSTABLE, id="one container without"),
        pytest.param([spec(BOTH)], KubeQos.BURSTABLE, id="requests only"),
        pytest.param([spec({"cpu": "1"}, {"cpu": "1"})], KubeQos.BURSTABLE, id="no memory"),
        pytest.param([spec(BOTH, {**BOTH, "cpu": "2"})], KubeQos.BURSTABLE, id="not equal"),
    ],
)
def test_the_class_is_the_kubelets(containers: list[ResourceRequirements], qos: KubeQos) -> None:
    assert compute_qos(containers) is qos


@given(st.text(max_size=60))
def test_no_text_makes_a_quantity_raise(text: str) -> None:
    parse_amount(text)
