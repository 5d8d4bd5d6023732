"""The cost of a cycle over 250 pods of two containers, in real groups of version 2."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from agent.app.threads import tune_interpreter
from agent.cgroup.layout import CgroupLayout
from agent.host.files import LiveHostFiles
from agent.usage.file_reader import DescriptorCache, ReadSchedule
from agent.usage.monitor import PodUsageReader
from bench.cgroup_read import c_files, naive
from bench.counters import cpu_ms
from bench.harness import Figure, compare
from bench.usage.cgroup_trees import cgroups
from tests.guest.inside.groups import CONTROLLERS, MOUNT

ROUNDS = 5
# no node's files all change within a second: what that costs is watched with more room
GATES = {
    "changed": "ratio_limit<=2,ratio_peer<=0.25",
    "idle": "ratio_limit<=1.5,ratio_peer<=0.25",
}
CONTROL = "cgroup.subtree_control"
FILES = 8192  # descriptors: a pipe to each child, and those of the two readers
TOUCHED = 8192  # bytes of memory that a container takes between two cycles
LAYOUT = CgroupLayout(
    version=2, driver="cgroupfs", mounts=(), unified=str(MOUNT), root="/xpu-bench"
)


def rows(library: Path) -> list[dict[str, Any]]:
    """Return rows of cycles in which every group's files changed, and in which none did.

    Without pressure, which neither the peer nor the limit reads.
    """
    tune_interpreter()  # as the agent does: a collection of garbage is part of what work costs
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    host, now_s = LiveHostFiles(), count(1.0)
    groups = PodUsageReader(
        host, DescriptorCache(host), LAYOUT, (0,), ReadSchedule(pressure_period=None)
    )
    with _tree() as stir, closing(groups):

        def subject() -> None:
            groups.refresh()
            groups.read(next(now_s))

        limit, peer = _limit(library), naive(LAYOUT)
        created = [
            compare(
                f"cgroup_read_v2_kernel_{name}",
                "cpu_ms",
                _after(before, subject),
                peer=_after(before, peer),
                limit=_after(before, limit),
                gate=GATES[name],
                rounds=ROUNDS,
            )
            for name, before in (("changed", stir), ("idle", _nothing))
        ]
    return [dataclasses.asdict(row) for row in created]


def _nothing() -> None:
    """Let all files be as they were."""


def _after(before: Callable[[], object], work: Callable[[], object]) -> Figure:
    def figure() -> float:
        before()
        return cpu_ms(work)

    return figure


def _limit(library: Path) -> Callable[[], object]:
    reader = ctypes.CDLL(str(library))
    for path, kind in c_files(LAYOUT):
        if reader.reader_add(path.encode(), kind) != 0:
            raise OSError(f"{path}: the reader in C cannot open it")
    if reader.reader_cycle() != 0:
        raise OSError("the reader in C cannot read all files")
    cycle: Callable[[], object] = reader.reader_cycle
    return cycle


@contextmanager
def _tree() -> Iterator[Callable[[], None]]:
    """Make the groups with a process in each container; yield what makes all of them work."""
    pods, containers = cgroups()
    root = Path(f"{MOUNT}{LAYOUT.root}")
    with ExitStack() as created:
        (MOUNT / CONTROL).write_text(CONTROLLERS)
        for below in ["", "/burstable", "/besteffort", *pods]:
            path = Path(f"{root}{below}")
            path.mkdir()
            created.callback(path.rmdir)
            (path / CONTROL).write_text("+cpu +memory")
        for below in containers:
            path = Path(f"{root}{below}")
            path.mkdir()
            created.callback(path.rmdir)
        yield created.enter_context(_inhabited([f"{root}{below}" for below in containers]))


@contextmanager
def _inhabited(paths: list[str]) -> Iterator[Callable[[], None]]:
    go, outcome = [os.pipe() for _ in paths], os.pipe()
    children = [_child(path, go[i][0], outcome[1], go) for i, path in enumerate(paths)]

    def stir() -> None:
        for _, write in go:
            os.write(write, b"x")
        remaining = len(paths)
        while remaining:
            remaining -= len(os.read(outcome[0], remaining))

    try:
        stir()
        yield stir
    finally:
        for read, write in go:
            os.close(read)
            os.close(write)
        for pid in children:
            os.waitpid(pid, 0)


def _child(path: str, read: int, outcome: int, go: list[tuple[int, int]]) -> int:
    """Fork a process that takes memory whenever it is told to, until nobody can tell it."""
    pid = os.fork()
    if pid:
        return pid
    try:
        Path(path, "cgroup.procs").write_text("0")
        for _, write in go:
            os.close(write)
        records = []
        while os.read(read, 1):
            records.append(bytearray(b"x") * TOUCHED)
            os.write(outcome, b"x")
    finally:
        os._exit(0)
