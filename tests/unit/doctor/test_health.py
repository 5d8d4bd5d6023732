"""What the running agent holds against vendors and devices, compared with a new discovery."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.doctor.check import CheckInputs, CheckResult, CheckStatus
from agent.doctor.inputs import silent_vendors
from agent.doctor.node_report import NodeReport, node_report, parse_report
from agent.doctor.report import is_bad_news, run_checks
from agent.errors import ParseError
from agent.runbook.entry import RunbookEntry, entry_table
from agent.runbook.runbook import Runbook
from agent.snapshot.device import Device, DeviceCondition, DevicePartition, Health, HealthState
from agent.snapshot.inventory import Inventory, Problem
from agent.snapshot.node import NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.wire_formats.snapshot_json import snapshot_json
from tests import factory
from tests.unit.doctor.inputs import facts, of

HEALTHY, SUSPECT = HealthState.HEALTHY, HealthState.SUSPECT
PROBING, FAILED = HealthState.PROBING, HealthState.FAILED
XID = Health(state=PROBING, reason="Xid95", message="uncontained error")


# one reason of one vendor
ENTRY = RunbookEntry("Xid95", "a fault", "It is broken.", "It is out.", "reset the GPU")
RUNBOOK = Runbook({"nvidia": entry_table(ENTRY, vendor="nvidia")})


def snapshot(*devices: Device, state: str = "ready", problem: str = "") -> NodeSnapshot:
    """Return a node with these cards of one vendor."""
    problems = (Problem(reason=problem, message="odd"),) if problem else ()
    infos = tuple(device.info for device in devices)
    inventory = Inventory(vendor="nvidia", devices=infos, problems=problems)
    vendor = VendorState(
        vendor="nvidia",
        state=state,
        reason="Late",
        message="no answer",
        inventory=SnapshotPart(inventory),
    )
    return replace(factory.snapshot(devices, ()), vendors=(vendor,))


def compare(running: NodeSnapshot, discovered: NodeSnapshot) -> tuple[CheckResult, ...]:
    """Return the findings where an agent runs, and this is what a new discovery finds."""
    check_inputs: CheckInputs = facts(discovered)
    return run_checks(
        replace(
            check_inputs, node=node_report(running), discovery=check_inputs.node, runbook=RUNBOOK
        )
    )


def test_a_card_that_the_agent_holds_out_is_out_whatever_a_new_discovery_finds() -> None:
    entries = snapshot(factory.gpu(0, health=XID), factory.gpu(1))
    result = compare(entries, snapshot(factory.gpu(0), factory.gpu(1)))
    card = of(result, f"device:{factory.gpu(0).key}")
    assert card.status is CheckStatus.FAIL
    assert card.observation.startswith(
        "probing: Xid95: uncontained error; a new discovery finds it heal"
    )
    assert card.remedy.startswith("wait")
    assert card.remedy.endswith("reset the GPU")
    assert is_bad_news(result, strict=False)
    assert not [one for one in result if one.id == "devices"]


@pytest.mark.parametrize(
    ("health", "result", "words"),
    [
        (replace(XID, state=FAILED), CheckStatus.FAIL, "failed: Xid95"),
        (replace(XID, state=SUSPECT), CheckStatus.WARN, "suspect: Xid95"),
        (
            Health(reason="DriverStalled", message="m", certain=False),
            CheckStatus.WARN,
            "unknown, last healthy: DriverStalled: m",
        ),
    ],
)
def test_each_doubt_about_a_card_is_a_finding_with_its_own_remedy(
    health: Health, result: CheckStatus, words: str
) -> None:
    entries = snapshot(factory.gpu(0, health=health))
    card = of(compare(entries, entries), f"device:{factory.gpu(0).key}")
    assert card.status is result
    assert card.observation.startswith(words)
    assert card.impact
    assert card.remedy == ("reset the GPU" if health.reason == "Xid95" else card.remedy)
    assert "kernel's log" in card.remedy or card.remedy == "reset the GPU"


def test_a_degraded_card_and_a_bad_slice_are_findings_and_a_cut_card_is_none() -> None:
    part = DevicePartition(uuid="MIG-a", profile="1g", health=replace(XID, state=FAILED))
    card = factory.gpu(
        0,
        conditions=(
            DeviceCondition(type="Degraded", status=True, reason="Xid95", message="m"),
            DeviceCondition(type="Schedulable", status=False, reason="MIGEnabled"),
        ),
        partitions=(part, DevicePartition(uuid="MIG-b", profile="1g")),
    )
    result = compare(snapshot(card), snapshot(card))
    odd = {one.id: one for one in result if one.id.startswith("device:")}
    assert set(odd) == {f"device:{card.key}/Degraded", f"device:{card.key}/MIG-a"}
    assert odd[f"device:{card.key}/Degraded"].status is CheckStatus.WARN
    assert odd[f"device:{card.key}/MIG-a"].status is CheckStatus.FAIL
    assert {one.remedy for one in odd.values()} == {"reset the GPU"}
    assert of(result, "devices").observation == "1 in service"


def test_devices_that_nobody_is_granted_are_one_finding_a_reason() -> None:
    vfio = Health(state=SUSPECT, reason="BoundToVFIO", message="bound to vfio-pci")
    driverless = Health(state=FAILED, reason="DriverUnbound", message="no driver")
    cards = (
        factory.gpu(0, managed=False, health=vfio),
        factory.gpu(1, managed=False, health=vfio),
        factory.gpu(2, managed=False, health=driverless),
    )
    result = compare(snapshot(*cards), snapshot(*cards))
    inputs = of(result, "unmanaged:nvidia/BoundToVFIO")
    assert inputs.status is CheckStatus.WARN
    assert inputs.observation == f"2 devices: {cards[0].key}, {cards[1].key}: bound to vfio-pci"
    assert of(result, "unmanaged:nvidia/DriverUnbound").status is CheckStatus.FAIL
    assert of(result, "devices").status is CheckStatus.SKIP
    assert not [one for one in result if one.id == f"device:{cards[2].key}"]


def test_a_vendor_that_answers_a_new_discovery_but_not_the_agent_is_silent() -> None:
    card = factory.gpu(0)
    result = of(compare(snapshot(card, state="quarantined"), snapshot(card)), "vendor:nvidia")
    assert result.status is CheckStatus.FAIL
    assert result.observation == "quarantined: Late: no answer; a new discovery gets an answer"
    let_go = of(compare(snapshot(card, state="released"), snapshot(card)), "vendor:nvidia")
    assert let_go.status is CheckStatus.WARN


def test_the_reason_of_a_silent_driver_precedes_its_last_answer() -> None:
    card = factory.gpu(0)
    entries = snapshot(card, state="stalled", problem="Xid95")
    result = of(compare(entries, entries), "vendor:nvidia")
    assert result.observation == "stalled: Late: no answer; Xid95: odd"
    assert result.remedy.startswith("see why the driver hangs")
    assert result.remedy.endswith("reset the GPU")


@pytest.mark.parametrize(
    ("state", "process", "told"),
    [
        ("stalled", "disk-sleep", True),
        ("stalled", "sleeping", False),
        ("ready", "disk-sleep", False),
    ],
)
def test_a_worker_that_the_kernel_holds_is_named(state: str, process: str, told: bool) -> None:
    entries = snapshot(factory.gpu(0), state=state)
    vendors = tuple(replace(vendor, pid=4711) for vendor in entries.vendors)
    inputs = facts(replace(entries, vendors=vendors), process_states={4711: process})
    result = of(run_checks(inputs), "vendor:nvidia")
    assert ("process 4711 hangs in the kernel" in result.observation) is told
    assert ("reboot the node" in result.remedy) is told


def test_a_problem_of_a_vendor_has_the_remedy_of_its_reason() -> None:
    card = factory.gpu(0)
    result = of(compare(*[snapshot(card, problem="Xid95")] * 2), "vendor:nvidia")
    assert (result.status, result.remedy) == (CheckStatus.WARN, "reset the GPU")
    assert result.observation == "ready: Xid95: odd"


def test_a_new_discovery_that_is_worse_than_the_agents_is_reported() -> None:
    lost = factory.gpu(1, health=Health(state=FAILED, reason="GpuLost", message="gone"))
    running = snapshot(factory.gpu(0), factory.gpu(1))
    result = of(compare(running, snapshot(lost, factory.gpu(2))), "comparison")
    assert result.status is CheckStatus.WARN
    assert f"{factory.gpu(2).key}: found now, unknown to the agent" in result.observation
    assert f"{factory.gpu(0).key}: healthy by the agent, not found now" in result.observation
    assert f"{lost.key}: healthy by the agent, now failed: GpuLost: gone" in result.observation
    assert of(compare(running, running), "comparison").status is CheckStatus.OK


def test_a_new_discovery_whose_driver_does_not_answer_contradicts_nobody() -> None:
    awaited = factory.gpu(0, health=Health(state=FAILED, reason="NotYetAsked", message="m"))
    result = compare(snapshot(factory.gpu(0)), snapshot(awaited, state="stalled"))
    assert of(result, "comparison").status is CheckStatus.OK
    assert of(result, "vendor:nvidia").status is CheckStatus.OK


@pytest.mark.parametrize(
    ("node", "agrees"),
    [
        ({"source": "this machine", "boot_id": "b"}, True),
        ({"source": "this machine", "boot_id": "another"}, False),
        ({"source": "fixtures/hosts/x", "boot_id": "b"}, False),
    ],
)
def test_only_an_agent_of_this_machine_and_boot_is_believed(
    node: dict[str, str], agrees: bool
) -> None:
    here = parse_report({"node": {"source": "this machine", "boot_id": "b"}, **EMPTY})
    assert parse_report({"node": node, **EMPTY}).is_same_machine(here) is agrees


EMPTY: dict[str, object] = {"vendors": [], "parts": {}}


@pytest.mark.parametrize("odd", [{}, {"node": 3, **EMPTY}, {"node": {}, "vendors": 1, "parts": {}}])
def test_a_snapshot_of_another_form_is_refused(odd: dict[str, object]) -> None:
    with pytest.raises(ParseError, match="snapshot"):
        parse_report(odd)


def test_what_a_newer_agent_adds_is_passed_over() -> None:
    data = snapshot_json(snapshot(factory.gpu(0)), 0.0)
    report: NodeReport = parse_report({**data, "added": {"a": 1}})
    assert list(report.devices) == [factory.gpu(0).key]
    assert report.vendor_names == {factory.gpu(0).key: "nvidia"}
    assert report == node_report(snapshot(factory.gpu(0)))


def test_devices_of_a_driver_that_was_left_alone_are_not_missed() -> None:
    card = factory.gpu(0)
    running = snapshot(card, state="stalled")
    without = replace(factory.snapshot((), ()), vendors=())
    result = of(compare(running, without), "comparison")
    assert (result.status, "did not ask nvidia" in result.observation) == (CheckStatus.OK, True)
    taken_out = of(compare(snapshot(card), without), "comparison")
    assert "not found now" in taken_out.observation


@pytest.mark.parametrize(
    ("state", "source", "silent"),
    [
        ("released", "this machine", {"nvidia"}),
        ("stalled", "this machine", {"nvidia"}),
        ("ready", "this machine", set()),
        ("starting", "this machine", set()),
        ("released", "a recording", set()),
    ],
)
def test_a_driver_that_the_agent_cannot_call_is_silent(
    state: str, source: str, silent: set[str]
) -> None:
    answer = snapshot_json(snapshot(factory.gpu(0), state=state), 0.0)
    answer["node"] = {"source": source}
    assert silent_vendors((answer, ""), "this machine") == silent
    assert silent_vendors((None, "none answers"), "this machine") == set()
