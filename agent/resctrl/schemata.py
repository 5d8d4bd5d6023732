"""The text of a resctrl group's `schemata`: values by resource and domain. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from agent.snapshot.self_check import BANDWIDTH_RESOURCE

BANDWIDTH = BANDWIDTH_RESOURCE
CACHE_LINES = ("L3", "L3CODE", "L3DATA")  # in the order in which they are written
LINES = (*CACHE_LINES, BANDWIDTH)  # other resources are never written
MAX_DOMAIN = 65535

Schemata = Mapping[str, Mapping[int, int]]  # values by resource and domain

_HEX = re.compile(r"(?:0[xX])?([0-9a-fA-F]{1,16})")
_DECIMAL = re.compile(r"[0-9]{1,10}")


def parse_schemata(text: str) -> Schemata:
    """Return the values of the known resources; items that are not readable are left out."""
    values: dict[str, dict[int, int]] = {}
    for line in text.splitlines():
        name, colon, items = line.strip().partition(":")
        if not colon or name not in LINES or ":" in items:
            continue
        values[name] = {}
        for item in items.split(";"):
            domain, equals, value = item.partition("=")
            number = _value(name, value.strip())
            if equals and _DECIMAL.fullmatch(domain.strip()) and number is not None:
                values[name][int(domain)] = number
    return values


def _value(line: str, text: str) -> int | None:
    if line == BANDWIDTH:
        return int(text) if _DECIMAL.fullmatch(text) else None
    match = _HEX.fullmatch(text)
    return int(match[1], 16) if match else None


def format_line(line: str, values: Mapping[int, int]) -> str:
    """Return one line as the kernel reads it: `L3:0=3f;1=f`, domains ascending."""
    shown = (
        f"{domain}={value if line == BANDWIDTH else format(value, 'x')}"
        for domain, value in sorted(values.items())
    )
    return f"{line}:{';'.join(shown)}"


def format_schemata(values: Schemata) -> str:
    """Return all lines, the cache before the bandwidth; empty for no value."""
    lines = (format_line(line, values[line]) for line in LINES if values.get(line))
    return "".join(f"{line}\n" for line in lines)


def overlay(root: Schemata, values: Schemata) -> Schemata:
    """Return the values of the root group, replaced where there are others.

    Only resources and domains of the root group count: the kernel has no others.
    """
    return {
        line: {
            domain: values.get(line, {}).get(domain, default) for domain, default in domains.items()
        }
        for line, domains in root.items()
    }


def difference(current: Schemata, desired: Schemata) -> Schemata:
    """Return the desired values that differ from the current ones."""
    changed = {
        line: {
            domain: value
            for domain, value in domains.items()
            if current.get(line, {}).get(domain) != value
        }
        for line, domains in desired.items()
    }
    return {line: domains for line, domains in changed.items() if domains}


def flatten(values: Schemata) -> tuple[tuple[str, int, int], ...]:
    """Return the values as resource, domain and value, in the order in which they are written."""
    return tuple(
        (line, domain, value)
        for line in LINES
        for domain, value in sorted(values.get(line, {}).items())
    )
