"""Device objects with faults: what is left of them, and of pods that were to get their devices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plugins.scheduler.cluster_state import ClusterState
from plugins.scheduler.decisions import DecisionMaker
from plugins.scheduler.devices.allocator import NodeRefused, NodeState, filter_node
from plugins.scheduler.devices.device_table import (
    GPU,
    GPU_CORE,
    GPU_MEMORY_RATIO,
    DeviceTable,
    decode_device_table,
)
from plugins.scheduler.devices.requests import device_request
from plugins.scheduler.devices.scores import ScoringStrategy, node_score
from plugins.scheduler.numa.cpu_request import PodRequest

WHOLE = {GPU_CORE: "100", GPU_MEMORY_RATIO: "100"}
REQUEST = device_request({GPU_CORE: 100, GPU_MEMORY_RATIO: 100})
assert REQUEST is not None


def card(minor: int | None, **changes: Any) -> dict[str, Any]:
    whole = {"type": "gpu", "minor": minor, "id": f"GPU-{minor}", "health": True}
    return {**whole, "resources": WHOLE, **changes}


def table(*devices: object) -> DeviceTable:
    document = {"metadata": {"name": "n"}, "spec": {"devices": devices}}
    return decode_device_table(json.dumps(document).encode())


def test_a_device_without_a_minor_or_of_no_kind_is_left_out() -> None:
    no_kind, text = card(2, type=""), {**card(3), "minor": "3"}
    decoded = table(card(None), card(1), no_kind, 5, None, "x", text)
    assert [one.minor for one in decoded.of(GPU)] == [1]


def test_of_two_devices_with_one_minor_the_first_counts() -> None:
    decoded = table(card(0, id="GPU-a"), card(0, id="GPU-b"), card(0, type="rdma", id="nic"))
    assert [one.id for one in decoded.of(GPU)] == ["GPU-a"]
    assert [one.id for one in decoded.of("rdma")] == ["nic"]


@pytest.mark.parametrize("health", [False, None])
def test_a_device_that_is_not_reported_healthy_is_not_given(health: bool | None) -> None:
    sick = card(0, health=health) if health is not None else card(0)
    if health is None:
        del sick["health"]
    decoded = table(sick, card(1))
    assert not decoded.of(GPU)[0].total
    assert decoded.of(GPU)[1].total


def test_s01_a_node_without_an_accelerator_scores_nothing_and_is_refused_for_good() -> None:
    empty = table()
    node = NodeState(name="n", table=empty)
    assert REQUEST is not None
    assert node_score(empty, node.usage, REQUEST, ScoringStrategy()) == 0
    with pytest.raises(NodeRefused, match="Insufficient gpu devices") as refused:
        filter_node(node, REQUEST)
    assert refused.value.is_final


def test_devices_that_vanish_between_filter_and_bind_are_not_given() -> None:
    state = ClusterState()
    state.set_node("n", {})
    state.set_devices(table(card(0), card(1)))
    maker, request = DecisionMaker(state), PodRequest(devices=REQUEST)
    assert maker.decide(request, ["n"]).fitting() == ["n"]
    state.set_devices(table(card(1)))
    assert [one.device.minor for one in maker.allocate(request, "n").devices] == [1]
    state.set_devices(table(card(1, health=False)))
    with pytest.raises(NodeRefused, match="Insufficient"):
        maker.allocate(request, "n")
    state.remove_devices("n")
    with pytest.raises(NodeRefused):
        maker.allocate(request, "n")


def test_a_node_with_another_name_has_no_pods_and_its_own_devices() -> None:
    state = ClusterState()
    state.set_node("old", {})
    state.set_devices(table(card(0)))
    state.remove_node("old")
    state.set_node("new", {})
    maker, request = DecisionMaker(state), PodRequest(devices=REQUEST)
    answer = maker.decide(request, ["new"])
    assert answer.of("new").reason == "node(s) missing Device"
    with pytest.raises(NodeRefused, match="does not exist"):
        maker.allocate(request, "old")
