"""Reads the resctrl file system: where it is mounted, what it offers, and which groups exist."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Protocol

import msgspec

from agent.config.containers import ResctrlSettings
from agent.errors import HostFileError
from agent.host.files import LiveHostFiles, read_text
from agent.resctrl.capabilities import INFO_FILES, Capabilities, build_capabilities
from agent.resctrl.plan import ROOT, ExistingGroup, monitor_path
from agent.resctrl.schemata import Schemata, parse_schemata
from agent.snapshot.host_files import HostFiles
from agent.usage.resctrl_monitor import MONITOR_PREFIX

FILE_SYSTEM = "resctrl"
MOUNT_TABLE = "/proc/self/mountinfo"
MAX_MOUNTS_READ = 1 << 20  # bytes; every container on the node adds lines
MOUNTS_S = 30.0  # between two reads of the table while the mount seems to be the same
MAX_SCHEMATA, MAX_TASKS = 64 << 10, 8 << 20  # bytes; a group may have every task of the node
MAX_GROUPS = 256
STATUS_FILE = "info/last_cmd_status"
NO_STATUS = "ok"
SYSTEM_NAMES = frozenset(
    ("cpus", "cpus_list", "info", "mode", "mon_data", "mon_groups", "schemata", "size", "tasks")
)


_ABSENT = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR)


class ResctrlFiles(HostFiles, Protocol):
    """Files of the live host. Every error is a `HostFileError` with the errno."""

    def write(self, path: str, text: str) -> None:
        """Write a text with one system call."""
        ...

    def make(self, path: str) -> None:
        """Make a folder."""
        ...

    def remove(self, path: str) -> None:
        """Remove a folder."""
        ...

    def inode(self, path: str) -> int:
        """Return a folder's inode."""
        ...

    def device(self, path: str) -> int:
        """Return the device of the file system that a folder is in."""
        ...

    def folders(self, path: str) -> tuple[str, ...]:
        """Return the paths of the folders in a folder; none if it does not exist."""
        ...


class KernelResctrlFiles(LiveHostFiles):
    """The files of this machine."""

    def write(self, path: str, text: str) -> None:
        """Open, write and close: Python's `open().write()` would hide the kernel's answer."""
        try:
            descriptor = os.open(self.path(path), os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error

    def make(self, path: str) -> None:
        """Make a folder with the mode that Koordinator uses."""
        try:
            os.mkdir(self.path(path), 0o755)
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error

    def remove(self, path: str) -> None:
        """Remove a folder; of a group the kernel removes the files."""
        try:
            os.rmdir(self.path(path))
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error

    def inode(self, path: str) -> int:
        """Stat the folder."""
        return self._stat(path).st_ino

    def device(self, path: str) -> int:
        """Stat the folder."""
        return self._stat(path).st_dev

    def folders(self, path: str) -> tuple[str, ...]:
        """List the folders in a folder."""
        try:
            with os.scandir(self.path(path)) as entries:
                return tuple(f"{path}/{entry.name}" for entry in entries if entry.is_dir())
        except OSError:
            return ()

    def _stat(self, path: str) -> os.stat_result:
        try:
            return os.stat(self.path(path))
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error


# A mount in the agent's own container would end with it, and the runtime would not see it.
_MOUNT_SCRIPT = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
host = os.open("/proc/1/ns/mnt", os.O_RDONLY)
if libc.setns(host, 0) or libc.mount(b"resctrl", sys.argv[1].encode(), b"resctrl", 1 << 21, b""):
    sys.exit(ctypes.get_errno())
"""
MOUNT_S = 10.0  # the longest that a mount may take


def mount_resctrl(point: str) -> None:
    """Mount the file system without options in the host's mount namespace; raise `OSError`."""
    command = [sys.executable, "-I", "-c", _MOUNT_SCRIPT, point]
    try:
        result = subprocess.run(command, check=False, capture_output=True, timeout=MOUNT_S)
    except subprocess.SubprocessError as error:
        raise OSError(errno.ETIMEDOUT, "the mount did not end") from error
    if result.returncode != 0:
        raise OSError(result.returncode, os.strerror(result.returncode))


class ResctrlMount(msgspec.Struct, frozen=True, kw_only=True):
    """One mounted resctrl file system."""

    point: str
    id: str  # unique as long as it is mounted
    options: frozenset[str] = frozenset()  # of the file system: cdp, cdpl2, mba_MBps


def find_mount(table: str) -> ResctrlMount | None:
    """Return the first resctrl mount of a mount table; `None` without one."""
    for line in table.splitlines():
        fields, _, system = line.partition(" - ")
        words, kind = fields.split(), system.split()
        if len(words) >= 6 and len(kind) >= 3 and kind[0] == FILE_SYSTEM:
            point = words[4].replace("\\040", " ")
            return ResctrlMount(point=point, id=words[0], options=frozenset(kind[2].split(",")))
    return None


class ResctrlContent(msgspec.Struct, frozen=True, kw_only=True):
    """The file system as it was read in one cycle."""

    mount: ResctrlMount
    capabilities: Capabilities
    groups: Mapping[str, ExistingGroup]  # the root group under an empty name
    root_text: str


class ResctrlReader:
    """Reads the file system; caches what only a new mount changes. For one thread."""

    def __init__(self, files: ResctrlFiles, settings: ResctrlSettings) -> None:
        self._files = files
        self._settings = settings
        self._mount: ResctrlMount | None = None
        self._device = 0  # of the mount
        self._info: dict[str, str] = {}
        self._capabilities: tuple[tuple[object, ...], Capabilities] | None = None
        self._next_table_s = float("-inf")

    def forget_mount(self) -> None:
        """Read the mount table and `info` again in the next cycle."""
        self._mount = None
        self._next_table_s = float("-inf")

    def mount(self, now_s: float) -> ResctrlMount | None:
        """Return where the file system is mounted; `None` if it is not."""
        if self._mount is not None and now_s < self._next_table_s:
            if self._mounted_device(self._mount) == self._device:
                return self._mount
        elif self._mount is None and now_s < self._next_table_s:
            return None
        self._next_table_s = now_s + MOUNTS_S
        try:
            table = self._files.read(MOUNT_TABLE, MAX_MOUNTS_READ).decode("utf-8", "replace")
        except HostFileError:
            table = ""
        mount = find_mount(table)
        if mount is not None and mount != self._mount:
            self._info = self._read_info(mount.point)
            self._capabilities = None
        self._mount = mount
        self._device = 0 if mount is None else self._mounted_device(mount)
        return mount

    def read(
        self,
        mount: ResctrlMount,
        own_inodes: Mapping[str, int],
        vendor: str | None,
        *,
        with_tasks: bool,
    ) -> ResctrlContent:
        """Return the groups; those of `own_inodes`, by path, are the agent's.

        An inode of 0 is that of a group that was being made when the agent ended. Raises
        `HostFileError` if the root group cannot be read.
        """
        root_text = self._files.read(f"{mount.point}/schemata", MAX_SCHEMATA).decode(
            "ascii", "replace"
        )
        root = parse_schemata(root_text)
        key = (mount.id, root_text, vendor)
        if self._capabilities is None or self._capabilities[0] != key:
            info, settings = self._info, self._settings
            capabilities = build_capabilities(info, root, mount.options, vendor, settings)
            self._capabilities = key, capabilities
        groups = {ROOT: self._group(mount.point, ROOT, root, own_inodes, with_tasks=with_tasks)}
        for name in self._files.names(mount.point)[:MAX_GROUPS]:
            if name in SYSTEM_NAMES:
                continue
            group = self._named_group(mount.point, name, own_inodes, with_tasks=with_tasks)
            if group is not None:
                groups[name] = group
        return ResctrlContent(
            mount=mount,
            capabilities=self._capabilities[1],
            groups=groups,
            root_text=root_text,
        )

    def status(self, mount: ResctrlMount) -> str:
        """Return the kernel's reason for the refusal just before; empty if it gives none."""
        text = read_text(self._files, f"{mount.point}/{STATUS_FILE}") or ""
        last_line = text.splitlines()[-1] if text else ""
        return "" if last_line == NO_STATUS else last_line

    def _named_group(
        self, point: str, name: str, own_inodes: Mapping[str, int], *, with_tasks: bool
    ) -> ExistingGroup | None:
        try:
            text = self._files.read(f"{point}/{name}/schemata", MAX_SCHEMATA)
        except HostFileError as error:
            if error.errno not in _ABSENT:
                raise
            return None  # a file of a newer kernel, or a group that was removed meanwhile
        values = parse_schemata(text.decode("ascii", "replace"))
        return self._group(point, name, values, own_inodes, with_tasks=with_tasks)

    def _group(
        self,
        point: str,
        name: str,
        values: Schemata,
        own_inodes: Mapping[str, int],
        *,
        with_tasks: bool,
    ) -> ExistingGroup:
        is_own = name == ROOT or self._is_own(point, name, own_inodes)
        monitored: dict[str, frozenset[int]] = {}
        foreign = 0
        monitor_names = self._files.names(f"{point}/{monitor_path(name, '')}")
        for monitor in monitor_names[:MAX_GROUPS]:
            path = monitor_path(name, monitor)
            if monitor.startswith(MONITOR_PREFIX) and self._is_own(point, path, own_inodes):
                monitored[monitor] = self._tasks(f"{point}/{path}") if with_tasks else frozenset()
            else:
                foreign += 1
        has_tasks = with_tasks and name != ROOT
        return ExistingGroup(
            is_own=is_own,
            values=values,
            tasks=self._tasks(f"{point}/{name}") if has_tasks else frozenset(),
            monitored=monitored,
            foreign_monitored=foreign,
        )

    def _is_own(self, point: str, path: str, own_inodes: Mapping[str, int]) -> bool:
        inode = own_inodes.get(path)
        if inode is None:
            return False
        try:
            return inode in (0, self._files.inode(f"{point}/{path}"))
        except HostFileError as error:
            if error.errno not in _ABSENT:
                raise
            return False

    def _tasks(self, folder: str) -> frozenset[int]:
        try:
            data = self._files.read(f"{folder}/tasks", MAX_TASKS)
        except HostFileError as error:
            if error.errno not in _ABSENT:
                raise
            return frozenset()
        return frozenset(int(word) for word in data.split() if word.isdigit())

    def _read_info(self, point: str) -> dict[str, str]:
        return {
            f"{folder}/{name}": text
            for folder, names in INFO_FILES.items()
            for name in names
            if (text := read_text(self._files, f"{point}/info/{folder}/{name}")) is not None
        }

    def _mounted_device(self, mount: ResctrlMount) -> int:
        try:
            return self._files.device(mount.point)
        except HostFileError:
            return -1
