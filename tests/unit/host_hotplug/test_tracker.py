"""What is remembered of events, and what follows from it at which second."""

from __future__ import annotations

from msgspec.structs import replace

from agent.host.hotplug import (
    ALL_SCOPES,
    GAP,
    GIVE_UP_S,
    MAX_ARRIVALS,
    RESCAN_DELAYS_S,
    HotplugTracker,
    PendingFunctions,
    Rescan,
)
from agent.host.uevents import NO_ACTION, RescanScope, Uevent

CARD = "0000:26:00.0"
NUMBER = 100


def pci(action: str, address: str = CARD, number: int | None = None) -> Uevent:
    path = f"/devices/pci0000:20/{address}"
    return Uevent(
        action=action, subsystem="pci", devpath=path, address=address, sequence_number=number
    )


NOISE = Uevent(action="change", subsystem="block", devpath="/devices/virtual/block/loop0")


def nothing(_: str) -> tuple[str, ...]:
    return ()


def test_a_removed_function_is_returned_at_once_and_its_bus_read_after_the_window() -> None:
    tracker = HotplugTracker()
    assert tracker.handle_event(pci("remove"), 10.0) == CARD
    assert tracker.handle_event(pci("unbind"), 10.0) is None
    assert tracker.next_s == 10.2
    look, _ = tracker.pop_due(10.2, nothing)
    assert look == Rescan(ALL_SCOPES, "event")
    assert tracker.next_s is None


def test_noise_is_counted_and_changes_nothing() -> None:
    tracker = HotplugTracker()
    for event in (NOISE, NO_ACTION, NOISE, pci("add")):
        tracker.handle_event(event, 10.0)
    assert (tracker.event_counts, tracker.dropped_counts) == (
        (("other", 2), ("pci", 1)),
        ((NO_ACTION, 1),),
    )
    quiet = HotplugTracker()
    quiet.handle_event(NOISE, 10.0)
    assert quiet.next_s is None


def test_a_gap_in_the_sequence_causes_a_full_rescan_and_the_other_order_none() -> None:
    tracker = HotplugTracker()
    for number in (NUMBER, NUMBER + 1, NUMBER, NUMBER + 2):
        tracker.handle_event(replace(NOISE, sequence_number=number), 10.0)
    assert tracker.next_s is None
    tracker.handle_event(replace(NOISE, sequence_number=NUMBER + 4), 10.0)
    assert tracker.pop_due(10.2, nothing)[0] == Rescan(ALL_SCOPES, GAP)


def test_after_a_loss_the_sequence_begins_anew() -> None:
    tracker = HotplugTracker()
    tracker.handle_event(replace(NOISE, sequence_number=NUMBER), 10.0)
    tracker.request_rescan(10.0, "lost")
    tracker.handle_event(replace(NOISE, sequence_number=NUMBER + 500), 10.0)
    assert tracker.pop_due(10.2, nothing)[0] == Rescan(ALL_SCOPES, "lost")
    assert tracker.rescan_counts == (("lost", 1),)


def test_only_the_named_parts_are_read() -> None:
    tracker = HotplugTracker()
    tracker.request_rescan(10.0, "start", frozenset((RescanScope.HOST,)))
    assert tracker.pop_due(10.2, nothing)[0] == Rescan(frozenset((RescanScope.HOST,)), "start")


def test_a_new_function_is_checked_until_it_is_complete() -> None:
    tracker = HotplugTracker()
    tracker.handle_event(pci("add"), 10.0)
    assert tracker.pop_due(10.2, nothing)[0] is not None
    lacks: list[tuple[str, ...]] = [("driver",), ("ports", "uverbs"), ()]
    checks = []
    for after_s, lack in zip(RESCAN_DELAYS_S, lacks, strict=True):
        assert tracker.next_s == 10 + after_s
        look, due = tracker.pop_due(10 + after_s, lambda _, lack=lack: lack)  # type: ignore[misc]
        assert not due.incomplete
        while look is None and tracker.next_s is not None and lack:
            look, _ = tracker.pop_due(tracker.next_s, lambda _, lack=lack: lack)  # type: ignore[misc]
        checks.append(look is not None)
    assert checks == [True, True, False]
    assert tracker.next_s is None


def test_missing_parts_are_reported_once_after_the_last_check() -> None:
    arrivals = PendingFunctions()
    arrivals.add(CARD, 10.0)
    dues = [
        arrivals.pop_due(10 + s, lambda _: ("driver",)) for s in (*RESCAN_DELAYS_S, GIVE_UP_S, 60)
    ]
    assert [due.look for due in dues] == [True, True, True, False, False]
    assert [due.incomplete for due in dues[3:]] == [((CARD, ("driver",)),), ()]
    assert arrivals.next_s is None


def test_a_function_that_leaves_again_is_not_waited_for() -> None:
    tracker = HotplugTracker()
    tracker.handle_event(pci("add"), 10.0)
    tracker.handle_event(pci("remove"), 10.1)
    tracker.pop_due(10.3, nothing)
    assert tracker.next_s is None


def test_two_hundred_and_fifty_six_functions_cause_three_rescans_and_are_bounded() -> None:
    tracker = HotplugTracker()
    for n in range(256):
        tracker.handle_event(pci("add", f"0000:3b:{n // 8:02x}.{n % 8}"), 10 + n * 0.001)
    looks = []
    while (next_s := tracker.next_s) is not None:
        look, _ = tracker.pop_due(next_s, nothing)
        looks += [next_s] if look is not None else []
    assert looks == [10.255 + 0.2]
    arrivals = PendingFunctions()
    for n in range(MAX_ARRIVALS + 10):
        arrivals.add(f"{n}", 10.0)
    assert len(arrivals.pop_due(100.0, lambda _: ()).incomplete) == 0
    assert arrivals.next_s is None
