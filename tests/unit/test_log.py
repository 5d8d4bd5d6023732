"""Logs: one JSON object a line, repeats counted instead of repeated."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from agent.log import REPEAT_WINDOW_S, JsonFormatter, RepeatFilter, configure_logging


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    text = io.StringIO()
    configure_logging("info", text)
    yield text
    root.handlers[:], level = before[0], before[1]
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_record_is_one_line_with_its_fields(stream: io.StringIO) -> None:
    logging.getLogger("a.b").warning("device_gone", extra={"device": "0000:3b:00.0", "n": 3})
    (line,) = lines(stream)
    assert line["event"] == "device_gone"
    assert (line["level"], line["logger"], line["device"], line["n"]) == (
        "warning",
        "a.b",
        "0000:3b:00.0",
        3,
    )


def test_text_with_newlines_stays_one_line(stream: io.StringIO) -> None:
    logging.getLogger("a").info("x", extra={"text": "one\ntwo", "object": object})
    assert len(stream.getvalue().splitlines()) == 1


def test_a_trace_is_a_field(stream: io.StringIO) -> None:
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("a").exception("failed")
    assert "ValueError: no" in str(lines(stream)[0]["trace"])


def test_repeats_are_held_back_for_a_minute_and_counted() -> None:
    repeat_filter = RepeatFilter()

    def passes(at_s: float, **fields: object) -> logging.LogRecord | None:
        record = logging.makeLogRecord({"name": "a", "msg": "x", **fields})
        record.created = at_s
        return record if repeat_filter.filter(record) else None

    assert passes(0.0, device="a") is not None
    assert passes(0.0, device="b") is not None
    assert passes(1.0, device="a") is None
    assert passes(2.0, device="a", failures=7) is None
    late = passes(REPEAT_WINDOW_S + 1, device="a")
    assert late is not None
    assert json.loads(JsonFormatter().format(late))["repeated"] == 2


def test_a_clock_that_is_set_back_silences_nothing() -> None:
    repeat_filter = RepeatFilter()

    def passes(at_s: float) -> bool:
        record = logging.makeLogRecord({"name": "a", "msg": "x"})
        record.created = at_s
        return bool(repeat_filter.filter(record))

    assert [passes(at_s) for at_s in (1e9, 5.0, 6.0, 5.0 + REPEAT_WINDOW_S)] == [
        True,
        True,
        False,
        True,
    ]


def test_what_is_below_the_level_is_not_written(stream: io.StringIO) -> None:
    logging.getLogger("a").debug("quiet")
    assert stream.getvalue() == ""
