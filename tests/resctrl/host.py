"""A host with the emulated resctrl file system and some cgroups, without system calls."""

from __future__ import annotations

import errno
from collections.abc import Callable

from agent.cgroup.layout import CgroupLayout
from agent.errors import HostFileError
from tests.resctrl.emulator import Resctrl
from tests.resctrl.machine import DEFAULT_MACHINE, Machine
from tests.resctrl.tasks import Tasks

POINT = "/sys/fs/resctrl"
CGROUPS = "/sys/fs/cgroup"
MOUNT_TABLE = "/proc/self/mountinfo"
LAYOUT = CgroupLayout(version=2, driver="cgroupfs", mounts=(), unified=CGROUPS, root="/kubepods")


class EmulatedHost:
    """Implements `agent.resctrl.files.ResctrlFiles`; `containers` has the tasks by cgroup."""

    def __init__(self, machine: Machine = DEFAULT_MACHINE, options: str = "rw") -> None:
        self.tasks = Tasks()
        self.resctrl = Resctrl(machine, self.tasks)
        self.options = options
        self.mount_id = 40
        self.is_mounted = True
        self.containers: dict[str, set[int]] = {}
        self.reads: list[str] = []

    def mount(self, point: str) -> None:
        """Mount the file system."""
        if self.is_mounted:
            raise OSError(errno.EBUSY, "Device or resource busy")
        assert point == POINT
        self.is_mounted = True
        self.mount_id += 1

    def unmount(self) -> None:
        """Unmount it: the kernel forgets all groups."""
        self.is_mounted = False
        self.resctrl = Resctrl(self.resctrl.machine, self.tasks)

    def read(self, path: str, limit: int = 1 << 16) -> bytes:
        """Read a file."""
        self.reads.append(path)
        if path == MOUNT_TABLE:
            return self._mount_table().encode()
        if path.startswith(CGROUPS):
            return self._threads(path).encode()
        try:
            return self.resctrl.read(self._below(path)).encode()[:limit]
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error

    def names(self, path: str) -> tuple[str, ...]:
        """List a folder."""
        try:
            return tuple(self.resctrl.names(self._below(path)))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return ()
            raise HostFileError(path, error.errno or 0) from error

    def link(self, path: str) -> str | None:  # noqa: ARG002 - there are no links
        """Return no link."""
        return None

    def exists(self, path: str) -> bool:
        """Return whether something is there."""
        try:
            self.resctrl.is_folder(self._below(path))
        except OSError:
            return False
        return True

    def device_number(self, path: str) -> tuple[int, int] | None:  # noqa: ARG002 - none here
        """Return no device."""
        return None

    def folders(self, path: str) -> tuple[str, ...]:
        """List the groups below a cgroup."""
        prefix = f"{path.removeprefix(CGROUPS)}/"
        below = {name for name in self.containers if name.startswith(prefix)}
        return tuple(sorted(f"{CGROUPS}{name}" for name in below))

    def write(self, path: str, text: str) -> None:
        """Write a file."""
        self._change(path, lambda below: self.resctrl.write(below, text))

    def make(self, path: str) -> None:
        """Make a group."""
        self._change(path, self.resctrl.make)

    def remove(self, path: str) -> None:
        """Remove a group."""
        self._change(path, self.resctrl.remove)

    def inode(self, path: str) -> int:
        """Return a group's inode."""
        try:
            return self.resctrl.inode(self._below(path))
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error

    def device(self, path: str) -> int:
        """Return the number of the mount."""
        if path != POINT or not self.is_mounted:
            raise HostFileError(path, errno.ENOENT)
        return self.mount_id

    def _change(self, path: str, change: Callable[[str], None]) -> None:
        try:
            change(self._below(path))
        except OSError as error:
            raise HostFileError(path, error.errno or 0) from error

    def _below(self, path: str) -> str:
        if not self.is_mounted or not f"{path}/".startswith(f"{POINT}/"):
            raise FileNotFoundError(errno.ENOENT, path)
        return path.removeprefix(POINT).strip("/")

    def _mount_table(self) -> str:
        lines = ["24 1 0:22 / /proc rw,nosuid shared:12 - proc proc rw"]
        if self.is_mounted:
            lines.append(
                f"{self.mount_id} 24 0:36 / {POINT} rw,relatime shared:9 - resctrl resctrl"
                f" {self.options}"
            )
        return "".join(f"{line}\n" for line in lines)

    def _threads(self, path: str) -> str:
        folder, _, name = path.rpartition("/")
        tasks = self.containers.get(folder.removeprefix(CGROUPS))
        if tasks is None or name != "cgroup.threads":
            raise HostFileError(path, errno.ENOENT)
        return "".join(f"{task}\n" for task in sorted(tasks & self.tasks.parents.keys()))
