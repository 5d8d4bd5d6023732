"""The Node's conditions for classes of faults: what those who act on nodes read."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agent.clock import rfc3339
from agent.objects.fault_conditions import (
    CONDITION_TYPES,
    FAULT_TYPES,
    REPAIR_REQUIRED,
    SUSPECT_S,
    merge_node_conditions,
)
from agent.objects.node import NodeConditionPublisher
from agent.snapshot.device import Device, DeviceCondition, DevicePartition, Health, HealthState
from agent.snapshot.inventory import Inventory, Problem
from agent.snapshot.node import DeviceView, NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.wire_formats.api_values import MAX_MESSAGE
from agent.workers.abilities import build_runbook
from agent.workers.load import load_vendors
from tests import clustered
from tests.factory import BOOT_S, gpu, nic

Tree = Any
NOW_S = BOOT_S + 7200
SINCE_S = BOOT_S + 3600
RUNBOOK = build_runbook(load_vendors())
STALLED = Health(reason="DriverStalled", certain=False, since_s=SINCE_S)


def failed(reason: str, message: str = "", **changes: Any) -> Health:
    health = Health(state=HealthState.FAILED, reason=reason, message=message, since_s=SINCE_S)
    return replace(health, **changes)


def node(*devices: Device, awaited: tuple[str, ...] = (), problem: str = "") -> NodeSnapshot:
    now = clustered.snapshot()
    cards = tuple(one.info for one in devices if one.info.vendor == "nvidia")
    inventory: SnapshotPart[Inventory | None] = SnapshotPart(
        Inventory(vendor="nvidia", devices=cards), 1.0
    )
    ports = tuple(one.info for one in devices if one.info.vendor != "nvidia")
    rdma: SnapshotPart[Inventory | None] = SnapshotPart(
        Inventory(vendor="rdma", devices=ports), 1.0
    )
    problems = (("nvidia", Problem(reason=problem, message="")),) if problem else ()
    return replace(
        now,
        node=replace(now.node, boot_time_s=BOOT_S),
        vendors=(
            VendorState(vendor="nvidia", state="ready", inventory=inventory),
            VendorState(vendor="rdma", state="ready", inventory=rdma),
        ),
        devices=SnapshotPart(DeviceView(devices=devices, awaited=awaited, problems=problems), 1.0),
    )


def body(now: NodeSnapshot, now_s: float = NOW_S) -> Tree:
    (desired,) = NodeConditionPublisher(runbook=RUNBOOK).render(now, now_s)
    return desired.body


def conditions(document: Tree) -> dict[str, Tree]:
    return {one["type"]: one for one in document["status"]["conditions"]}


def true_types(now: NodeSnapshot, now_s: float = NOW_S) -> set[str]:
    faults = conditions(body(now, now_s))
    return {kind for kind in FAULT_TYPES if faults[kind]["status"] == "True"}


def test_a_healthy_node_has_all_conditions_and_none_is_true() -> None:
    faults = conditions(body(node(gpu(0), nic(0))))
    assert faults.keys() >= FAULT_TYPES
    assert {faults[kind]["status"] for kind in FAULT_TYPES} == {"False"}
    assert {faults[kind]["reason"] for kind in FAULT_TYPES} == {"NoFault", "NoRepairRequired"}


@pytest.mark.parametrize(
    ("reason", "kind", "repair"),
    [
        ("Xid95", "DeviceMemoryFault", "DrainAndReset"),
        ("SRAMThreshold", "DeviceMemoryFault", "Replace"),
        ("Xid79", "DevicePCIeFault", "Reboot"),
        ("InsufficientPower", "DevicePowerFault", "Replace"),
        ("DriverStalled", "DeviceDriverFault", "Reboot"),
        ("Xid48", "DeviceMemoryFault", "DrainAndReset"),
        ("FabricError", "DeviceInterconnectFault", "DrainAndReset"),
        ("DrainAndReset", "DeviceProcessorFault", "DrainAndReset"),
        ("Flapping", "DeviceProcessorFault", None),  # a person has to look
    ],
)
def test_a_failed_card_is_in_the_class_of_its_fault_with_the_action_as_the_reason(
    reason: str, kind: str, repair: str | None
) -> None:
    faults = conditions(body(node(gpu(0), gpu(1, health=failed(reason)))))
    one = faults[kind]
    assert (one["status"], one["reason"]) == ("True", reason)
    assert one["lastTransitionTime"] == rfc3339(SINCE_S)
    assert f"GPU 1 ({reason} since {rfc3339(SINCE_S)})" in one["message"]
    assert "out of service: 1" in one["message"]
    required = faults[REPAIR_REQUIRED]
    assert (required["status"], required["reason"]) == (
        ("False", "NoRepairRequired") if repair is None else ("True", repair)
    )


def test_a_nic_without_a_link_is_a_fault_of_the_network() -> None:
    down = nic(0, health=failed("PortDown"))
    assert true_types(node(gpu(0), down)) == {"DeviceNetworkFault"}


def test_the_message_begins_with_the_hardest_action_of_devices_out_of_service() -> None:
    now = node(
        gpu(0, health=failed("Xid95")),
        gpu(1, health=failed("SRAMThreshold")),
        gpu(2, conditions=(DeviceCondition(type="Degraded", status=True, reason="Xid63"),)),
    )
    memory = conditions(body(now))["DeviceMemoryFault"]
    assert memory["reason"] == "SeveralReasons"
    assert memory["message"].startswith("action=replace; out of service: 2; GPU 0 (Xid95 since")
    assert memory["message"].endswith("GPU 2 (Xid63)")


def test_a_warning_is_a_fault_and_needs_no_repair_before_the_next_maintenance() -> None:
    pending = DeviceCondition(
        type="Degraded", status=True, reason="RowRemapPending", since_s=SINCE_S
    )
    now = node(gpu(0, conditions=(pending,)))
    assert true_types(now) == {"DeviceMemoryFault"}
    message = conditions(body(now))["DeviceMemoryFault"]["message"]
    assert message.startswith("action=reset; out of service: 0; GPU 0 (RowRemapPending since")


def test_a_card_that_is_cut_into_slices_is_no_fault_and_a_failed_slice_is_one() -> None:
    cut = DeviceCondition(type="Schedulable", status=False, reason="MIGEnabled")
    part = DevicePartition(uuid="MIG-1", profile="1g.10gb", health=failed("Xid95"))
    assert true_types(node(gpu(0, conditions=(cut,)))) == set()
    assert true_types(node(gpu(0, partitions=(part,)))) == {"DeviceMemoryFault", REPAIR_REQUIRED}


def test_a_device_on_probation_keeps_its_fault_and_asks_for_no_second_repair() -> None:
    watched = failed("Xid95", state=HealthState.PROBING)
    now = node(gpu(0, health=watched))
    assert true_types(now) == {"DeviceMemoryFault"}
    assert "action=none" in conditions(body(now))["DeviceMemoryFault"]["message"]


def test_a_doubt_is_a_fault_when_it_lasts() -> None:
    doubt = Health(state=HealthState.SUSPECT, reason="GarbledAnswer", since_s=SINCE_S)
    now = node(gpu(0, health=doubt))
    assert true_types(now, SINCE_S + SUSPECT_S - 1) == set()
    assert true_types(now, SINCE_S + SUSPECT_S) == {"DevicePCIeFault"}
    assert true_types(now, SINCE_S - 8 * 3600) == {"DevicePCIeFault"}  # the clock was set back


def test_a_problem_of_a_vendor_is_a_fault_of_its_class() -> None:
    assert true_types(node(gpu(0), problem="FabricManagerDown")) == {"DeviceInterconnectFault"}
    assert true_types(node(gpu(0), problem="PersistenceModeOff")) == set()


def live_with(document: Tree) -> Tree:
    """Return the Node as the server has it, with the kubelet's condition."""
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": rfc3339(BOOT_S)}
    return {"status": {"conditions": [ready, *document["status"]["conditions"]]}}


def merged(before: NodeSnapshot, after: NodeSnapshot) -> dict[str, Tree]:
    return conditions(merge_node_conditions(live_with(body(before)), body(after)))


def test_a_driver_that_does_not_answer_ends_no_fault() -> None:
    sick, silent = node(gpu(0, health=failed("Xid95"))), node(gpu(0, health=STALLED))
    faults = merged(sick, silent)
    before = conditions(body(sick))
    for kind in ("DeviceMemoryFault", REPAIR_REQUIRED):
        assert faults[kind] == before[kind]
    # what was no fault is not known now
    assert faults["DeviceThermalFault"]["status"] == "Unknown"
    assert faults["DeviceThermalFault"]["reason"] == "DriverStalled"


def test_a_new_agent_whose_driver_does_not_answer_ends_no_fault() -> None:
    """It has no stored state, and knows the devices from sysfs alone."""
    unasked = Health(state=HealthState.SUSPECT, reason="NotYetAsked", message="seen in sysfs")
    new = node(gpu(0, health=unasked))
    new = replace(new, vendors=(replace(new.vendors[0], state="stalled"), *new.vendors[1:]))
    sick = node(gpu(0, health=failed("Xid95")))
    faults = merged(sick, new)
    for kind in ("DeviceMemoryFault", REPAIR_REQUIRED):
        assert faults[kind] == conditions(body(sick))[kind]


@pytest.mark.parametrize("reason", ["DriverStalled", "DriverMissing"])
def test_a_device_whose_driver_failed_keeps_its_other_faults(reason: str) -> None:
    sick, driverless = node(gpu(0, health=failed("Xid95"))), node(gpu(0, health=failed(reason)))
    faults = merged(sick, driverless)
    assert faults["DeviceMemoryFault"] == conditions(body(sick))["DeviceMemoryFault"]
    assert faults["DeviceDriverFault"]["reason"] == reason
    assert faults[REPAIR_REQUIRED]["status"] == "True"
    assert faults["DeviceThermalFault"]["status"] == "Unknown"


def test_a_doubt_of_a_moment_makes_nothing_unknown() -> None:
    doubt = Health(state=HealthState.SUSPECT, reason="GarbledAnswer", since_s=SINCE_S)
    faults = conditions(body(node(gpu(0, health=doubt)), SINCE_S + 1))
    assert {faults[kind]["status"] for kind in FAULT_TYPES} == {"False"}


def test_a_fault_ends_when_all_devices_are_known_to_be_well() -> None:
    faults = merged(node(gpu(0, health=failed("Xid95"))), node(gpu(0)))
    assert {faults[kind]["status"] for kind in FAULT_TYPES} == {"False"}


def test_an_agent_that_restarts_writes_nothing_before_it_knows_the_devices() -> None:
    publisher = NodeConditionPublisher(runbook=RUNBOOK)
    assert publisher.render(node(gpu(0), awaited=("nvidia",)), NOW_S) == ()
    unread = replace(node(gpu(0)), devices=SnapshotPart(DeviceView()))
    assert publisher.render(unread, NOW_S) == ()


def test_while_a_fault_lasts_nothing_is_written_again() -> None:
    now = node(gpu(0, health=failed("Xid95")), gpu(1))
    assert body(now, NOW_S) == body(now, NOW_S + 3600)


def test_sixteen_sick_devices_stay_below_the_bound_of_a_message() -> None:
    sick = replace(gpu(0).info, health=failed("PageRetirementPending"))
    cards = tuple(
        replace(gpu(0), info=replace(sick, minor=n, bus_id=f"0000:{n:02x}:00.0")) for n in range(16)
    )
    down = replace(nic(0).info, health=failed("PortDown"))
    nics = tuple(
        replace(nic(0), info=replace(down, minor=n, bus_id=f"0000:{n + 64:02x}:00.0"))
        for n in range(64)
    )
    faults = conditions(body(node(*cards, *nics)))
    memory, network = faults["DeviceMemoryFault"], faults["DeviceNetworkFault"]
    assert "out of service: 16" in memory["message"]
    assert "GPU 9 (PageRetirementPending since" in memory["message"]
    assert network["message"].endswith("more")
    assert max(len(one["message"]) for one in faults.values()) <= MAX_MESSAGE


def test_text_of_a_vendor_cannot_break_a_condition() -> None:
    odd = replace(nic(0).info, minor=None, bus_id=None, uuid="\x1b[31m\n" + "u" * 2000)
    broken = replace(nic(0), info=replace(odd, health=failed("PortDown")))
    faults = conditions(body(node(gpu(0), broken)))
    message = faults["DeviceNetworkFault"]["message"]
    assert message.isprintable()
    assert len(message) <= MAX_MESSAGE


def test_every_class_of_faults_has_a_condition_type_of_its_own() -> None:
    assert len(set(CONDITION_TYPES.values())) == len(CONDITION_TYPES)
    categories = {entry.category for entry in RUNBOOK.entries() if entry.category}
    assert categories == set(CONDITION_TYPES)
