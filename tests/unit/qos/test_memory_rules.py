"""Formulas of memory QoS, with Koordinator's results."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.cgroup.keys import NO_LIMIT
from agent.qos.inputs import qos_pods
from agent.qos.memory_rules import (
    ANNOTATION,
    DISABLED,
    MemoryAmounts,
    container_amounts,
    page_cache_values,
    part_of,
    pod_amounts,
    pod_memory_qos,
    protection,
    throttling_limit,
)
from agent.qos.strategy import QosPod
from agent.snapshot.pod import ContainerResources, KubeQos
from agent.snapshot.slo import (
    BE_DEFAULTS,
    LSR_DEFAULTS,
    MemoryQos,
    QosClass,
    ResourceQos,
    settle_classes,
)
from agent.wire_formats.annotations import AnnotationError
from tests.unit.qos.qos_node import limited
from tests.unit.qos.qos_node import pod as make_pod

KI, MI, GI = 1 << 10, 1 << 20, 1 << 30
OFF = settle_classes(ResourceQos())


@pytest.mark.parametrize(
    ("request_bytes", "limit", "percent", "allocatable", "high"),
    [
        (0, -1, 80, GI, 858992640),
        (GI, GI, 80, 0, 1073741824),
        (512 * MI, 2 * GI, 90, 0, 1986420736),
        (512 * MI, 2 * GI, 0, 0, 9223372036854775807),
        (2 * GI, -1, 40, 10 * GI, 5583454208),
        (300 * MI + 1, 1000 * MI, 33, 0, 556793856),
    ],
)
def test_memory_high(
    request_bytes: int, limit: int, percent: int, allocatable: int, high: int
) -> None:
    amounts = MemoryAmounts(request=request_bytes, limit=limit)
    memory = MemoryQos(throttling_percent=percent)
    assert throttling_limit(amounts, memory, allocatable) == high


def test_memory_high_is_at_least_memory_min() -> None:
    memory = MemoryQos(throttling_percent=10, min_limit_percent=100)
    assert throttling_limit(MemoryAmounts(request=GI, limit=GI), memory, 0) == GI


def test_a_base_below_the_request_gives_less_than_the_request() -> None:
    memory = MemoryQos(throttling_percent=50)
    amounts = MemoryAmounts(request=2 * GI)
    assert throttling_limit(amounts, memory, GI) == GI + GI // 2


def test_a_base_of_nothing_limits_nothing() -> None:
    memory = MemoryQos(throttling_percent=80)
    assert throttling_limit(MemoryAmounts(), memory, 0) == NO_LIMIT
    assert throttling_limit(MemoryAmounts(limit=100), memory, 0) == NO_LIMIT


@given(st.integers(0, 1 << 50), st.integers(-1, 1 << 50), st.integers(0, 100), st.integers(0, 100))
def test_memory_high_never_stops_a_container(
    request_bytes: int, limit: int, percent: int, minimum: int
) -> None:
    memory = MemoryQos(throttling_percent=percent, min_limit_percent=minimum)
    amounts = MemoryAmounts(request=request_bytes, limit=limit)
    high = throttling_limit(amounts, memory, 1 << 40)
    assert high > 0
    assert high >= protection(amounts, memory)[0]


@pytest.mark.parametrize(
    ("minimum", "low", "expected"),
    [
        (100, 50, (GI, GI)),
        (100, 0, (GI, 0)),
        (0, 50, (0, GI // 2)),
        (50, 80, (GI // 2, GI * 4 // 5)),
    ],
)
def test_a_low_that_is_set_is_at_least_min(
    minimum: int, low: int, expected: tuple[int, int]
) -> None:
    memory = MemoryQos(min_limit_percent=minimum, low_limit_percent=low)
    assert protection(MemoryAmounts(request=GI), memory) == expected


def test_parts_are_rounded_down() -> None:
    assert [part_of(amount, 50) for amount in (1000, 1001, 2001)] == [500, 500, 1000]


SIZE, ENABLE, SYNC = (f"memory.pagecache_limit.{name}" for name in ("size", "enable", "sync"))


@pytest.mark.parametrize(
    ("memory", "limit", "expected"),
    [
        (MemoryQos(page_cache_limit_size=2 * GI), GI, {SIZE: GI, ENABLE: 1, SYNC: 0}),
        (MemoryQos(page_cache_limit_size=2 * GI), -1, {SIZE: 2 * GI, ENABLE: 1, SYNC: 0}),
        (MemoryQos(page_cache_limit_size=0), GI, {SIZE: 0, ENABLE: 0}),
        (MemoryQos(page_cache_limit_percent=50), GI, {SIZE: 536870912, ENABLE: 1, SYNC: 0}),
        (
            MemoryQos(page_cache_limit_percent=50, page_cache_limit_size=256 * MI),
            GI,
            {SIZE: 268435456, ENABLE: 1, SYNC: 0},
        ),
        (MemoryQos(page_cache_enable=True), GI, {ENABLE: 1}),
        (
            MemoryQos(page_cache_limit_size=512 * MI, page_cache_enable=False),
            GI,
            {SIZE: 536870912, ENABLE: 0, SYNC: 0},
        ),
        (
            MemoryQos(page_cache_limit_size=MI, page_cache_reclaim_sync=True),
            GI,
            {SIZE: MI, ENABLE: 1, SYNC: 1},
        ),
        (MemoryQos(page_cache_limit_percent=50), -1, {}),
        (MemoryQos(), GI, {}),
    ],
)
def test_page_cache_limit(memory: MemoryQos, limit: int, expected: dict[str, int]) -> None:
    assert {key.name: value for key, value in page_cache_values(memory, limit)} == expected


def qos_pod(annotation: str | None = None, label: str = "BE") -> QosPod:
    annotations = {} if annotation is None else {ANNOTATION: annotation}
    (one,) = qos_pods((make_pod("a", limited("x", None), label=label, annotations=annotations),))
    return one


def test_a_disabled_class_changes_nothing() -> None:
    memory = pod_memory_qos(qos_pod(), OFF).memory
    assert (memory.min_limit_percent, memory.low_limit_percent) == (0, 0)
    assert throttling_limit(MemoryAmounts(request=GI), memory, GI) == 9223372036854775807
    assert (memory.wmark_ratio, memory.wmark_scale_permill, memory.wmark_min_adj) == (0, 50, 0)


def test_policy_auto_takes_the_defaults_of_the_class_also_where_it_is_disabled() -> None:
    qos = pod_memory_qos(qos_pod('{"policy":"auto","minLimitPercent":100}'), OFF)
    assert qos.memory == replace(BE_DEFAULTS.memory, min_limit_percent=100)
    assert (qos.memory.wmark_ratio, qos.memory.wmark_scale_permill) == (95, 20)
    assert qos.memory.wmark_min_adj == 50


def test_pods_with_cpus_of_their_own_share_the_defaults_of_lsr() -> None:
    for label in ("LSE", "LSR"):
        qos = pod_memory_qos(qos_pod('{"policy":"auto"}', label), OFF)
        assert qos.memory == LSR_DEFAULTS.memory


def test_policy_none_switches_a_pod_off() -> None:
    enabled = ResourceQos(be_class=QosClass(memory=MemoryQos(enable=True, min_limit_percent=50)))
    assert pod_memory_qos(qos_pod('{"policy":"none","minLimitPercent":100}'), enabled).memory == (
        DISABLED
    )


@pytest.mark.parametrize("policy", ['"policy":"default",', '"policy":"",', '"policy":"odd",', ""])
def test_any_other_policy_lays_the_fields_over_those_of_the_node(policy: str) -> None:
    enabled = ResourceQos(be_class=QosClass(memory=MemoryQos(enable=True, min_limit_percent=50)))
    text = f'{{{policy}"LOWLIMITPERCENT":30}}'
    memory = pod_memory_qos(qos_pod(text), enabled).memory
    assert (memory.min_limit_percent, memory.low_limit_percent) == (50, 30)
    over_disabled = pod_memory_qos(qos_pod(text), OFF).memory
    assert over_disabled == replace(DISABLED, low_limit_percent=30)


@pytest.mark.parametrize(
    "text", ["nope", "[]", '{"minLimitPercent":101}', '{"minLimitPercent":"1"}']
)
def test_an_annotation_that_is_wrong_is_refused_as_a_whole(text: str) -> None:
    with pytest.raises(AnnotationError):
        pod_memory_qos(qos_pod(text), OFF)


def batch(name: str, request: int, limit: int | None, **more: Any) -> ContainerResources:
    amounts = {"batch_memory_bytes": request, "batch_memory_limit_bytes": limit}
    return limited(name, None, **amounts, **more)


def test_amounts_of_best_effort_pods_are_batch_memory() -> None:
    view = make_pod(
        "a",
        batch("x", MI, 2 * MI, memory_request_bytes=7),
        batch("y", 2 * MI, 3 * MI),
        batch("side", MI, MI, is_init=True, is_sidecar=True),
        batch("init", 9 * MI, 9 * MI, is_init=True),
        label="BE",
        qos=KubeQos.BEST_EFFORT,
    )
    (pod,) = qos_pods((view,))
    assert pod_amounts(pod) == MemoryAmounts(request=4 * MI, limit=6 * MI)
    amounts = [container_amounts(container, "BE") for container in pod.containers[:2]]
    assert amounts == [
        MemoryAmounts(request=MI, limit=2 * MI),
        MemoryAmounts(request=2 * MI, limit=3 * MI),
    ]


def test_a_best_effort_pod_with_a_container_without_a_batch_limit_has_none() -> None:
    view = make_pod("a", batch("x", MI, 2 * MI), batch("y", MI, None), label="BE")
    (pod,) = qos_pods((view,))
    assert pod_amounts(pod) == MemoryAmounts(request=2 * MI)
    assert container_amounts(pod.containers[1], "BE") == MemoryAmounts(request=MI)


def test_a_pod_with_an_unlimited_container_has_no_limit() -> None:
    view = make_pod(
        "a",
        limited("x", None, memory_limit_bytes=MI),
        limited("y", None),
        request_bytes=5000,
    )
    (pod,) = qos_pods((view,))
    assert pod_amounts(pod) == MemoryAmounts(request=5000, limit=-1)
    assert pod_amounts(replace(pod, view=replace(view, compute_request=None))) is None
