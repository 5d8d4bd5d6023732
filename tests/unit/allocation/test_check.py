"""Each grant alone: what it means, and why it is refused."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from agent.allocation.check import check_allocations
from agent.snapshot.device import DevicePartition, Health, HealthState
from agent.snapshot.part import SnapshotPart
from tests import factory
from tests.unit.allocation.made import (
    GPUS,
    HALF,
    NICS,
    WHOLE,
    box,
    container,
    entry,
    pod,
    snapshot,
    text,
    verdict,
)

FAILED = Health(state=HealthState.FAILED, reason="Xid79", message="off its bus")
BROKEN = factory.gpu(0, health=FAILED)
PROBED = factory.gpu(0, health=replace(FAILED, state=HealthState.PROBING))
SUSPECT = factory.gpu(0, health=replace(FAILED, state=HealthState.SUSPECT))
FOREIGN = factory.gpu(0, managed=False, resources=())
CUT = factory.gpu(0, resources=(), facts=(("unschedulable", "MIGEnabled"),))
HOST = factory.gpu(0, resources=(), facts=(("unschedulable", "HostVGPU"),))
SILENT = factory.gpu(0, resources=())
SLICED = factory.gpu(
    0,
    resources=(),
    facts=(("unschedulable", "MIGEnabled"),),
    partitions=(DevicePartition(uuid="MIG-1", profile="1g.10gb"),),
)
OTHERS = factory.gpu(
    0, partitions=(DevicePartition(uuid="MIG-1", profile="1g.10gb", owner="another"),)
)
VFS = [f"0000:18:00.{i}" for i in range(1, 5)]


def alone(annotation: str | None, *devices: object, running: bool = False) -> str:
    one = pod(1, annotation, phase="Running" if running else "Pending")
    there = devices or (*GPUS, *NICS)
    allocations = check_allocations(snapshot([one], devices=there)).pods  # type: ignore[arg-type]  # devices
    return verdict(allocations.get(one.uid))


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (None, "none"),
        ("{}", "held"),
        (text(entry(GPUS[1], WHOLE)), "held"),
        (text(entry(1, HALF)), "held"),
        (text(entry(GPUS[1])), "held"),
        (text(entry("GPU-of-another-node", WHOLE)), "DeviceUnknown"),
        (text(entry(17, WHOLE)), "DeviceUnknown"),
        (json.dumps({"gpu": [{"resources": {}}]}), "DeviceUnknown"),
        (text(entry(1, WHOLE), kind="fpga"), "DeviceUnknown"),
        (text(entry(NICS[0], {"rdma": 100})), "DeviceUnknown"),
        (text(entry(GPUS[1], {"ratio": 0, "core": 0})), "IncompleteGrant"),
        (text(entry(GPUS[1], {"ratio": 200})), "DeviceTaken"),
        (text(entry(GPUS[1], {"ratio": 50, "core": 101})), "DeviceTaken"),
        (text(entry(GPUS[1], {"ratio": 50, "memory": "81560Mi"})), "DeviceTaken"),
        (text(entry(NICS[0], {"rdma": 100}), kind="rdma"), "held"),
        (text(entry(NICS[0], {"rdma": 1}, vfs=VFS[:2]), kind="rdma"), "held"),
        (
            text(entry(NICS[0], {"rdma": 1}, vfs=["0000:40:00.1"]), kind="rdma"),
            "VirtualFunctionUnknown",
        ),
        (text(entry(NICS[0], {"rdma": 1}, vfs=[VFS[0], VFS[0]]), kind="rdma"), "BadGrant"),
        ("no JSON", "BadGrant"),
    ],
)
def test_a_grant_is_resolved_among_the_devices(annotation: str | None, expected: str) -> None:
    assert alone(annotation) == expected


def test_an_id_decides_and_a_minor_that_moved_is_passed_over() -> None:
    one = pod(1, text({"minor": 3, "id": GPUS[1].info.uuid, "resources": {}}))
    view = check_allocations(snapshot([one]))
    assert view.held == {GPUS[1].key: (one.uid,)}


def test_a_refusal_names_the_device_and_the_grant_is_empty() -> None:
    one = pod(1, text(entry("GPU-of-another-node", WHOLE)))
    allocation = check_allocations(snapshot([one])).pods[one.uid]
    assert (allocation.name, allocation.namespace) == (one.name, one.namespace)
    assert "'GPU-of-another-node'" in allocation.message
    assert allocation.grant.devices == ()


def test_the_words_of_every_refusal_begin_with_its_reason() -> None:
    for annotation in ("no JSON", text(entry("GPU-of-another-node", WHOLE))):
        one = pod(1, annotation)
        allocation = check_allocations(snapshot([one])).pods[one.uid]
        assert allocation.message.startswith(f"{allocation.refusal}: ")


@pytest.mark.parametrize(
    ("device", "new", "running"),
    [
        (BROKEN, "DeviceOutOfService", "held"),
        (PROBED, "DeviceOutOfService", "held"),
        (SUSPECT, "held", "held"),
        (SILENT, "DeviceNotGrantable", "held"),
        (FOREIGN, "DeviceNotGrantable", "DeviceNotGrantable"),
        (HOST, "DeviceNotGrantable", "held"),
        (CUT, "MIGEnabled", "MIGEnabled"),
    ],
)
def test_a_running_pod_keeps_what_fails_but_nobody_has_what_is_not_for_pods(
    device: object, new: str, running: str
) -> None:
    annotation = text(entry(GPUS[0], WHOLE))
    assert alone(annotation, device) == new
    assert alone(annotation, device, running=True) == running


def test_a_slice_of_a_card_that_is_cut_may_be_granted_by_its_id() -> None:
    assert alone(text(entry("MIG-1")), SLICED) == "held"
    assert alone(text(entry("MIG-1")), OTHERS) == "DeviceTaken"


def test_a_device_that_a_vendor_may_still_report_is_not_called_unknown() -> None:
    one = pod(1, text(entry("GPU-late", WHOLE)))
    allocations = check_allocations(snapshot([one], awaited=("nvidia",))).pods
    assert verdict(allocations[one.uid]) == "DevicesNotKnownYet"


def test_a_device_is_not_called_unknown_while_a_vendor_does_not_answer() -> None:
    one = pod(1, text(entry("GPU-late", WHOLE)))
    node = snapshot([one])
    nvidia, *others = node.vendors
    stalled = replace(nvidia, state="stalled", inventory=SnapshotPart(None, None, "late"))
    silent = replace(node, vendors=(stalled, *others))
    assert verdict(check_allocations(silent).pods[one.uid]) == "DevicesNotKnownYet"
    assert verdict(check_allocations(node).pods[one.uid]) == "DeviceUnknown"


def test_a_minor_means_no_device_while_it_may_differ_from_the_published_one() -> None:
    by_minor, by_id = pod(1, text(entry(1, WHOLE))), pod(2, text(entry(GPUS[1], WHOLE)))
    node = snapshot([by_minor, by_id])
    early = replace(node.devices.value, provisional_minors=True)
    allocations = check_allocations(replace(node, devices=SnapshotPart(early, 1.0))).pods
    assert verdict(allocations[by_minor.uid]) == "DevicesNotKnownYet"
    assert verdict(allocations[by_id.uid]) == "held"
    assert verdict(check_allocations(snapshot([by_minor])).pods[by_minor.uid]) == "held"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"node_name": "node-b"}, "WrongNode"),
        ({"labels": (("hami.io/vgpu-node", "node-b"),)}, "WrongNode"),
        ({"labels": (("hami.io/vgpu-node", "node-a"),)}, "held"),
        ({"node_name": ""}, "none"),
        ({"phase": "Succeeded"}, "none"),
        ({"phase": "Failed"}, "none"),
        ({"terminating": True}, "held"),
    ],
)
def test_where_and_whether_a_pod_is(changes: dict[str, object], expected: str) -> None:
    one = pod(1, text(entry(GPUS[0], WHOLE)), **changes)
    assert verdict(check_allocations(snapshot([one])).pods.get(one.uid)) == expected


def test_an_annotation_that_was_written_into_a_running_pod_changes_nothing() -> None:
    before, after = text(entry(GPUS[0], HALF)), text(entry(GPUS[0], WHOLE), entry(GPUS[1], WHOLE))
    one = pod(1, after, phase="Running")
    sandbox = box(one, before)
    view = check_allocations(snapshot([one], [sandbox], [container(sandbox)]))
    assert view.held == {GPUS[0].key: (one.uid,)}
    forged = box(one, annotations=())
    assert check_allocations(snapshot([one], [forged], [container(forged)])).pods == {}
