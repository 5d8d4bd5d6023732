"""What `ascend-docker-runtime` reads from a container's environment, and refuses."""

from __future__ import annotations

import re

from agent.errors import ParseError

VISIBLE = "ASCEND_VISIBLE_DEVICES"
SPECS = "ASCEND_VNPU_SPECS"
OPTIONS = "ASCEND_RUNTIME_OPTIONS"
VIRTUAL = "VIRTUAL"  # the number is a vNPU's
NO_DRIVER = "NODRV"
MAX_DEVICE = 128
MAX_OPTIONS_CHARS = 128
_NAMED = re.compile(r"(?:Ascend(?:910|310B|310P|310)|npu)-([0-9]{1,4})")
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


def visible_devices(text: str) -> tuple[int, ...]:
    """Return the numbers that the runtime would show, ascending; none for `void` or nothing.

    `ParseError` for what makes it fail the container.
    """
    if text.strip() in ("", "void"):
        return ()
    by_name = "Ascend" in text or "npu" in text
    read = _by_name if by_name else _by_number
    numbers = {number for item in text.split(",") for number in read(item.strip())}
    return tuple(sorted(numbers))


def _by_name(item: str) -> range:
    named = _NAMED.fullmatch(item)
    if named is None:
        raise ParseError(VISIBLE, item)
    number = int(named[1])
    return range(number, number + 1)


def _by_number(item: str) -> range:
    numbers = _RANGE.fullmatch(item)
    if numbers is None:
        raise ParseError(VISIBLE, item)
    first, last = int(numbers[1]), int(numbers[2] or numbers[1])
    if first > last or last > MAX_DEVICE:
        raise ParseError(VISIBLE, item)
    return range(first, last + 1)


def runtime_options(text: str) -> tuple[str, ...]:
    """Return the options, in the order written; `ParseError` for an unknown one."""
    if len(text) > MAX_OPTIONS_CHARS:
        raise ParseError(OPTIONS, text)
    words = tuple(word.strip() for word in text.split(",")) if text.strip() else ()
    if any(word not in (NO_DRIVER, VIRTUAL) for word in words):
        raise ParseError(OPTIONS, text)
    return words
