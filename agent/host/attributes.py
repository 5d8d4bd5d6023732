"""Facts out of attribute files: a value, or `None` where the file cannot tell. Nothing raises."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from agent.errors import HostFileError, ParseError
from agent.host.files import HostFiles, text
from agent.topology.text import MAX_CPUS

T = TypeVar("T")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,4}")


def fact(host: HostFiles, path: str, parse: Callable[[str], T]) -> T | None:
    """Return a file's value; `None` if it is absent, blank, unreadable or not parsable."""
    content = text(host, path)
    if content is None:
        return None
    try:
        return parse(content)
    except ParseError:
        return None


def first_fact(host: HostFiles, paths: Iterable[str], parse: Callable[[str], T]) -> T | None:
    """Return the value of the first file that has one; the others are not read."""
    return next((value for path in paths if (value := fact(host, path, parse)) is not None), None)


def word(host: HostFiles, path: str, pattern: re.Pattern[str]) -> str | None:
    """Return group 1 of a pattern that matches the whole file; `None` otherwise."""
    match = pattern.fullmatch(text(host, path) or "")
    return match[1] if match else None


def entries(host: HostFiles, path: str) -> tuple[str, ...]:
    """List a directory; one that cannot be listed has nothing to tell."""
    try:
        return host.names(path)
    except HostFileError:
        return ()


def numbered(names: Iterable[str], prefix: str) -> tuple[list[int], int]:
    """Split names of the shape `<prefix><N>` into (sorted numbers, how many were malformed).

    `cpu01`, `cpu-1` and `cpu999999` are malformed; `cpuidle` and `cpu_atom` are something else.
    """
    numbers: list[int] = []
    malformed = 0
    for name in names:
        rest = name.removeprefix(prefix)
        if not name.startswith(prefix) or re.fullmatch(r"[a-z_]*", rest):
            continue
        if _NUMBER.fullmatch(rest) and int(rest) < MAX_CPUS:
            numbers.append(int(rest))
        else:
            malformed += 1
    return sorted(numbers), malformed
