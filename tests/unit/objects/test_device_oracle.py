"""What a real koordlet made of device-info files, and what ours makes of the same devices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.objects.device import DevicePublisher
from agent.snapshot.device import Device, DeviceKind, Health, HealthState, Placement, VendorDevice
from agent.wire_formats.device_object import keep_transition_times
from tests.captures import SHARED, needs_shared
from tests.factory import BOOT_S, snapshot

KINDS = {"huawei": DeviceKind.NPU, "cambricon": DeviceKind.MLU}
# koordlet's answer is refused by the API server or by the scheduler; ours is checked by name below
TRAPS = ("blank in code", "model with blank", "same minor twice", "bad minor", "no topology")
UNREADABLE_CASES = ("unreadable file",)  # keeps the previous answer: a matter of reading files

pytestmark = needs_shared


def cases() -> list[dict[str, Any]]:
    path = SHARED / "oracle" / "device-info-to-device.json"
    return list(json.loads(path.read_text())) if path.is_file() else []


def case(start: str) -> dict[str, Any]:
    return next(c for c in cases() if c["id"].startswith(start))


def resources(entry: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Bring quantities into the form that discovery has: full names, canonical."""
    full = {name if "/" in name else f"koordinator.sh/{name}": v for name, v in entry.items()}
    full["koordinator.sh/gpu-memory-ratio"] = "100"
    return tuple((name, "64Gi" if v == "65536Mi" else v) for name, v in full.items())


def device(entry: dict[str, Any]) -> Device:
    topology = entry.get("topology", {})
    status = entry.get("status", {"healthy": True})
    failed = Health(
        state=HealthState.FAILED,
        reason=status.get("errCode", "Unknown"),
        message=status.get("errMessage", "device is unhealthy"),
    )
    return Device(
        info=VendorDevice(
            kind=KINDS.get(entry["vendor"], DeviceKind.XPU),
            vendor=entry["vendor"],
            bus_id=topology.get("busID") or None,
            uuid=entry["uuid"],
            minor=int(entry["minor"]) if entry["minor"].isdecimal() else None,
            model=entry["model"],
            resources=resources(entry["resources"]),
            health=Health() if status["healthy"] else failed,
        ),
        place=Placement(numa_node=int(topology.get("nodeID") or -1)),
        pcie_scope_id=topology.get("pcieID", ""),
    )


def agent_body(one: dict[str, Any]) -> dict[str, Any]:
    entries = [entry for file in one["files"].values() for entry in file]
    snap = snapshot(tuple(map(device, entries)))
    (desired,) = DevicePublisher().render(snap, 0.0)
    return json.loads(json.dumps(desired.body))  # type: ignore[no-any-return]  # JSON is untyped


def comparable(spec: dict[str, Any], like: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Blank out times; conditions of devices for which upstream has none are an addition."""
    upstream = {d["id"]: d for d in (like or spec).get("devices", [])}
    entries = []
    for entry in spec.get("devices", []):
        conditions = [{**c, "lastTransitionTime": "T"} for c in entry.get("conditions", [])]
        comparable_entry = {k: v for k, v in entry.items() if k != "conditions"}
        if "conditions" in upstream[entry["id"]]:
            comparable_entry["conditions"] = conditions
        entries.append(comparable_entry)
    return entries


def equal_cases() -> list[dict[str, Any]]:
    return [one for one in cases() if not one["id"].startswith(TRAPS + UNREADABLE_CASES)]


@pytest.mark.parametrize("one", equal_cases(), ids=lambda one: str(one["id"]))
def test_our_device_equals_the_recorded_one(one: dict[str, Any]) -> None:
    body = agent_body(one)
    expected = one["device"]
    assert comparable(body["spec"], expected["spec"]) == comparable(expected["spec"])
    labels = body["metadata"]["labels"]
    for name in ("gpu-vendor", "gpu-model"):
        key = f"node.koordinator.sh/{name}"
        assert labels.get(key) == expected["labels"].get(key)


def test_a_blank_in_a_code_does_not_cost_the_object() -> None:
    failed = agent_body(case("blank in code"))["spec"]["devices"][1]
    assert failed["health"] is False
    assert failed["conditions"][0]["reason"] == "ChipError"
    assert failed["conditions"][0]["message"] == "Chip Fault (chip error)"


def test_a_blank_in_a_model_does_not_cost_the_object() -> None:
    labels = agent_body(case("model with blank"))["metadata"]["labels"]
    assert labels["node.koordinator.sh/gpu-model"] == "C-500-OAM"


def test_one_number_is_published_once() -> None:
    devices = agent_body(case("same minor twice"))["spec"]["devices"]
    assert [(d["id"], d["minor"]) for d in devices] == [("huawei-0", 0)]


def test_a_number_that_cannot_be_read_is_not_published_as_zero() -> None:
    assert agent_body(case("bad minor"))["spec"] == {}


def test_a_device_without_a_place_says_that_nothing_is_known() -> None:
    (devices,) = agent_body(case("no topology"))["spec"]["devices"]
    assert devices["topology"] == {"socketID": -1, "nodeID": -1, "pcieID": ""}


def test_the_object_a_koordlet_left_behind_is_taken_over_with_its_times() -> None:
    one = case("status healthy and not")
    text = json.dumps({"spec": one["device"]["spec"]}).replace('"T"', '"2020-01-01T00:00:00Z"')
    merged_json = keep_transition_times(json.loads(text), agent_body(one), BOOT_S)
    times = {
        c["lastTransitionTime"]
        for d in json.loads(json.dumps(merged_json))["spec"]["devices"]
        for c in d["conditions"]
    }
    assert times == {"2020-01-01T00:00:00Z"}
