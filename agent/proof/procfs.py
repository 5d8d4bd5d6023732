"""What the kernel tells about one process or cgroup, to values; containers write parts of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agent.model.device import Pairs
from agent.model.grant.edits import UNLIMITED
from agent.proof.evidence import Limit, MountFound, Origin, Rule

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
    """Return the variables in their order; what is no `name=value` is passed over."""
    items = (item.partition(b"=") for item in data.split(b"\0"))
    return tuple((_text(name), _text(value)) for name, equals, value in items if name and equals)


def parse_mountinfo(data: bytes) -> tuple[MountFound, ...]:
    """Return the mounts, the oldest first; a later one hides an earlier one of the same path."""
    return tuple(_mounts(data))


def _mounts(data: bytes) -> Iterator[MountFound]:
    for line in data.split(b"\n"):
        fields = line.split(b" ")
        dash = fields.index(b"-") if b"-" in fields else 0
        if dash < 6 or len(fields) < dash + 2:
            continue
        device, root, path = fields[2:5]
        yield MountFound(
            path=_unescaped(path),
            origin=Origin(_text(device), _unescaped(root)),
            file_system=_text(fields[dash + 1]),
        )


def parse_limits(text: str) -> tuple[Limit, ...]:
    """Return the limits that have a name of the runtime's here."""
    found = []
    for line in text.splitlines():
        name = LIMIT_NAMES.get(line[:26].rstrip())
        words = line[26:].split()
        if name is not None and len(words) >= 2:
            soft, hard = (_amount(word) for word in words[:2])
            if soft is not None and hard is not None:
                found.append(Limit(name, soft, hard))
    return tuple(found)


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Return what a `devices.list` allows; all else is denied."""
    found = (_RULE.fullmatch(line.strip()) for line in text.splitlines())
    return tuple(Rule(m[1], _number(m[2]), _number(m[3]), m[4]) for m in found if m)


def parse_started(stat: bytes) -> int | None:
    """Return when a process started, in ticks since boot, from its `stat`."""
    words = stat.rpartition(b")")[2].split()  # the name before it may hold anything
    ticks = words[19] if len(words) > 19 else b""
    return int(ticks) if ticks.isdigit() and len(ticks) < 21 else None


def _number(text: str) -> int | None:
    return None if text == "*" else int(text)


def _amount(word: str) -> int | None:
    if word == "unlimited":
        return UNLIMITED
    return int(word) if word.isdecimal() and len(word) < 21 else None


def _unescaped(data: bytes) -> str:
    return _text(_ESCAPED.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), data))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
