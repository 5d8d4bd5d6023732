"""Values of cgroups instead of bytes of files: the reading and the single write."""

from __future__ import annotations

import errno

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.values.bandwidth import Bandwidth
from agent.cgroup.values.keys import BURST, CPUS, MEMORY, SMALL, UNLIMITED, Key, Value
from agent.cgroup.writing.kernel import CgroupFiles
from agent.cgroup.writing.wish import Step
from agent.errors import HostFileError, ParseError
from agent.topology.text import parse_cpu_list, parse_int

ATTEMPTS = 3  # at a file that answers EAGAIN
EFFECTIVE = "cpuset.cpus.effective"
EVENTS, POPULATED = "cgroup.events", b"populated 1"
USED, MAX_USED = "memory.current", 1 << 62
V2 = "v2"  # of the ledger's hierarchies

Raw = tuple[bytes, ...]


class CgroupValues:
    """Reads and writes the values of one host's cgroups. Errors are `HostFileError`."""

    def __init__(self, files: CgroupFiles, layout: CgroupLayout) -> None:
        self.files = files
        self.layout = layout

    @property
    def version(self) -> int:
        """Return the version that the controllers have."""
        return self.layout.version

    def hierarchy(self, key: Key) -> str:
        """Return the ledger's name of the tree that a key is in."""
        return V2 if self.version == 2 else key.controller

    def paths(self, cgroup: str, key: Key) -> tuple[str, ...]:
        """Return the files that hold a value; none where this host has no such."""
        directory = self.layout.directory(key.controller, cgroup)
        names = key.files(self.version)
        return () if directory is None else tuple(f"{directory}/{name}" for name in names)

    def raw(self, paths: tuple[str, ...], key: Key) -> Raw:
        """Read the bytes of a value."""
        return tuple([self.files.read(path, key.size) for path in paths])

    def value(self, cgroup: str, key: Key) -> Value | None:
        """Return what is in force; `None` where that is not there. `ParseError` for nonsense."""
        paths = self.paths(cgroup, key)
        if not paths:
            return None
        try:
            return key.parse(self.version, self.raw(paths, key))
        except HostFileError:
            return None

    def write(self, step: Step) -> None:
        """Make one write; try again a few times where the kernel asks for that."""
        directory = self.layout.directory(step.wish.key.controller, step.wish.cgroup)
        for left in reversed(range(ATTEMPTS)):
            try:
                self.files.write(f"{directory}/{step.file}", step.text)
            except HostFileError as error:
                if error.errno != errno.EAGAIN or not left:
                    raise
            else:
                return

    def inode(self, cgroup: str, key: Key) -> int | None:
        """Return the number of a group's directory; `None` if it is gone."""
        directory = self.layout.directory(key.controller, cgroup)
        try:
            return None if directory is None else self.files.inode(directory)
        except HostFileError:
            return None

    def effective_cpus(self, cgroup: str) -> frozenset[int] | None:
        """Return the effective CPUs of a group of version 2; `None` if they are not readable."""
        try:
            return parse_cpu_list(
                self._once(cgroup, EFFECTIVE, CPUS.size).decode("ascii", "replace")
            )
        except (HostFileError, ParseError):
            return None

    def populated(self, cgroup: str) -> bool:
        """Return whether processes run in a group of version 2 or below it."""
        try:
            return POPULATED in self._once(cgroup, EVENTS, SMALL)
        except HostFileError:
            return False

    def used_above(self, step: Step) -> int | None:
        """Return the memory in use if it is more than the limit of a step; else `None`.

        Version 1 refuses such a limit. Version 2 takes it and kills processes, if what it reclaims
        is not enough.
        """
        limit = step.after
        if self.version != 2 or step.wish.key is not MEMORY or not isinstance(limit, int):
            return None
        try:
            text = self._once(step.wish.cgroup, USED, SMALL).decode("ascii", "replace")
            used = parse_int(text, 0, MAX_USED)
        except (HostFileError, ParseError):
            return None
        return used if UNLIMITED != limit < used else None

    def burst_above(self, step: Step) -> int | None:
        """Return the burst if it is more than the quota of a step: the kernel refuses the quota."""
        if not isinstance(step.after, Bandwidth):
            return None
        try:
            burst = self.value(step.wish.cgroup, BURST)
        except ParseError:
            return None
        return burst if isinstance(burst, int) and burst > step.after.quota_us > 0 else None

    def _once(self, cgroup: str, name: str, size: int) -> bytes:
        """Read a file of version 2 without keeping it open; raise `HostFileError`."""
        path = f"{self.layout.unified or ''}{cgroup}/{name}"
        if self.version != 2:
            raise HostFileError(path, errno.ENOENT)
        try:
            return self.files.read(path, size)
        finally:
            self.files.close(path)
