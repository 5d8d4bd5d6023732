"""Small pictures of trends: inside their frame, with gaps, short for what does not change."""

from __future__ import annotations

import re
from array import array
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from agent.snapshot.usage import Trend
from agent.web.page.sparkline import HEIGHT, WIDTH, sparkline

NAN = float("nan")
_COMMAND = re.compile(r"([MVhlz])([^MVhlz]*)")


def trend(*values: float) -> Trend:
    return Trend(packed=array("f", values).tobytes())


def points(picture: str) -> list[tuple[float, float]]:
    """Follow the path; return each corner that is inside the frame or at its edge."""
    path = ET.fromstring(picture)[0].attrib["d"]
    x = y = 0.0
    corners = []
    for command, text in _COMMAND.findall(path):
        numbers = [float(one) for one in re.findall(r"-?\d+", text)]
        if command == "M":
            x, y = numbers
        elif command == "V":
            y = numbers[0]
        elif command == "h":
            x += numbers[0]
        elif command == "l":
            for dx, dy in zip(numbers[::2], numbers[1::2], strict=True):
                x, y = x + dx, y + dy
                corners.append((x, y))
        corners.append((x, y))
    return corners


def test_without_values_there_is_no_picture() -> None:
    assert sparkline(Trend(), 0, 100) == ""
    assert sparkline(trend(NAN, NAN), 0, 100) == ""


def test_a_level_is_the_share_between_the_bounds_and_never_outside() -> None:
    corners = points(sparkline(trend(20, 70, 1e9, -5, 120), 20, 120))
    levels = [HEIGHT - y for _, y in corners if y <= HEIGHT]
    assert levels[0] == 0
    assert HEIGHT // 2 in levels
    assert max(levels) == HEIGHT
    assert min(levels) == 0


def test_the_newest_value_is_at_the_right_end() -> None:
    corners = points(sparkline(trend(0, 100), 0, 100))
    tops = [x for x, y in corners if y == 0]
    assert tops[0] == WIDTH - 1
    assert max(tops) > WIDTH - 1


def test_what_does_not_change_is_one_line() -> None:
    steady = sparkline(trend(*[50.0] * WIDTH), 0, 100)
    assert len(steady) < 200
    assert steady.count("l1") == 0


def test_a_gap_divides_the_picture() -> None:
    assert sparkline(trend(1, 2, NAN, 3, 4), 0, 5).count("M") == 2


@given(st.lists(st.one_of(st.floats(0, 100, width=32), st.just(NAN)), max_size=WIDTH + 20))
def test_any_values_give_a_picture_inside_its_frame(values: list[float]) -> None:
    picture = sparkline(trend(*values), 0, 100)
    for x, y in points(picture) if picture else ():
        assert -1 <= x <= WIDTH + 1
        assert 0 <= y <= HEIGHT + 1
