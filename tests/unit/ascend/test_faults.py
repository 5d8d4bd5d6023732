from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ParseError
from agent.snapshot.device import HealthState
from plugins.vendors.ascend.health import history as fault_history
from plugins.vendors.ascend.health.fault_codes import (
    FaultClass,
    classify,
    maker_table,
    parse_fault_codes,
    recurring_codes,
    worst_class,
)
from plugins.vendors.ascend.health.fault_store import FaultStore
from plugins.vendors.ascend.health.history import NO_FAULTS, FaultHistory
from plugins.vendors.ascend.health.verdict import ChipState, judge_chip

HEALTHY, SUSPECT, FAILED = HealthState.HEALTHY, HealthState.SUSPECT, HealthState.FAILED
LINK = 0x81078603


def history_after(*times: tuple[float, Sequence[int]]) -> FaultHistory:
    """Return the history after polls at these times with these codes."""
    history = NO_FAULTS
    for at_s, codes in times:
        history = fault_history.update_codes(history, codes, at_s)
    return history


@pytest.mark.parametrize(
    ("phy", "codes", "health", "state", "reason", "message"),
    [
        pytest.param(0, (), 0, HEALTHY, "DeviceHealthy", "device is healthy", id="E23"),
        pytest.param(
            5,
            (0x80E01801,),
            2,
            FAILED,
            "ChipFault",
            "NPU 5 reports 1 chip fault: 80E01801 (RestartBusiness)",
            id="E24",
        ),
        pytest.param(
            0,
            (0x8C2FA009, 0x80CB8009),
            1,
            FAILED,
            "ChipFault",
            "NPU 0 reports 2 chip faults: 80CB8009,8C2FA009 (RestartRequest)",
            id="E25",
        ),
        pytest.param(1, (), 2, FAILED, "HealthCode2", "NPU 1 reports health 2", id="E29"),
        pytest.param(
            3,
            (0x80DE0207,),
            0,
            SUSPECT,
            "SubHealth",
            "NPU 3 reports 1 chip fault: 80DE0207 (SubHealthFault)",
            id="sub-health",
        ),
        pytest.param(
            2,
            (0x8F180220,),
            0,
            FAILED,
            "PreSeparated",
            "NPU 2 reports 1 chip fault: 8F180220 (PreSeparateNPU)",
            id="pre-separated",
        ),
        pytest.param(
            0, (0x8C2FA009,), 0, HEALTHY, "DeviceHealthy", "device is healthy", id="not to handle"
        ),
        pytest.param(
            0, (0x80E38003,), 2, HEALTHY, "DeviceHealthy", "device is healthy", id="nor by health"
        ),
    ],
)
def test_codes_and_health_come_to_a_verdict(
    phy: int, codes: Sequence[int], health: int, state: HealthState, reason: str, message: str
) -> None:
    result = judge_chip(ChipState(phy=phy, health=health, history=history_after((0.0, codes))))
    assert (result.state, result.reason, result.message) == (state, reason, message)


@pytest.mark.parametrize(
    ("severity", "health", "state"),
    [
        pytest.param(1, 0, HEALTHY, id="E30 severity 1"),
        pytest.param(None, 0, SUSPECT, id="E30 no severity, health 0"),
        pytest.param(None, 3, FAILED, id="E30 no severity, health 3"),
        pytest.param(2, 0, FAILED, id="E30 severity 2"),
    ],
)
def test_an_unknown_code_is_judged_by_its_severity_else_by_the_chip(
    severity: int | None, health: int, state: HealthState
) -> None:
    severities = {} if severity is None else {0xDEADBEEF: severity}
    history = history_after((0.0, (0xDEADBEEF,)))
    result = judge_chip(ChipState(phy=0, health=health, history=history, severities=severities))
    assert result.state is state


@pytest.mark.parametrize("code", [pytest.param(0xA2301001, id="E26")])
def test_a_code_in_two_lists_is_of_the_worse_one(code: int) -> None:
    assert classify(code, maker_table(), None, 0) is FaultClass.SEPARATE
    assert judge_chip(ChipState(phy=0, history=history_after((0.0, (code,))))).state is FAILED


@pytest.mark.parametrize(
    ("looks", "state", "reason"),
    [
        pytest.param([(0, 1), (5, 1)], HEALTHY, "DeviceHealthy", id="E27 for 5 s"),
        pytest.param([(0, 1), (21, 1)], FAILED, "PreSeparated", id="E27 for 21 s"),
        pytest.param([(0, 1), (21, 1), (30, 0), (89, 0)], FAILED, "PreSeparated", id="not yet"),
        pytest.param([(0, 1), (21, 1), (30, 0), (91, 0)], HEALTHY, "DeviceHealthy", id="E27 gone"),
        pytest.param([(0, 1), (5, 0), (30, 0)], HEALTHY, "DeviceHealthy", id="a short one"),
    ],
)
def test_a_lost_link_counts_when_it_lasts(
    looks: list[tuple[int, int]], state: HealthState, reason: str
) -> None:
    history = history_after(*((float(at), (LINK,) if there else ()) for at, there in looks))
    health = judge_chip(ChipState(phy=0, health=0, history=history))
    assert (health.state, health.reason) == (state, reason)


@pytest.mark.parametrize(
    ("again_s", "reason"),
    [
        pytest.param(86_399.0, "ManuallySeparated", id="E31 within a day"),
        pytest.param(86_401.0, "ChipFault", id="E31 a day later"),
    ],
)
def test_a_fault_that_comes_back_within_a_day_takes_the_chip_out(
    again_s: float, reason: str
) -> None:
    history = history_after((0.0, (0x80A18008,)), (10.0, ()), (again_s, (0x80A18008,)))
    health = judge_chip(ChipState(phy=4, health=2, history=history))
    assert health.reason == reason
    if reason == "ChipFault":
        assert health.message.endswith("(RestartNPU)")
    over = fault_history.update_codes(history, (), again_s + 1e6)
    assert (judge_chip(ChipState(phy=4, history=over)).state is FAILED) == (reason != "ChipFault")


def test_a_fault_that_stays_is_one_fault() -> None:
    history = history_after(*((float(at), (0x80A18008,)) for at in range(0, 1000, 5)))
    assert history.separated_s is None


def test_a_link_that_was_lost_five_times_is_let_back_after_two_days() -> None:
    looks = [(at, (LINK,) if at % 2 == 0 else ()) for at in range(10)]
    history = history_after(*((float(at), codes) for at, codes in looks))
    assert judge_chip(ChipState(phy=0, history=history)).reason == "ManuallySeparated"
    later = fault_history.update_codes(history, (), 8.0 + fault_history.LINK_RELEASED_S - 1)
    assert later.separated_s is not None
    assert (
        fault_history.update_codes(later, (), 8.0 + fault_history.LINK_RELEASED_S).separated_s
        is None
    )


def test_three_hangs_of_the_driver_take_the_chip_out_and_two_do_not() -> None:
    code = 0x80E18005
    twice = history_after((0, (code,)), (1, ()), (2, (code,)))
    assert twice.separated_s is None
    assert (
        fault_history.update_codes(fault_history.update_codes(twice, (), 3), (code,), 4).separated_s
        == 4
    )


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        pytest.param(
            {"loss_reason": "x", "is_not_ready": True}, "DeviceLost", id="lost before all"
        ),
        pytest.param({"is_not_ready": True, "resetting_s": 1.0}, "CardDropped", id="E28"),
        pytest.param({"resetting_s": 1.0, "failing_call": "x"}, "Resetting", id="resetting"),
        pytest.param({"failing_call": "x", "health": 3}, "DriverError", id="no answer"),
        pytest.param({"health": 3, "network": 3, "network_counts": True}, "HealthCode3", id="code"),
        pytest.param({"network": 3, "network_counts": True}, "NetworkUnhealthy", id="network"),
    ],
)
def test_the_gravest_cause_is_the_reason(state: dict[str, object], reason: str) -> None:
    health = judge_chip(ChipState(phy=4, **state))  # type: ignore[arg-type]
    assert (health.state, health.reason) == (FAILED, reason)
    if reason == "CardDropped":
        assert health.message == "NPU 4 is not ready (-8012)"


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"network": 3}, "NetworkUnhealthy"),
        ({"is_inconsistent": True}, "FirmwareInconsistent"),
        ({"denied_call": "dcmi_x"}, "PermissionDenied"),
        ({"uncoded_faults": 1}, "SubHealth"),
    ],
)
def test_a_fault_for_inspection_leaves_the_chip_in_service(
    state: dict[str, object], reason: str
) -> None:
    health = judge_chip(ChipState(phy=4, **state))  # type: ignore[arg-type]
    assert (health.state, health.reason) == (SUSPECT, reason)


def test_faults_without_codes_are_counted() -> None:
    health = judge_chip(ChipState(phy=5, health=2, uncoded_faults=1))
    assert (health.reason, health.message) == ("ChipFault", "NPU 5 reports 1 chip fault")


def test_faults_that_ended_more_than_a_day_ago_are_dropped() -> None:
    history = history_after(*((float(n), (n,)) for n in range(1, 100)))
    assert [entry.code for entry in fault_history.update_codes(history, (7,), 2e5).codes] == [99, 7]


def test_an_occurrence_of_a_time_that_is_far_ahead_counts_no_more() -> None:
    history = history_after((1e9, (0x80A18008,)), (1e9 + 1, ()), (0.0, (0x80A18008,)))
    assert history.separated_s is None


def test_a_fault_ends_although_the_clock_was_set_back_while_it_lasted() -> None:
    history = fault_history.raise_fault(NO_FAULTS, 0x80A18008, 10_000.0)
    polled = fault_history.apply_poll(history, (), 6_400.0, 6_400.5)
    assert fault_history.active_codes(polled) == ()


def test_a_lost_link_counts_when_it_lasts_after_the_clock_was_set_back() -> None:
    history = history_after((10_000.0, (LINK,)), (6_400.0, (LINK,)), (6_401.0, (LINK,)))
    assert not history.link_outage
    assert fault_history.update_codes(history, (LINK,), 6_421.5).link_outage


def test_an_outage_that_ended_in_the_future_is_over() -> None:
    history = history_after((10_000.0, (LINK,)), (10_030.0, (LINK,)), (10_031.0, ()))
    assert history.link_outage
    assert not fault_history.update_codes(history, (), 6_400.0).link_outage


def test_a_chip_is_let_back_two_days_after_the_clock_was_set_back() -> None:
    looks = [(1e9 + at, codes) for at in range(0, 10, 2) for codes in ((LINK,), ())]
    history = fault_history.update_codes(history_after(*looks), (), 5.0)
    assert history.separated_s is not None
    later = fault_history.update_codes(history, (), 5.0 + fault_history.LINK_RELEASED_S)
    assert later.separated_s is None


def test_the_table_has_the_figures_of_the_maker() -> None:
    table = maker_table()
    assert len(recurring_codes()) == 41
    assert table[0x8F18021A - 1] is FaultClass.SEPARATE
    assert table[0x8F180220] is FaultClass.PRE_SEPARATE
    assert table[0x8C2FA001] is FaultClass.SUB_HEALTH
    assert worst_class([FaultClass.SUB_HEALTH, FaultClass.RESTART_JOB]) is FaultClass.RESTART_JOB
    assert worst_class([]) is FaultClass.NONE


def test_administrators_replace_the_table_whole() -> None:
    file = {"SubHealthFaultCodes": ["80E01801"], "NotHandleFaultCodes": ["80e01801", "80CB8009"]}
    table = parse_fault_codes(json.dumps({**file, "Other": 3}).encode())
    assert table == {0x80E01801: FaultClass.SUB_HEALTH, 0x80CB8009: FaultClass.NONE}


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"\xff", b'{"NotHandleFaultCodes": "x"}', b'{"NotHandleFaultCodes": ["80G0"]}'],
)
def test_a_file_that_is_no_table_is_refused(data: bytes) -> None:
    with pytest.raises(ParseError):
        parse_fault_codes(data)


@given(st.binary(max_size=200))
def test_any_file_is_a_table_or_refused(data: bytes) -> None:
    with contextlib.suppress(ParseError):
        parse_fault_codes(data)


def test_a_restart_does_not_forget_and_does_not_count_twice(tmp_path: Path) -> None:
    first = FaultStore(str(tmp_path))
    first.record_poll("die", [0x80A18008], 0.0)
    first.flush()
    second = FaultStore(str(tmp_path))
    assert second.record_poll("die", [0x80A18008], 100.0).separated_s is None
    second.record_poll("die", [], 200.0)
    assert second.record_raised("die", 0x80A18008, 3, 300.0).separated_s == 300.0
    second.flush()
    third = FaultStore(str(tmp_path))
    assert third.history_of("die").separated_s == 300.0
    assert third.release("die")
    assert not third.release("die")
    third.flush()
    assert FaultStore(str(tmp_path)).history_of("die").separated_s is None


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"die": 3}', '{"die": {"codes": [{"code": 1, "began_s": []}]}}']
)
def test_a_damaged_state_file_is_renamed_and_reported(tmp_path: Path, content: str) -> None:
    (tmp_path / "ascend-faults.json").write_text(content)
    book = FaultStore(str(tmp_path))
    assert book.problem is not None
    assert book.problem.reason == "StateFileDamaged"
    assert (tmp_path / "ascend-faults.json.bad").exists()
