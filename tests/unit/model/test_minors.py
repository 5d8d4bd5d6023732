"""Numbers that stay: a device keeps its minor whoever comes or leaves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.assemble import parent_of
from agent.model.device import DeviceKind, VendorDevice
from agent.model.minors import MAX_HELD, NOTHING_HELD, Held, held_minors, unique_minors

KINDS = {"huawei": DeviceKind.NPU, "nvidia": DeviceKind.GPU, "rdma": DeviceKind.RDMA}
Item = tuple[str, VendorDevice]


def device(vendor: str, slot: int, minor: int | None) -> Item:
    address = f"0000:{slot:02x}:00.0"
    return vendor, VendorDevice(kind=KINDS[vendor], vendor=vendor, bus_id=address, minor=minor)


def numbers(items: list[Item], held: Held) -> tuple[dict[str, int | None], Held]:
    found, _ = unique_minors(items, parent_of, held)
    return {one.key: one.minor for one in found}, held_minors(found, held)


def test_a_card_that_goes_shifts_no_other_vendors_card() -> None:
    npus = [device("huawei", slot, minor) for slot, minor in ((1, 0), (2, 1))]
    gpus = [device("nvidia", slot, minor) for slot, minor in ((3, 0), (4, 1))]
    before, held = numbers([*npus, *gpus], NOTHING_HELD)
    assert list(before.values()) == [0, 1, 2, 3]
    after, _ = numbers([npus[0], *gpus], held)
    assert after == {key: minor for key, minor in before.items() if key != npus[1][1].key}


def test_a_vendor_that_comes_late_takes_no_number_that_is_in_use() -> None:
    gpus = [device("nvidia", 3, 0), device("nvidia", 4, 1)]
    _, held = numbers(gpus, NOTHING_HELD)
    npus = [device("huawei", 1, 0), device("huawei", 2, 7)]
    after, _ = numbers([*npus, *gpus], held)
    assert after == {
        "0000:03:00.0": 0,
        "0000:04:00.0": 1,
        "0000:02:00.0": 7,
        "0000:01:00.0": 8,
    }


def test_a_card_earlier_in_pci_order_does_not_take_the_number_of_one_that_has_it() -> None:
    _, held = numbers([device("nvidia", 4, 0)], NOTHING_HELD)
    after, _ = numbers([device("nvidia", 3, 0), device("nvidia", 4, 0)], held)
    assert after == {"0000:03:00.0": None, "0000:04:00.0": 0}


def test_a_card_that_comes_back_has_the_number_it_had() -> None:
    items = [device("huawei", 1, 0), device("nvidia", 3, 0)]
    before, held = numbers(items, NOTHING_HELD)
    _, held = numbers(items[:1], held)
    assert numbers(items, held)[0] == before


def test_a_card_that_its_driver_numbers_anew_gets_that_number() -> None:
    _, held = numbers([device("nvidia", 3, 0)], NOTHING_HELD)
    assert numbers([device("nvidia", 3, 5)], held)[0] == {"0000:03:00.0": 5}


def test_what_is_remembered_is_bounded_and_never_of_those_that_are_here() -> None:
    held: Held = {("gpu", str(n)): (n, n, True) for n in range(MAX_HELD + 10)}
    here = [one for _, one in (device("nvidia", 3, 0), device("nvidia", 4, 1))]
    kept = held_minors(here, held)
    assert len(kept) == MAX_HELD
    assert kept["gpu", "0000:03:00.0"] == (0, 0, True)
    assert ("gpu", str(MAX_HELD + 9)) in kept
    assert ("gpu", "0") not in kept


DEVICES = st.builds(
    device,
    st.sampled_from(sorted(KINDS)),
    st.integers(0, 15),
    st.none() | st.integers(0, 5),
)
STEPS = st.lists(
    st.lists(DEVICES, max_size=10, unique_by=lambda item: item[1].key), min_size=2, max_size=6
)


@pytest.mark.parametrize("why", ["hot-plug"])
@given(steps=STEPS)
def test_minors_of_those_who_stay_never_change(steps: list[list[Item]], why: str) -> None:
    """However devices come and go: one that has a number keeps it, and none has another's."""
    held: Held = NOTHING_HELD
    before: dict[tuple[str, str, int | None], int | None] = {}
    for items in steps:
        found, _ = unique_minors(items, parent_of, held)
        held = held_minors(found, held)
        own = {one.key: (vendor, one.key, one.minor) for vendor, one in items}
        now = {own[one.key]: one.minor for one in found}
        for name, minor in now.items():
            if before.get(name) is not None:
                assert minor == before[name], why
        published = [(one.kind.wire_type, one.minor) for one in found if one.minor is not None]
        assert len(published) == len(set(published))
        before = now
