from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocation.preferred_devices import (
    DeviceSlot,
    TooFewDevices,
    preferred_slots,
)


def replicas(*ids: str) -> tuple[DeviceSlot, ...]:
    parts = ((name, *name.split("::")) for name in ids)
    return tuple(
        DeviceSlot(id=name, card=card, minor=int(card), number=(int(number),))
        for name, card, number in parts
    )


FREE = replicas("0::3", "0::4", "1::1", "1::2", "1::3", "1::4")
FIVE = {"0": 5, "1": 5}


@pytest.mark.parametrize(
    ("packed", "expected"),
    [
        pytest.param(False, ("1::1", "0::3"), id="V66"),
        pytest.param(True, ("0::3", "1::1"), id="V67"),
    ],
)
def test_replicas_are_of_different_cards_first(packed: bool, expected: tuple[str, ...]) -> None:
    preferred = preferred_slots(FREE, (), 2, FIVE, spread=True, packed=packed)
    assert preferred == expected


def test_required_replicas_count_as_picked() -> None:
    preferred = preferred_slots(FREE, ("1::2",), 3, FIVE, spread=True, packed=False)
    assert preferred == ("1::2", "0::3", "1::1")


def test_slices_are_packed_onto_the_card_that_is_used_most() -> None:
    slices = tuple(
        DeviceSlot(id=f"MIG-{card}-{gi}", card=str(card), minor=card, number=(gi, 0))
        for card, count in ((0, 7), (1, 3))
        for gi in reversed(range(count))
    )
    preferred = preferred_slots(slices, (), 4, {"0": 7, "1": 7}, spread=False, packed=True)
    assert preferred == ("MIG-1-0", "MIG-1-1", "MIG-1-2", "MIG-0-0")


def test_too_few_slots_are_the_only_failure() -> None:
    with pytest.raises(TooFewDevices):
        preferred_slots(FREE, (), 7, FIVE, spread=True, packed=False)
    assert preferred_slots(FREE, ("gone",), 0, {}, spread=True, packed=False) == ()


@given(
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=12),
    st.integers(0, 12),
    st.booleans(),
    st.booleans(),
)
def test_any_request_that_can_be_met_is_met_the_same_way(
    free: set[tuple[int, int]], size: int, spread: bool, packed: bool
) -> None:
    slots = replicas(*(f"{card}::{number}" for card, number in free))
    if size > len(slots):
        return
    preferred = preferred_slots(slots, (), size, FIVE, spread=spread, packed=packed)
    again = preferred_slots(slots[::-1], (), size, FIVE, spread=spread, packed=packed)
    assert preferred == again
    assert len(set(preferred)) == size
