"""Which pods are evicted, and in which order."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from agent.qos.eviction.amounts import EvictionFeature as F
from agent.qos.eviction.victims import EvictionPod, victims
from agent.snapshot.slo import ResourceThresholds
from tests.unit.qos_eviction.evictions import GB, names, pod

SLO = ResourceThresholds(
    enable=True, evict_enabled_priority_threshold=5999, allocatable_evict_priority_threshold=7999
)


def by_priority(name: str, keys: tuple[int, int, int | None, int]) -> EvictionPod:
    eviction_priority, priority, label_priority, used = keys
    return pod(
        name,
        memory=used,
        is_enabled=True,
        eviction_priority=eviction_priority,
        priority=priority,
        label_priority=label_priority,
    )


def test_o1_best_effort_pods_are_ordered_by_priority_then_by_the_used_part_of_their_request() -> (
    None
):
    pods = [
        pod("1", cpu=3, batch_cpu=16, priority=100),
        pod("2", cpu=4, batch_cpu=16, priority=100),
        pod("3", cpu=4, batch_cpu=16, priority=10),
    ]
    assert names(victims(F.BE_CPU, pods, SLO)) == ["3", "2", "1"]


def test_o2_best_effort_pods_are_ordered_by_priority_then_by_used_memory() -> None:
    pods = [
        pod("a", memory=0, priority=5000),
        pod("b", memory=0, priority=5000),
        pod("c", memory=GB, priority=5000),
        pod("d", memory=9 * GB, priority=5500),
    ]
    assert names(victims(F.BE_MEMORY, pods, SLO)) == ["c", "b", "a", "d"]


O3 = {"h": (100, 100, None, 40), "n": (-1, 120, None, 5), "u": (0, 100, None, 10),
      "i": (0, 120, None, 20)}  # fmt: skip
O4 = {"p2": (0, 120, 2000, 10), "p3": (0, 120, 3000, 5), "p4": (0, 120, 4000, 20),
      "a": (0, 100, 9999, 10), "b": (0, 100, 9999, 11)}  # fmt: skip


@pytest.mark.parametrize(
    ("listed", "order"),
    [
        pytest.param(O3, ["n", "u", "i", "h"], id="O3"),
        pytest.param(O4, ["b", "a", "p2", "p3", "p4"], id="O4"),
    ],
)
def test_pods_of_any_class_are_ordered_by_eviction_priority_priority_label_and_use(
    listed: dict[str, tuple[int, int, int | None, int]], order: list[str]
) -> None:
    pods = [by_priority(name, keys) for name, keys in listed.items()]
    for permutation in itertools.permutations(pods):
        assert names(victims(F.MEMORY, permutation, SLO)) == order


def test_of_equal_pods_the_youngest_goes_first_in_whatever_order_they_are_listed() -> None:
    pods = [
        pod("old", memory=GB, created="2026-01-01T00:00:00Z"),
        pod("young", memory=GB, created="2026-01-03T00:00:00Z"),
        pod("middle", memory=GB, created="2026-01-02T00:00:00Z"),
    ]
    for permutation in itertools.permutations(pods):
        assert names(victims(F.BE_MEMORY, permutation, SLO)) == ["young", "middle", "old"]


def test_the_eviction_priority_counts_for_best_effort_pods_too() -> None:
    pods = [pod("big", memory=9 * GB), pod("first", memory=GB, eviction_priority=-1)]
    assert names(victims(F.BE_MEMORY, pods, SLO)) == ["first", "big"]


@pytest.mark.parametrize(
    ("changes", "feature"),
    [
        ({"is_active": False}, F.BE_MEMORY),
        ({"is_terminating": True}, F.BE_MEMORY),
        ({"protection": "namespace kube-system"}, F.BE_MEMORY),
        ({"features": frozenset({"MemoryEvict"})}, F.BE_MEMORY),
        ({"is_best_effort": False}, F.BE_MEMORY),
        ({"used": {}}, F.BE_MEMORY),
        ({"used": {"cpu": 1}}, F.MEMORY),
        ({"is_enabled": False}, F.MEMORY),
        ({"priority": 6000}, F.MEMORY),
        ({"priority": 8000}, F.MEMORY_ALLOCATABLE),
    ],
)
def test_a_pod_that_a_rule_must_not_evict_is_no_victim(
    changes: dict[str, object], feature: F
) -> None:
    one = pod("p", memory=GB, is_enabled=True)
    assert victims(feature, [one], SLO) == (one,)
    assert victims(feature, [msgspec.structs.replace(one, **changes)], SLO) == ()


def test_a_best_effort_pod_without_a_sample_is_a_victim_of_requests_but_not_of_usage() -> None:
    one = pod("p", batch_cpu=1000)
    assert victims(F.BE_CPU, [one], SLO) == (one,)
    assert victims(F.BE_MEMORY, [one], SLO) == ()
