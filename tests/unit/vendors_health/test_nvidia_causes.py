from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.snapshot.device import HealthState
from plugins.vendors.nvidia.health.causes import (
    MAX_CAUSES,
    CardCheck,
    Cure,
    FaultCause,
    ResetMarks,
    add_cause,
    degraded_conditions,
    health_of,
    remaining_causes,
    was_reset,
)

FINE = CardCheck(now_s=1000.0, boot_id="a", is_good=True)


def cause(cure: Cure, **more: Any) -> FaultCause:
    values = {
        "reason": "Xid48",
        "message": "",
        "first_s": 0.0,
        "last_s": 0.0,
        "boot_id": "a",
        **more,
    }
    return FaultCause(cure=cure, **values)


def holds(one: FaultCause, **check: Any) -> bool:
    return bool(remaining_causes((one,), replace(FINE, **check)))


@pytest.mark.parametrize(
    ("fault_cause", "check", "expected"),
    [
        pytest.param(cause(Cure.RESET), {"action": 0}, True, id="never-asked-for-anything"),
        pytest.param(
            cause(Cure.RESET, action_requested=True), {"action": 0}, False, id="V41-asked-and-done"
        ),
        pytest.param(
            cause(Cure.RESET, action_requested=True), {"action": 1}, True, id="V41-still-asks"
        ),
        pytest.param(
            cause(Cure.RESET, action_requested=True),
            {"action": 0, "is_good": False},
            True,
            id="no-probe",
        ),
        pytest.param(cause(Cure.RESET, was_reset=True), {"action": 0}, False, id="reset-seen"),
        pytest.param(cause(Cure.RESET), {"was_reset": True}, False, id="reset-seen-without-action"),
        pytest.param(cause(Cure.RESET, action_requested=True), {}, True, id="action-not-told"),
        pytest.param(cause(Cure.QUIET), {"action": 0, "now_s": 599.0}, True, id="not-yet-quiet"),
        pytest.param(cause(Cure.QUIET), {"action": 0, "now_s": 600.0}, False, id="quiet"),
        pytest.param(cause(Cure.QUIET), {"now_s": 600.0}, True, id="quiet-but-nobody-tells"),
        pytest.param(cause(Cure.REBOOT, reason="Xid79"), {}, True, id="V42"),
        pytest.param(cause(Cure.REBOOT, reason="Xid79"), {"was_reset": True}, True, id="V42-reset"),
        pytest.param(cause(Cure.REBOOT), {"boot_id": "b"}, False, id="another-boot"),
        pytest.param(cause(Cure.REBOOT), {"boot_id": ""}, True, id="boot-not-told"),
        pytest.param(
            cause(Cure.REBOOT, boot_id=""), {"boot_id": "b"}, True, id="boot-was-not-told"
        ),
        pytest.param(cause(Cure.ANSWER), {}, False, id="answers-again"),
        pytest.param(cause(Cure.ANSWER), {"is_good": False}, True, id="does-not-answer"),
        pytest.param(cause(Cure.ACTION), {"action": 0}, False, id="asks-for-nothing"),
        pytest.param(cause(Cure.ACTION), {}, True, id="action-reason-and-not-told"),
        pytest.param(cause(Cure.REPAIR), {"was_reset": True}, False, id="repaired"),
        pytest.param(cause(Cure.REPAIR), {}, True, id="no-reset-no-repair"),
        pytest.param(
            cause(Cure.REPAIR),
            {"was_reset": True, "reasons": frozenset({"Xid48"})},
            True,
            id="told-again",
        ),
        pytest.param(cause(Cure.TIME), {"now_s": 3599.0, "is_good": False}, True, id="warning"),
        pytest.param(
            cause(Cure.TIME), {"now_s": 3600.0, "is_good": False}, False, id="warning-over"
        ),
    ],
)
def test_a_cause_leaves_by_its_rule(
    fault_cause: FaultCause, check: dict[str, Any], expected: bool
) -> None:
    assert holds(fault_cause, **check) is expected


@pytest.mark.parametrize(("cure", "lasts_s"), [(Cure.QUIET, 600.0), (Cure.TIME, 3600.0)])
def test_a_cause_ends_in_time_although_the_clock_was_set_back(cure: Cure, lasts_s: float) -> None:
    ahead = (cause(cure, first_s=90_000.0, last_s=90_000.0),)
    causes = remaining_causes(ahead, replace(FINE, action=0))
    assert causes
    assert remaining_causes(causes, replace(FINE, action=0, now_s=FINE.now_s + lasts_s)) == ()


def test_the_drivers_required_action_is_remembered_until_it_requires_none() -> None:
    causes = remaining_causes((cause(Cure.RESET),), replace(FINE, action=1))
    assert causes[0].action_requested
    assert remaining_causes(causes, replace(FINE, action=0)) == ()


@pytest.mark.parametrize(
    ("before", "now", "is_reset"),
    [
        ({"energy_mj": 9.0}, {"energy_mj": 8.0}, True),
        ({"energy_mj": 9.0}, {"energy_mj": 9.0}, False),
        ({"energy_mj": None}, {"energy_mj": 8.0}, False),
        ({"uncorrected": 1.0}, {"uncorrected": 0.0}, True),
        ({"module": "17"}, {"module": "18"}, True),
        ({"module": "17"}, {"module": ""}, False),
        ({"boot_id": "a"}, {"boot_id": "b"}, True),
        ({"boot_id": ""}, {"boot_id": "b"}, False),
    ],
)
def test_a_reset_is_detected_by_the_counters_that_it_clears(
    before: dict[str, Any], now: dict[str, Any], is_reset: bool
) -> None:
    assert was_reset(ResetMarks(**before), ResetMarks(**now)) is is_reset


def test_the_root_cause_comes_first_and_the_others_with_it() -> None:
    causes = (
        cause(Cure.ANSWER, reason="GpuLost", message="gone"),
        cause(Cure.RESET, reason="Xid119", message="no answer", first_s=2.0),
        cause(Cure.REBOOT, reason="Xid79", message="fell off", first_s=3.0),
    )
    health = health_of(causes)
    assert (health.state, health.reason) == (HealthState.FAILED, "Xid79")
    assert health.message == "fell off; also Xid119, GpuLost"


def test_a_cause_of_a_slice_takes_that_slice_only_and_one_of_the_card_all() -> None:
    one, card = cause(Cure.RESET, partition="MIG-1"), cause(Cure.RESET, reason="Xid79")
    assert [health_of((one,), p).is_in_service for p in ("", "MIG-1", "MIG-2")] == [
        True,
        False,
        True,
    ]
    assert [health_of((card,), p).is_in_service for p in ("", "MIG-1", "MIG-2")] == [False] * 3


def test_warnings_show_the_present_ones_first_and_not_for_ever() -> None:
    old = cause(Cure.TIME, reason="Xid63", message="a row", last_s=0.0)
    new = cause(Cure.TIME, reason="Xid92", message="many", last_s=3000.0)
    (condition,) = degraded_conditions((old, new), (("Throttled", "hot"),), 3599.0)
    assert (condition.type, condition.status, condition.reason) == ("Degraded", True, "Throttled")
    assert condition.message == "hot; also Xid92, Xid63"
    assert degraded_conditions((old, new), (), 3600.0)[0].reason == "Xid92"
    assert degraded_conditions((old,), (), 3600.0) == ()


def test_a_repeated_cause_keeps_its_first_time_and_needs_a_new_cure() -> None:
    (merged,) = add_cause(
        (cause(Cure.RESET, was_reset=True),), cause(Cure.RESET, first_s=9.0, last_s=9.0)
    )
    assert (merged.first_s, merged.last_s, merged.was_reset) == (0.0, 9.0, False)


@given(st.lists(st.tuples(st.sampled_from(Cure), st.integers(0, 60)), max_size=120))
def test_causes_are_bounded_and_a_failure_is_never_lost_to_warnings(
    reports: list[tuple[Cure, int]],
) -> None:
    causes: tuple[FaultCause, ...] = ()
    for cure, number in reports:
        causes = add_cause(causes, cause(cure, reason=f"Xid{number}", last_s=float(number)))
    assert len(causes) <= MAX_CAUSES
    assert (health_of(causes).state is HealthState.FAILED) == any(
        c.cure is not Cure.TIME for c in causes
    )
    if len({(c, n) for c, n in reports}) <= MAX_CAUSES:
        last = {number: cure for cure, number in reports}
        assert {c.reason: c.cure for c in causes} == {f"Xid{n}": c for n, c in last.items()}
