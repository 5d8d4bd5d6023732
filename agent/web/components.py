"""HTML elements that several tables share: grid, badge, meter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.snapshot.device import Health
from agent.web.html import tag, text
from agent.wire_formats.api_values import format_time


def grid(
    names: Sequence[str], rows: Iterable[Sequence[str]], caption: str, class_: str | None = None
) -> str:
    """Return a table that scrolls inside its own box; cells are markup."""
    head = tag("tr", *(tag("th", text(name) if name else "", scope="col") for name in names))
    body = "".join(tag("tr", *(tag("td", cell) for cell in row)) for row in rows)
    inner = tag("caption", text(caption)) + tag("thead", head) + tag("tbody", body)
    return tag("div", tag("table", inner, class_=class_), class_="scroll", tabindex=0)


def badge(state: str, word: str = "") -> str:
    """Return a health state as colour, sign and word, so that none is needed alone."""
    sign = tag("span", HEALTH_SIGNS.get(state, "·"), aria_hidden="true")
    return tag("span", sign, " ", text(word or state), class_=f"badge {state}")


def health_badge(health: Health) -> str:
    """Return the badge of a state; one that nobody can tell now never looks well."""
    if health.certain:
        return badge(health.state.value)
    tone = "suspect" if health.is_in_service else health.state.value
    return badge(tone, f"{health.state.value} or not: unknown")


def meter(used: float | None, total: float | None, label: str) -> str:
    """Return a bar with its figure; only a dash when one of both is unknown."""
    if used is None or not total:
        return text(label) if used is not None else "–"
    percent = min(100.0, 100.0 * used / total)
    bar = tag("span", "", class_="fill", style=f"width:{percent:.0f}%")
    return tag("span", bar, class_="meter", aria_hidden="true") + tag("span", text(label))


def health_reason(health: Health) -> str:
    """Return the reason in words and since when; nothing of a device that is simply well."""
    if health.reason == Health().reason:
        return ""
    since = format_time(health.since_s)
    return f"{health.reason}: {health.message}" + (f" (since {since})" if since else "")


HEALTH_SIGNS = {"healthy": "✓", "suspect": "!", "probing": "…", "failed": "✕", "unmanaged": "–"}
