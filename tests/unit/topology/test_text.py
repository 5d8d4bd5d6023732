"""Generic parsers of kernel text: what they accept, what they refuse, and that they never crash."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import ParseError
from agent.wire_formats.kernel_text import (
    format_cpu_list,
    parse_cpu_list,
    parse_cpu_mask,
    parse_dev_number,
    parse_distances,
    parse_hex_id,
    parse_int,
    parse_size,
)

HOSTILE = st.one_of(
    st.text(max_size=200),
    st.text(alphabet="0123456789abcdefABCDEFxKMG,-:/ \t\n\0+.", max_size=200),
    st.binary(max_size=200).map(lambda data: data.decode("utf-8", "replace")),
)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        pytest.param("0-3,5-15\n", "0-3,5-15", id="vector 1"),
        pytest.param("0-15:1/4", "0,4,8,12", id="vector 2"),
        ("", ""),
        (" \n\0", ""),
        ("0,,1", "0-1"),
        (" 0 - 3", None),
        (" 0-1 ,\t3 ", "0-1,3"),
        ("7,7,6", "6-7"),
        ("0-9:2/5", "0-1,5-6"),
        ("65535", "65535"),
    ],
)
def test_a_list_prints_as_the_kernel_prints_it(text: str, printed: str | None) -> None:
    if printed is None:
        with pytest.raises(ParseError):
            parse_cpu_list(text)
    else:
        assert format_cpu_list(parse_cpu_list(text)) == printed


@pytest.mark.parametrize(
    "text",
    [
        *["3-1", "1-", "-1", "0-99999999999", "0-3:5/4", "a"],
        *["65536", "0-3:0/4", "0:1/4", "0-3:1", "٣", "0;1", "0-1-2", "  (null)", "1\n1"],
        ",".join("0" for _ in range(4097)),
        ",".join("0-65535" for _ in range(5)),
    ],
)
def test_a_list_that_the_kernel_cannot_print_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_cpu_list(text)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        pytest.param("0000,00000011,11111111", "0,4,8,12,16,20,24,28,32,36", id="vector 3"),
        pytest.param(
            "00000000,0000ffff,ff000000,00000000,0000ffff,ff000000", "24-47,120-143", id="vector 4"
        ),
        pytest.param("1\n\0\0", "0", id="vector 5"),
        ("0", ""),
        ("00000000,00000000", ""),
        ("1,0", "32"),
        ("ff,", "0-7"),
        ("F" * 24, "0-95"),
        ("8" + "0" * 16383, "65535"),
    ],
)
def test_a_mask_reads_words_from_the_most_significant(text: str, printed: str) -> None:
    assert format_cpu_list(parse_cpu_mask(text)) == printed


@pytest.mark.parametrize(
    "text",
    [
        *["g", "0x3", "12345678 1", "1,123456789", "123456789,1", "", ",", "1,,1", "+1", "1_0"],
        *["0" * 16385, ",".join("0" for _ in range(2049))],
    ],
)
def test_a_mask_that_the_kernel_cannot_print_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_cpu_mask(text)


@pytest.mark.parametrize(("text", "value"), [("7\n", 7), ("-1", -1), ("+3\0", 3), ("007", 7)])
def test_a_number_in_range_is_read(text: str, value: int) -> None:
    assert parse_int(text, -1, 10) == value


@pytest.mark.parametrize(
    "text", ["11", "-2", "1\n1", "", "1.0", "0x1", "1" * 19, "١", "1_0", "- 1"]
)
def test_a_number_out_of_range_or_shape_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_int(text, -1, 10)


def test_a_hex_id_has_all_its_digits() -> None:
    assert parse_hex_id("0x030200\n", 6) == 0x030200


@pytest.mark.parametrize("text", ["0x20000", "0xzz", "0x123456789", "030200", "0X030200", "", "0x"])
def test_a_damaged_hex_id_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_hex_id(text, 6)


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("512", 512), ("48K\n", 49152), ("2M", 1 << 21), ("1G", 1 << 30)]
)
def test_a_size_is_in_bytes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "K", "-1K", "1T", "1KB", "1 K", "1" * 16])
def test_a_bad_size_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "row"),
    [("10 21\n", (10, 21)), ("  12 10", (12, 10)), ("255\t0", (255, 0))],
)
def test_a_row_of_distances_is_unchanged(text: str, row: tuple[int, ...]) -> None:
    assert parse_distances(text, 2) == row


@pytest.mark.parametrize("text", ["10", "10 20 20", "10 -1", "10 1000000000", "10 256", "", "a b"])
def test_a_row_of_wrong_length_or_range_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_distances(text, 2)


def test_a_device_number_is_two_numbers() -> None:
    assert parse_dev_number("231:192\n") == (231, 192)


@pytest.mark.parametrize("text", ["", "1", "1:", ":1", "1:2:3", "1048576:0", "0:1048576", "-1:0"])
def test_a_bad_device_number_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_dev_number(text)


PARSERS: dict[str, Callable[[str], object]] = {
    "list": parse_cpu_list,
    "mask": parse_cpu_mask,
    "int": partial(parse_int, low=-(10**18), high=10**18),
    "hex id": partial(parse_hex_id, digits=4),
    "size": parse_size,
    "distances": partial(parse_distances, count=3),
    "dev number": parse_dev_number,
}


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
@settings(deadline=None)
@given(text=HOSTILE)
def test_hostile_text_raises_nothing_but_a_parse_error(
    parser: Callable[[str], object], text: str
) -> None:
    with suppress(ParseError):
        parser(text)


CPU_SETS = st.frozensets(st.integers(0, 65535), max_size=40)


@settings(deadline=None)
@given(CPU_SETS)
def test_a_printed_list_reads_back(cpus: frozenset[int]) -> None:
    assert parse_cpu_list(format_cpu_list(cpus)) == cpus


@settings(deadline=None)
@given(CPU_SETS)
def test_list_and_mask_of_one_set_agree(cpus: frozenset[int]) -> None:
    digits = f"{sum(1 << cpu for cpu in cpus):x}"
    padded = digits.zfill(-(-len(digits) // 8) * 8)
    words = [padded[start : start + 8] for start in range(0, len(padded), 8)]
    assert parse_cpu_mask(",".join(words)) == cpus
