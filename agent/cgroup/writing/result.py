"""What comes between comparing and writing, and what writing came to: plain data."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.cgroup.values.keys import Value
from agent.cgroup.writing.audit import Audit
from agent.cgroup.writing.wish import Step, Target, Wish


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """Wishes that are not met, as found, and the writes that would meet them, in order."""

    wishes: tuple[Wish, ...] = ()
    found: Mapping[Target, Value] = {}
    steps: tuple[Step, ...] = ()
    compared: int = 0
    left: int = 0  # not met, and not to be written now


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """A file that people are to be told of, once; the reason is CamelCase."""

    wish: Wish
    reason: str
    message: str


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the prepared writes."""

    written: int = 0  # files that hold now what was wanted
    left: int = 0
    audits: tuple[Audit, ...] = ()
    troubles: tuple[Trouble, ...] = ()
