"""Suppression of best-effort CPU on version 2 groups: written, restored, triggered by pressure."""

from __future__ import annotations

from typing import Any

import pytest

from tests.guest.inside.restore import DRIVERS, MOST_STEPS

UNLIMITED = "max 100000"


@pytest.fixture(params=DRIVERS)
def node(facts: dict[str, Any], request: pytest.FixtureRequest) -> Any:
    return facts["suppression"][request.param]


def test_one_list_of_cpus_limits_all_groups_of_the_class(node: Any) -> None:
    agent = node["cpus"]["agent"]
    assert agent["written"]["cpuset.cpus"] == ["0-2", "", ""]
    assert agent["effective"] == ["0-2"] * 3
    assert agent["writes"] == [3, 0, 0]  # the list, and two idle groups


def test_a_quota_of_the_class_may_be_below_those_of_its_pods(node: Any) -> None:
    agent = node["quota"]["agent"]
    assert agent["written"]["cpu.max"] == ["2000 100000", UNLIMITED, UNLIMITED]


@pytest.mark.parametrize("policy", ["cpus", "quota"])
def test_idle_groups_and_all_limits_are_restored_with_the_weights(node: Any, policy: str) -> None:
    agent = node[policy]["agent"]
    assert agent["written"]["cpu.idle"] == ["1", "1", "0"]
    assert agent["before"]["cpu.weight"] == ["1", "100", "100"]
    restored = agent["restored"]
    assert restored["cpuset.cpus"][0] in ("", "0-3")
    restored["cpuset.cpus"][0] = ""
    assert (restored, agent["left"]) == (agent["before"], [])


def test_the_list_of_a_class_without_processes_is_empty_again(facts: dict[str, Any]) -> None:  # Z6
    assert facts["suppression"]["empty"] == ["", "0-2", ""]


@pytest.mark.parametrize("policy", ["cpus", "quota"])
def test_killed_at_any_step_a_restore_gives_all_back(node: Any, policy: str) -> None:
    killed = node[policy]["killed"]
    assert killed["wrong"] == []
    assert 5 < killed["steps"] < MOST_STEPS


def test_the_kernel_accepts_the_trigger_once_on_a_descriptor(facts: dict[str, Any]) -> None:
    assert facts["suppression"]["pressure"]["answers"] == {
        "accepted": "ok",
        "second on a descriptor": "EBUSY",
        "short window": "EINVAL",
        "long window": "EINVAL",
        "threshold above window": "EINVAL",
        "no number": "EINVAL",
    }


def test_a_stall_that_the_kernel_reports_halves_the_quota_for_a_while(
    facts: dict[str, Any],
) -> None:
    pressure = facts["suppression"]["pressure"]
    assert pressure["method"] == "triggers"
    assert (pressure["stalls before"], pressure["stalls"]) == (0, 1)
    assert pressure["cut"] == ["150000 100000", UNLIMITED, UNLIMITED]
    assert pressure["later"] == [UNLIMITED] * 3
