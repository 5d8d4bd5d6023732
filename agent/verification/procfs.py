"""Parses the kernel's files about one process or cgroup.

Containers control parts of these files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from agent.snapshot.device import Pairs
from agent.snapshot.edits import UNLIMITED_RLIMIT
from agent.verification.observation import DeviceRule, MountOrigin, ObservedMount, ResourceLimit
from agent.wire_formats.kernel_text import parse_digits

# of /proc/PID/limits
LIMIT_NAMES = {
    "Max locked memory": "RLIMIT_MEMLOCK",
    "Max open files": "RLIMIT_NOFILE",
    "Max processes": "RLIMIT_NPROC",
    "Max stack size": "RLIMIT_STACK",
    "Max core file size": "RLIMIT_CORE",
}
_ESCAPED = re.compile(rb"\\([0-7]{3})")
_RULE = re.compile(r"([abc]) (\*|\d{1,10}):(\*|\d{1,10}) ([rwm]{1,3})")


def parse_environ(data: bytes) -> Pairs:
    """Return the variables in their order; skip entries that are not `name=value`."""
    items = (item.partition(b"=") for item in data.split(b"\0"))
    return tuple((_text(name), _text(value)) for name, equals, value in items if name and equals)


def parse_mountinfo(data: bytes) -> tuple[ObservedMount, ...]:
    """Return the mounts, the oldest first; a later one hides an earlier one of the same path."""
    return tuple(_mounts(data))


def _mounts(data: bytes) -> Iterator[ObservedMount]:
    for line in data.split(b"\n"):
        fields = line.split(b" ")
        dash = fields.index(b"-") if b"-" in fields else 0
        if dash < 6 or len(fields) < dash + 2:
            continue
        device, root, path = fields[2:5]
        yield ObservedMount(
            path=_unescape(path),
            origin=MountOrigin(_text(device), _unescape(root)),
            file_system=_text(fields[dash + 1]),
        )


def parse_limits(text: str) -> tuple[ResourceLimit, ...]:
    """Return the limits that have a runtime's name in `LIMIT_NAMES`."""
    limits = []
    for line in text.splitlines():
        name = LIMIT_NAMES.get(line[:26].rstrip())
        words = line[26:].split()
        if name is not None and len(words) >= 2:
            soft, hard = (_limit_value(word) for word in words[:2])
            if soft is not None and hard is not None:
                limits.append(ResourceLimit(name, soft, hard))
    return tuple(limits)


def parse_rules(text: str) -> tuple[DeviceRule, ...]:
    """Return the rules of a `devices.list`; all other access is denied."""
    matches = (_RULE.fullmatch(line.strip()) for line in text.splitlines())
    return tuple(DeviceRule(m[1], _number(m[2]), _number(m[3]), m[4]) for m in matches if m)


def parse_start_ticks(stat: bytes) -> int | None:
    """Return when a process started, in ticks since boot, from its `stat`."""
    words = stat.rpartition(b")")[2].split()  # the command name before it may contain any character
    ticks = words[19] if len(words) > 19 else b""
    return parse_digits(ticks, 20)


def _number(text: str) -> int | None:
    return None if text == "*" else int(text)


def _limit_value(word: str) -> int | None:
    if word == "unlimited":
        return UNLIMITED_RLIMIT
    return parse_digits(word, 20)


def _unescape(data: bytes) -> str:
    return _text(_ESCAPED.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), data))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
