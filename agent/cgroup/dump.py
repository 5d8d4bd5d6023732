"""Reads a cgroup and its descendants with the contents of their files, for `cgroup dump`.

The package cgroupspy reads version 1: it has the files of each controller.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import msgspec

from agent.cgroup.device_values import DEVICE_FILES
from agent.cgroup.keys import ALL_KEYS
from agent.cgroup.layout import CgroupLayout
from agent.errors import AgentError, HostFileError
from agent.host.files import LiveHostFiles
from agent.snapshot.host_files import HostFiles

MAX_GROUPS = 8192
MAX_DEPTH = 32  # of groups below the first
MAX_FILE = 64 << 10  # bytes
MAX_PROCESSES = 1 << 20  # bytes of `cgroup.procs`
PROCESSES = "cgroup.procs"
EXTRA = "v1-tools"
# files that list processes: the dump has their number, not their contents
LISTS = (PROCESSES, "tasks")
V2_FILES = (
    *("cgroup.type", "cgroup.controllers", "cgroup.subtree_control", "cgroup.events"),
    *dict.fromkeys(key.v2 for key in ALL_KEYS if key.v2 is not None),
    *("cpuset.mems", "cpuset.cpus.effective", "cpuset.mems.effective", "memory.current"),
    *("memory.swap.max", "memory.swap.current", "memory.events"),
    *("pids.max", "pids.current", "rdma.max"),
    *(file.name for file in DEVICE_FILES.values() if file.version == 2),
)


class DumpError(AgentError):
    """The groups cannot be read here; the message has advice."""


class CgroupDump(msgspec.Struct, frozen=True, kw_only=True):
    """One group. `processes` is `None` if they cannot be read, as in a threaded group."""

    path: str
    processes: int | None
    files: Mapping[str, str]


def dump_cgroups(host: HostFiles, layout: CgroupLayout, cgroup: str) -> Iterator[CgroupDump]:
    """Yield the group and all groups below it, parents first; at most `MAX_GROUPS` and one more.

    Raises `DumpError` if there is no such group, or if version 1 cannot be read here.
    """
    tree = _Version1Tree(host, layout) if layout.version == 1 else _Version2Tree(host, layout)
    if not tree.exists(cgroup):
        raise DumpError(f"{cgroup}: no such group; see `xpu-agent cgroup dump /`")
    queue = [(cgroup, 0)]
    for _ in range(MAX_GROUPS + 1):
        if not queue:
            return
        path, depth = queue.pop()
        yield tree.group(path)
        if depth < MAX_DEPTH:
            children = sorted(tree.children(path), reverse=True)
            queue += [(f"{path.rstrip('/')}/{name}", depth + 1) for name in children]


class _Version2Tree:
    """The unified hierarchy of any host."""

    def __init__(self, host: HostFiles, layout: CgroupLayout) -> None:
        self._host = host
        self._mount = layout.unified or ""

    def exists(self, cgroup: str) -> bool:
        """Return whether a path is a group."""
        return self._host.exists(f"{self._path(cgroup)}/{PROCESSES}")

    def children(self, cgroup: str) -> list[str]:
        """Return the names of the groups in a group."""
        try:
            names = self._host.names(self._path(cgroup))
        except HostFileError:
            return []  # the group was removed
        return [name for name in names if self.exists(f"{cgroup.rstrip('/')}/{name}")]

    def group(self, cgroup: str) -> CgroupDump:
        """Read a group's files; absent files are left out."""
        texts = {name: self._text(cgroup, name, MAX_FILE) for name in V2_FILES}
        pids = self._text(cgroup, PROCESSES, MAX_PROCESSES)
        return CgroupDump(
            path=cgroup,
            processes=None if pids is None else len(pids.split()),
            files={name: text for name, text in texts.items() if text is not None},
        )

    def _path(self, cgroup: str) -> str:
        return self._mount + cgroup.rstrip("/")

    def _text(self, cgroup: str, name: str, limit: int) -> str | None:
        try:
            data = self._host.read(f"{self._path(cgroup)}/{name}", limit)
        except HostFileError:
            return None
        return data.decode("utf-8", "replace").strip()


class _Version1Tree:
    """The version 1 hierarchies of this machine, read by cgroupspy."""

    def __init__(self, host: HostFiles, layout: CgroupLayout) -> None:
        if not isinstance(host, LiveHostFiles):
            raise DumpError(
                "this recording is of a host with version 1 of control groups, which are read on"
                " the machine itself only"
            )
        try:
            from cgroupspy.nodes import Node  # noqa: PLC0415 - an extra package of this command
        except ImportError as error:
            raise DumpError(
                f"version 1 of control groups needs the extra {EXTRA}:"
                f" pip install 'xpu-node-agent[{EXTRA}]'"
            ) from error
        self._node = Node
        self._mounts = {name: host.path(point) for name, point in layout.mounts}

    def exists(self, cgroup: str) -> bool:
        """Return whether a path is a group of any controller."""
        return any(os.path.isdir(mount + cgroup) for mount in self._mounts.values())

    def children(self, cgroup: str) -> set[str]:
        """Return the names of the groups in a group, of all controllers."""
        names: set[str] = set()
        for mount in self._mounts.values():
            try:
                with os.scandir(mount + cgroup) as entries:
                    names.update(
                        entry.name for entry in entries if entry.is_dir(follow_symlinks=False)
                    )
            except OSError:
                continue  # not in this hierarchy, or removed
        return names

    def group(self, cgroup: str) -> CgroupDump:
        """Read the files that cgroupspy has for each controller."""
        files: dict[str, str] = {}
        process_lists: list[str] = []
        for name, mount in self._mounts.items():
            controller_class = self._node.CONTROLLERS.get(name.encode())
            if controller_class is None:
                continue
            controller = controller_class(self._node((mount + cgroup).encode()))
            for interface in controller.list_interfaces().values():
                file = os.fsdecode(interface.filename)
                if interface.writeonly or file in files:
                    continue
                try:
                    text = controller.get_property(interface.filename)
                except (OSError, UnicodeDecodeError):
                    continue  # not on this kernel, or not readable
                if file == PROCESSES:
                    process_lists.append(text)
                elif file not in LISTS:
                    files[file] = text
        processes = {pid for text in process_lists for pid in text.split()}
        return CgroupDump(
            path=cgroup,
            processes=len(processes) if process_lists else None,
            files=dict(sorted(files.items())),
        )
