from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.objects.device import DevicePublisher
from agent.snapshot.device import Device, DeviceCondition, Health, HealthState
from agent.snapshot.publications import Json
from agent.wire_formats import device_object
from tests.captures import needs_shared
from tests.factory import BOOT_S, gpu, nic, snapshot
from tests.schemas import check

OLD = "2020-01-01T00:00:00Z"
GOOD = Health(since_s=BOOT_S)
BAD = Health(state=HealthState.FAILED, reason="Xid79", message="fell off", since_s=BOOT_S + 9)

leaves = st.none() | st.booleans() | st.integers() | st.text() | st.just(OLD)
json_like = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ("spec", "devices", "conditions", "id", "type", "status", "lastTransitionTime")
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


def carry_over(previous: object, desired: Json) -> Json:
    return device_object.keep_transition_times(previous, desired, BOOT_S + 1000)


def body(*devices: Device) -> dict[str, Any]:
    (desired,) = DevicePublisher().render(snapshot(devices), 0.0)
    return json.loads(json.dumps(desired.body))  # type: ignore[no-any-return]  # JSON is untyped


def aged(condition_json: dict[str, Any]) -> dict[str, Any]:
    """The same object as an earlier writer left it."""
    for device in condition_json["spec"]["devices"]:
        for condition in device.get("conditions", []):
            condition["lastTransitionTime"] = OLD
    return condition_json


def moments(condition: object) -> list[str]:
    devices = json.loads(json.dumps(condition))["spec"]["devices"]
    return [c["lastTransitionTime"] for d in devices for c in d.get("conditions", [])]


def test_an_unchanged_status_keeps_its_time_so_that_nothing_is_written() -> None:
    stored = aged(body(gpu(0, health=GOOD), nic(0)))
    assert carry_over(stored, body(gpu(0, health=GOOD), nic(0))) == stored


def test_a_changed_status_takes_its_own_time() -> None:
    stored = aged(body(gpu(0, health=GOOD), gpu(1, health=GOOD)))
    renewed = carry_over(stored, body(gpu(0, health=GOOD), gpu(1, health=BAD)))
    assert moments(renewed) == [OLD, "2026-01-02T03:04:14Z"]


def test_a_new_reason_with_the_same_status_keeps_the_time() -> None:
    stored = aged(body(gpu(0, health=BAD)))
    other = Health(state=HealthState.FAILED, reason="Xid48", message="ecc", since_s=BOOT_S + 99)
    assert moments(carry_over(stored, body(gpu(0, health=other)))) == [OLD]


def test_devices_are_matched_by_id_not_by_number() -> None:
    stored = aged(body(gpu(0, health=GOOD)))
    other = gpu(0, uuid="GPU-another", health=GOOD)
    assert moments(carry_over(stored, body(other))) == ["2026-01-02T03:04:05Z"]


def test_times_are_kept_whatever_the_order_of_the_stored_list() -> None:
    stored = aged(body(gpu(0), gpu(1)))
    stored["spec"]["devices"].reverse()
    assert moments(carry_over(stored, body(gpu(0), gpu(1)))) == [OLD, OLD]


@pytest.mark.parametrize("moment", ["", "yesterday", 5, None, "2020-01-01T00:00:00Zx"])
def test_a_stored_time_that_is_none_is_not_taken_over(moment: object) -> None:
    stored = aged(body(gpu(0)))
    stored["spec"]["devices"][0]["conditions"][0]["lastTransitionTime"] = moment
    assert carry_over(stored, body(gpu(0))) == body(gpu(0))


@given(json_like)
def test_whatever_is_stored_only_times_may_change(stored: object) -> None:
    desired = body(gpu(0), nic(0))
    assert aged(json.loads(json.dumps(carry_over(stored, desired)))) == aged(desired)


def test_an_object_without_devices_is_left_alone() -> None:
    other = {"kind": "NodeMetric", "status": {"updateTime": "x"}}
    assert carry_over(aged(body(gpu(0))), other) is other


def test_a_change_that_nobody_saw_is_not_dated_before_the_last_one() -> None:
    stored = body(gpu(0, health=Health(since_s=BOOT_S + 500)))
    unseen = body(gpu(0, health=Health(state=HealthState.FAILED, reason="Xid79")))
    renewed = carry_over(stored, unseen)
    assert moments(renewed) == ["2026-01-02T03:20:45Z"]  # now
    assert moments(device_object.keep_transition_times(renewed, unseen, BOOT_S + 2000)) == moments(
        renewed
    )


UNKNOWN = Health(reason="DriverStalled", message="no answer", since_s=BOOT_S + 60, certain=False)


def own(kind: str, status: bool = True, **more: Any) -> DeviceCondition:
    return DeviceCondition(type=kind, status=status, reason="Xid63", message="a row", **more)


@pytest.mark.parametrize("device", [gpu(0, health=UNKNOWN), nic(0, health=UNKNOWN)])
def test_an_uncertain_state_is_unknown_and_keeps_its_service(device: Device) -> None:
    (entry,) = body(device)["spec"]["devices"]
    assert entry["health"] is True
    assert entry["conditions"] == [
        {
            "type": "Healthy",
            "status": "Unknown",
            "reason": "DriverStalled",
            "message": "no answer",
            "lastTransitionTime": "2026-01-02T03:05:05Z",
        }
    ]


def test_a_known_state_after_an_unknown_one_is_a_transition_though_the_state_is_the_same() -> None:
    stored = body(gpu(0, health=UNKNOWN))
    assert moments(carry_over(stored, body(gpu(0, health=GOOD)))) == ["2026-01-02T03:20:45Z"]


def test_conditions_of_the_vendor_follow_with_their_own_dates() -> None:
    conditions_of_vendor = (
        own("Degraded", since_s=BOOT_S + 9),
        own("nvidia.com/FabricReady", status=False),
    )
    (entry,) = body(gpu(0, health=GOOD, conditions=conditions_of_vendor))["spec"]["devices"]
    rows = [(c["type"], c["status"], c["lastTransitionTime"]) for c in entry["conditions"]]
    assert rows == [
        ("Healthy", "True", "2026-01-02T03:04:05Z"),
        ("Degraded", "True", "2026-01-02T03:04:14Z"),
        ("nvidia.com/FabricReady", "False", "2026-01-02T03:04:05Z"),
    ]


def test_there_is_one_condition_of_a_type_and_the_agents_come_first() -> None:
    conditions_of_vendor = (
        own("Healthy"),
        own("Schedulable"),
        own("Degraded"),
        own("Degraded", status=False),
    )
    card = gpu(
        0, health=BAD, conditions=conditions_of_vendor, facts=(("unschedulable", "MIGEnabled"),)
    )
    (entry,) = body(card)["spec"]["devices"]
    rows = [(c["type"], c["status"]) for c in entry["conditions"]]
    assert rows == [("Healthy", "False"), ("Schedulable", "False"), ("Degraded", "True")]


def test_a_new_condition_did_not_begin_before_it_was_checked() -> None:
    well = Health(since_s=BOOT_S + 500)
    stored = body(gpu(0, health=well))
    cut = body(gpu(0, health=well, facts=(("unschedulable", "MIGEnabled"),)))
    renewed = carry_over(stored, cut)
    assert moments(renewed) == ["2026-01-02T03:12:25Z", "2026-01-02T03:20:45Z"]  # the second: now
    assert moments(device_object.keep_transition_times(renewed, cut, BOOT_S + 2000)) == moments(
        renewed
    )
    dated = body(gpu(0, health=well, conditions=(own("Degraded", since_s=BOOT_S + 501),)))
    assert moments(carry_over(stored, dated))[1] == "2026-01-02T03:12:26Z"


@needs_shared
@given(st.lists(st.builds(own, st.text(max_size=140)), max_size=30))
def test_whatever_a_vendor_calls_its_conditions_the_object_is_valid(
    conditions_of_vendor: list[DeviceCondition],
) -> None:
    check(
        "scheduling.koordinator.sh_devices.yaml",
        body(gpu(0, conditions=tuple(conditions_of_vendor))),
    )
