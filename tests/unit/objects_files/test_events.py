from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from agent.objects.events import events_between
from agent.snapshot.device import Device, DeviceCondition, Health, HealthState
from agent.snapshot.node import NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.wire_formats.event import Event, core_event
from tests.factory import BOOT_S, gpu, nic, snapshot
from tests.hostile import device_sets, few

AT_S = BOOT_S + 100
FAILED = Health(state=HealthState.FAILED, reason="Xid79", message="fell off the bus")
SUSPECT = Health(state=HealthState.SUSPECT, reason="LinkFlapping", message="3 edges")
PROBING = Health(state=HealthState.PROBING, reason="Xid79", message="well for 5 s")


UNKNOWN = Health(reason="DriverStalled", certain=False)


def worker(state: str, **more: Any) -> NodeSnapshot:
    return replace(snapshot(()), vendors=(VendorState(vendor="nvidia", state=state, **more),))


def reasons(old: NodeSnapshot | None, new: NodeSnapshot) -> list[tuple[str, str]]:
    return [(event.type, event.reason) for event in events_between(old, new, AT_S)]


def test_nothing_happened_between_equal_snapshots() -> None:
    assert reasons(snapshot(), snapshot()) == []


def test_a_healthy_device_in_the_first_snapshot_is_no_event() -> None:
    assert reasons(None, snapshot()) == []
    never = replace(snapshot(()), devices=SnapshotPart(snapshot(()).devices.value))
    assert reasons(never, snapshot()) == []
    assert reasons(snapshot(), never) == []


def test_a_failed_device_in_the_first_snapshot_is_an_event() -> None:
    assert reasons(None, snapshot((gpu(0, health=FAILED), gpu(1)))) == [
        ("Warning", "DeviceUnhealthy")
    ]
    assert reasons(None, worker("quarantined")) == [("Warning", "VendorWorkerQuarantined")]


def test_devices_appear_and_go() -> None:
    events = events_between(snapshot((gpu(0), gpu(1))), snapshot((gpu(1), nic(0))), AT_S)
    assert [(e.type, e.reason, e.message) for e in events] == [
        ("Normal", "DeviceAppeared", "NIC 0 (0000:18:00.0): MT4129, NUMA node 0"),
        (
            "Warning",
            "DeviceGone",
            "GPU 0 (0000:1b:00.0): no longer there; pods that hold it have lost it",
        ),
    ]
    assert {event.object_kind for event in events} == {"Device"}
    assert {event.at_s for event in events} == {AT_S}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (Health(), FAILED, [("Warning", "DeviceUnhealthy")]),
        (FAILED, PROBING, [("Normal", "DeviceProbing")]),
        (PROBING, Health(), [("Normal", "DeviceHealthy")]),
        (Health(), SUSPECT, [("Warning", "DeviceSuspect")]),
        (FAILED, replace(FAILED, reason="Xid48"), [("Warning", "DeviceUnhealthy")]),
        (FAILED, replace(FAILED, message="still"), []),
        (Health(), Health(reason="Fine", since_s=5.0), []),
        (Health(), UNKNOWN, [("Warning", "DeviceHealthUnknown")]),
        (UNKNOWN, replace(UNKNOWN, message="still"), []),
        (UNKNOWN, Health(), [("Normal", "DeviceHealthy")]),
        (UNKNOWN, FAILED, [("Warning", "DeviceUnhealthy")]),
        (FAILED, replace(FAILED, certain=False), [("Warning", "DeviceHealthUnknown")]),
    ],
)
def test_a_change_of_health_is_an_event(
    before: Health, after: Health, expected: list[tuple[str, str]]
) -> None:
    old, new = snapshot((gpu(0, health=before),)), snapshot((gpu(0, health=after),))
    assert reasons(old, new) == expected


def degraded(*reasons: str) -> NodeSnapshot:
    conditions = tuple(
        DeviceCondition(type="Degraded", status=True, reason=reason, message="GetHeat hung")
        for reason in reasons
    )
    return snapshot((gpu(0, conditions=conditions),))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, degraded("CallHung"), ["CallHung"]),
        (degraded(), degraded("CallHung"), ["CallHung"]),
        (degraded("CallHung"), degraded("CallHung"), []),
        (degraded("CallHung"), degraded(), []),
        (degraded("CallHung"), degraded("RowRemapPending"), ["RowRemapPending"]),
    ],
)
def test_a_device_that_is_degraded_for_another_reason_is_a_warning(
    before: NodeSnapshot | None, after: NodeSnapshot, expected: list[str]
) -> None:
    events = events_between(before, after, AT_S)
    assert [(e.type, e.reason) for e in events] == [("Warning", "DeviceDegraded")] * len(expected)
    assert all(f"{reason}: GetHeat hung" in events[0].message for reason in expected)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (Health(), PROBING, [("Warning", "DeviceUnhealthy"), ("Normal", "DeviceProbing")]),
        (SUSPECT, PROBING, [("Warning", "DeviceUnhealthy"), ("Normal", "DeviceProbing")]),
        (PROBING, replace(PROBING, changes=2), [("Warning", "DeviceUnhealthy")]),
        (PROBING, replace(PROBING, message="well for 9 s"), []),
        (Health(), Health(changes=2), [("Warning", "DeviceSuspect")]),
        (SUSPECT, Health(changes=1), [("Normal", "DeviceHealthy")]),
        (SUSPECT, Health(changes=3), [("Warning", "DeviceSuspect"), ("Normal", "DeviceHealthy")]),
        (Health(changes=4), Health(), []),
    ],
)
def test_a_fault_between_two_snapshots_is_a_warning(
    before: Health, after: Health, expected: list[tuple[str, str]]
) -> None:
    old, new = snapshot((gpu(0, health=before),)), snapshot((gpu(0, health=after),))
    assert reasons(old, new) == expected
    if expected:
        first = events_between(old, new, AT_S)[0]
        assert ("Xid79: well for 5 s" in first.message) == (first.reason == "DeviceUnhealthy")


def test_a_probing_device_in_the_first_snapshot_was_reported_by_an_earlier_run() -> None:
    assert reasons(None, snapshot((gpu(0, health=PROBING),))) == [("Normal", "DeviceProbing")]


def test_how_far_a_probing_device_has_come_makes_no_other_event() -> None:
    halves = [replace(PROBING, message=f"looks well again: {outcome} %") for outcome in (0, 50)]
    failed = snapshot((gpu(0, health=FAILED),))
    keys = [
        events_between(failed, snapshot((gpu(0, health=half),)), AT_S)[0].series for half in halves
    ]
    assert keys[0] == keys[1]
    other = events_between(
        snapshot((gpu(1, health=FAILED),)), snapshot((gpu(1, health=PROBING),)), AT_S
    )
    assert other[0].series != keys[0]


def test_the_reason_of_the_vendor_is_in_the_message() -> None:
    (event,) = events_between(snapshot((gpu(0),)), snapshot((gpu(0, health=FAILED),)), AT_S)
    assert event.message == "GPU 0 (0000:1b:00.0): Xid79: fell off the bus"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("starting", "ready", []),
        ("ready", "stalled", [("Warning", "VendorWorkerStalled")]),
        ("stalled", "restarting", [("Warning", "VendorWorkerRestarting")]),
        ("restarting", "ready", [("Normal", "VendorWorkerReady")]),
        ("restarting", "quarantined", [("Warning", "VendorWorkerQuarantined")]),
        ("quarantined", "starting", []),
        ("ready", "ready", []),
        ("ready", "unheard-of", []),
    ],
)
def test_a_change_of_a_workers_state_is_an_event(
    before: str, after: str, expected: list[tuple[str, str]]
) -> None:
    assert reasons(worker(before), worker(after)) == expected


def test_a_workers_event_says_why_and_is_about_the_node() -> None:
    (event,) = events_between(
        worker("ready"), worker("stalled", reason="NoAnswer", message="5 s"), AT_S
    )
    assert event.message == "worker of vendor nvidia is stalled (NoAnswer: 5 s)"
    assert event.object_kind == "Node"


@few
@given(device_sets, device_sets)
def test_events_of_any_devices_are_bounded_text(
    before: tuple[Device, ...], after: tuple[Device, ...]
) -> None:
    for event in events_between(snapshot(before), snapshot(after), AT_S):
        assert len(event.message.encode()) <= 4096
        assert "\n" not in event.message


def test_an_event_has_the_shape_of_kubernetes() -> None:
    event = Event(type="Warning", reason="DeviceGone", message="m", object_kind="Device", at_s=AT_S)
    event_body = core_event(event, snapshot(), 3, BOOT_S)
    name = event_body["metadata"]
    assert event_body == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": name,
        "involvedObject": {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Device",
            "name": "hgx-h100-01",
        },
        "type": "Warning",
        "reason": "DeviceGone",
        "message": "m",
        "count": 3,
        "firstTimestamp": "2026-01-02T03:04:05Z",
        "lastTimestamp": "2026-01-02T03:05:45Z",
        "source": {"component": "xpu-agent", "host": "hgx-h100-01"},
        "reportingComponent": "xpu-agent",
        "reportingInstance": "hgx-h100-01",
    }
    assert core_event(event, snapshot(), 4, BOOT_S)["metadata"] == name
    assert core_event(replace(event, message="other"), snapshot(), 4, BOOT_S)["metadata"] != name


def test_an_event_of_a_worker_names_the_node_and_its_uid() -> None:
    event = Event(type="Warning", reason="R", message="m", object_kind="Node", at_s=AT_S)
    snap = snapshot()
    event_body = core_event(event, replace(snap, node=replace(snap.node, uid="6f6f")), 1, AT_S)
    assert event_body["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "hgx-h100-01",
        "uid": "6f6f",
    }
