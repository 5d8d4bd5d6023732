"""Values of cgroups instead of bytes of files: the reading and the single write."""

from __future__ import annotations

import errno

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.values.keys import Key, Value
from agent.cgroup.writing.kernel import CgroupFiles
from agent.cgroup.writing.wish import Step
from agent.errors import HostFileError, ParseError

ATTEMPTS = 3  # at a file that answers EAGAIN
EFFECTIVE = "cpuset.cpus.effective"
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

    def effective_cpus(self, cgroup: str, key: Key) -> Value | None:
        """Return the CPUs that a group really has on version 2; `None` if nobody tells."""
        directory = self.layout.directory(key.controller, cgroup)
        if self.version != 2 or directory is None:
            return None
        path = f"{directory}/{EFFECTIVE}"
        try:
            return key.parse(2, (self.files.read(path, key.size),))
        except (HostFileError, ParseError):
            return None
        finally:
            self.files.close(path)
