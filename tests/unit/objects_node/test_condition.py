"""The Node's condition `AcceleratorsHealthy`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.clock import rfc3339
from agent.objects.fault_conditions import FAULT_TYPES, merge_node_conditions
from agent.objects.node import MAX_NAMED, NodeConditionPublisher
from agent.snapshot.device import Device, Health, HealthState
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import DeviceView, NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciTree
from tests import clustered
from tests.factory import BOOT_S, gpu, nic

Tree = Any
LATER_S = BOOT_S + 3600
FAILED = Health(state=HealthState.FAILED, reason="Xid79", message="…", since_s=LATER_S)
PROBING = Health(state=HealthState.PROBING, reason="Xid79", since_s=LATER_S)
UNKNOWN = Health(reason="DriverStalled", certain=False, since_s=LATER_S)
SUSPECT = Health(state=HealthState.SUSPECT, reason="SlowAnswer", since_s=LATER_S)


def snapshot_with(*devices: Device, state: str = "ready") -> NodeSnapshot:
    now = clustered.snapshot()
    inventory: SnapshotPart[Inventory | None] = SnapshotPart(Inventory(vendor="nvidia"), 1.0)
    return replace(
        now,
        node=replace(now.node, boot_time_s=BOOT_S),
        vendors=(VendorState(vendor="nvidia", state=state, inventory=inventory),),
        pci=SnapshotPart(PciTree(), 1.0),
        devices=SnapshotPart(DeviceView(devices=devices), 1.0),
    )


def body(now: NodeSnapshot) -> Tree:
    (desired,) = NodeConditionPublisher().render(now, 0.0)
    assert (desired.kind, desired.status_only, desired.merge) == (
        "Node",
        True,
        merge_node_conditions,
    )
    assert set(desired.body) == {"apiVersion", "kind", "metadata", "status"}
    return desired.body


def condition(now: NodeSnapshot) -> Tree:
    return of_accelerators(body(now)["status"]["conditions"])


def of_accelerators(conditions: list[Tree]) -> Tree:
    """Return the one condition of this test; the others are those of faults."""
    (one,) = (one for one in conditions if one["type"] not in FAULT_TYPES)
    assert one["type"] == "AcceleratorsHealthy"
    return one


@pytest.mark.parametrize(
    ("healths", "status", "reason", "message"),
    [
        ((Health(), Health()), "True", "AllHealthy", "all 2 accelerators are in service"),
        ((SUSPECT, Health()), "True", "AllHealthy", "all 2 accelerators are in service"),
        (
            (Health(), FAILED),
            "False",
            "Xid79",
            "1 of 2 accelerators are out of service: GPU 1 (Xid79)",
        ),
        (
            (PROBING, replace(FAILED, reason="DeviceGone")),
            "False",
            "SeveralReasons",
            "2 of 2 accelerators are out of service: GPU 0 (Xid79), GPU 1 (DeviceGone)",
        ),
        (
            (UNKNOWN, Health()),
            "Unknown",
            "DriverStalled",
            "the state of 1 of 2 is not known: GPU 0 (DriverStalled)",
        ),
        ((UNKNOWN, FAILED), "False", "Xid79", None),
    ],
)
def test_it_says_what_is_wrong_and_with_which_devices(
    healths: tuple[Health, ...], status: str, reason: str, message: str | None
) -> None:
    condition_json = condition(
        snapshot_with(*(gpu(n, health=health) for n, health in enumerate(healths)))
    )
    assert (condition_json["status"], condition_json["reason"]) == (status, reason)
    assert message is None or condition_json["message"] == message


def test_a_nic_that_is_down_is_no_accelerator() -> None:
    assert condition(snapshot_with(gpu(0), nic(0, health=FAILED)))["status"] == "True"


def test_many_devices_are_named_in_part() -> None:
    cards = [replace(gpu(0), info=replace(gpu(0).info, minor=n, health=FAILED)) for n in range(64)]
    message = condition(snapshot_with(*cards))["message"]
    assert message.count("(Xid79)") == MAX_NAMED
    assert message.endswith(f"and {64 - MAX_NAMED} more")


def test_reasons_of_any_text_are_acceptable_and_bounded() -> None:
    odd = replace(FAILED, reason="chip error \n" + "x" * 5000)
    condition_json = condition(snapshot_with(*(gpu(n, health=odd) for n in range(8))))
    assert condition_json["reason"].isascii()
    assert " " not in condition_json["reason"]
    assert len(condition_json["message"]) <= 1024


def test_it_is_dated_by_the_change_it_is_about() -> None:
    earlier = replace(FAILED, since_s=LATER_S - 60)
    condition_json = condition(snapshot_with(gpu(0, health=FAILED), gpu(1, health=earlier)))
    assert condition_json["lastTransitionTime"] == rfc3339(LATER_S - 60)
    assert condition(snapshot_with(gpu(0)))["lastTransitionTime"] == rfc3339(BOOT_S)


def test_a_node_without_accelerators_has_no_condition_and_an_uncertain_one_keeps_its() -> None:
    assert body(snapshot_with())["status"]["conditions"] == []
    assert NodeConditionPublisher().render(snapshot_with(state="stalled"), 0.0) == ()


def test_there_is_none_outside_a_cluster() -> None:
    now = snapshot_with(gpu(0))
    alone = replace(now, cluster=replace(now.cluster, is_clustered=False))
    assert NodeConditionPublisher().render(alone, 0.0) == ()


def standing(now: NodeSnapshot, **changes: str) -> Tree:
    """The Node's status with the kubelet's condition beside ours."""
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-02T03:00:00Z"}
    return {"status": {"conditions": [ready, {**condition(now), **changes}]}}


def test_while_the_status_stands_its_times_stand_and_nothing_is_written() -> None:
    old = "2026-01-01T00:00:00Z"
    healthy = snapshot_with(gpu(0))
    stood = standing(healthy, lastTransitionTime=old, lastHeartbeatTime=old)
    merged_json = merged(stood, healthy)
    assert merged_json == stood["status"]["conditions"][1]


def merged(stood: Tree, now: NodeSnapshot) -> Tree:
    document: Tree = merge_node_conditions(stood, body(now))
    return of_accelerators(document["status"]["conditions"])


def test_a_second_failed_card_changes_the_text_and_not_the_time() -> None:
    one = snapshot_with(gpu(0, health=FAILED), gpu(1))
    two = snapshot_with(gpu(0, health=FAILED), gpu(1, health=replace(FAILED, since_s=LATER_S + 60)))
    merged_json = merged(standing(one), two)
    assert merged_json["message"].startswith("2 of 2")
    assert merged_json["lastTransitionTime"] == rfc3339(LATER_S)


def test_a_turn_moves_the_time_and_never_back() -> None:
    merged_json = merged(standing(snapshot_with(gpu(0))), snapshot_with(gpu(0, health=FAILED)))
    assert merged_json["lastTransitionTime"] == merged_json["lastHeartbeatTime"] == rfc3339(LATER_S)
    newer = standing(snapshot_with(gpu(0, health=FAILED)), lastTransitionTime=rfc3339(LATER_S + 5))
    back = merged(newer, snapshot_with(gpu(0)))  # its recovery was seen by nobody
    assert (back["status"], back["lastTransitionTime"]) == ("True", rfc3339(LATER_S + 5))


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=5) | st.just("AcceleratorsHealthy"),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["status", "conditions", "type", "lastTransitionTime"]), inner
            )
        ),
    )
)
def test_whatever_stands_there_is_passed_over(stood: Tree) -> None:
    now = snapshot_with(gpu(0))
    live = stood if isinstance(stood, dict) else {"status": stood}
    once = merge_node_conditions(live, body(now))
    assert merge_node_conditions(once, body(now)) == once
    merged_json = merged(live, now)
    assert merged_json["status"] == "True"
