"""What the kernel removed stays listed for ten minutes, and no longer than it is away."""

from __future__ import annotations

from agent.devices.presence import (
    MAX_REMOVED,
    REMOVED_SHOWN_S,
    add_removed,
    drop_returned,
    with_removed_devices,
)
from agent.snapshot.device import DeviceKind, HealthState, VendorDevice
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import RemovedDevice
from agent.snapshot.pci import PciFunction, PciTree

CARDS = tuple(
    VendorDevice(kind=DeviceKind.GPU, vendor="nvidia", bus_id=f"0000:{n:02x}:00.0", minor=n)
    for n in range(3)
)
BOTH = Inventory(vendor="nvidia", devices=CARDS[:2])
ONE = Inventory(vendor="nvidia", devices=CARDS[:1])
NICS = Inventory(vendor="rdma")


def departed() -> tuple[RemovedDevice, ...]:
    return add_removed((), "nvidia", CARDS[1], now_s=100.0, wall_s=7.0)


def test_a_card_that_its_vendor_lists_no_more_is_listed_as_failed() -> None:
    (cards, nics) = with_removed_devices([ONE, NICS], departed(), 101.0)
    assert nics is NICS
    assert [card.key for card in cards.devices] == [CARDS[0].key, CARDS[1].key]
    health = cards.devices[1].health
    assert (health.state, health.reason, health.since_s) == (
        HealthState.FAILED,
        "DeviceGone",
        7.0,
    )
    assert cards.devices[1].minor == 1


def test_what_the_vendor_says_itself_counts_more() -> None:
    assert with_removed_devices([BOTH], departed(), 101.0) == [BOTH]


def test_it_goes_after_ten_minutes() -> None:
    assert with_removed_devices([ONE], departed(), 100.0 + REMOVED_SHOWN_S - 1) != [ONE]
    assert with_removed_devices([ONE], departed(), 100.0 + REMOVED_SHOWN_S) == [ONE]


def test_a_second_removal_counts_from_then_and_the_number_is_bounded() -> None:
    again = add_removed(departed(), "nvidia", CARDS[1], now_s=200.0, wall_s=107.0)
    assert [one.until_s for one in again] == [200.0 + REMOVED_SHOWN_S]
    many: tuple[RemovedDevice, ...] = ()
    for n in range(MAX_REMOVED + 5):
        card = VendorDevice(kind=DeviceKind.GPU, vendor="nvidia", bus_id=None, uuid=f"{n}")
        many = add_removed(many, "nvidia", card, now_s=1.0, wall_s=1.0)
    assert len(many) == MAX_REMOVED
    assert add_removed(many, "nvidia", CARDS[0], now_s=1e6, wall_s=1.0)[:-1] == ()


def test_a_returned_function_is_kept_no_longer() -> None:
    assert CARDS[1].bus_id is not None
    here = PciTree(functions={CARDS[1].bus_id: PciFunction(address=CARDS[1].bus_id)})
    assert drop_returned(departed(), here, 101.0) == ()
    assert drop_returned(departed(), here, 99.0) == departed()  # read before it left
    assert drop_returned(departed(), PciTree(), 101.0) == departed()
