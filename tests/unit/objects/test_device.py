from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.objects.device import DevicePublisher
from agent.snapshot.device import Device, Health, HealthState, VirtualFunction, VirtualFunctionGroup
from agent.snapshot.node import NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.wire_formats.device_object import select_devices
from tests.factory import BOOT_S, gpu, nic, snapshot
from tests.hostile import device_sets, few
from tests.schemas import CRDS, check

CRD = "scheduling.koordinator.sh_devices.yaml"
LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
needs_crds = pytest.mark.skipif(not Path(CRDS).is_dir(), reason="CRDs are not beside the checkout")


def body(snap: NodeSnapshot) -> dict[str, Any]:
    (desired,) = DevicePublisher().render(snap, 0.0)
    return json.loads(json.dumps(desired.body))  # type: ignore[no-any-return]  # JSON is untyped


def listed(*devices: Device) -> list[dict[str, Any]]:
    return list(body(snapshot(devices))["spec"].get("devices", []))


@needs_crds
@few
@given(device_sets)
def test_any_device_set_passes_the_schema_with_unknown_fields_forbidden(
    devices: tuple[Device, ...],
) -> None:
    (desired,) = DevicePublisher().render(snapshot(devices), 0.0)
    check(CRD, desired.body)


@few
@given(device_sets)
def test_numbers_are_unique_present_and_ascending(devices: tuple[Device, ...]) -> None:
    keys = [(d["type"], d["minor"]) for d in listed(*devices)]
    assert keys == sorted(set(keys))


@few
@given(device_sets)
def test_label_values_are_valid_whatever_the_vendor_says(devices: tuple[Device, ...]) -> None:
    for value in body(snapshot(devices))["metadata"]["labels"].values():
        assert len(value) <= 63
        assert LABEL.fullmatch(value)


@few
@given(device_sets, st.randoms())
def test_the_order_of_input_does_not_change_the_object(
    devices: tuple[Device, ...], chance: random.Random
) -> None:
    shuffled = list(devices)
    chance.shuffle(shuffled)
    before, after = snapshot(devices), snapshot(tuple(shuffled))
    assert DevicePublisher().render(before, 0.0) == DevicePublisher().render(after, 5.0)


@few
@given(device_sets)
def test_two_renderings_are_byte_equal(devices: tuple[Device, ...]) -> None:
    first, second = (DevicePublisher().render(snapshot(devices), t)[0].body for t in (1.0, 99.0))
    assert json.dumps(first) == json.dumps(second)


@needs_crds
def test_an_hgx_machine_equals_the_worked_example() -> None:
    document = body(snapshot())
    check(CRD, document)
    assert document["metadata"]["name"] == "hgx-h100-01"
    assert document["metadata"]["labels"] == {
        "node.koordinator.sh/gpu-vendor": "nvidia",
        "node.koordinator.sh/gpu-model": "H100-80GB-HBM3",
        "node.koordinator.sh/gpu-driver-version": "570.124.06",
    }
    devices = document["spec"]["devices"]
    assert [(d["type"], d["minor"]) for d in devices] == [
        *(("gpu", i) for i in range(8)),
        *(("rdma", i) for i in (0, 3, 6, 10)),
    ]
    assert devices[0] == {
        "type": "gpu",
        "id": "GPU-00000000-0000-4000-8000-000000000000",
        "minor": 0,
        "health": True,
        "resources": {
            "koordinator.sh/gpu-core": "100",
            "koordinator.sh/gpu-memory": "81559Mi",
            "koordinator.sh/gpu-memory-ratio": "100",
        },
        "topology": {"socketID": 0, "nodeID": 0, "pcieID": "pci0000:15", "busID": "0000:1b:00.0"},
        "conditions": [
            {
                "type": "Healthy",
                "status": "True",
                "reason": "DeviceHealthy",
                "message": "device is healthy",
                "lastTransitionTime": "2026-01-02T03:04:05Z",
            }
        ],
    }
    assert devices[8] == {
        "type": "rdma",
        "id": "0000:18:00.0",
        "minor": 0,
        "health": True,
        "resources": {"koordinator.sh/rdma": "100"},
        "topology": {"socketID": 0, "nodeID": 0, "pcieID": "pci0000:15", "busID": "0000:18:00.0"},
        "vfGroups": [
            {"vfs": [{"minor": -1, "busID": f"0000:18:00.{i}"} for i in range(1, 5)]},
        ],
    }


def test_a_failed_card_stays_listed_with_its_resources() -> None:
    health = Health(
        state=HealthState.FAILED,
        reason="chip error",
        message="NPU 5 reports 1 chip fault",
        since_s=BOOT_S + 60,
    )
    (entry,) = listed(gpu(5, health=health))
    assert entry["health"] is False
    assert entry["resources"]["koordinator.sh/gpu-core"] == "100"
    assert entry["conditions"] == [
        {
            "type": "Healthy",
            "status": "False",
            "reason": "ChipError",
            "message": "NPU 5 reports 1 chip fault (chip error)",
            "lastTransitionTime": "2026-01-02T03:05:05Z",
        }
    ]


@pytest.mark.parametrize(
    ("state", "health"),
    [(HealthState.SUSPECT, True), (HealthState.PROBING, False), (HealthState.FAILED, False)],
)
def test_failed_and_probed_devices_are_out_of_service(state: HealthState, health: bool) -> None:
    (entry,) = listed(nic(1, health=Health(state=state, reason="LinkFlapping", message="flaps")))
    assert entry["health"] is health
    assert entry["conditions"][0]["status"] == str(health)
    assert entry["conditions"][0]["reason"] == "LinkFlapping"


def test_a_partitioned_card_stays_listed_without_resources() -> None:
    cut = gpu(
        0,
        resources=(),
        labels=(("xpu-agent.io/mig", "true"),),
        facts=(("unschedulable", "MIGEnabled"),),
    )
    (entry,) = listed(cut)
    assert "resources" not in entry
    assert entry["labels"] == {"xpu-agent.io/mig": "true"}
    assert [(c["type"], c["status"], c["reason"]) for c in entry["conditions"]] == [
        ("Healthy", "True", "DeviceHealthy"),
        ("Schedulable", "False", "MIGEnabled"),
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"minor": None}, "NoMinor"),
        ({"minor": -1}, "MinorOutOfRange"),
        ({"minor": 1 << 31}, "MinorOutOfRange"),
        ({"managed": False}, "Unmanaged"),
        ({"bus_id": "0000:ff:00.0", "minor": 0}, "SameMinor"),
        ({"uuid": gpu(0).info.uuid}, "SameUUID"),
    ],
)
def test_what_cannot_be_published_is_left_out_with_a_reason(
    changes: dict[str, Any], reason: str
) -> None:
    odd = gpu(3, **changes)
    selection = select_devices((odd, gpu(0)))
    assert selection.published == (gpu(0),)
    assert selection.omissions == ((odd, reason),)


@pytest.mark.parametrize(
    ("memory", "core", "expected"),
    [
        ("0", "100", set()),
        ("0Mi", "100", set()),
        ("-1Gi", "100", set()),
        ("1Gi", "0", {"koordinator.sh/gpu-memory"}),
        ("1Gi", "1e2", {"koordinator.sh/gpu-memory", "koordinator.sh/gpu-core"}),
    ],
)
def test_nothing_is_granted_of_a_card_without_memory(
    memory: str, core: str, expected: set[str]
) -> None:
    resources = (("koordinator.sh/gpu-memory", memory), ("koordinator.sh/gpu-core", core))
    (entry,) = listed(gpu(0, resources=resources))
    assert set(entry.get("resources", ())) == expected


def test_topology_is_always_there_even_when_nothing_is_known() -> None:
    (entry,) = listed(Device(info=gpu(0, bus_id=None).info))
    assert entry["topology"] == {"socketID": -1, "nodeID": -1, "pcieID": ""}


def test_virtual_functions_are_in_order_of_their_bus_id_and_empty_groups_are_gone() -> None:
    addresses = ("0000:18:01.3", "0000:18:00.1", "0000:18:00.3")
    full = VirtualFunctionGroup(
        labels=(("pool", "a"),), vfs=tuple(VirtualFunction(bus_id=a) for a in addresses)
    )
    (entry,) = listed(nic(0, vf_groups=(VirtualFunctionGroup(), full)))
    assert entry["vfGroups"] == [
        {
            "labels": {"pool": "a"},
            "vfs": [{"minor": -1, "busID": a} for a in sorted(addresses)],
        }
    ]


@pytest.mark.parametrize(
    ("models", "label"),
    [
        (("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"), "H100-80GB-HBM3"),
        (("Tesla T4", None), "Tesla-T4"),
        (("C 500 (OAM)", None), "C-500-OAM"),
        (("NVIDIA A10", "Tesla T4"), None),
    ],
)
def test_the_model_label_is_absent_when_models_are_mixed(
    models: tuple[str | None, ...], label: str | None
) -> None:
    devices = tuple(gpu(i, model=model) for i, model in enumerate(models))
    labels = body(snapshot(devices))["metadata"]["labels"]
    assert labels.get("node.koordinator.sh/gpu-model") == label
    assert ("node.koordinator.sh/gpu-driver-version" in labels) == (label is not None)


def test_a_node_without_accelerators_has_no_accelerator_labels() -> None:
    assert body(snapshot((nic(0),)))["metadata"]["labels"] == {}


def test_the_owner_is_the_node_when_its_uid_is_known() -> None:
    snap = snapshot()
    assert "ownerReferences" not in body(snap)["metadata"]
    with_uid = replace(snap, node=replace(snap.node, uid="6f6f"))
    assert body(with_uid)["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "name": "hgx-h100-01",
            "uid": "6f6f",
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]


def test_nothing_is_published_before_the_first_discovery() -> None:
    snap = snapshot()
    assert (
        DevicePublisher().render(replace(snap, devices=SnapshotPart(snap.devices.value)), 0.0) == ()
    )


def test_nothing_is_published_while_a_vendor_is_only_starting() -> None:
    snap = snapshot()
    view = replace(snap.devices.value, awaited=("rdma",))
    assert DevicePublisher().render(replace(snap, devices=SnapshotPart(view, 1.0)), 0.0) == ()
    view = replace(snap.devices.value, provisional_minors=True)
    assert DevicePublisher().render(replace(snap, devices=SnapshotPart(view, 1.0)), 0.0) == ()
    dead = replace(snap, vendors=(*snap.vendors, VendorState(vendor="rdma", state="quarantined")))
    assert len(DevicePublisher().render(dead, 0.0)) == 1
