"""Escapes every value of HTML and SVG text that comes from a machine or a pod."""

from __future__ import annotations

import re
from html import escape

# XML 1.0 knows no such characters, and a browser refuses the whole picture for one of them
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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
    """Write bytes for people: 81559 MiB is 79.6 GiB; absent is a dash."""
    if value is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
