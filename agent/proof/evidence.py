"""What a look at one container brought back; each part is `None` where nobody could look."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from agent.model.device import Pairs


class NodeFound(msgspec.Struct, frozen=True):
    """A device node in the container, by its path there."""

    path: str
    kind: str  # c, b
    major: int
    minor: int


class Rule(msgspec.Struct, frozen=True):
    """One rule of the device cgroup, in the order they are applied; `None` stands for all."""

    kind: str  # a: of both kinds, c, b
    major: int | None
    minor: int | None
    access: str  # of r, w, m
    allow: bool = True


class Origin(msgspec.Struct, frozen=True):
    """What a mount shows: a file system, by its device number, and the path within it."""

    device: str
    root: str


class MountFound(msgspec.Struct, frozen=True):
    """One line of a mount table."""

    path: str  # in the container
    origin: Origin
    file_system: str


class Limit(msgspec.Struct, frozen=True):
    """A resource limit by the runtime's name for it."""

    name: str
    soft: int
    hard: int


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What the runtime was told to make: the words of its own file about the container."""

    env: Pairs = ()
    mounts: Pairs = ()  # destination, source
    nodes: tuple[NodeFound, ...] = ()
    rules: tuple[Rule, ...] = ()
    limits: tuple[Limit, ...] = ()


def _none() -> Mapping[str, tuple[Origin, ...]]:
    return MappingProxyType({})


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One look. `absent`: there is no process of the container's own to look at, and why."""

    absent: str = ""
    env: Pairs | None = None  # of the first process, as it is now: it may have changed it
    mounts: tuple[MountFound, ...] | None = None
    nodes: tuple[NodeFound, ...] | None = None
    rules: tuple[Rule, ...] | None = None  # that the kernel holds
    limits: tuple[Limit, ...] | None = None
    record: Record | None = None
    # numbers of nodes whose rule systemd dropped if it manages the container: it was reloaded after
    # the container had started, and the host has no link for them in /dev/char
    reloaded: frozenset[tuple[int, int]] = frozenset()
    # of granted host paths, in each mount table that the host is known by
    origins: Mapping[str, tuple[Origin, ...]] = msgspec.field(default_factory=_none)
