"""The Node's condition `DeviceInjectionReady`."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agent.objects.fault_conditions import FAULT_TYPES, merge_node_conditions
from agent.objects.node import GRACE_S, NodeConditionPublisher
from agent.snapshot.container import RuntimeView
from agent.snapshot.part import SnapshotPart
from tests.factory import BOOT_S, gpu, nic
from tests.unit.objects_node.test_condition import snapshot_with

NOW_S = BOOT_S + 7200
TURNED_S = NOW_S - GRACE_S
Tree = Any


def conditions(view: RuntimeView, now_s: float = NOW_S) -> dict[str, Tree] | None:
    """Return the conditions by type; `None` where nothing is written."""
    conditions_json = NodeConditionPublisher().render(
        replace(snapshot_with(gpu(0)), runtime=SnapshotPart(view, 1.0)), now_s
    )
    if not conditions_json:
        return None
    listed: Tree = conditions_json[0].body
    return {condition["type"]: condition for condition in listed["status"]["conditions"]}


@pytest.mark.parametrize(
    ("state", "status", "reason"),
    [
        ("synchronized", "True", "RuntimeAsks"),
        ("waiting", "False", "RuntimeDoesNotAsk"),
        ("refused", "False", "RuntimeDoesNotAsk"),
        ("registered", "False", "RuntimeDoesNotAsk"),
    ],
)
def test_it_says_whether_new_containers_get_their_devices(
    state: str, status: str, reason: str
) -> None:
    conditions_json = conditions(RuntimeView(state=state, reason="NoSocket", turned_s=TURNED_S))
    assert conditions_json is not None
    one = conditions_json["DeviceInjectionReady"]
    assert (one["status"], one["reason"]) == (status, reason)
    assert ("NoSocket" in one["message"]) is (status == "False")
    assert "AcceleratorsHealthy" in conditions_json


def test_without_a_runtime_connection_there_is_no_condition() -> None:
    conditions_json = conditions(RuntimeView())
    assert conditions_json is not None
    assert set(conditions_json) - FAULT_TYPES == {"AcceleratorsHealthy"}


def test_a_node_without_accelerators_has_neither() -> None:
    now = replace(snapshot_with(nic(0)), runtime=SnapshotPart(RuntimeView(state="waiting"), 1.0))
    body: Tree = NodeConditionPublisher().render(now, NOW_S)[0].body
    types = {one["type"] for one in body["status"]["conditions"]}
    assert types == FAULT_TYPES  # those of the NIC


@pytest.mark.parametrize("turned_s", [None, TURNED_S + 0.1, NOW_S])
def test_a_runtime_that_is_started_anew_is_no_news(turned_s: float | None) -> None:
    assert conditions(RuntimeView(state="waiting", turned_s=turned_s)) is None


def test_a_clock_that_was_set_back_holds_no_condition_back() -> None:
    listed = conditions(RuntimeView(state="waiting", turned_s=NOW_S + 8 * 3600))
    assert listed is not None
    assert listed["DeviceInjectionReady"]["status"] == "False"


def test_times_of_each_condition_stand_while_its_own_status_does() -> None:
    before = conditions(RuntimeView(state="synchronized", turned_s=BOOT_S + 10))
    after = conditions(RuntimeView(state="waiting", turned_s=TURNED_S), NOW_S)
    assert before is not None
    assert after is not None
    live = {"status": {"conditions": list(before.values())}}
    desired = {"status": {"conditions": list(after.values())}}
    merged: Tree = merge_node_conditions(live, desired)
    times = {
        condition["type"]: condition["lastTransitionTime"]
        for condition in merged["status"]["conditions"]
    }
    assert times["AcceleratorsHealthy"] == before["AcceleratorsHealthy"]["lastTransitionTime"]
    assert times["DeviceInjectionReady"] == after["DeviceInjectionReady"]["lastTransitionTime"]
