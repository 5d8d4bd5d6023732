from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ParseError
from agent.snapshot.pci import (
    address_sort_key,
    is_host_bridge,
    parse_address,
    parse_user_address,
    slot_of,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        pytest.param("10000:00:04.0", "10000:00:04.0", id="vector 6: five digits stay"),
        pytest.param("0001:00:00.0", "0001:00:00.0", id="vector 6: four digits stay"),
        pytest.param("00000000:0A:00.0", "0000:0a:00.0", id="vector 6: eight digits shrink"),
        pytest.param("00000000:1B:00.0", "0000:1b:00.0", id="hostile 10: as NVML prints"),
        ("FFFFFFFF:FF:1F.7", "ffffffff:ff:1f.7"),
    ],
)
def test_an_address_has_one_spelling(text: str, address: str) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("0000:00:20.0", id="vector 7: device beyond 1f"),
        pytest.param("0000:00:00.8", id="hostile 10: function beyond 7"),
        pytest.param("0000:1b:00", id="hostile 10: no function"),
        pytest.param("0000:1b:00.0\n", id="hostile 10: newline"),
        pytest.param("\uff10000:1b:00.0", id="hostile 10: full-width digit"),
        "1b:00.0",
        " 0000:1b:00.0",
        "000:1b:00.0",
        "000000000:1b:00.0",
        "",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_address(text)


def test_settings_may_leave_out_domain_zero() -> None:
    assert parse_user_address("1B:00.0") == "0000:1b:00.0"


def test_addresses_sort_by_number() -> None:
    addresses = ["10000:00:00.0", "0001:00:00.0", "0000:0a:00.1", "0000:0a:00.0"]
    assert sorted(addresses, key=address_sort_key) == addresses[::-1]


@pytest.mark.parametrize(
    ("part", "yes"),
    [
        ("pci0000:20", True),
        ("pci000c:00", True),
        ("pci10000:00", True),
        ("pci0000:20x", False),
        ("xpci0000:20", False),
        ("pci000:20", False),
        ("pci0000:20\n", False),
    ],
)
def test_a_host_bridge_is_recognised_whole(part: str, yes: bool) -> None:
    assert is_host_bridge(part) is yes


def test_a_slot_is_the_card() -> None:
    assert slot_of("10000:00:1f.3") == "10000:00:1f"


@given(st.text(max_size=40) | st.from_regex(r"[0-9a-fA-F]{3,9}:[0-9a-f]{1,3}:[0-3].\.[0-9]"))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = parse_address(text)
    except ParseError:
        return
    assert parse_address(address) == address
    assert len(address_sort_key(address)) == 4
