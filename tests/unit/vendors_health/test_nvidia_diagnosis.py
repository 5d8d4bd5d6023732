from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.snapshot.device import DeviceKind, DevicePartition, Health, HealthState, VendorDevice
from plugins.vendors.nvidia.health.card_facts import HealthFinding
from plugins.vendors.nvidia.health.causes import Cure
from plugins.vendors.nvidia.health.diagnosis import MAX_CARDS, XidReport, apply_diagnosis
from plugins.vendors.nvidia.health.xid_counter import SAME_S
from tests.unit.vendors_health.nvidia_scene import CARD, DRIVER, HEALTHY, KERNEL, Site


@pytest.mark.parametrize(
    "number", [pytest.param(n, id=f"V31-{n}") for n in (13, 31, 43, 45, 68, 69, 94, 109)]
)
def test_faults_of_applications_are_reported_and_change_nothing(number: int) -> None:
    site = Site()
    assert [(e.reason, e.state) for e in site.xid(number)] == [(f"Xid{number}", None)]
    assert (site.verdict, site.degraded) == (HEALTHY, [])


@pytest.mark.parametrize("number", [pytest.param(n, id=f"V32-{n}") for n in (63, 92, 121)])
def test_warnings_degrade_a_healthy_card_for_an_hour(number: int) -> None:
    site = Site()
    site.xid(number)
    assert (site.verdict, site.degraded) == (HEALTHY, [f"Xid{number}"])
    site.pass_time(3600)
    site.check()
    assert site.degraded == []


@pytest.mark.parametrize("number", [106, 162])
def test_messages_of_controllers_are_only_reported(number: int) -> None:
    site = Site()
    assert site.xid(number)
    assert (site.verdict, site.degraded) == (HEALTHY, [])


@pytest.mark.parametrize(
    "number",
    [
        *(pytest.param(n, id=f"V33-{n}") for n in (48, 64, 95, 119, 120, 140, 156)),
        *(pytest.param(n, id=f"V34-{n}") for n in (79, 54, 999, 177)),
    ],
)
def test_faults_take_the_card_out_at_once_under_their_number(number: int) -> None:
    site = Site()
    (event,) = site.xid(number)
    assert (event.key, event.reason, event.state) == (CARD, f"Xid{number}", HealthState.FAILED)
    assert event.message.startswith(f"Xid error detected on device, error code: {number}")
    assert site.verdict == (HealthState.FAILED, f"Xid{number}")


@pytest.mark.parametrize("number", [pytest.param(154, id="V34-154")])
def test_a_changed_recovery_action_causes_a_poll_and_has_no_other_effect(number: int) -> None:
    site = Site()
    site.xid(number)
    assert site.verdict == HEALTHY
    (event,) = site.diagnosis.report_action(CARD, 4)
    assert (event.reason, event.state) == ("DrainAndReset", HealthState.FAILED)


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        pytest.param([(149, False, 0.0)], HEALTHY, id="V35-149-nonfatal-once"),
        pytest.param([(149, True, 0.0)], (HealthState.FAILED, "Xid149"), id="V35-149-fatal"),
        pytest.param(
            [(74, False, 0.0), (74, False, 60.0)], (HealthState.FAILED, "Xid74"), id="V35-74-twice"
        ),
        pytest.param([(74, False, 0.0), (74, False, 601.0)], HEALTHY, id="V35-74-rarely"),
        pytest.param([(74, False, 0.0), (145, False, 1.0)], HEALTHY, id="V35-two-numbers"),
    ],
)
def test_links_warn_unless_fatal_or_again(
    reports: list[tuple[int, bool, float]], expected: tuple[HealthState, str]
) -> None:
    site = Site()
    for number, fatal, after_s in reports:
        site.pass_time(after_s)
        site.xid(number, KERNEL, fatal=fatal)
    assert site.verdict == expected
    assert bool(site.degraded) is (expected == HEALTHY)


def test_two_reports_of_one_event_are_one_and_the_graver_one_counts() -> None:
    site = Site()
    assert len(site.xid(149)) == 1
    (event,) = site.xid(149, KERNEL, fatal=True)
    assert event.state is HealthState.FAILED
    assert site.diagnosis.xid_counts(CARD) == ((149, 1),)
    site.pass_time(SAME_S)
    site.xid(149, KERNEL)
    assert site.diagnosis.xid_counts(CARD) == ((149, 2),)


def test_a_storm_is_counted_in_full_and_reported_now_and_then() -> None:
    site, event_count = Site(), 0
    for _ in range(1000):
        event_count += len(site.xid(31))
        site.pass_time(0.01)
    assert site.diagnosis.xid_counts(CARD) == ((31, 1000),)
    assert event_count <= 3


@pytest.mark.parametrize("number", [pytest.param(119, id="V41")])
def test_a_card_whose_reset_was_required_is_healthy_when_no_action_is_required(number: int) -> None:
    site = Site()
    site.xid(number)
    site.check(recovery_action=1)
    assert site.verdict == (HealthState.FAILED, "Xid119")
    site.pass_time(60)
    (event,) = site.check(recovery_action=0)
    assert site.verdict == HEALTHY
    # the agent decides how long the card must stay good: the event only requests a check
    assert (event.reason, event.state) == ("CauseGone", None)


@pytest.mark.parametrize("number", [pytest.param(79, id="V42")])
def test_a_card_that_fell_off_needs_another_boot(number: int) -> None:
    site = Site()
    site.xid(number)
    for _ in range(10):
        site.pass_time(60)
        site.check(recovery_action=0)
    assert site.verdict == (HealthState.FAILED, "Xid79")
    site.now = replace(site.now, boot_id="b")
    site.check()
    assert site.verdict == HEALTHY


@pytest.mark.parametrize(
    ("mask", "looks", "expected"),
    [
        pytest.param(0x4, 361, [], id="V43-power-cap-for-an-hour"),
        pytest.param(0x40, 7, ["Throttled"], id="V43-heat-for-a-minute"),
    ],
)
def test_throttling_warns_and_never_more(mask: int, looks: int, expected: list[str]) -> None:
    site = Site()
    for _ in range(looks):
        site.check(throttle=mask)
        site.pass_time(10)
    assert (site.verdict, site.degraded) == (HEALTHY, expected)


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [(9, HEALTHY), (None, HEALTHY), (6, (HealthState.FAILED, "UncorrectableECC"))],
)
def test_a_rise_of_uncorrected_errors_fails_old_cards_until_a_reset(
    architecture: int | None, expected: tuple[HealthState, str]
) -> None:
    site = Site()
    site.check(uncorrected=1.0, architecture=architecture)
    assert site.verdict == HEALTHY
    site.check(uncorrected=3.0, architecture=architecture)
    assert site.verdict == expected
    site.check(uncorrected=0.0, architecture=architecture)
    assert site.verdict == HEALTHY


def test_a_loaded_module_counts_as_a_reset_of_every_card() -> None:
    site = Site()
    site.xid(48)
    site.check(recovery_action=0)
    assert site.verdict != HEALTHY
    site.diagnosis.note_driver_loaded()
    site.check(recovery_action=0)
    assert site.verdict == HEALTHY


def test_for_past_reports_the_presently_required_action_decides() -> None:
    site = Site()
    assert site.xid(119, KERNEL, past=True) == ()
    assert [e.reason for e in site.diagnosis.failure_events()] == ["Xid119"]
    site.check(recovery_action=0)
    assert site.verdict == HEALTHY


def test_another_card_at_the_same_address_has_none_of_the_causes() -> None:
    site = Site()
    site.diagnosis.identify(CARD, "GPU-1")
    site.xid(79)
    site.diagnosis.identify(CARD, "GPU-1")
    assert site.verdict != HEALTHY
    site.diagnosis.identify(CARD, "GPU-2")
    assert site.verdict == HEALTHY


def test_the_number_of_cards_is_bounded() -> None:
    site = Site()
    for number in range(MAX_CARDS + 50):
        site.diagnosis.report_finding(
            f"card {number}", HealthFinding("FatalPoison", "", Cure.RESET)
        )
    assert len(site.diagnosis.failure_events()) == MAX_CARDS


def test_the_verdict_of_the_causes_goes_over_the_device_and_its_slices() -> None:
    site = Site()
    parts = tuple(DevicePartition(uuid=f"MIG-{n}", profile="1g.10gb") for n in (1, 2))
    discovered = VendorDevice(kind=DeviceKind.GPU, vendor="nvidia", bus_id=CARD, partitions=parts)
    report = XidReport(number=95, source=DRIVER, at_s=0.0, partitions=("MIG-1",))
    site.diagnosis.report_xid(CARD, report)
    site.xid(63)
    diagnosed = apply_diagnosis(discovered, site.diagnosis)
    assert diagnosed.health == Health()
    assert [p.health.reason for p in diagnosed.partitions] == ["Xid95", "DeviceHealthy"]
    assert [c.reason for c in diagnosed.conditions] == ["Xid63"]
    odd = Health(state=HealthState.SUSPECT, reason="MinorUnknown")
    assert apply_diagnosis(replace(discovered, health=odd), site.diagnosis).health == odd
    site.xid(79)
    assert apply_diagnosis(replace(discovered, health=odd), site.diagnosis).health.reason == "Xid79"
    away = replace(discovered, managed=False, health=odd)
    assert apply_diagnosis(away, site.diagnosis) == away
