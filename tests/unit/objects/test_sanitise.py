from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.wire_formats import api_values

REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
texts = st.text(st.characters(), max_size=200)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ChipFault", "ChipFault"),
        ("chip error", "ChipError"),
        ("ECC error", "ECCError"),
        ("XID 74", "XID74"),
        ("Xid79", "Xid79"),
        ("ECC_1", "ECC_1"),
        ("79", "Code79"),
        ("a:b,", "A:b"),
        ("", "Unknown"),
        ("坏了", "Unknown"),
        (" \n", "Unknown"),
    ],
)
def test_a_reason_becomes_camel_case(text: str, reason: str) -> None:
    assert api_values.condition_reason(text) == reason


@given(texts)
def test_any_reason_fits_the_schema(text: str) -> None:
    sanitised = api_values.condition_reason(text)
    assert REASON.fullmatch(sanitised)
    assert len(sanitised) <= 1024
    assert api_values.condition_reason(sanitised) == sanitised


@given(texts)
def test_any_label_value_is_accepted(text: str) -> None:
    sanitised = api_values.label_value(text)
    assert LABEL.fullmatch(sanitised)
    assert len(sanitised) <= 63
    assert api_values.label_value(sanitised) == sanitised


@given(texts, texts)
def test_any_message_is_bounded_utf8_on_one_line(text: str, reason: str) -> None:
    sanitised = api_values.condition_message(text, reason)
    assert len(sanitised) <= api_values.MAX_MESSAGE
    assert "\n" not in sanitised.encode().decode()


@pytest.mark.parametrize(
    ("text", "reason", "message"),
    [
        ("Chip Fault", "chip error", "Chip Fault (chip error)"),
        ("chip error on 3", "chip error", "chip error on 3"),
        ("", "chip error", "chip error"),
        ("boom", "ECC_1", "boom"),
        ("boom", "", "boom"),
    ],
)
def test_a_changed_reason_stays_readable_in_the_message(
    text: str, reason: str, message: str
) -> None:
    assert api_values.condition_message(text, reason) == message


@pytest.mark.parametrize("text", ["100", "81559Mi", "38250m", "1e3", ".5", "-1k"])
def test_quantities_pass(text: str) -> None:
    assert api_values.valid_quantity(text) == text


@pytest.mark.parametrize("text", ["", "1 Gi", "1Zi", "NaN", "0x10", "1\n", "9" * 64])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    assert api_values.valid_quantity(text) is None


@pytest.mark.parametrize(
    ("candidates", "text"),
    [
        ((1_767_323_045.9, 0.0), "2026-01-02T03:04:05Z"),
        ((None, 1_767_323_045.0), "2026-01-02T03:04:05Z"),
        ((float("nan"), float("inf"), -1.0, 1e18), "1970-01-01T00:00:00Z"),
        ((), "1970-01-01T00:00:00Z"),
    ],
)
def test_the_first_time_a_calendar_holds_is_written(
    candidates: tuple[float | None, ...], text: str
) -> None:
    assert api_values.format_first_time(*candidates) == text
