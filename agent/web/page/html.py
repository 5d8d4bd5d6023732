"""HTML elements with escaped values: text of machines and pods, tables, badges, meters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from itertools import zip_longest

from agent.snapshot.device import Health
from agent.wire_formats.api_values import format_time

# XML 1.0 excludes these characters, and a browser refuses the whole picture for one of them
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_EMPTY_SHAPES = frozenset(("path", "rect"))  # of SVG: HTML has no such elements
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_.-]+")
HEALTH_SIGNS = {"healthy": "✓", "suspect": "!", "probing": "…", "failed": "✕", "unmanaged": "–"}


def attributes(**values: object) -> str:
    """Return attributes: `font_size` is `font-size`, `class_` is `class`, `None` is left out."""
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_escape(value)}"'
        for name, value in values.items()
        if value is not None
    )


def tag(name: str, *children: str, **values: object) -> str:
    """Return an element; children are markup already, so escape text with `text` before."""
    inner = "".join(children)
    if name in _EMPTY_SHAPES and not inner:
        return f"<{name}{attributes(**values)}/>"
    return f"<{name}{attributes(**values)}>{inner}</{name}>"


def text(value: object) -> str:
    """Return a value as escaped text; an absent one as a dash."""
    return "–" if value is None or value == "" else _escape(value)


def prose(value: str) -> str:
    """Return a sentence as escaped text; what stands between backticks is code."""
    parts = _escape(value).split("`")
    if len(parts) % 2 == 0:  # a backtick without its end
        return _escape(value)
    return "".join(tag("code", part) if index % 2 else part for index, part in enumerate(parts))


def _escape(value: object) -> str:
    return escape(_NOT_XML.sub("\ufffd", str(value)))


def bytes_text(value: float | None) -> str:
    """Return bytes for people: 81559 MiB is 79.6 GiB; an absent value is a dash."""
    if value is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def grid(
    names: Sequence[str],
    rows: Iterable[Sequence[str]],
    caption: str,
    class_: str | None = None,
    *,
    ids: Iterable[str] = (),
) -> str:
    """Return a table that scrolls inside its own box; cells are markup.

    The first cell of a row is its heading. With `ids` each row has an id, so that what is open or
    has the focus in it stays so when the page renews itself with other rows before it.
    """
    heads = (tag("th", text(name), scope="col") if name else "<td></td>" for name in names)
    body = "".join(
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:]), id=id_)
        for row, id_ in zip_longest(rows, ids)
    )
    inner = tag("caption", text(caption)) + tag("thead", tag("tr", *heads)) + tag("tbody", body)
    table = tag("table", inner, class_=class_)
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)


def section(anchor: str, heading: str, *children: str, class_: str | None = None) -> str:
    """Return a part of the page with its heading, a landmark that links lead to.

    It is empty without children that have content.
    """
    if not any(children):
        return ""
    title = tag("h2", text(heading), id=f"{anchor}-title")
    return tag(
        "section",
        title,
        *children,
        id=anchor,
        class_=class_,
        aria_labelledby=f"{anchor}-title",
    )


def fold(anchor: str, summary: str, *children: str) -> str:
    """Return content that the reader opens; `anchor` is unique on the page."""
    return tag("details", tag("summary", text(summary)), *children, id=anchor)


def anchor(*words: object) -> str:
    """Return an id of the page that has these words; equal words give equal ids."""
    return _NOT_IN_IDS.sub("-", "-".join(map(str, words)))


def badge(state: str, word: str = "") -> str:
    """Return a health state as colour, sign and text, so that none of them is needed alone."""
    sign = tag("span", HEALTH_SIGNS.get(state, "·"), aria_hidden="true")
    return tag("span", sign, " ", text(word or state), class_=f"badge {state}")


def health_badge(health: Health) -> str:
    """Return the badge of a state; an uncertain state is never shown as healthy."""
    if health.certain:
        return badge(health.state.value)
    tone = "suspect" if health.is_in_service else health.state.value
    return badge(tone, f"{health.state.value} or not: unknown")


def rate_text(bytes_per_s: float | None) -> str:
    """Return a data rate for people: 12.3 GB/s; an absent rate is a dash."""
    if bytes_per_s is None:
        return "–"
    value = bytes_per_s / 1e6
    for unit in ("MB/s", "GB/s"):
        if value < 1000:
            return (
                f"{value:.0f} {unit}" if unit == "MB/s" or value >= 100 else f"{value:.1f} {unit}"
            )
        value /= 1000
    return f"{value:.1f} TB/s"


def meter(used: float | None, total: float | None, label: str) -> str:
    """Return a bar with its figure; only a dash if one of both values is unknown."""
    if used is None or not total:
        return text(label) if used is not None else "–"
    percent = min(100.0, 100.0 * used / total)
    bar = tag("span", "", class_="fill", style=f"width:{percent:.0f}%")
    return tag("span", bar, class_="meter", aria_hidden="true") + tag("span", text(label))


def health_reason(health: Health) -> str:
    """Return the reason and the time of the change, for people; empty for a healthy device."""
    if health.reason == Health().reason:
        return ""
    since = format_time(health.since_s)
    return f"{health.reason}: {health.message}" + (f" (since {since})" if since else "")
