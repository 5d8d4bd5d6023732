"""What the agent wrote to running containers of version 2, and how it is undone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cgroup_v2.session import CACHE_BYTES
from tests.guest.inside.restore import DRIVERS, MOST_STEPS

WRITTEN = ["2-3", "50000 100000", "999997440"]
GIVEN_BACK = ["0-3", "max 100000", "max"]
WIDEST = "all CPUs of the group above"


@pytest.fixture(params=DRIVERS)
def node(facts: dict[str, Any], request: pytest.FixtureRequest) -> Any:
    return facts["restore"][request.param]


def test_the_agent_restores_all_values_that_are_not_desired_any_more(node: Any) -> None:
    agent = node["agent"]
    assert (agent["written"], agent["given_back"], agent["left"]) == (WRITTEN, GIVEN_BACK, [])
    output = {key: (message, old, new) for key, message, old, new in agent["audits"]}
    message, old, new = output["cpuset.cpus"]
    assert (message.startswith("put back: restored"), WIDEST in message) == (True, True)
    assert (old, new) == ("2-3", "0-3")


def test_restore_does_what_its_dry_run_says(node: Any) -> None:
    dry, real = node["commands"]["dry"], node["commands"]["real"]
    assert (dry["status"], dry["values"]) == (0, WRITTEN)
    assert (real["status"], real["values"]) == (0, GIVEN_BACK)
    (planned,) = [line for line in dry["output"].splitlines() if "cpuset.cpus" in line]
    assert planned.startswith(f"{node['commands']['container']}/cpuset.cpus 2-3 → 0-3 ({WIDEST}")
    assert real["output"] == f"{planned}\n3 restored\n"


@pytest.mark.parametrize("work", ["killed_agent", "killed_restore"])
def test_killed_at_any_step_a_restore_gives_all_back(node: Any, work: str) -> None:
    assert node[work]["wrong"] == []
    assert 5 < node[work]["steps"] < MOST_STEPS


def test_a_limit_below_the_page_cache_in_use_is_set_and_nobody_is_killed(
    facts: dict[str, Any],
) -> None:
    cache = facts["restore"]["limits"]["cache"]
    assert (cache["written"], cache["alive"]) == (1, "alive")
    assert (cache["max"], cache["high"]) == (str(CACHE_BYTES // 2), "max")
    assert cache["messages"] == ["limit it, after reclaim by memory.high"]


def test_a_limit_below_memory_that_cannot_be_reclaimed_is_not_set(facts: dict[str, Any]) -> None:
    result = facts["restore"]["limits"]["held"]
    assert (result["written"], result["alive"]) == (0, "alive")
    assert (result["max"], result["high"]) == ("max", "max")
