"""The session of `tests.cgroup_v2` on the kernel's own groups."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cgroup_v2.session import CACHE_BYTES, answers
from tests.guest.inside.groups import MOUNT

ALL_CONTROLLERS = "+cpu +cpuset +memory"
ROOT = "session"
DEADLINE_S = 60.0  # for a killed process to be gone

_CHILD = """\
import os, sys, time
with open(sys.argv[1] + "/cgroup.procs", "w") as file: file.write("0")
what, size = sys.argv[2], int(sys.argv[3])
if what == "hold":
    held = bytearray(b"x") * size
elif what == "file":
    fd = os.open(sys.argv[4], os.O_RDONLY)
    left = size
    while left > 0: left -= len(os.read(fd, 1 << 16))
print("ready", flush=True)
time.sleep(3600)
"""


class KernelGroups:
    """Groups below `/sys/fs/cgroup/session`."""

    def __init__(self, file: Path) -> None:
        """Use `file`, which no other process has read, for page cache."""
        self._file = file
        self._children: dict[str, list[subprocess.Popen[str]]] = {}

    def make(self, group: str) -> str:
        """Make a group; see `Groups`."""
        return _answer(lambda: self._make(group))

    def remove(self, group: str) -> str:
        """Remove a group; see `Groups`."""
        return _answer(lambda: self._path(group).rmdir())

    def write(self, path: str, text: str) -> str:
        """Write a file; see `Groups`."""
        return _answer(lambda: _write(self._path(path), text))

    def read(self, path: str) -> str:
        """Read a file; see `Groups`."""
        try:
            return self._path(path).read_text()
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    def enter(self, group: str) -> str:
        """Start a process; see `Groups`."""
        return self._start(group, "sleep", 0)

    def hold(self, group: str, size_bytes: int) -> str:
        """Hold memory; see `Groups`."""
        return self._start(group, "hold", size_bytes)

    def read_file(self, group: str) -> str:
        """Fill the page cache; see `Groups`."""
        return self._start(group, "file", CACHE_BYTES)

    def leave(self, group: str) -> str:
        """End the processes; see `Groups`."""
        self._end(group)
        events = self._path(group) / "cgroup.events"
        until_s = time.monotonic() + DEADLINE_S
        while "populated 1" in events.read_text():
            if time.monotonic() > until_s:
                return "still populated"
            time.sleep(0.01)
        return "ok"

    def alive(self, group: str) -> str:
        """Return whether processes run; see `Groups`."""
        children = self._children.get(group, [])
        events = (self._path(group) / "memory.events").read_text().split()
        if events[events.index("oom_kill") + 1] != "0":
            for child in children:
                child.wait(DEADLINE_S)  # what is killed takes a moment to end
        return "alive" if any(child.poll() is None for child in children) else "none"

    def uses_at_most(self, group: str, size_bytes: int) -> str:
        """Compare the use; see `Groups`."""
        used = int((self._path(group) / "memory.current").read_text())
        return "yes" if used <= size_bytes else "no"

    def stop(self) -> None:
        """End every process."""
        for group in tuple(self._children):
            self._end(group)

    def _end(self, group: str) -> None:
        for child in self._children.pop(group, []):
            child.kill()
            child.communicate(timeout=DEADLINE_S)

    def _make(self, group: str) -> None:
        path = self._path(group)
        _write(path.parent / "cgroup.subtree_control", ALL_CONTROLLERS)
        path.mkdir()

    def _path(self, path: str) -> Path:
        return MOUNT / ROOT / path

    def _start(self, group: str, what: str, size_bytes: int) -> str:
        child = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", "-c", _CHILD, str(self._path(group))),
                *(what, str(size_bytes), str(self._file)),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._children.setdefault(group, []).append(child)
        assert child.stdout is not None
        return "ok" if child.stdout.readline() == "ready\n" else "ended"


def _answer(work: Callable[[], None]) -> str:
    try:
        work()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def _write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


@contextmanager
def kernel_groups(file: Path) -> Iterator[KernelGroups]:
    """Make the root of a session, and remove all that is left of it."""
    _write(MOUNT / "cgroup.subtree_control", ALL_CONTROLLERS)
    (MOUNT / ROOT).mkdir()
    groups = KernelGroups(file)
    try:
        yield groups
    finally:
        groups.stop()
        for folder, _, _ in os.walk(MOUNT / ROOT, topdown=False):
            Path(folder).rmdir()


def facts(file: Path) -> dict[str, object]:
    """Return the kernel's answers."""
    with kernel_groups(file) as groups:
        return {"release": os.uname().release, "lines": list(answers(groups))}
