"""The observation of one container; a part that could not be read is `None`."""

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
    """One rule of the device cgroup, in the order in which rules apply; `None` means all."""

    kind: str  # a: both kinds, c, b
    major: int | None
    minor: int | None
    access: str  # of r, w, m
    is_allowed: bool = True


class MountOrigin(msgspec.Struct, frozen=True):
    """The source of a mount: the device number of a file system, and a path within it."""

    device: str
    root: str


class ObservedMount(msgspec.Struct, frozen=True):
    """One line of a mount table."""

    path: str  # in the container
    origin: MountOrigin
    file_system: str


class ResourceLimit(msgspec.Struct, frozen=True):
    """A resource limit, with the runtime's name for it."""

    name: str
    soft: int
    hard: int


class RuntimeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The OCI specification that the runtime stores for the container."""

    env: Pairs = ()
    mounts: Pairs = ()  # destination, source
    nodes: tuple[ObservedNode, ...] = ()
    rules: tuple[DeviceRule, ...] = ()
    limits: tuple[ResourceLimit, ...] = ()


def _no_origins() -> Mapping[str, tuple[MountOrigin, ...]]:
    return MappingProxyType({})


class ContainerObservation(msgspec.Struct, frozen=True, kw_only=True):
    """One observation. `absence_reason`: why the container has no process to observe."""

    absence_reason: str = ""
    env: Pairs | None = None  # of the first process, which may have changed its environment
    mounts: tuple[ObservedMount, ...] | None = None
    nodes: tuple[ObservedNode, ...] | None = None
    rules: tuple[DeviceRule, ...] | None = None  # read from the kernel
    limits: tuple[ResourceLimit, ...] | None = None
    record: RuntimeRecord | None = None
    # numbers of nodes whose rule systemd drops if it manages the container: systemd was reloaded
    # after the container had started, and the host has no link in /dev/char for these numbers
    denied_after_reload: frozenset[tuple[int, int]] = frozenset()
    # of injected host paths, in each mount table of the host
    origins: Mapping[str, tuple[MountOrigin, ...]] = msgspec.field(default_factory=_no_origins)
