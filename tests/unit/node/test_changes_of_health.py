"""Times, numbers and causes of changes, pure."""

from __future__ import annotations

from msgspec.structs import replace

from agent.model.device import DeviceKind, Health, HealthState, VendorDevice
from agent.model.inventory import DeviceEvent, Inventory
from agent.node.changes_of_health import dated, with_events

CARDS = tuple(
    VendorDevice(
        kind=DeviceKind.GPU, vendor="fake", bus_id=f"0000:0{i}:00.0", uuid=f"g{i}", minor=i
    )
    for i in range(2)
)
GONE = DeviceEvent(
    key=CARDS[1].key, reason="Xid79", message="off the bus", state=HealthState.FAILED
)
SUSPECT, FAILED = HealthState.SUSPECT, HealthState.FAILED


def inventory(*healths: Health) -> Inventory:
    cards = (replace(c, health=h) for c, h in zip(CARDS, healths, strict=False))
    return Inventory(vendor="fake", devices=tuple(cards))


def test_an_event_changes_its_device_alone() -> None:
    before = Inventory(vendor="fake", devices=CARDS)
    after = with_events(before, (GONE,), 5.0)
    assert after.devices[0] == CARDS[0]
    health = after.devices[1].health
    assert (health.state, health.reason, health.since_s) == (HealthState.FAILED, "Xid79", 5.0)


def test_an_event_without_a_device_is_about_all_of_them() -> None:
    after = with_events(Inventory(vendor="fake", devices=CARDS), (replace(GONE, key=""),), 5.0)
    assert {d.health.state for d in after.devices} == {HealthState.FAILED}


def test_an_event_that_decides_nothing_changes_nothing() -> None:
    before = Inventory(vendor="fake", devices=CARDS)
    assert with_events(before, (replace(GONE, state=None),), 5.0) == before


def test_a_repeated_event_keeps_the_time_of_the_first() -> None:
    once = with_events(Inventory(vendor="fake", devices=CARDS), (GONE,), 5.0)
    assert with_events(once, (GONE,), 9.0) == once


def test_what_is_wrong_at_the_first_answer_has_no_date() -> None:
    answer = inventory(Health(state=FAILED))
    assert dated(None, answer, 5.0) is answer
    assert dated(inventory(), answer, 5.0) is answer


def test_a_vendor_that_dates_its_changes_is_believed() -> None:
    after = dated(inventory(Health()), inventory(Health(state=FAILED, since_s=3.0)), 5.0)
    assert (after.devices[0].health.since_s, after.devices[0].health.changes) == (3.0, 1)


def test_another_reason_for_the_same_state_is_no_change() -> None:
    before = inventory(Health(state=SUSPECT, reason="A", since_s=3.0, changes=4))
    after = dated(before, inventory(Health(state=SUSPECT, reason="B")), 5.0)
    health = after.devices[0].health
    assert (health.reason, health.since_s, health.changes) == ("B", 3.0, 4)


def test_an_answer_that_says_the_same_stays_the_same_object() -> None:
    answer = inventory(Health(), Health(state=FAILED))
    assert dated(inventory(Health(), Health(state=FAILED)), answer, 5.0) is answer
