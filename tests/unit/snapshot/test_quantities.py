"""Quantities and codes of other programs, in the form that an API server gives back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.wire_formats.api_values import MAX_REASON, condition_reason
from agent.wire_formats.quantities import MAX_VALUE, Quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "value", "canonical"),
    [
        ("0", 0, "0"),
        ("100", 100, "100"),
        ("1000", 1000, "1k"),
        ("1500", 1500, "1500"),
        ("+5", 5, "5"),
        ("65536Mi", 64 << 30, "64Gi"),
        ("24564Mi", 24564 << 20, "24564Mi"),
        ("1.5Gi", 3 << 29, "1536Mi"),
        ("1000Ki", 1_024_000, "1000Ki"),
        ("0.5Ki", 512, "512"),
        ("0Gi", 0, "0"),
        (".5", 1, "500m"),
        ("100m", 1, "100m"),
        ("2000m", 2, "2"),
        ("1u", 1, "1u"),
        ("64G", 64 * 10**9, "64G"),
        ("0.1n", 1, "1n"),
        ("1e3", 1000, "1e3"),
        ("007", 7, "7"),
    ],
)
def test_a_quantity_has_one_form(text: str, value: int, canonical: str) -> None:
    assert parse_quantity(text) == Quantity(value, canonical)


@pytest.mark.parametrize(
    "text",
    ["", ".", "-1", "-64Gi", "Mi", "1 Gi", "1GiB", "1e", "1e999", "NaN", "inf", "0x10", "1,5",
     "9223372036854775808", "10E", "16Ei", "1" * 64, "٣"],
)  # fmt: skip
def test_what_is_no_quantity_is_none(text: str) -> None:
    assert parse_quantity(text) is None


@given(st.text(alphabet="0123456789.+-eEKMGTPkmnui ", max_size=70) | st.text(max_size=70))
def test_a_canonical_quantity_is_its_own_form(text: str) -> None:
    quantity = parse_quantity(text)
    if quantity is not None:
        assert 0 <= quantity.value <= MAX_VALUE
        assert parse_quantity(quantity.text) == quantity


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("chip error", "ChipError"),
        ("ECC_1", "ECC_1"),
        ("79", "Code79"),
        ("ECC error", "ECCError"),
        ("", "Unknown"),
        ("  ", "Unknown"),
        ("错误", "Unknown"),
        ("a:", "A"),
    ],
)
def test_a_code_becomes_a_reason(code: str, reason: str) -> None:
    assert condition_reason(code) == reason


@given(st.text(max_size=300))
def test_a_reason_is_always_one_that_the_schema_takes(code: str) -> None:
    reason = condition_reason(code)
    assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", reason)
    assert len(reason) <= MAX_REASON
