from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.snapshot.pci import PciFunction, PciLink
from agent.topology.pcie_link import (
    SlowLinkRecord,
    attainable_link,
    bandwidth_mb_s,
    degradation,
    is_slow,
    observe_links,
    parse_speed,
    parse_width,
    persistently_slow,
)
from tests.machines import tree_of


@pytest.mark.parametrize(
    ("text", "speed"),
    [
        pytest.param("8 GT/s", 80, id="vector 8: without PCIe"),
        pytest.param("32.0 GT/s PCIe", 320, id="vector 8: with PCIe"),
        pytest.param("Unknown", None, id="vector 8: unknown"),
        pytest.param("7 GT/s", None, id="vector 8: no such speed"),
        ("2.5 GT/s PCIe", 25),
        ("Unknown speed", None),
        ("", None),
        (None, None),
        ("64.0 GT/s PCIe\n", None),
    ],
)
def test_speed_is_ten_times_gigatransfers(text: str | None, speed: int | None) -> None:
    assert parse_speed(text) == speed


@pytest.mark.parametrize(
    ("text", "width"),
    [("16", 16), ("0", None), ("63", None), ("255", None), ("-1", None), ("3", None), (None, None)],
)
def test_width_is_one_that_pcie_has(text: str | None, width: int | None) -> None:
    assert parse_width(text) == width


@pytest.mark.parametrize(
    ("speed", "width", "mb_s"),
    [
        pytest.param(80, 16, 15753, id="vector 9: 8x16"),
        pytest.param(80, 8, 7876, id="vector 9: 8x8"),
        pytest.param(160, 16, 31507, id="vector 9: 16x16"),
        pytest.param(320, 16, 63015, id="vector 9: 32x16"),
        pytest.param(640, 16, 121000, id="vector 9: 64x16"),
        pytest.param(25, 1, 250, id="vector 9: 2.5x1"),
        pytest.param(50, 8, 4000, id="vector 9: 5x8"),
        (None, 16, None),
        (80, None, None),
        (70, 1, None),
    ],
)
def test_bandwidth_is_what_encoding_leaves(
    speed: int | None, width: int | None, mb_s: int | None
) -> None:
    assert bandwidth_mb_s(speed, width) == mb_s


FULL = PciLink(speed=320, width=16, max_speed=320, max_width=16)


@pytest.mark.parametrize(
    ("link", "port", "verdict"),
    [
        pytest.param(
            PciLink(speed=80, width=4, max_speed=80, max_width=4),
            PciLink(max_speed=80, max_width=8),
            None,
            id="vector 45: four of four below a port of eight",
        ),
        pytest.param(
            PciLink(speed=320, width=8, max_speed=320, max_width=16),
            FULL,
            "width",
            id="vector 46: eight of sixteen",
        ),
        pytest.param(FULL, None, None, id="a phantom port says nothing"),
        pytest.param(PciLink(width=8), PciLink(), None, id="no side says what it can"),
        pytest.param(PciLink(width=8), FULL, "width", id="only the port says what it can"),
        pytest.param(PciLink(max_width=16), FULL, None, id="current width unknown"),
    ],
)
def test_lost_lanes_count_at_once(link: PciLink, port: PciLink | None, verdict: str | None) -> None:
    assert degradation(link, port) == verdict


def test_vector_35_low_speed_is_not_degraded_until_it_lasts() -> None:
    link = PciLink(speed=25, width=1, max_speed=80, max_width=1)
    assert is_slow(link, None)
    assert degradation(link, None) is None
    assert degradation(link, None, slow_for_long=True) == "speed"


def test_three_readings_a_minute_apart_make_it_last() -> None:
    record = SlowLinkRecord()
    for now_s in (0.0, 30.0, 60.0, 90.0):
        record = record.observe(now_s, slow=True, busy=False)
    assert not record.is_persistent
    assert record.observe(120.0, slow=True, busy=False).is_persistent


def test_one_good_reading_starts_over_and_a_busy_device_needs_one() -> None:
    record = SlowLinkRecord(2, 60.0).observe(120.0, slow=False, busy=False)
    assert record == SlowLinkRecord()
    assert record.observe(121.0, slow=True, busy=True).is_persistent


def test_a_side_that_does_not_say_is_ignored() -> None:
    assert attainable_link(PciLink(max_speed=320), FULL) == (320, 16)
    assert attainable_link(PciLink(), None) == (None, None)


def test_links_of_functions_are_followed_from_reading_to_reading() -> None:
    port = PciFunction(address="0000:17:00.0", link=FULL)
    slow = replace(FULL, speed=25)
    card = PciFunction(address="0000:18:00.0", bridges=(port.address,), link=slow)
    tree = tree_of(port, card)
    records: dict[str, SlowLinkRecord] = {"0000:99:00.0": SlowLinkRecord(3, 0.0)}
    for now_s in (0.0, 60.0, 120.0):
        assert persistently_slow(records) <= {"0000:99:00.0"}
        records = observe_links(records, tree, [card.address, "0000:99:00.0"], now_s)
    assert persistently_slow(records) == {card.address}
    assert observe_links(records, tree_of(), [card.address], 180.0) == {}


@given(st.text(max_size=30))
def test_any_text_is_a_link_value_or_unknown(text: str) -> None:
    assert bandwidth_mb_s(parse_speed(text), parse_width(text)) is None
