"""Trees of 250 pods with two containers each: real version 1 cgroups, version 2 files on tmpfs."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.cgroup.layout import CgroupLayout, detect_layout
from agent.host.files import LiveHostFiles

PODS, CONTAINERS = 250, 2
STIRRED_PAGES = 80  # more than the kernel charges at once, so that the figure moves
CONTROLLERS_V1 = ("cpu", "cpuacct", "memory")
V2_NAMES = ("memory.stat", "cpu.stat")
_QOS = ("", "/burstable", "/besteffort")
_V2_BEFORE = (
    *("anon", "file", "kernel", "kernel_stack", "pagetables", "percpu", "sock", "shmem"),
    *(f"{kind}_{what}" for kind in ("file", "anon") for what in range(6)),
)
_V2_LRU = ("inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable")
_V2_AFTER = tuple(f"workingset_{what}" for what in range(25))
_V2_KEYS = (*_V2_BEFORE, *_V2_LRU, *_V2_AFTER)  # as long as a recent kernel's


def cgroups() -> tuple[list[str], list[str]]:
    """Return the paths of pods and containers below the kubelet's root, parents first."""
    groups = [pod_cgroups(index) for index in range(PODS)]
    return [pod for pod, *_ in groups], [path for _, *paths in groups for path in paths]


def pod_uid(index: int) -> str:
    """Return the uid of the pod with that number."""
    return f"{index:08x}-0000-4000-8000-000000000000"


def container_ids(index: int) -> list[str]:
    """Return the ids of its containers."""
    return [f"{index * CONTAINERS + number:064x}" for number in range(CONTAINERS)]


def pod_cgroups(index: int) -> list[str]:
    """Return the paths of a pod and of its containers below the kubelet's root."""
    pod = f"{_QOS[index % 3]}/pod{pod_uid(index)}"
    return [pod, *(f"{pod}/{name}" for name in container_ids(index))]


def add_pod(layout: CgroupLayout, index: int) -> None:
    """Make the groups of a pod."""
    for below in pod_cgroups(index):
        for point in _points(layout):
            os.mkdir(f"{point}{layout.root}{below}")
        if layout.version == 2:
            _write_v2(layout, below, index, 0)


def remove_pod(layout: CgroupLayout, index: int) -> None:
    """Remove the groups of a pod."""
    for below in reversed(pod_cgroups(index)):
        for point in _points(layout):
            directory = Path(f"{point}{layout.root}{below}")
            if layout.version == 2:
                for name in V2_NAMES:
                    (directory / name).unlink()
            directory.rmdir()


def _points(layout: CgroupLayout) -> list[str]:
    """Return the folders that have the tree, each once."""
    return [layout.unified] if layout.unified else sorted({point for _, point in layout.mounts})


@contextmanager
def version_1() -> Iterator[CgroupLayout | None]:
    """Make the tree in this machine's version 1 hierarchies; `None` where there are none."""
    result = detect_layout(LiveHostFiles())
    points = {c: result.mount(c) for c in CONTROLLERS_V1} if result and result.version == 1 else {}
    if os.geteuid() != 0 or not points or None in points.values():
        yield None
        return
    root = f"/xpu-{os.getpid()}-bench"
    mounts = tuple((c, p) for c, p in points.items() if p)
    layout = CgroupLayout(version=1, driver="cgroupfs", mounts=mounts, unified=None, root=root)
    try:
        pods, containers = cgroups()
        for below in ["", *_QOS[1:], *pods, *containers]:
            for point in _points(layout):
                os.mkdir(point + root + below)
        yield layout
    finally:
        for point in _points(layout):
            for directory, _, _ in os.walk(point + root, topdown=False):
                os.rmdir(directory)


@contextmanager
def version_2() -> Iterator[CgroupLayout]:
    """Make files of version 2's shape in memory; `fill_v2` changes them."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        root = f"/xpu-{os.getpid()}-bench"
        pods, containers = cgroups()
        for below in ["", *_QOS[1:], *pods, *containers]:
            os.mkdir(directory + root + below)
        layout = CgroupLayout(version=2, driver="cgroupfs", mounts=(), unified=directory, root=root)
        fill_v2(layout, 0)
        yield layout


def fill_v2(layout: CgroupLayout, step: int) -> None:
    """Write other values than those of the last step into every file."""
    pods, containers = cgroups()
    for i, below in enumerate([*pods, *containers]):
        _write_v2(layout, below, i, step)


def _write_v2(layout: CgroupLayout, below: str, number: int, step: int) -> None:
    value = 1_000_000_007 * (number + 1) + step * 4096
    directory = Path(f"{layout.unified}{layout.root}{below}")
    stat = "".join(f"{key} {value + n * 4096}\n" for n, key in enumerate(_V2_KEYS))
    (directory / "memory.stat").write_text(stat)
    (directory / "cpu.stat").write_text(
        f"usage_usec {value}\nuser_usec {value - step}\nsystem_usec {step}\nnice_usec 0\n"
        f"core_sched.force_idle_usec 0\nnr_periods {step * 10}\nnr_throttled {step}\n"
        "throttled_usec 0\nnr_bursts 0\nburst_usec 0\n"
    )


def stir_v1(layout: CgroupLayout) -> list[mmap.mmap]:
    """Make every container's counters move: this process visits each, works and takes memory.

    Memory stays charged where it was taken while the caller holds what is returned.
    """
    own = _own_groups()
    pid = str(os.getpid()).encode()
    chosen = []
    for below in cgroups()[1]:
        for _, point in layout.mounts:
            _write(f"{point}{layout.root}{below}/cgroup.procs", pid)
        pages = mmap.mmap(-1, STIRRED_PAGES * mmap.PAGESIZE)
        for page in range(STIRRED_PAGES):
            pages[page * mmap.PAGESIZE] = 1
        chosen.append(pages)
    for controller, point in layout.mounts:
        _write(f"{point}{own[controller].rstrip('/')}/cgroup.procs", pid)
    return chosen


def _own_groups() -> dict[str, str]:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return {c: line.split(":", 2)[2] for line in lines for c in line.split(":", 2)[1].split(",")}


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
