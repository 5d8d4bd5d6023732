from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.topology.pci_config import (
    CONFIG_BYTES,
    DOWNSTREAM_PORT,
    ENDPOINT,
    ROOT_PORT,
    UPSTREAM_PORT,
    PciConfig,
    parse_config,
)

NOTHING = PciConfig()


def space(*patches: tuple[int, bytes]) -> bytes:
    """Return a config space of zeros with some bytes set."""
    data = bytearray(CONFIG_BYTES)
    for offset, value in patches:
        data[offset : offset + len(value)] = value
    return bytes(data)


CAPABLE = (0x06, b"\x10")
FIRST = (0x34, b"\x40")


def express(port_type: int, at: int = 0x40, then: int = 0) -> tuple[int, bytes]:
    return at, bytes([0x10, then]) + (port_type << 4 | 2).to_bytes(2, "little")


def extended(identity: int, at: int, then: int, control: int = 0) -> tuple[int, bytes]:
    header = identity | 1 << 16 | then << 20
    return at, header.to_bytes(4, "little") + b"\xff\x00" + control.to_bytes(2, "little")


@pytest.mark.parametrize("port_type", [ENDPOINT, ROOT_PORT, UPSTREAM_PORT, DOWNSTREAM_PORT])
def test_the_express_capability_names_the_port(port_type: int) -> None:
    data = space(CAPABLE, FIRST, (0x40, b"\x01\x60"), express(port_type, at=0x60))
    assert parse_config(data).port_type == port_type


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(space(FIRST, express(4)), id="status says: no capabilities"),
        pytest.param(space(CAPABLE, express(4)), id="pointer 0"),
        pytest.param(space(CAPABLE, (0x34, b"\x20"), express(4, at=0x20)), id="pointer below 40"),
        pytest.param(space(CAPABLE, FIRST, (0x40, b"\x01\x40")), id="hostile 11: self loop"),
        pytest.param(
            space(CAPABLE, FIRST, (0x40, b"\x01\x50"), (0x50, b"\x05\x40")), id="hostile 11: loop"
        ),
    ],
)
def test_without_a_reachable_capability_the_port_is_unknown(data: bytes) -> None:
    assert parse_config(data) == NOTHING


@pytest.mark.parametrize("size", [0, 63, 64, 256, CONFIG_BYTES - 1])
def test_hostile_11_a_part_of_the_space_says_nothing(size: int) -> None:
    assert parse_config(space(CAPABLE, FIRST, express(4))[:size]) == NOTHING


def test_acs_and_ats_are_found_along_the_extended_list() -> None:
    data = space(
        extended(0x0001, 0x100, 0x200),
        extended(0x000D, 0x200, 0x300, control=0x1D),
        extended(0x000F, 0x300, 0, control=0x8000),
    )
    assert parse_config(data) == PciConfig(None, 0x1D, True)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param((0x100, b"\x00\x00\x00\x00"), id="hostile 11: header 0"),
        pytest.param((0x100, b"\xff\xff\xff\xff"), id="hostile 11: header ffffffff"),
        pytest.param(extended(0x0001, 0x100, 0x80), id="hostile 11: next below 100"),
        pytest.param(extended(0x0001, 0x100, 0x100), id="hostile 11: loop"),
    ],
)
def test_a_broken_extended_list_ends_there(first: tuple[int, bytes]) -> None:
    assert parse_config(space(first, extended(0x000D, 0x200, 0, control=1))) == NOTHING


def test_a_control_word_of_zero_is_not_absence() -> None:
    assert parse_config(space(extended(0x000D, 0x100, 0))).acs_control == 0


def test_disabled_ats_is_not_absence() -> None:
    assert parse_config(space(extended(0x000F, 0x100, 0))).ats_enabled is False


@given(st.binary(max_size=256), st.binary(min_size=256, max_size=512))
def test_random_bytes_never_raise_or_hang(head: bytes, tail: bytes) -> None:
    data = (head.ljust(256, b"\x41") + tail * 16)[:CONFIG_BYTES].ljust(CONFIG_BYTES, b"\xfe")
    facts = parse_config(data)
    assert facts.port_type is None or 0 <= facts.port_type <= 15
    assert facts.acs_control is None or 0 <= facts.acs_control <= 0xFFFF
