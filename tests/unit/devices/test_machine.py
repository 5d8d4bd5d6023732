"""The health machine, look by look."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.config.health import HealthSettings
from agent.devices.health import observe
from agent.devices.vendor_health import resolve_policy
from agent.snapshot.device import HealthState
from agent.snapshot.settings import HealthOverrides
from tests.unit.devices.looks import BAD, GOOD, ODD, UNSURE, WALL_S, Device, at
from tests.vendors import DESCRIPTIONS


@pytest.mark.parametrize(
    ("policy", "looks", "states"),
    [
        pytest.param({}, "gbgggg", "HFPPHH", id="back after three clean looks"),
        pytest.param({}, "gbggbggg", "HFPPFPPH", id="a fault among them begins anew"),
        pytest.param({"clean_probes": 1}, "gbg", "HFH", id="who settles itself is believed"),
        pytest.param({"clean_s": 4.0}, "gbgggg", "HFPPPH", id="time has to pass as well"),
        pytest.param({}, "bggg", "FPPH", id="the first look counts at once"),
        pytest.param({}, "ogg", "SSH", id="odd until two looks find nothing"),
        pytest.param({}, "googg", "HSSSH", id="odd at once"),
        pytest.param({"suspect_looks": 2}, "gogoog", "HHHHSS", id="odd when confirmed"),
        pytest.param({"failed_looks": 3}, "gbbbg", "HSSFP", id="failed when confirmed"),
        pytest.param({"failed_looks": 3}, "gbbggb", "HSSSHS", id="or never"),
        pytest.param({}, "gobgogg", "HSFPPHH", id="what looks odd does not fail"),
        pytest.param({}, "gbooogg", "HFPPSSH", id="it serves again, but is odd"),
        pytest.param({}, "gb?ggg", "HFFPPH", id="what nobody can tell changes nothing"),
        pytest.param({}, "gbg?ggg", "HFPPPPH", id="but it breaks the row"),
    ],
)
def test_states_follow_looks(policy: dict[str, float], looks: str, states: str) -> None:
    assert Device(**policy).looks(looks) == states


def test_the_text_of_a_probing_device_stays_the_same_so_that_its_checks_write_nothing() -> None:
    device = Device(clean_s=60.0)
    device.look(BAD)
    reports = [device.look(GOOD) for _ in range(59)]
    assert {(health.state, health.reason, health.message) for health in reports} == {
        (
            HealthState.PROBING,
            "Xid95",
            "uncontained memory error; looks well again, in service after 3 looks in a row and"
            " 60 s without a fault",
        )
    }
    assert device.look(GOOD).state is HealthState.HEALTHY


def test_a_fault_that_is_not_confirmed_yet_says_so() -> None:
    device = Device(failed_looks=3)
    device.look(GOOD)
    assert device.look(BAD).message == (
        "uncontained memory error; failed if 3 looks in a row find it so"
    )


def test_dates_and_numbers_are_those_of_changes_of_state_alone() -> None:
    device = Device()
    assert device.look(GOOD).since_s is None
    device.look(BAD)
    other = device.look(replace(BAD, reason="Xid48"))
    assert (other.reason, other.since_s, other.changes) == ("Xid48", WALL_S + 2, 1)
    device.looks("ggg")
    assert (device.health.since_s, device.health.changes) == (WALL_S + 6, 3)


@pytest.mark.parametrize(
    ("dated_s", "since_s"),
    [
        pytest.param(WALL_S + 1.5, WALL_S + 1.5, id="believed"),
        pytest.param(WALL_S + 900, WALL_S + 2, id="not if it is still to come"),
        pytest.param(WALL_S - 900, WALL_S + 2, id="not if it is before the last change"),
    ],
)
def test_a_vendor_may_date_what_it_saw(dated_s: float, since_s: float) -> None:
    device = Device(clean_probes=1)
    device.look(replace(BAD, since_s=WALL_S), 0.5)
    device.look(GOOD, 0.5)
    assert device.look(replace(BAD, since_s=dated_s)).since_s == since_s


def test_a_bad_first_check_has_its_vendors_date_or_none() -> None:
    assert Device().look(BAD).since_s is None
    assert Device().look(replace(BAD, since_s=5.0)).since_s == 5.0


def test_doubt_keeps_the_state_and_dates_what_is_known() -> None:
    device = Device()
    device.look(GOOD)
    doubted = device.look(UNSURE)
    assert (doubted.state, doubted.certain, doubted.reason) == (
        HealthState.HEALTHY,
        False,
        "DriverStalled",
    )
    assert doubted.message == "no answer; before that DeviceHealthy: device is healthy"
    assert device.look(UNSURE).since_s == doubted.since_s == WALL_S + 2
    view = device.look(GOOD)
    assert (view.certain, view.since_s, view.changes) == (True, WALL_S + 4, 0)


def test_an_uncertain_first_result_of_a_vendor_is_published() -> None:
    first = Device().look(UNSURE)
    assert (first.state, first.certain, first.reason) == (
        HealthState.HEALTHY,
        False,
        "DriverStalled",
    )


def test_the_fourth_turn_within_an_hour_is_put_off_for_an_hour() -> None:
    device = Device()
    assert device.looks("gbgggbggg") == "HFPPHFFFF"
    health = device.health
    assert health.reason == "Flapping"
    assert health.message == (
        "changed more than 3 times within 3600 s, held until 3600 s after the last fault;"
        " Xid95: uncontained memory error"
    )
    assert device.look(GOOD, 3596).state is HealthState.FAILED
    assert device.look(GOOD, 1).state is HealthState.HEALTHY


@pytest.mark.parametrize("state", ["b", "o"])
def test_what_turns_often_is_held_in_its_last_bad_state(state: str) -> None:
    device = Device(clean_probes=1, clear_looks=1, flap_changes=3)
    letter = {"b": "F", "o": "S"}[state]
    assert device.looks(f"g{state}g{state}gggg") == f"H{letter}H{letter}" + 4 * letter
    assert device.health.reason == "Flapping"
    device.looks(state, 1800)
    assert device.looks("g", 1801) == letter, "a new fault begins the hold anew"
    assert device.looks("g", 1800) == "H"
    assert device.looks(f"{state}g") == f"{letter}H", "and the count too"


def test_turns_far_apart_are_no_flapping() -> None:
    device = Device(clean_probes=1)
    assert device.looks("gbgbgbgbgbg", 1300) == "HFHFHFHFHFH"


def test_getting_worse_in_steps_is_one_turn() -> None:
    device = Device(clean_probes=1, clear_looks=1)
    assert device.looks("gobgobg") == "HSFHSFF"


@pytest.mark.parametrize(
    ("vendor", "looks_needed", "seconds"),
    [
        pytest.param("nvidia", 3, 60.0, id="V41-nvidia"),
        pytest.param("ascend", 3, 15.0, id="E32-ascend"),
        pytest.param("cambricon", 3, 0.0, id="cambricon"),
        pytest.param("rdma", 1, 0.0, id="rdma"),
        pytest.param("x", 3, 0.0, id="any other"),
    ],
)
def test_each_vendors_devices_come_back_in_their_own_time(
    vendor: str, looks_needed: int, seconds: float
) -> None:
    overrides = {one.name: one.health for one in DESCRIPTIONS}.get(vendor, HealthOverrides())
    policy = resolve_policy(HealthSettings(), vendor, overrides)
    track = observe(observe(None, GOOD, policy, at(0)), BAD, policy, at(1))
    looks = 0
    while track.state is not HealthState.HEALTHY:
        looks += 1
        track = observe(track, GOOD, policy, at(1 + looks))
    assert looks == max(looks_needed, seconds)


def test_a_silence_needs_no_second_look() -> None:
    policy = resolve_policy(HealthSettings(failed_looks=5), "x")
    track = observe(observe(None, GOOD, policy, at(0)), BAD, policy, at(1), at_once=True)
    assert track.state is HealthState.FAILED


def test_suspect_checks_of_a_failed_device_are_no_faults() -> None:
    device = Device(clean_s=10.0)
    device.look(BAD)
    device.looks("ooo")
    assert device.look(ODD, 8).state is HealthState.SUSPECT
