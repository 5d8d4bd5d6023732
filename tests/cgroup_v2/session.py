"""One session of writes to version 2 groups: a kernel and the fake of the tests must agree on it.

`kernel-6.1-session.txt` holds what Linux 6.1 answered in the virtual machine of `make guest`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

RECORDED = Path(__file__).parent / "kernel-6.1-session.txt"
CPUS = 4  # of the machine
CACHE_BYTES = 8 << 20  # of the file that `read_file` reads
MIB = 1 << 20


class Groups(Protocol):
    """A tree of groups below one root. Each method returns `ok` or the name of the errno."""

    def make(self, group: str) -> str:
        """Make a group; the groups above hand down all controllers."""
        ...

    def remove(self, group: str) -> str:
        """Remove a group."""
        ...

    def write(self, path: str, text: str) -> str:
        """Write a file with one system call."""
        ...

    def read(self, path: str) -> str:
        """Return what a file holds."""
        ...

    def enter(self, group: str) -> str:
        """Start a process that does nothing in a group."""
        ...

    def hold(self, group: str, size_bytes: int) -> str:
        """Start a process in a group that holds anonymous memory of this size."""
        ...

    def read_file(self, group: str) -> str:
        """Start a process in a group that fills the page cache with `CACHE_BYTES` of a file."""
        ...

    def leave(self, group: str) -> str:
        """End all processes of a group."""
        ...

    def alive(self, group: str) -> str:
        """Return `alive` if processes of a group run, and `none` if there are none."""
        ...

    def uses_at_most(self, group: str, size_bytes: int) -> str:
        """Return whether `memory.current` is at most this: `yes` or `no`."""
        ...


STEPS: tuple[tuple[str | int, ...], ...] = (
    # CPUs
    ("make", "pod"),
    ("make", "pod/one"),
    ("make", "pod/two"),
    ("read", "pod/one/cpuset.cpus"),
    ("read", "pod/one/cpuset.cpus.effective"),
    ("write", "pod/one/cpuset.cpus", "2-3"),
    ("write", "pod/one/cpuset.cpus", "\n"),
    ("read", "pod/one/cpuset.cpus"),
    ("write", "pod/one/cpuset.cpus", "2-3"),
    ("write", "pod/one/cpuset.cpus", ""),
    ("read", "pod/one/cpuset.cpus"),
    ("read", "pod/one/cgroup.events"),
    ("enter", "pod/one"),
    ("read", "pod/one/cgroup.events"),
    ("read", "pod/cgroup.events"),
    ("write", "pod/one/cpuset.cpus", "\n"),
    ("write", "pod/one/cpuset.cpus", " "),
    ("read", "pod/one/cpuset.cpus"),
    ("write", "pod/one/cpuset.cpus", "0-3"),
    ("read", "pod/one/cpuset.cpus"),
    ("write", "pod/one/cpuset.cpus", "\n"),
    ("write", "pod/cpuset.cpus", "\n"),
    ("write", "pod/cpuset.cpus", "0-1"),
    ("read", "pod/one/cpuset.cpus.effective"),
    ("write", "pod/cpuset.cpus", "\n"),
    ("write", "pod/one/cpuset.cpus", "2"),
    ("read", "pod/one/cpuset.cpus"),
    ("read", "pod/one/cpuset.cpus.effective"),
    ("write", "pod/cpuset.cpus", "1-2"),
    ("read", "pod/one/cpuset.cpus.effective"),
    ("read", "pod/two/cpuset.cpus.effective"),
    ("write", "pod/one/cpuset.cpus", "0-99999"),
    ("write", "pod/one/cpuset.cpus", "9000"),
    ("write", "pod/one/cpuset.cpus", "many"),
    ("write", "pod/one/cpuset.cpus", "3-1"),
    ("write", "pod/one/cpuset.cpus.effective", "1"),
    ("leave", "pod/one"),
    ("write", "pod/one/cpuset.cpus", "\n"),
    ("read", "pod/one/cpuset.cpus.effective"),
    ("write", "pod/cpuset.cpus", "\n"),
    ("read", "pod/cpuset.cpus.effective"),
    # quota, burst, weight
    ("read", "pod/one/cpu.max"),
    ("read", "pod/one/cpu.max.burst"),
    ("write", "pod/one/cpu.max", "50000"),
    ("read", "pod/one/cpu.max"),
    ("write", "pod/one/cpu.max", "-1"),
    ("write", "pod/one/cpu.max", "999 100000"),
    ("write", "pod/one/cpu.max", "1000 999"),
    ("write", "pod/one/cpu.max", "50000 1000001"),
    ("write", "pod/one/cpu.max.burst", "50001"),
    ("write", "pod/one/cpu.max.burst", "50000"),
    ("write", "pod/one/cpu.max", "40000 100000"),
    ("read", "pod/one/cpu.max"),
    ("write", "pod/one/cpu.max", "max 100000"),
    ("write", "pod/one/cpu.max.burst", "200000"),
    ("read", "pod/one/cpu.max.burst"),
    ("write", "pod/one/cpu.max", "100000 100000"),
    ("write", "pod/one/cpu.max.burst", "0"),
    ("write", "pod/one/cpu.max", "100000 100000"),
    ("write", "pod/cpu.max", "20000 100000"),
    ("read", "pod/one/cpu.max"),
    ("write", "pod/one/cpu.weight", "0"),
    ("write", "pod/one/cpu.weight", "10001"),
    ("write", "pod/one/cpu.weight", "50"),
    ("write", "pod/one/cpu.idle", "2"),
    ("write", "pod/one/cpu.idle", "1"),
    ("read", "pod/one/cpu.weight"),
    ("write", "pod/one/cpu.weight", "60"),
    ("write", "pod/one/cpu.idle", "0"),
    ("read", "pod/one/cpu.weight"),
    # memory
    ("read", "pod/one/memory.max"),
    ("read", "pod/one/memory.high"),
    ("write", "pod/one/memory.max", "1000000000"),
    ("read", "pod/one/memory.max"),
    ("write", "pod/one/memory.max", "1G"),
    ("read", "pod/one/memory.max"),
    ("write", "pod/one/memory.max", "500M"),
    ("read", "pod/one/memory.max"),
    ("write", "pod/one/memory.max", "100"),
    ("read", "pod/one/memory.max"),
    ("write", "pod/one/memory.max", "max"),
    ("write", "pod/one/memory.max", "-1"),
    ("read", "pod/one/memory.max"),
    ("write", "pod/one/memory.max", "max"),
    ("write", "pod/one/memory.max", "much"),
    ("write", "pod/one/memory.high", "100000001"),
    ("read", "pod/one/memory.high"),
    ("write", "pod/one/memory.high", "max"),
    # a limit below use: page cache is given back, anonymous memory is not (there is no swap)
    ("read_file", "pod/one"),
    ("uses_at_most", "pod/one", CACHE_BYTES // 2),
    ("write", "pod/one/memory.high", str(CACHE_BYTES // 2)),
    ("uses_at_most", "pod/one", CACHE_BYTES // 2),
    ("alive", "pod/one"),
    ("write", "pod/one/memory.max", str(CACHE_BYTES // 2)),
    ("alive", "pod/one"),
    ("write", "pod/one/memory.high", "max"),
    ("leave", "pod/one"),
    ("write", "pod/one/memory.max", "max"),
    ("hold", "pod/two", 32 * MIB),
    ("write", "pod/two/memory.high", str(16 * MIB)),
    ("uses_at_most", "pod/two", 16 * MIB),
    ("alive", "pod/two"),
    ("write", "pod/two/memory.high", "max"),
    ("write", "pod/two/memory.max", str(16 * MIB)),
    ("alive", "pod/two"),
    ("read", "pod/two/memory.max"),
    # groups
    ("enter", "pod/one"),
    ("remove", "pod/one"),
    ("leave", "pod/one"),
    ("make", "pod/one"),  # which is there
    ("remove", "pod"),
    ("remove", "pod/one"),
    ("write", "pod/one/cpuset.cpus", "1"),
    ("read", "pod/one/cpu.max"),
    ("leave", "pod/two"),
    ("remove", "pod/two"),
    ("remove", "pod"),
)


def answers(groups: Groups) -> Iterator[str]:
    """Yield one line a step: what is done, and the answer."""
    for name, *arguments in STEPS:
        answer = getattr(groups, str(name))(*arguments)
        words = " ".join(
            repr(argument) if isinstance(argument, str) else str(argument) for argument in arguments
        )
        yield f"{name} {words}: {answer!r}"
