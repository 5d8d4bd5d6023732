from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.clock import ManualClock
from agent.runbook.entry import FaultCategory, RecommendedAction
from agent.snapshot.device import DEGRADED, HealthState
from plugins.vendors.cambricon.health import XidWatch, judge_failed_calls, judge_status
from plugins.vendors.cambricon.library.card import MluStatus
from plugins.vendors.cambricon.library.cndev import Cndev
from plugins.vendors.cambricon.library.codes import TIMED_OUT, CndevFault
from plugins.vendors.cambricon.runbook import CambriconRunbook
from tests.unit.cambricon.cards import machine, session, stub_of, tree_of

GOOD: dict[str, Any] = {"health": 1, "device": 1, "driver": 4, "compute": 0}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({}, "DeviceHealthy", id="V53 all good"),
        pytest.param({"compute": 2}, "ComputeProhibited", id="V53 compute 2"),
        pytest.param({"driver": 6}, "Resetting", id="V53 driver 6"),
        pytest.param({"device": 0}, "DeviceInProblem", id="V53 device 0"),
        ({"health": 0}, "DeviceInProblem"),
        ({"driver": 2}, "DriverStarting"),
        ({"driver": 5}, "DriverFault"),
        ({"driver": 99}, "DriverFault"),
        ({"overall": 20, "incidents": ((15, "double bit"),)}, "Incident15"),
        ({"overall": 20}, "Incident1"),
        ({"overall": 10}, "SubHealth"),
        ({"driver": 6, "device": 0, "compute": 2}, "Resetting"),
        ({"device": 0, "overall": 20, "compute": 2}, "DeviceInProblem"),
        ({"overall": 20, "compute": 2, "incidents": ((9, ""),)}, "Incident9"),
    ],
)
def test_the_gravest_cause_is_the_verdict(changes: dict[str, Any], reason: str) -> None:
    health = judge_status(MluStatus(**{**GOOD, **changes}))
    assert health.reason == reason
    assert health.is_in_service is (reason in ("DeviceHealthy", "SubHealth"))


def test_an_xid_causes_an_event_only_if_the_card_is_unhealthy() -> None:
    assert judge_status(MluStatus(**GOOD), 47).message == "device is healthy"
    assert judge_status(MluStatus(**{**GOOD, "device": 0}), 47).message.endswith(
        "Xid 0x000000000000002f"
    )


class IdleCndev:
    """A library in which nothing happens: waits take as long as they may."""

    def __init__(self, clock: ManualClock) -> None:
        self.waits_ms: list[int] = []
        self._clock = clock

    def call(self, name: str, *args: object) -> None:
        """Accept each call."""

    def record(self, _name: str) -> ctypes.c_uint64:
        return ctypes.c_uint64()

    def wait(self, name: str, _event_set: object, _event: object, timeout_ms: int) -> None:
        self.waits_ms.append(timeout_ms)
        self._clock.advance(timeout_ms / 1000)
        raise CndevFault(name, TIMED_OUT)


def test_a_wait_without_events_wakes_the_processor_once() -> None:
    clock = ManualClock()
    library = IdleCndev(clock)
    watch = XidWatch(lambda _key: None, clock)
    watch.watch(cast("Cndev", library), {})
    assert watch.wait(0.0205) == ()
    assert library.waits_ms == [21]


@given(
    st.builds(
        MluStatus,
        health=st.none() | st.integers(),
        device=st.none() | st.integers(),
        driver=st.none() | st.integers(),
        compute=st.none() | st.integers(),
        overall=st.sampled_from([None, 0, 10, 20]),
        incidents=st.lists(st.tuples(st.integers(), st.text(max_size=9)), max_size=3).map(tuple),
    )
)
def test_every_verdict_has_a_reason_that_a_condition_takes(status: MluStatus) -> None:
    verdict = judge_status(status)
    assert verdict.reason.isalnum()
    assert verdict.reason[0].isupper()
    assert verdict.is_in_service or verdict.state is HealthState.FAILED


def test_three_failing_calls_in_a_row_make_a_card_failed_and_one_good_call_ends_it(
    tmp_path: Path,
) -> None:
    stub = stub_of(tmp_path, *machine(1))
    with session(stub, tree_of(tmp_path, 1)) as child:
        child.discover()
        stub.add("call.cndevGetCardHealthState.ret 7")
        failing = [child.sample()[0].health for _ in range(3)]
        stub.play(*machine(1))
        good = child.sample()[0].health
    assert failing[:2] == [None, None]  # not looked at, as far as anybody can tell
    assert failing[2] is not None
    assert (failing[2].state, failing[2].reason) == (HealthState.FAILED, "DriverError")
    assert good is not None
    assert good.state is HealthState.HEALTHY


def test_a_silent_card_is_reported_once_and_not_at_each_poll() -> None:
    # a text that changes with each check would cause a write of the Device object each time
    assert len({judge_failed_calls(calls, 7) for calls in range(3, 9)}) == 1


def test_a_device_in_problem_is_reported_at_once(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(1))
    with session(stub, tree_of(tmp_path, 1)) as child:
        child.discover()
        stub.add("call.cndevGetCardHealthState.ret 18")
        (sample,) = child.sample()
    assert sample.health is not None
    assert sample.health.reason == "DeviceInProblem"


def test_a_permission_that_was_lost_is_no_fault_of_the_card(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(1))
    with session(stub, tree_of(tmp_path, 1)) as child:
        child.discover()
        stub.add("call.cndevGetCardHealthState.ret 13")
        verdicts = [child.sample()[0].health for _ in range(4)]
    assert {(v.state, v.reason) for v in verdicts if v} == {
        (HealthState.SUSPECT, "PermissionDenied")
    }


def test_a_card_that_never_reported_its_health_is_not_healthy(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(1), "call.cndevGetCardHealthState.ret 7")
    with session(stub, tree_of(tmp_path, 1)) as child:
        (device,) = child.discover().devices
    assert (device.health.state, device.health.reason) == (HealthState.SUSPECT, "DriverError")


def test_incidents_are_reported_in_the_cards_own_words(tmp_path: Path) -> None:
    words = ("mlu.0.overall 20", "mlu.0.incident.0 26:hot as hell", "mlu.0.incident.1 15:bits")
    stub = stub_of(tmp_path, *machine(1), *words)
    with session(stub, tree_of(tmp_path, 1)) as child:
        (device,) = child.discover().devices
    assert device.health.reason == "Incident26"
    assert device.health.message == "the card fails: hot as hell, bits"


def test_after_an_xid_the_card_is_checked_and_the_verdict_published(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(2))
    with session(stub, tree_of(tmp_path)) as child:
        child.discover()
        stub.happen("1 0x2f")
        harmless = child.wait_event()
        stub.add("mlu.1.device 0")
        stub.happen("1 0x2f")
        event = child.wait_event()
        _, sample = child.sample()
    assert (harmless.key, harmless.reason, harmless.state) == ("0000:1b:00.0", "Xid47", None)
    assert (event.reason, event.state) == ("DeviceInProblem", HealthState.FAILED)
    assert "Xid 0x000000000000002f" in event.message
    counters = [r for r in sample.readings if r.family == "xpu_device_mlu_xid_errors_total"]
    assert [(r.labels, r.value) for r in counters] == [(("0x000000000000002f",), 2.0)]


def test_after_a_new_load_of_the_driver_xids_are_requested_again(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(2))
    with session(stub, tree_of(tmp_path)) as child:
        child.discover()
        stub.add("call.cndevGetDeviceCount.ret 1")
        assert {device.health.reason for device in child.discover().devices} == {"DriverNotLoaded"}
        stub.play(*machine(2), "call.cndevEventHandleCreate.ret 7")
        assert {device.health.reason for device in child.discover().devices} == {"DeviceHealthy"}
        stub.play(*machine(2))
        child.discover()
        stub.happen("1 0x2f")
        assert child.wait_event().key == "0000:1b:00.0"
    assert stub.counts()["cndevEventHandleCreate"] == 3  # the second one failed
    assert stub.counts()["cndevRegisterEvents"] == 4


@pytest.mark.parametrize(
    ("memory", "reason", "action"),
    [
        ("mlu.0.repair 0:1:0", "RepairPending", RecommendedAction.RESET),
        ("mlu.0.repair 1:0:0", "PageRetirementPending", RecommendedAction.RESET),
        ("mlu.0.repair 1:1:1", "RepairFailed", RecommendedAction.REPLACE),
    ],
)
def test_a_repair_of_memory_that_waits_or_failed_is_a_fault_of_a_card_in_service(
    tmp_path: Path, memory: str, reason: str, action: RecommendedAction
) -> None:
    stub = stub_of(tmp_path, *machine(2), memory)
    with session(stub, tree_of(tmp_path, 2)) as child:
        faulty, good = child.discover().devices
    assert faulty.health.state is HealthState.HEALTHY
    (condition,) = faulty.conditions
    assert (condition.type, condition.status, condition.reason) == (DEGRADED, True, reason)
    entry = CambriconRunbook().find(condition.reason, condition.message)
    assert entry is not None
    assert (entry.category, entry.action) == (FaultCategory.MEMORY, action)
    assert good.conditions == ()


def test_the_repair_of_an_older_driver_is_read_from_the_remapped_rows(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(1), "mlu.0.rows 4:1:2:0", without=("cndevGetRepairStatus",))
    with session(stub, tree_of(tmp_path, 1)) as child:
        (device,) = child.discover().devices
        (sample,) = child.sample()
    assert [condition.reason for condition in device.conditions] == ["RepairPending"]
    repairs = {
        reading.labels: reading.value
        for reading in sample.readings
        if reading.family == "xpu_mlu_memory_repair"
    }
    assert repairs == {("pending",): 1, ("failed",): 0}


def test_a_pending_repair_stays_while_it_cannot_be_read_and_ends_with_the_reset(
    tmp_path: Path,
) -> None:
    stub = stub_of(tmp_path, *machine(1), "mlu.0.repair 0:1:0")
    with session(stub, tree_of(tmp_path, 1)) as child:
        child.discover()
        stub.add("call.cndevGetRepairStatus.ret 7")
        (unread,) = child.discover().devices
        stub.play(*machine(1), "mlu.0.repair 0:0:0")
        (repaired,) = child.discover().devices
    assert [condition.reason for condition in unread.conditions] == ["RepairPending"]
    assert repaired.conditions == ()
