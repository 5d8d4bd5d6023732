"""HTML elements with escaped values: text of machines and pods, tables, badges, meters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from agent.snapshot.device import Health
from agent.wire_formats.api_values import format_time

# XML 1.0 excludes these characters, and a browser refuses the whole picture for one of them
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
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
    return f"<{name}{attributes(**values)}>{inner}</{name}>"


def text(value: object) -> str:
    """Return a value as escaped text; an absent one as a dash."""
    return "–" if value is None or value == "" else _escape(value)


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
    names: Sequence[str], rows: Iterable[Sequence[str]], caption: str, class_: str | None = None
) -> str:
    """Return a table that scrolls inside its own box; cells are markup."""
    head = tag("tr", *(tag("th", text(name) if name else "", scope="col") for name in names))
    body = "".join(tag("tr", *(tag("td", cell) for cell in row)) for row in rows)
    inner = tag("caption", text(caption)) + tag("thead", head) + tag("tbody", body)
    return tag("div", tag("table", inner, class_=class_), class_="scroll", tabindex=0)


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
