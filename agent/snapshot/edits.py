"""Changes of a container as plain data, and their merge; conflicting edits are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import TypeVar

import msgspec

from agent.snapshot.allocation import AllocationRefused, RefusalReason
from agent.snapshot.device import Pairs

UNLIMITED_RLIMIT = (1 << 64) - 1  # of an rlimit
BIND_READ_ONLY = ("bind", "ro", "rprivate")
BIND_TREE_READ_ONLY = ("rbind", "ro", "rprivate")


class DeviceNodeEdit(msgspec.Struct, frozen=True, kw_only=True):
    """A character device to add, with the numbers that the kernel gave it."""

    host_path: str
    path: str  # in the container
    major: int
    minor: int
    # permissions of the device cgroup; never `m`: containers create no nodes
    permissions: str = "rw"
    file_mode: int | None = None  # None: as on the host


class MountEdit(msgspec.Struct, frozen=True, kw_only=True):
    """A bind mount."""

    host_path: str
    path: str  # in the container
    options: tuple[str, ...]


class CdiHook(msgspec.Struct, frozen=True, kw_only=True):
    """A program that the runtime starts for a container; `args` begins with the program's name."""

    name: str  # createContainer, …
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


class CdiEdits(msgspec.Struct, frozen=True, kw_only=True):
    """One set of edits: a device's own, or the common ones of all devices in a file."""

    nodes: tuple[DeviceNodeEdit, ...] = ()
    mounts: tuple[MountEdit, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    hooks: tuple[CdiHook, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.nodes or self.mounts or self.env or self.hooks)


class RlimitEdit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of the container's first process.

    The name is the runtime's, such as `RLIMIT_MEMLOCK`.
    """

    name: str
    soft: int
    hard: int


class FolderEdit(msgspec.Struct, frozen=True, kw_only=True):
    """A folder on the host that must exist before the mounts are made."""

    host_path: str
    mode: int
    owner: int | None = None  # user id; None: the agent's
    # it is emptied for a new container id, so that no earlier content remains
    emptied: bool = False


class ContainerNote(msgspec.Struct, frozen=True, kw_only=True):
    """An event for people; the container starts nevertheless. `reason` is CamelCase."""

    reason: str
    message: str


class ContainerEdits(msgspec.Struct, frozen=True, kw_only=True):
    """All changes of an allocation. Equal allocations on equal hosts give equal edits."""

    nodes: tuple[DeviceNodeEdit, ...] = ()
    mounts: tuple[MountEdit, ...] = ()  # in an order in which no mount hides an earlier one
    env: Pairs = ()  # each variable once
    cdi: tuple[str, ...] = ()  # qualified names, `vendor.com/class=name`
    rlimits: tuple[RlimitEdit, ...] = ()
    folders: tuple[FolderEdit, ...] = ()
    notes: tuple[ContainerNote, ...] = ()


NO_EDITS = ContainerEdits()

E = TypeVar("E")


class ContainerInjection(msgspec.Struct, frozen=True, kw_only=True):
    """What a new container of a pod gets for its devices, or why it is not started."""

    container: str  # name
    edits: ContainerEdits = NO_EDITS
    refusal: str = ""


def merge_edits(edits: Sequence[ContainerEdits]) -> ContainerEdits:
    """Return all edits as one: equal ones once, mounts by depth.

    Raises `AllocationRefused` (`DeviceConflict`) if two edits give one path, variable, limit or
    folder different values.
    """
    some = [item for item in edits if item != NO_EDITS]
    if not some:
        return NO_EDITS
    return ContainerEdits(
        nodes=_merge_by([node for item in some for node in item.nodes], attrgetter("path")),
        mounts=sort_by_depth(
            _merge_by([m for item in some for m in item.mounts], attrgetter("path"))
        ),
        env=_merge_by([pair for item in some for pair in item.env], itemgetter(0)),
        cdi=tuple(dict.fromkeys([name for item in some for name in item.cdi])),
        rlimits=_merge_by([limit for item in some for limit in item.rlimits], attrgetter("name")),
        folders=_merge_by([f for item in some for f in item.folders], attrgetter("host_path")),
        notes=tuple(dict.fromkeys([note for item in some for note in item.notes])),
    )


def sort_by_depth(mounts: Iterable[MountEdit]) -> tuple[MountEdit, ...]:
    """Return mounts sorted so that a mount below another follows it and is not hidden by it."""
    return tuple(sorted(mounts, key=lambda mount: mount.path.rstrip("/").count("/")))


def _merge_by(items: Sequence[E], name: Callable[[E], str]) -> tuple[E, ...]:
    if not items:
        return ()
    merged: dict[str, E] = {}
    for item in items:
        if merged.setdefault(name(item), item) != item:
            raise AllocationRefused(RefusalReason.DEVICE_CONFLICT, f"two answers for {name(item)}")
    return tuple(merged.values())
