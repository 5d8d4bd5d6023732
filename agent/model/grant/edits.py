"""What is changed in a container: plain data that each way into the runtime can express."""

from __future__ import annotations

import msgspec

from agent.model.device import Pairs

UNLIMITED = (1 << 64) - 1  # of an rlimit
BIND_READ_ONLY = ("bind", "ro", "rprivate")
BIND_TREE_READ_ONLY = ("rbind", "ro", "rprivate")


class NodeEdit(msgspec.Struct, frozen=True, kw_only=True):
    """A character device to show, with the numbers the kernel gave it."""

    host_path: str
    path: str  # in the container
    major: int
    minor: int
    permissions: str = "rw"  # of the device cgroup; never `m`: containers make no nodes
    file_mode: int | None = None  # None: as on the host


class MountEdit(msgspec.Struct, frozen=True, kw_only=True):
    """A bind mount."""

    host_path: str
    path: str  # in the container
    options: tuple[str, ...]


class RlimitEdit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of the container's first process; the name is the runtime's, `RLIMIT_MEMLOCK`."""

    name: str
    soft: int
    hard: int


class FolderEdit(msgspec.Struct, frozen=True, kw_only=True):
    """A folder on the host that must be there before the mounts are made."""

    host_path: str
    mode: int
    owner: int | None = None  # user id; None: the agent's
    emptied: bool = False  # for a new container id, so that nothing of an earlier one is in it


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """An event for people; the container starts all the same. `reason` is CamelCase."""

    reason: str
    message: str


class ContainerEdits(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a grant changes. Equal grants on equal hosts give equal edits."""

    nodes: tuple[NodeEdit, ...] = ()
    mounts: tuple[MountEdit, ...] = ()  # in an order in which none hides one before it
    env: Pairs = ()  # each variable once
    cdi: tuple[str, ...] = ()  # qualified names, `vendor.com/class=name`
    rlimits: tuple[RlimitEdit, ...] = ()
    folders: tuple[FolderEdit, ...] = ()
    notes: tuple[Note, ...] = ()


NONE = ContainerEdits()
