"""What was observed of one container; a part that could not be read is `None`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from agent.snapshot.device import Pairs


class ObservedNode(msgspec.Struct, frozen=True):
    """A device node in the container, by its path there."""

    path: str
    kind: str  # c, b
    major: int
    minor: int


class DeviceRule(msgspec.Struct, frozen=True):
    """One rule of the device cgroup, in the order they are applied; `None` stands for all."""

    kind: str  # a: of both kinds, c, b
    major: int | None
    minor: int | None
    access: str  # of r, w, m
    is_allowed: bool = True


class MountOrigin(msgspec.Struct, frozen=True):
    """What a mount shows: a file system, by its device number, and the path within it."""

    device: str
    root: str


class ObservedMount(msgspec.Struct, frozen=True):
    """One line of a mount table."""

    path: str  # in the container
    origin: MountOrigin
    file_system: str


class ResourceLimit(msgspec.Struct, frozen=True):
    """A resource limit by the runtime's name for it."""

    name: str
    soft: int
    hard: int


class RuntimeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the runtime was told to make: the words of its own file about the container."""

    env: Pairs = ()
    mounts: Pairs = ()  # destination, source
    nodes: tuple[ObservedNode, ...] = ()
    rules: tuple[DeviceRule, ...] = ()
    limits: tuple[ResourceLimit, ...] = ()


def _no_origins() -> Mapping[str, tuple[MountOrigin, ...]]:
    return MappingProxyType({})


class ContainerObservation(msgspec.Struct, frozen=True, kw_only=True):
    """One look. `absent`: there is no process of the container's own to look at, and why."""

    absence_reason: str = ""
    env: Pairs | None = None  # of the first process, as it is now: it may have changed it
    mounts: tuple[ObservedMount, ...] | None = None
    nodes: tuple[ObservedNode, ...] | None = None
    rules: tuple[DeviceRule, ...] | None = None  # that the kernel holds
    limits: tuple[ResourceLimit, ...] | None = None
    record: RuntimeRecord | None = None
    # numbers of nodes whose rule systemd dropped if it manages the container: it was reloaded after
    # the container had started, and the host has no link for them in /dev/char
    denied_after_reload: frozenset[tuple[int, int]] = frozenset()
    # of granted host paths, in each mount table that the host is known by
    origins: Mapping[str, tuple[MountOrigin, ...]] = msgspec.field(default_factory=_no_origins)
