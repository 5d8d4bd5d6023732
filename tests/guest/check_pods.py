"""Pods on a real kernel with version 2 groups only: what ran in them is what the agent says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.guest.machine_facts import (
    BUSY_S,
    CONTAINER,
    FILE_BYTES,
    HELD_BYTES,
    HELD_NODE,
    POD,
)

SLACK = 4 << 20  # bytes: the interpreter, and pages in per-CPU batches
QOS = {"busy": "Burstable", "held": "BestEffort", "throttled": "Guaranteed"}


@pytest.fixture
def pods(facts: dict[str, Any]) -> Any:
    return facts["pods"]


def of(sample: Any, kind: str) -> tuple[Any, Any]:
    return sample["pods"][POD[kind]], sample["containers"][CONTAINER[kind]]


def test_pods_and_containers_are_found_with_their_class(pods: Any) -> None:
    result = {view["uid"]: (view["qos"], view["containers"][0]["id"]) for view in pods["views"]}
    assert result == {POD[kind]: (QOS[kind], CONTAINER[kind]) for kind in POD}


@pytest.mark.parametrize("kind", ["busy", "throttled"])
def test_cpu_time_is_that_which_the_child_used(pods: Any, kind: str) -> None:
    used_s = pods["children"][kind]["cpu_s"]
    for use in of(pods["after"], kind):
        assert used_s * 0.95 <= use["cpu_total_ns"] / 1e9 <= used_s * 1.5 + 0.1


def test_cores_are_cpu_time_over_the_time_between_the_cycles(pods: Any) -> None:
    elapsed_s = pods["elapsed_s"]
    for use, before in zip(of(pods["after"], "busy"), of(pods["before"], "busy"), strict=True):
        used_s = (use["cpu_total_ns"] - before["cpu_total_ns"]) / 1e9
        assert use["cpu_cores"] == pytest.approx(used_s / elapsed_s)
        assert use["cpu_cores"] * elapsed_s >= BUSY_S * 0.95


def test_memory_is_reported_without_and_with_page_cache(pods: Any) -> None:
    for use in of(pods["after"], "held"):
        assert 0 <= use["memory_bytes"] - HELD_BYTES <= SLACK
        assert 0 <= use["memory_with_cache_bytes"] - HELD_BYTES - FILE_BYTES <= SLACK
    current = int(pods["kernel"]["held"]["memory.current"])
    assert abs(current - of(pods["after"], "held")[1]["memory_with_cache_bytes"]) <= SLACK


def test_memory_of_pods_is_reported_by_numa_node(pods: Any) -> None:
    by_node = {n["node_id"]: n["pods_memory_bytes"] for n in pods["after"]["node"]["numa"]}
    assert 0 <= by_node.pop(HELD_NODE) - HELD_BYTES - FILE_BYTES <= SLACK
    assert sorted(by_node) == [0, 1, 3]
    assert max(by_node.values()) <= SLACK


def test_a_quota_shows_as_throttled_periods_and_pressure(pods: Any) -> None:
    _, use = of(pods["after"], "throttled")
    assert use["periods"] >= use["throttled_periods"] >= 5
    _, before = of(pods["before"], "throttled")
    throttled = use["throttled_periods"] - before["throttled_periods"]
    ratio = throttled / (use["periods"] - before["periods"])
    assert use["throttled_ratio"] == pytest.approx(ratio)
    assert use["pressure"]["cpu"]["some_total_us"] > 0
    assert set(use["pressure"]) == {"cpu", "memory", "io"}
    _, free = of(pods["after"], "busy")
    assert (free["throttled_periods"], free["throttled_ratio"]) == (0, 0)


def test_a_pod_whose_pressure_is_switched_off_has_none_and_all_else(pods: Any) -> None:
    assert pods["kernel"]["held"]["cpu.pressure"] is not None  # of the container: on
    pod, container = of(pods["after"], "held")
    assert pod["pressure"] is None
    assert pod["memory_bytes"] is not None
    assert container["pressure"] is not None


def test_groups_that_went_are_gone_from_the_next_cycle(pods: Any) -> None:
    assert pods["gone"]["pods"] == {}
    assert pods["gone"]["containers"] == {}
    assert pods["gone"]["node"]["cpu_cores"] is not None


def test_the_best_effort_tier_has_the_use_of_its_pods(pods: Any) -> None:
    tier = pods["optional"]["best_effort"]
    assert 0 <= tier["use"]["memory_bytes"] - HELD_BYTES <= SLACK
    assert tier["use"]["cpu_total_ns"] > 0
    assert tier["use"]["cpu_cores"] is None  # the first measurement
    assert (tier["request_milli"], tier["limit_milli"]) == (None, None)  # no spec, no limit


def test_without_hardware_counters_cycles_are_absent_with_that_reason(pods: Any) -> None:
    cycles = pods["optional"]["cycles"]
    assert cycles["containers"] == {}
    assert [problem["reason"] for problem in cycles["problems"]] == ["NoHardwareCounters"]


def test_block_io_of_pods_is_read_and_empty_without_a_disk(pods: Any) -> None:
    storage = pods["optional"]["storage"]
    assert storage["pods"] == {uid: {} for uid in POD.values()}
    assert storage["problems"] == []


def test_the_snapshot_command_finds_a_pod_of_the_systemd_driver(facts: dict[str, Any]) -> None:
    parts = facts["systemd"]["snapshot"]["parts"]
    assert [parts[name]["error"] for name in ("pods", "usage")] == [None, None]
    (pod,) = parts["pods"]["value"]
    assert (pod["uid"], pod["qos"]) == (POD["held"], QOS["held"])
    assert [container["id"] for container in pod["containers"]] == [CONTAINER["held"]]
    for use in of(parts["usage"]["value"], "held"):
        assert 0 <= use["memory_bytes"] - HELD_BYTES <= SLACK
    by_node = {
        n["node_id"]: n["pods_memory_bytes"] for n in parts["usage"]["value"]["node"]["numa"]
    }
    assert 0 <= by_node[HELD_NODE] - HELD_BYTES <= SLACK
