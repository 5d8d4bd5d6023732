"""All devices of one vendor: answers, samples, events and silence, one after the other."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from agent.config.health import HealthSettings
from agent.devices.health_file import decode_health, encode_health, select_records
from agent.devices.vendor_health import VendorHealth
from agent.snapshot.device import HealthState
from agent.snapshot.inventory import DeviceSample
from agent.snapshot.part import SnapshotPart
from tests.unit.devices.looks import BAD, GOOD, ODD, at
from tests.unit.devices.vendor_scene import CARDS, SLICES, Vendor, event


def test_what_sysfs_showed_is_passed_on_and_is_no_look() -> None:
    vendor = Vendor()
    reports = vendor.health.update(vendor.sighted, at(0))
    assert reports == vendor.sighted
    assert vendor.health.update(vendor.sighted, at(1)).inventory.value is reports.inventory.value
    assert dict(vendor.health.tracks) == {}
    assert not vendor.happen(event())


def test_what_had_failed_is_not_well_because_sysfs_shows_it() -> None:
    before = Vendor()
    before.answer(GOOD, BAD)
    health = decode_health(
        encode_health(select_records({"x": before.health.tracks}), "b", at(2)), "b", at(3)
    )
    after = VendorHealth("x", HealthSettings(), before.sighted.inventory.value, health["x"])
    inventory = after.update(before.sighted, at(4)).inventory.value
    assert inventory is not None
    assert [d.health.state for d in inventory.devices] == [HealthState.HEALTHY, HealthState.PROBING]


def test_answers_samples_and_events_are_checks() -> None:
    vendor = Vendor()
    assert vendor.answer(GOOD, BAD) == "HF"
    assert vendor.sample(BAD, GOOD) == "FP"
    assert vendor.sample(None, GOOD) == "FP"
    assert vendor.answer(GOOD, GOOD) == "PH"
    assert vendor.happen(event())
    assert vendor.hear() == "PF"


def test_samples_without_a_verdict_and_states_without_a_new_sample_are_no_looks() -> None:
    vendor = Vendor()
    vendor.answer(BAD, GOOD)
    vendor.sample(GOOD)
    assert [vendor.hear() for _ in range(9)] == ["PH"] * 9
    assert [vendor.sample(None) for _ in range(9)] == ["PH"] * 9


def test_a_partial_answer_is_no_check_of_the_other_devices() -> None:
    vendor = Vendor(failed_looks=3)
    cards = (replace(CARDS[0], health=BAD), replace(CARDS[1], health=GOOD))
    vendor.list(*cards)
    for _ in range(5):
        assert vendor.list(*cards, subjects=(CARDS[1].key,)) == "FH"
    vendor = Vendor(failed_looks=3)
    vendor.answer(GOOD, GOOD)
    for _ in range(5):
        assert vendor.list(*cards, subjects=(CARDS[1].key,)) == "HH"
    assert [vendor.list(*cards, subjects=(CARDS[0].key,)) for _ in range(3)] == ["SH", "SH", "FH"]


def test_a_device_that_is_listed_before_it_was_examined_is_followed() -> None:
    vendor = Vendor()
    waits = replace(CARDS[1], health=replace(GOOD, reason="NotYetAsked", certain=False))
    assert vendor.list(CARDS[0], waits, subjects=(CARDS[0].key,)) == "HH"
    assert not vendor.told.devices[1].health.certain
    assert vendor.list(*CARDS, subjects=(CARDS[1].key,)) == "HH"
    assert vendor.told.devices[1].health.certain


def test_while_nothing_changes_the_same_object_is_returned() -> None:
    vendor = Vendor()
    vendor.answer(GOOD, BAD)
    reports = vendor.told
    vendor.sample(GOOD, BAD)
    vendor.answer(GOOD, BAD)
    assert vendor.told is reports


@pytest.mark.parametrize(
    ("key", "told"), [(CARDS[1].key, "HF"), ("", "FF"), ("0000:77:00.0", "HH")]
)
def test_an_event_is_about_its_device_or_about_all(key: str, told: str) -> None:
    vendor = Vendor()
    vendor.answer(GOOD, GOOD)
    assert vendor.happen(event(key=key)) is ("F" in told)
    assert vendor.hear() == told


def test_the_reason_of_an_event_without_effect_is_published_with_the_next_answer() -> None:
    vendor = Vendor()
    vendor.answer(GOOD, GOOD)
    assert not vendor.happen(event(None))
    vendor.hear()
    assert vendor.told.devices[1].health.last_event == ""
    vendor.answer(GOOD, GOOD)
    assert vendor.told.devices[1].health.last_event == "Xid79"
    assert vendor.told.devices[0].health.last_event == ""


def test_a_slice_has_a_health_of_its_own() -> None:
    vendor = Vendor()
    card = replace(CARDS[0], partitions=SLICES)
    vendor.list(card)
    assert vendor.happen(replace(event(key=card.key), partition="MIG-1"))
    assert vendor.hear() == "H"
    assert [part.health.state for part in vendor.told.devices[0].partitions] == [
        HealthState.HEALTHY,
        HealthState.FAILED,
    ]
    assert not vendor.happen(replace(event(key=card.key), partition="MIG-9"))
    vendor.list(card)
    assert vendor.told.devices[0].partitions[1].health.state is HealthState.PROBING


def test_of_two_devices_with_one_key_the_graver_verdict_counts_once() -> None:
    vendor = Vendor()
    twice = replace(CARDS[0], health=BAD)
    assert vendor.list(CARDS[0], twice, CARDS[1]) == "FFH"
    assert vendor.list(CARDS[0], CARDS[0], CARDS[1]) == "PPH"


def test_an_unmanaged_device_is_not_judged() -> None:
    vendor = Vendor()
    other = replace(CARDS[0], managed=False, health=BAD)
    assert vendor.list(other, CARDS[1]) == "FH"
    assert vendor.list(CARDS[0], CARDS[1]) == "HH"
    assert vendor.list(other, CARDS[1]) == "FH"
    assert not vendor.happen(event(key=CARDS[0].key))


def test_a_failed_device_that_was_away_is_no_new_one() -> None:
    vendor = Vendor()
    vendor.answer(BAD, GOOD)
    vendor.answer(GOOD, GOOD)
    vendor.answer(GOOD, GOOD)
    assert vendor.list(CARDS[1]) == "H"
    assert [vendor.answer(GOOD, GOOD) for _ in range(3)] == ["PH", "PH", "HH"]
    vendor.answer(BAD, GOOD)
    vendor.list(CARDS[1])
    vendor.list(CARDS[1], after_s=86_401)
    assert vendor.answer(GOOD, GOOD) == "HH"


def test_silence_is_first_nothing_then_doubt_then_failure() -> None:
    vendor = Vendor(stalled_unknown_s=60, stalled_failed_s=300)
    vendor.answer(GOOD, BAD)
    vendor.hear(0, state="stalled", message="no answer to sample within 5 s")
    assert not vendor.tick(59)
    assert vendor.tick(1)
    assert vendor.hear(0, state="restarting", message="killed by signal 9") == "HF"
    card, other = (device.health for device in vendor.told.devices)
    assert (card.certain, other.certain) == (False, False)
    assert card.message == (
        "no answer from its vendor's worker for more than 60 s: no answer to sample within 5 s;"
        " before that DeviceHealthy: device is healthy"
    )
    assert not vendor.tick(239)
    assert vendor.tick(1)
    assert vendor.hear(0) == "FF"
    assert {d.health.reason for d in vendor.told.devices} == {"DriverStalled"}
    assert [vendor.answer(GOOD, GOOD) for _ in range(3)] == ["PP", "PP", "HH"]


def test_a_vendor_that_answers_before_the_worst_is_believed_at_once() -> None:
    vendor = Vendor()
    vendor.answer(GOOD, ODD)
    vendor.hear(state="quarantined")
    vendor.tick(120)
    vendor.hear(0)
    assert vendor.answer(GOOD, ODD) == "HS"
    assert all(device.health.certain for device in vendor.told.devices)
    assert not vendor.tick(1000)


def test_a_driver_that_was_released_on_request_fails_no_device() -> None:
    vendor = Vendor()
    vendor.answer(GOOD, GOOD)
    vendor.hear(state="released")
    assert vendor.tick(1)
    assert vendor.hear(0) == "HH"
    assert not vendor.tick(9000)
    assert {(d.health.reason, d.health.certain) for d in vendor.told.devices} == {
        ("DriverReleased", False)
    }


def test_a_permission_that_was_lost_makes_nothing_fail_however_long() -> None:
    vendor = Vendor()
    vendor.answer(GOOD, BAD)
    vendor.hear(state="restarting", reason="NoPermission", message="/dev/nvidiactl: EPERM")
    assert vendor.tick(1)
    assert vendor.hear(0, state="quarantined") == "HF"
    assert not vendor.tick(9000)
    card, other = (device.health for device in vendor.told.devices)
    assert (card.reason, card.certain, other.certain) == ("NoPermission", False, False)
    assert "/dev/nvidiactl: EPERM" in card.message
    assert vendor.hear(state="ready", reason="", message="") is not None
    assert vendor.answer(GOOD, BAD) == "HF"
    assert all(device.health.certain for device in vendor.told.devices)


def test_a_vendor_that_never_answered_is_not_silent() -> None:
    vendor = Vendor()
    vendor.hear(state="stalled")
    assert not vendor.tick(1000)


def looks_wanted(vendor: Vendor, seconds: int) -> list[int]:
    """Return after how many seconds a look is wanted; it is taken, and sees the same."""
    desired = []
    for second in range(1, seconds + 1):
        vendor.second += 1
        if vendor.health.needs_check(at(vendor.second)):
            desired.append(second)
            vendor.list(*vendor.state.inventory.value.devices, after_s=0)  # type: ignore[union-attr]  # it has answered
    return desired


def test_a_probing_device_is_checked_often_and_a_failed_one_ever_less() -> None:
    vendor = Vendor(clean_probes=1000)
    vendor.answer(GOOD, GOOD)
    assert looks_wanted(vendor, 600) == []
    vendor.answer(BAD, GOOD)
    often = looks_wanted(vendor, 900)
    assert often[:9] == list(range(5, 50, 5))
    gaps = [b - a for a, b in pairwise(often)]
    assert gaps == sorted(gaps)
    assert max(gaps) <= 60
    vendor.answer(GOOD, GOOD)
    assert looks_wanted(vendor, 20) == [5, 10, 15, 20]


def test_verdicts_within_samples_make_discoveries_unnecessary() -> None:
    vendor = Vendor(clean_probes=1000)
    vendor.answer(BAD, GOOD)
    for _ in range(60):
        vendor.sample(GOOD, GOOD)
        assert not vendor.health.needs_check(at(vendor.second))


def test_a_device_that_is_odd_for_long_needs_no_extra_looks() -> None:
    vendor = Vendor()
    vendor.answer(ODD, GOOD)
    assert looks_wanted(vendor, 600) == []
    vendor.answer(GOOD, GOOD)
    assert looks_wanted(vendor, 60) == [5]


def test_a_check_that_does_not_come_is_not_requested_again_and_again() -> None:
    vendor = Vendor(clean_probes=1000)
    vendor.answer(BAD, GOOD)
    vendor.answer(GOOD, GOOD)
    desired = [s for s in range(1, 130) if vendor.health.needs_check(at(vendor.second + s))]
    assert desired == [5, 65, 125]


def test_a_person_ends_the_hold_of_a_device_and_of_its_slices_but_not_the_watching() -> None:
    vendor = Vendor(flap_changes=1, clean_probes=3)
    card = replace(CARDS[0], partitions=SLICES)
    failed = replace(card, health=BAD, partitions=(SLICES[0], replace(SLICES[1], health=BAD)))
    for listed in (card, failed, card, card, card):
        vendor.list(listed)
    assert vendor.told.devices[0].health.reason == "Flapping"
    assert not vendor.health.clear_flapping(CARDS[1].key)
    assert vendor.health.clear_flapping(card.key)
    assert vendor.hear(0) == "F"
    assert vendor.told.devices[0].health.reason == BAD.reason
    assert vendor.list(card) == "H"
    assert vendor.told.devices[0].partitions[1].health.state is HealthState.HEALTHY


def test_two_verdicts_on_one_device_in_one_sample_are_one_look() -> None:
    vendor = Vendor()
    vendor.answer(BAD, GOOD)
    twice = tuple(DeviceSample(key=CARDS[0].key, health=health) for health in (GOOD, BAD, GOOD))
    assert vendor.hear(samples=SnapshotPart(twice)) == "FH"
    many = tuple(DeviceSample(key=CARDS[0].key, health=GOOD) for _ in range(9))
    assert vendor.hear(samples=SnapshotPart(many)) == "PH"
