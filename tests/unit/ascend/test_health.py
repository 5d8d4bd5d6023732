from __future__ import annotations

import json

import pytest

from agent.config.health import HealthSettings
from agent.devices.health import TimePoint
from agent.devices.vendor_health import VendorHealth
from agent.snapshot.device import Health, HealthState
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import VendorState
from agent.snapshot.part import SnapshotPart
from agent.workers.protocol import ClearReply
from tests.stubs.child import Child
from tests.unit.ascend.conftest import Machine

HEALTHY, SUSPECT, FAILED = HealthState.HEALTHY, HealthState.SUSPECT, HealthState.FAILED
FOUR, FIVE = "0000:01:00.0", "0000:02:00.0"


def verdict(child: Child, key: str) -> Health:
    """Return the health of a chip in a discovery."""
    return next(d.health for d in child.discover().devices if d.key == key)


@pytest.mark.parametrize(
    ("lines", "state", "reason", "message"),
    [
        pytest.param(
            ["chip.4.0.codes 80E01801", "chip.4.0.health 2"],
            FAILED,
            "ChipFault",
            "NPU 4 reports 1 chip fault: 80E01801 (RestartBusiness)",
            id="E24 of the driver",
        ),
        pytest.param(
            ["call.dcmi_get_device_health.4.0.ret -8012"],
            FAILED,
            "CardDropped",
            "NPU 4 is not ready (-8012)",
            id="E28",
        ),
        pytest.param(
            ["chip.4.0.health 2"], FAILED, "HealthCode2", "NPU 4 reports health 2", id="no codes"
        ),
        pytest.param(
            ["chip.4.0.health 2", "chip.4.0.codes 0"],
            FAILED,
            "ChipFault",
            "NPU 4 reports 1 chip fault",
            id="a fault without its code",
        ),
        pytest.param(
            ["chip.4.0.boot 2"],
            FAILED,
            "Resetting",
            "NPU 4, or another chip of its card, is starting",
            id="booting",
        ),
        pytest.param(["chip.4.0.boot 3"], HEALTHY, "DeviceHealthy", "", id="booted as 3"),
        pytest.param(["chip.4.0.boot"], HEALTHY, "DeviceHealthy", "", id="boot status untold"),
        pytest.param(
            ["call.dcmi_get_device_health.4.0.ret -8008"], FAILED, "DeviceLost", "", id="gone"
        ),
        pytest.param(
            ["call.dcmi_get_device_health.4.0.ret -8002"],
            SUSPECT,
            "PermissionDenied",
            "NPU 4: dcmi_get_device_health is not allowed to the agent",
            id="not allowed",
        ),
        pytest.param(
            ["call.dcmi_get_device_errorcode_v2.4.0.ret -8022"],
            SUSPECT,
            "FirmwareInconsistent",
            "",
            id="firmware that does not fit",
        ),
    ],
)
def test_what_the_driver_says_is_judged_and_touches_no_other_chip(
    b3: Machine, lines: list[str], state: HealthState, reason: str, message: str
) -> None:
    b3.stub.add(*lines)
    with b3.session() as child:
        devices = {d.key: d.health for d in child.discover().devices}
    device = devices.pop(FOUR)
    assert (device.state, device.reason) == (state, reason)
    assert message in device.message
    assert set(devices.values()) == {Health()}


def test_one_failing_call_decides_nothing_and_three_in_a_row_do(b3: Machine) -> None:
    with b3.session() as child:
        assert verdict(child, FOUR).state is HEALTHY
        b3.stub.add("call.dcmi_get_device_health.4.0.ret -8010")
        verdicts = [verdict(child, FOUR) for _ in range(3)]
        b3.stub.add("call.dcmi_get_device_health.4.0.ret")
        after = verdict(child, FOUR)
    assert [(h.state, h.reason, h.certain) for h in verdicts] == [
        (HEALTHY, "DriverError", False),
        (HEALTHY, "DriverError", False),
        (FAILED, "DriverError", True),
    ]
    assert after == Health()


def test_a_failure_that_changes_its_code_keeps_its_words(b3: Machine) -> None:
    messages = []
    with b3.session() as child:
        for code in (-8010, -8006, -8005, -8010, -8011):
            b3.stub.add(f"call.dcmi_get_device_health.4.0.ret {code}")
            messages.append(verdict(child, FOUR).message)
    assert len(set(messages[2:])) == 1
    assert "DCMI error -8005" in messages[2]


def test_a_health_that_cannot_be_is_no_error_of_the_driver(b3: Machine) -> None:
    b3.stub.add("chip.4.0.health 9")
    with b3.session() as child:
        verdicts = [verdict(child, FOUR) for _ in range(3)]
    assert verdicts[2].state is FAILED
    assert "an answer that cannot be true" in verdicts[2].message


def test_an_upgrade_freezes_what_was_known(b3: Machine) -> None:
    with b3.session() as child:
        child.discover()
        b3.stub.add("call.dcmi_get_device_health.4.0.ret -8017")
        health = verdict(child, FOUR)
        samples = {sample.key: sample for sample in child.sample()}
    assert (health.state, health.reason, health.certain) == (HEALTHY, "FirmwareUpgrade", False)
    assert samples[FOUR].readings == ()


def test_dies_of_a_card_are_out_of_service_together(a3: Machine) -> None:
    a3.stub.add("chip.2.1.boot 2")
    with a3.session() as child:
        devices = child.discover().devices
    assert [d.minor for d in devices if d.health.reason == "Resetting"] == [4, 5]


def test_a_die_that_is_reset_takes_the_other_out_at_once(a3: Machine) -> None:
    a3.stub.add("chip.2.1.health 2")  # so that it is polled often
    with a3.session() as child:
        child.discover()
        a3.stub.add("chip.2.1.boot 2")
        a3.stub.happen("2 1 8C2FA001 1 1")
        child.wait_event()
        samples = {sample.key: sample.health for sample in child.sample()}
    for key in ("0000:41:00.0", "0000:43:00.0"):
        sample = samples[key]
        assert sample is not None
        assert sample.reason == "Resetting"


@pytest.mark.parametrize(
    ("line", "reason", "state"),
    [
        pytest.param("5 0 80E01801 2 1", "ChipFault", FAILED, id="E32 raised"),
        pytest.param("5 0 DEADBEEF 3 1", "ChipFault", FAILED, id="unknown, critical"),
        pytest.param("5 0 DEADBEEF 0 1", "FaultNotice", None, id="unknown, a notice"),
        pytest.param("5 0 80E01801 2 2", "FaultNotice", None, id="once"),
        pytest.param("5 0 80E01801 2 0", "FaultCleared", None, id="over"),
    ],
)
def test_an_event_is_reported_for_its_chip(
    b3: Machine, line: str, reason: str, state: HealthState | None
) -> None:
    with b3.session() as child:
        child.discover()
        b3.stub.happen(line)
        event = child.wait_event()
    assert (event.key, event.reason, event.state) == (FIVE, reason, state)
    assert "NPU 5" in event.message


def test_an_event_of_an_unknown_chip_is_dropped(b3: Machine) -> None:
    with b3.session() as child:
        child.discover()
        b3.stub.happen("60 0 80E01801 2 1")
        b3.stub.happen("5 0 80E01801 2 1")
        assert child.wait_event().key == FIVE


@pytest.mark.parametrize("logic", [pytest.param(3, id="E32")])
def test_a_chip_comes_back_after_three_clean_looks(b3: Machine, logic: int) -> None:
    health = VendorHealth("ascend", HealthSettings())
    now = TimePoint(0.0, 1000.0)

    def check(child: Child) -> Health:
        nonlocal now
        now = TimePoint(now.mono_s + 10.0, now.wall_s + 10.0)
        part: SnapshotPart[Inventory | None] = SnapshotPart(child.discover(), now.mono_s)
        answer = health.update(VendorState(vendor="ascend", state="ready", inventory=part), now)
        assert answer.inventory.value is not None
        return answer.inventory.value.devices[logic].health

    with b3.session() as child:
        assert check(child).is_in_service
        b3.stub.add(f"chip.{logic}.0.codes 80E01801", f"chip.{logic}.0.health 2")
        b3.stub.happen(f"{logic} 0 80E01801 2 1")
        event = child.wait_event()
        health.record_events((event,), now)
        assert not check(child).is_in_service
        b3.stub.add(f"chip.{logic}.0.codes", f"chip.{logic}.0.health 0")
        b3.stub.happen(f"{logic} 0 80E01801 2 0")
        assert child.wait_event().reason == "FaultCleared"
        states = [check(child).is_in_service for _ in range(4)]
    assert states == [False, False, True, True]


def test_a_driver_without_events_is_polled(b3: Machine) -> None:
    b3.stub.add("call.dcmi_subscribe_fault_event.ret -8255")
    with b3.session() as child:
        child.discover()
        b3.stub.add("chip.5.0.codes 80E01801")
        assert verdict(child, FIVE).state is FAILED


def test_a_fault_in_a_poll_is_reported_at_once(b3: Machine) -> None:
    b3.stub.add("chip.5.0.boot 2")
    with b3.session() as child:
        child.discover()
        b3.stub.add("chip.5.0.boot 16", "chip.5.0.codes 80E01801")
        b3.stub.happen("5 0 8C2FA009 0 1")
        child.wait_event()
        samples = {sample.key: sample.health for sample in child.sample()}
        event = child.wait_event()
    health = samples[FIVE]
    assert health is not None
    assert health.reason == "ChipFault"
    assert (event.key, event.state, event.reason) == (FIVE, FAILED, "ChipFault")


def test_a_chip_that_a_person_let_back_is_judged_anew(b3: Machine) -> None:
    state = str(b3.folder / "state")
    with b3.session(state_dir=state) as child:
        child.discover()
        for codes in ("80A18008", "", "80A18008", ""):
            b3.stub.add(f"chip.5.0.codes {codes}")
            child.discover()
    with b3.session(state_dir=state) as child:
        assert verdict(child, FIVE).reason == "ManuallySeparated"
        replies = [child.ask("clear", device=key) for key in (FIVE, FIVE, "0000:ff:00.0")]
        assert [isinstance(t, ClearReply) and t.cleared for t in replies] == [True, False, False]
        assert verdict(child, FIVE) == Health()
    with b3.session(state_dir=state) as child:
        assert verdict(child, FIVE) == Health()


def test_the_administrators_table_is_in_force(b3: Machine) -> None:
    file = b3.folder / "faultCode.json"
    file.write_text(json.dumps({"NotHandleFaultCodes": ["80E01801"]}))
    b3.stub.add("chip.5.0.codes 80E01801")
    with b3.session(fault_codes=str(file)) as child:
        assert verdict(child, FIVE) == Health()
    file.write_text("nonsense")
    with b3.session(fault_codes=str(file)) as child:
        inventory = child.discover()
    assert [problem.reason for problem in inventory.problems] == ["FaultCodesRefused"]
    assert inventory.devices[5].health.state is FAILED


@pytest.mark.parametrize(("counts", "state"), [(False, SUSPECT), (True, FAILED)])
def test_a_failed_port_is_reported_and_counts_if_the_setting_says_so(
    b3: Machine, counts: bool, state: HealthState
) -> None:
    b3.stub.add("chip.5.0.ip 10.0.0.5", "chip.5.0.net 3", "chip.4.0.ip 10.0.0.4", "chip.4.0.net 6")
    with b3.session(network_is_health=counts) as child:
        child.discover()
        for _ in range(100):
            inventory = child.discover()
            if inventory.devices[5].health.reason == "NetworkUnhealthy":
                break
    assert inventory.devices[5].health.state is state
    assert inventory.devices[4].health.is_in_service
    assert dict(inventory.facts)["xpu-agent.io/npu-network-unhealthy"] == "5"
