"""A trend as a small picture: an area whose height is the value, in one path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from agent.snapshot.usage import Trend
from agent.web.page.html import tag

HEIGHT = 20  # levels of a value
WIDTH = 36  # steps; fewer values stand at the right end


def sparkline(trend: Trend, low: float, high: float) -> str:
    """Return a picture of the values between two bounds; empty without values.

    It is for the eyes only: the text beside it has the newest value.
    """
    path = _path(trend.values[-WIDTH:], low, high)
    if not path:
        return ""
    return tag(
        "svg",
        tag("path", d=path),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


def _path(values: Sequence[float | None], low: float, high: float) -> str:
    """Return the outline of each run of known values, down to below the lower edge.

    The outline begins and ends one unit outside of the picture where it touches a side, so that
    only its upper line is visible there.
    """
    span = max(high - low, 1e-9)
    first = WIDTH - len(values)
    parts = []
    for begin, levels in _runs(values, low, span):
        left = first + begin
        parts.append(f"M{left - 1 if left == 0 else left} {HEIGHT + 1}V{HEIGHT - levels[0]}")
        if left == 0:
            parts.append("h1")
        parts.append(_line(levels))
        right = left + len(levels)
        parts.append(f"{'h2' if right >= WIDTH else ''}V{HEIGHT + 1}z")
    return "".join(parts)


def _runs(
    values: Sequence[float | None], low: float, span: float
) -> Iterator[tuple[int, list[int]]]:
    """Yield the position and the levels of each run of values without a gap."""
    levels: list[int] = []
    for position, value in enumerate((*values, None)):
        if value is not None:
            share = min(1.0, max(0.0, (value - low) / span))
            levels.append(round(HEIGHT * share))
        elif levels:
            yield position - len(levels), levels
            levels = []


def _line(levels: Sequence[int]) -> str:
    """Return relative lines from level to level; equal ones are one line."""
    parts: list[str] = []
    steady = 0
    is_line = False  # numbers that follow belong to the same command
    for last, level in pairwise(levels):
        if level == last:
            steady += 1
            continue
        if steady:
            parts.append(f"h{steady}")
            steady, is_line = 0, False
        rise = last - level
        parts.append(f"{' ' if is_line else 'l'}1{'' if rise < 0 else ' '}{rise}")
        is_line = True
    if steady:
        parts.append(f"h{steady}")
    return "".join(parts)
