from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.vendors.rdma.sysfs import values


@pytest.mark.parametrize(
    ("raw", "mbps"),
    [
        pytest.param("400 Gb/sec (4X NDR)", 400000, id="10-ndr"),
        pytest.param("2.5 Gb/sec (1X SDR)", 2500, id="10-sdr"),
        pytest.param("100 Gb/sec", 100000, id="10-bare"),
        pytest.param("1e9 Gb/sec", None, id="10-exponent"),
        pytest.param("-5", None, id="row-12-negative"),
        pytest.param("Gb/sec", None, id="row-12-no-number"),
        pytest.param("40 Gb/sec (4X QDR)\n", None, id="strip-is-the-callers"),
        pytest.param("٤٠ Gb/sec", None, id="ascii-digits-only"),
    ],
)
def test_a_rate_becomes_megabits_or_is_unknown(raw: str, mbps: int | None) -> None:
    assert values.parse_rate(raw) == mbps


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        pytest.param("4: ACTIVE", (4, "ACTIVE"), id="11-the-number-decides"),
        pytest.param("5: LinkUp", (5, "LinkUp"), id="link-up"),
        pytest.param("7: Phy Test", (7, "Phy Test"), id="blank-in-the-name"),
        pytest.param("ACTIVE", None, id="row-12-no-number"),
        pytest.param("4", None, id="row-12-no-name"),
        pytest.param("4:ACTIVE", (4, "ACTIVE"), id="row-12-no-blank"),
        pytest.param("44: X", (44, "X"), id="row-12-unknown-number"),
        pytest.param("4: ACTIVE\n4: ACTIVE", None, id="row-12-two-lines"),
    ],
)
def test_a_kernel_enum(raw: str, value: tuple[int, str] | None) -> None:
    assert values.parse_enum(raw) == value


@pytest.mark.parametrize(
    ("raw", "digits"),
    [
        pytest.param("5054:00ff:fe00:0013", "505400fffe000013", id="12-good"),
        pytest.param("0a7f:bc12:45ef:d23bEOF", None, id="12-damaged"),
        pytest.param("0000:0000:0000:0000", None, id="unset"),
        pytest.param("5054:00FF:FE00:0013", "505400fffe000013", id="lower-case"),
    ],
)
def test_a_guid(raw: str, digits: str | None) -> None:
    assert values.parse_guid(raw) == digits


def test_a_guid_is_shown_as_the_kernel_shows_it() -> None:
    assert values.show_guid("505400fffe000013") == "5054:00ff:fe00:0013"


@pytest.mark.parametrize(
    ("raw", "kept", "local"),
    [
        pytest.param("fe80:0000:0000:0000:0011:7500:0077:cfc8", True, True, id="13-link-local"),
        pytest.param("0000:0000:0000:0000:0000:0000:0000:0000", False, False, id="13-all-zero"),
        pytest.param("fe80:0000:0000:0000:0000:0000:0000:0000", False, False, id="prefix-alone"),
        pytest.param("fec0:0000:0000:0000:5054:00ff:fe00:0010", True, False, id="site-local"),
        pytest.param("fe80::1", False, False, id="shortened"),
    ],
)
def test_an_address(raw: str, kept: bool, local: bool) -> None:
    gid = values.parse_gid(raw)
    assert (gid is not None, gid is not None and values.is_link_local(gid)) == (kept, local)


def test_a_mapped_ipv4_address_is_recognised() -> None:
    assert values.is_ipv4("0000:0000:0000:0000:0000:ffff:0a00:0001")
    assert not values.is_ipv4("fec0:0000:0000:0000:5054:00ff:fe00:0010")


@pytest.mark.parametrize(
    ("raw", "lid"),
    [("0x12a", 298), ("0", 0), ("65535", 65535), ("65536", None), ("0x10000", None), ("x", None)],
)
def test_a_lid_has_sixteen_bits(raw: str, lid: int | None) -> None:
    assert values.parse_lid(raw) == lid


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        pytest.param("2880761508848", 2880761508848, id="14-a-number"),
        pytest.param("N/A (no PMA)", None, id="15-row-13-not-available"),
        pytest.param("-1", None, id="row-13-negative"),
        pytest.param("0x10", None, id="row-13-hexadecimal"),
        pytest.param("18446744073709551616", None, id="row-13-beyond-64-bits"),
        pytest.param("18446744073709551615", 2**64 - 1, id="row-13-the-largest"),
        pytest.param("1" * 40, None, id="row-13-forty-digits"),
        pytest.param("", None, id="row-1-empty"),
    ],
)
def test_a_counter(raw: str, value: int | None) -> None:
    assert values.parse_counter(raw) == value


def test_limits_of_the_rdma_controller_vector_16() -> None:
    content = "mlx5_0 hca_handle=2 hca_object=max \nrubbish\nmlx5_1 hca_handle=max hca_object=7\n"
    assert values.parse_limits(content) == {"mlx5_0": (2, None), "mlx5_1": (None, 7)}


@pytest.mark.parametrize(
    ("raw", "number"),
    [("1", 1), ("255", 255), ("0", None), ("256", None), ("x", None), ("01", None), ("-1", None)],
)
def test_row_4_port_directories(raw: str, number: int | None) -> None:
    assert values.parse_port(raw) == number


@pytest.mark.parametrize("raw", ["a/b", "..", ".", "", "a b", "a\nb", 'a"b', "a" * 64, "é"])
def test_row_14_names_that_cannot_be_ones(raw: str) -> None:
    assert not values.is_name(raw)


@pytest.mark.parametrize("raw", ["mlx5_0", "rxe_eth0", "rocep31s0f0", "a.b:c-d"])
def test_names_of_devices(raw: str) -> None:
    assert values.is_name(raw)


PARSERS: tuple[Callable[[str], object], ...] = (
    values.parse_rate,
    values.parse_enum,
    values.parse_guid,
    values.parse_gid,
    values.parse_lid,
    values.parse_counter,
    values.parse_port,
    values.parse_limits,
    values.is_name,
)


@pytest.mark.parametrize("parser", PARSERS)
@given(raw=st.one_of(st.text(max_size=200), st.from_regex(r"[0-9a-fx:. ()GbsecX/-]{0,60}")))
def test_no_text_makes_a_parser_raise(parser: Callable[[str], object], raw: str) -> None:
    parser(raw)


@given(st.integers(0, 2**64 - 1))
def test_every_64_bit_counter_is_read_back(value: int) -> None:
    assert values.parse_counter(str(value)) == value


@given(st.text("0123456789abcdef", min_size=16, max_size=16))
def test_every_guid_is_read_back(digits: str) -> None:
    expected = digits if digits.strip("0") else None
    assert values.parse_guid(values.show_guid(digits)) == expected
