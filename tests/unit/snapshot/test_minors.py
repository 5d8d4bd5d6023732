"""Numbers that stay: a device keeps its minor whoever comes or leaves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.devices.minors import MinorRecords, assign_minors, renew_records
from agent.snapshot.device import DeviceKind, VendorDevice, pci_address_of

KINDS = {"huawei": DeviceKind.NPU, "nvidia": DeviceKind.GPU, "rdma": DeviceKind.RDMA}
Item = tuple[str, VendorDevice]


def device(vendor: str, slot: int, minor: int | None) -> Item:
    address = f"0000:{slot:02x}:00.0"
    return vendor, VendorDevice(
        kind=KINDS[vendor], vendor=vendor, bus_id=address, minor=minor, vendor_minor=minor
    )


def numbers(items: list[Item], records: MinorRecords) -> tuple[dict[str, int | None], MinorRecords]:
    result, _ = assign_minors(items, pci_address_of, records)
    return {one.key: one.minor for one in result}, renew_records(result, {}, records)


def test_a_card_that_goes_shifts_no_other_vendors_card() -> None:
    npus = [device("huawei", slot, minor) for slot, minor in ((1, 0), (2, 1))]
    gpus = [device("nvidia", slot, minor) for slot, minor in ((3, 0), (4, 1))]
    before, records = numbers([*npus, *gpus], ())
    assert list(before.values()) == [0, 1, 2, 3]
    after, _ = numbers([npus[0], *gpus], records)
    assert after == {key: minor for key, minor in before.items() if key != npus[1][1].key}


def test_a_vendor_that_comes_late_takes_no_number_that_is_in_use() -> None:
    gpus = [device("nvidia", 3, 0), device("nvidia", 4, 1)]
    _, records = numbers(gpus, ())
    npus = [device("huawei", 1, 0), device("huawei", 2, 7)]
    after, _ = numbers([*npus, *gpus], records)
    assert after == {
        "0000:03:00.0": 0,
        "0000:04:00.0": 1,
        "0000:02:00.0": 7,
        "0000:01:00.0": 2,
    }


def test_a_card_earlier_in_pci_order_does_not_take_the_number_of_one_that_has_it() -> None:
    _, records = numbers([device("nvidia", 4, 0)], ())
    after, _ = numbers([device("nvidia", 3, 0), device("nvidia", 4, 0)], records)
    assert after == {"0000:03:00.0": None, "0000:04:00.0": 0}


def test_a_card_that_comes_back_has_the_number_it_had() -> None:
    items = [device("huawei", 1, 0), device("nvidia", 3, 0)]
    before, records = numbers(items, ())
    _, records = numbers(items[:1], records)
    assert numbers(items, records)[0] == before


def test_a_card_that_its_driver_numbers_anew_stays_published_as_it_was() -> None:
    _, records = numbers([device("nvidia", 3, 0)], ())
    after, _ = assign_minors([device("nvidia", 3, 5)], pci_address_of, records)
    assert [(one.minor, one.vendor_minor) for one in after] == [(0, 5)]
    assert dict(after[0].facts) == {"vendor_minor": "5"}


def test_cards_whose_numbers_their_driver_swaps_stay_published_as_they_were() -> None:
    before, records = numbers([device("nvidia", 3, 0), device("nvidia", 4, 1)], ())
    assert numbers([device("nvidia", 3, 1), device("nvidia", 4, 0)], records)[0] == before


def test_a_card_whose_driver_does_not_answer_stays_published_as_it_was() -> None:
    before, records = numbers([device("nvidia", 3, 4)], ())
    assert numbers([device("nvidia", 3, None)], records)[0] == before


def test_no_card_gets_the_minor_of_a_card_that_is_not_listed_now() -> None:
    _, records = numbers([device("nvidia", 3, 0), device("nvidia", 4, 1)], ())
    after, _ = numbers([device("huawei", 1, 0), device("huawei", 2, 1)], records)
    assert after == {"0000:01:00.0": 2, "0000:02:00.0": 3}


def test_cards_that_a_driver_numbers_come_before_those_of_files_and_settings() -> None:
    """No vendor's name decides: `accelerators` and `infofiles` come before `nvidia` by name."""
    gpus = [device("nvidia", slot, slot - 3) for slot in (3, 4)]
    others = [
        (
            plugin,
            replace(device("nvidia", slot, slot - 1)[1], kind=DeviceKind.XPU, vendor_minor=None),
        )
        for plugin in ("accelerators", "infofiles")
        for slot in (1, 2)
    ]
    result, problems = assign_minors([*others[:2], *gpus], pci_address_of)
    assert not problems
    assert {one.key: one.minor for one in result} == {
        "0000:03:00.0": 0,
        "0000:04:00.0": 1,
        "0000:01:00.0": 2,
        "0000:02:00.0": 3,
    }
    assert assign_minors([*others[2:], *gpus], pci_address_of)[0][:2] == result[:2]


def test_a_new_number_is_the_lowest_that_nobody_has_proposes_or_had() -> None:
    _, records = numbers([device("nvidia", 9, 2)], ())
    items = [device("huawei", 1, 0), device("nvidia", 3, 0), device("nvidia", 4, 1)]
    result, _ = numbers(items, records)
    assert result == {"0000:01:00.0": 0, "0000:04:00.0": 1, "0000:03:00.0": 3}


def test_a_new_number_is_not_one_that_a_published_card_proposes_now() -> None:
    _, records = numbers([device("nvidia", 3, 2)], ())
    # the driver calls the card 0 now; it stays published as 2, which the other card proposes
    result, _ = numbers([device("huawei", 1, 2), device("nvidia", 3, 0)], records)
    assert result == {"0000:03:00.0": 2, "0000:01:00.0": 1}


def test_two_cards_with_one_number_keep_it_with_the_card_that_had_it() -> None:
    _, records = numbers([device("nvidia", 3, 0), device("nvidia", 4, 1)], ())
    result, problems = assign_minors(
        [device("nvidia", 3, 1), device("nvidia", 4, 1)], pci_address_of, records
    )
    assert {one.key: (one.minor, one.vendor_minor) for one in result} == {
        "0000:03:00.0": (None, None),  # the number names the other card
        "0000:04:00.0": (1, 1),
    }
    assert [problem.reason for _, problem in problems] == ["DuplicateMinor"]


DEVICES = st.builds(
    device,
    st.sampled_from(sorted(KINDS)),
    st.integers(0, 15),
    st.none() | st.integers(0, 5),
)
STEPS = st.lists(
    st.lists(DEVICES, max_size=10, unique_by=lambda item: item[1].key), min_size=2, max_size=6
)


@given(steps=STEPS)
def test_a_published_minor_never_changes_and_is_never_that_of_another(
    steps: list[list[Item]],
) -> None:
    """However devices come and go, and whatever numbers their vendors give them."""
    records: MinorRecords = ()
    published: dict[tuple[str, str], int] = {}
    for items in steps:
        result, _ = assign_minors(items, pci_address_of, records)
        records = renew_records(result, {}, records)
        for one in result:
            if one.minor is not None:
                assert published.setdefault((one.kind.wire_type, one.key), one.minor) == one.minor
        assert len({(kind, minor) for (kind, _), minor in published.items()}) == len(published)
