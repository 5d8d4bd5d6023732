"""CPU burst and memory QoS on version 2 groups: written in order, refused as known, undone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.guest.inside.restore import DRIVERS, MOST_STEPS
from tests.unit.reconcile.limited_node import MIB

LADDER = [120000, 144000, 172800, 207360, 248832, 298598, 300000, 300000]


@pytest.fixture(params=DRIVERS)
def node(facts: dict[str, Any], request: pytest.FixtureRequest) -> Any:
    return facts["limits"][request.param]


def test_quota_and_burst_go_up_and_down_without_a_refusal(node: Any) -> None:
    burst = node["burst"]
    assert [quotas for quotas, _ in burst["up"]] == [[quota] * 2 for quota in LADDER]
    assert [bursts for _, bursts in burst["up"]] == [[100000] * 2 for _ in LADDER]
    assert burst["down"][-1] == [[100000, 100000], [100000, 100000]]
    assert burst["unwritten"] == 0


def test_the_kernel_refuses_a_burst_above_the_quota_either_way(node: Any) -> None:
    assert node["burst"]["burst above the quota"] == "EINVAL"
    assert node["burst"]["quota below the burst"] == "EINVAL"


def test_protection_and_limits_of_the_root_the_pod_and_the_container(node: Any) -> None:
    protected = node["protected"]
    half, high = 32 * MIB, (64 * MIB + 192 * MIB * 80 // 100) // 4096 * 4096
    low = 64 * MIB * 60 // 100 // 4096 * 4096  # the kernel has whole pages
    assert protected["written"]["memory.min"] == [str(half)] * 3
    assert protected["written"]["memory.low"] == [str(low)] * 3
    assert protected["written"]["memory.high"] == ["max", "max", str(high)]
    assert protected["writes"] == [[7, 0], [0, 0]]


@pytest.mark.parametrize("part", ["burst", "protected"])
def test_switched_off_all_files_are_as_before(node: Any, part: str) -> None:
    assert node[part]["restored"] == node[part]["before"]
    assert node[part]["left"] == 0


def test_what_the_kubelet_protects_and_limits_stays(node: Any) -> None:
    written = node["of_kubelet"]["written"]
    assert written["memory.min"] == [str(128 * MIB), str(32 * MIB), str(32 * MIB)]
    assert written["memory.high"][2] == str(200 * MIB)


def test_killed_at_any_step_a_restore_gives_all_back(node: Any) -> None:
    assert node["killed"]["wrong"] == []
    assert 5 < node["killed"]["steps"] < MOST_STEPS


def test_memory_high_below_the_page_cache_reclaims_it_and_kills_nothing(
    facts: dict[str, Any],
) -> None:
    lowered = facts["limits"]["lowered"]
    assert lowered["before"] > lowered["high"]
    assert lowered["unwritten"] == 0
    assert lowered["after"] < lowered["before"]
    assert lowered["alive"]
