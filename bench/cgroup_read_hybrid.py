"""A cycle over version 2's formats on this machine's own kernel, where no hierarchy has both.

A hybrid host has `cpu.stat` of version 2 in its unified hierarchy, and in the hierarchy of memory
a `memory.stat` with the same lines, which costs the kernel as much to print. The guest's rows read
both files of version 2, but under emulation, which makes an interpreter dearer than a kernel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.cgroup import usage_files
from agent.cgroup.layout import CgroupLayout
from agent.host.files import LiveHostFiles
from agent.usage.file_reader import DescriptorCache, FileBatchReader
from bench.cgroup_read import CPU_STAT_V2, MEMORY_STAT_V2
from bench.counters import cost, cost_metric
from bench.harness import Figure, Row, compare
from bench.limit_in_c import built
from bench.usage.cgroup_trees import cgroups, stir_v1, version_1

SOURCE = Path(__file__).parent / "usage" / "cgroup_read_limit.c"
GATE = "ratio_limit<=1.5,ratio_peer<=0.25"


def rows() -> Iterator[Row]:
    """Yield a cycle in which all containers worked before, and one in which none did."""
    with version_1() as layout:
        if layout is None:
            return
        with _unified_groups(layout) as folder, built(SOURCE) as limit:
            if folder is None or limit is None:
                return
            pods, containers = cgroups()
            groups = [*pods, *containers]
            cpu = [f"{folder}{group}/cpu.stat" for group in groups]
            memory_root = f"{layout.mount('memory')}{layout.root}"
            memory = [f"{memory_root}{group}/memory.stat" for group in groups]
            for paths, kind in ((cpu, CPU_STAT_V2), (memory, MEMORY_STAT_V2)):
                for path in paths:
                    if limit.reader_add(path.encode(), kind) != 0:
                        raise OSError(f"{path}: the reader in C cannot open it")

            def stir() -> object:
                chosen = stir_v1(layout)
                _visit([f"{folder}{group}" for group in containers], str(folder.parent))
                return chosen

            subject, peer = _subject(cpu, memory), _naive([*cpu, *memory])
            for name, before in (("all_changed", stir), ("unchanged", lambda: None)):
                yield compare(
                    f"cgroup_read_v2_formats_{name}",
                    cost_metric(),
                    _after(before, subject),
                    peer=_after(before, peer),
                    limit=_after(before, limit.reader_cycle),
                    gate=GATE,
                )
            limit.reader_reset()


def _after(before: Callable[[], object], work: Callable[[], object]) -> Figure:
    def figure() -> float:
        chosen = before()
        spent = cost(work)
        del chosen
        return spent

    return figure


def _subject(cpu: list[str], memory: list[str]) -> Callable[[], object]:
    """Return a cycle by the agent's readers of version 2."""
    descriptors = DescriptorCache(LiveHostFiles())
    cpu_times = FileBatchReader(
        descriptors,
        usage_files.parse_cpu_stat_v2,
        usage_files.CPU_V2.size,
        batch_parser=usage_files.parse_cpu_stats_v2,
    )
    memory_bytes = FileBatchReader(
        descriptors,
        usage_files.parse_memory_stat_v2,
        usage_files.MEMORY_STAT_V2.size,
        cut=True,
        batch_parser=usage_files.parse_memory_stats_v2,
    )
    cpu_times.set_paths(cpu)
    memory_bytes.set_paths(memory)

    def cycle() -> tuple[object, object]:
        return cpu_times.read(), memory_bytes.read()

    if any(None in values for values in (cpu_times.read(), memory_bytes.read())):
        raise OSError("the agent's reader cannot read all files")
    return cycle


def _naive(paths: list[str]) -> Callable[[], object]:
    """Return a cycle as one would write it: open, read, a dict of all lines."""

    def read(path: str) -> dict[str, int]:
        with open(path) as file:  # noqa: PTH123 - the peer is what one writes first
            return {key: int(value) for key, value in map(str.split, file)}

    return lambda: [read(path) for path in paths]


@contextmanager
def _unified_groups(layout: CgroupLayout) -> Iterator[Path | None]:
    """Make the tree in the unified hierarchy beside those of version 1; `None` without one."""
    unified = _unified_mount()
    if unified is None:
        yield None
        return
    root = Path(f"{unified}{layout.root}")
    pods, containers = cgroups()
    try:
        for group in ("", "/burstable", "/besteffort", *pods, *containers):
            Path(f"{root}{group}").mkdir()
        yield root
    finally:
        for folder, _, _ in os.walk(root, topdown=False):
            Path(folder).rmdir()


def _unified_mount() -> str | None:
    lines = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return next((line[1] for line in lines if line[2] == "cgroup2"), None)


def _visit(folders: list[str], home: str) -> None:
    """Move this process into each group and back, so that each has worked."""
    pid = str(os.getpid())
    for folder in (*folders, home):
        Path(folder, "cgroup.procs").write_text(pid)
