"""Tables and lines for a terminal of any width."""

from __future__ import annotations

import io

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.cli.output import format_table
from agent.cli.terminal import MIN_WIDTH, Terminal, fit_lines, terminal_of, wrap
from agent.web.admin import ReleaseRequest
from agent.web.admin_socket import MAX_RELEASE_S, MIN_RELEASE_S

WORDS = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "Zs")), max_size=60)
ROWS = st.lists(
    st.fixed_dictionaries({"name": WORDS, "bus_id": WORDS, "reason": WORDS}), min_size=1, max_size=5
)


def squeezed(text: str) -> str:
    return "".join(text.split())


@example(rows=[{"name": "n" * 60, "bus_id": "b c" * 20, "reason": "r" * 9}], width=60)
@given(rows=ROWS, width=st.integers(MIN_WIDTH, 200))
def test_every_width_shows_every_cell_whole(rows: list[dict[str, str]], width: int) -> None:
    lines = format_table(rows, Terminal(width=width)).splitlines()
    assert max(map(len, lines)) <= width
    shown = "".join(map(squeezed, lines))
    for character in {c for row in rows for text in row.values() for c in squeezed(text)}:
        reports = sum(squeezed(text).count(character) for row in rows for text in row.values())
        assert shown.count(character) >= reports


@given(text=WORDS, width=st.integers(1, 70))
def test_wrapping_loses_blanks_only(text: str, width: int) -> None:
    lines = list(wrap(text, width))
    assert max(map(len, lines)) <= width
    assert squeezed("".join(lines)) == squeezed(text)


def test_a_line_ends_after_a_word_if_possible() -> None:
    assert list(wrap("one two, three/four five", 11)) == ["one two,", "three/four", "five"]
    assert list(wrap("abcdefghij", 4)) == ["abcd", "efgh", "ij"]


def test_spare_columns_are_left_out_first_and_reported() -> None:
    rows = [{"name": "a" * 10, "id": "b" * 16, "model": "c" * 16}]
    wide = format_table(rows, Terminal(width=46), spare=("id", "model"))
    assert "b" * 16 in wide
    assert "narrow" not in wide
    narrow = format_table(rows, Terminal(width=40), spare=("id", "model"))
    assert "b" * 16 not in narrow
    assert "c" * 16 in narrow
    assert squeezed(narrow).endswith("(toonarrowforID:see-ojson)")


def test_where_columns_do_not_fit_each_row_is_a_block() -> None:
    rows = [{"name": "a" * 20, "about": "b" * 20}, {"name": "c", "about": "d"}]
    assert format_table(rows, Terminal(width=30)).splitlines() == [
        f"NAME   {'a' * 20}",
        f"ABOUT  {'b' * 20}",
        "",
        "NAME   c",
        "ABOUT  d",
    ]


def test_a_cell_is_painted_without_its_padding() -> None:
    rows = [{"health": "failed", "id": "x"}, {"health": "h", "id": "y"}]
    terminal = Terminal(width=80, colour=True)
    text = format_table(rows, terminal, style=lambda _, cell: "31" * (cell == "failed"))
    assert text.splitlines()[1:] == ["\x1b[31mfailed\x1b[0m  x", "h       y"]
    assert "\x1b[1mHEALTH\x1b[0m" in text


def test_what_follows_a_break_is_indented_below_its_line() -> None:
    lines = fit_lines(["  one two three four five six"], Terminal(width=24), "    ")
    assert list(lines) == ["  one two three four", "      five six"]


class Screen(io.StringIO):
    """A stream that says that it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "colour"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_colour_follows_the_environment(environment: dict[str, str], colour: bool) -> None:
    assert terminal_of(Screen(), environment).colour is colour
    assert not terminal_of(io.StringIO(), environment).colour


@pytest.mark.parametrize("for_s", [MIN_RELEASE_S, MAX_RELEASE_S])
def test_the_flag_takes_the_seconds_that_the_agent_takes(for_s: float) -> None:
    assert msgspec.convert({"vendor": "v", "for_s": for_s}, ReleaseRequest).for_s == for_s
    for beyond in (MIN_RELEASE_S - 0.1, MAX_RELEASE_S + 0.1):
        with pytest.raises(msgspec.ValidationError, match="for_s"):
            msgspec.convert({"vendor": "v", "for_s": beyond}, ReleaseRequest)
