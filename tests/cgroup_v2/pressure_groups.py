"""Groups of this machine's unified hierarchy in which processes wait for CPU."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agent.cgroup.layout import CgroupLayout
from tests.patience import PATIENCE_S

UNIFIED = Path("/sys/fs/cgroup/unified")

_numbers = itertools.count()

needs_pressure = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(UNIFIED, os.W_OK) or not (UNIFIED / "cpu.pressure").exists(),
    reason="needs root and a unified hierarchy with pressure files",
)

# as many processes as this share one CPU: each waits for most of the time
BURN = "import os\nos.sched_setaffinity(0, {%d})\nwhile True: pass"


class PressureGroups:
    """A kubelet's tree in the unified hierarchy: version 1 controllers, pressure of version 2."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._burners: list[subprocess.Popen[bytes]] = []

    @property
    def layout(self) -> CgroupLayout:
        """The machine, with this root; it has no other hierarchy."""
        return CgroupLayout(
            version=1, driver="cgroupfs", mounts=(), unified=str(UNIFIED), root=self.root
        )

    def make(self, cgroup: str) -> str:
        """Make a group."""
        self.path(cgroup).mkdir()
        return cgroup

    def path(self, cgroup: str) -> Path:
        """Return a group's directory."""
        return UNIFIED / cgroup.lstrip("/")

    def burn(self, cgroup: str, processes: int = 3, cpu: int = 0) -> None:
        """Start processes of a group that all want one CPU."""
        for _ in range(processes):
            burner = subprocess.Popen([sys.executable, "-c", BURN % cpu])
            self._burners.append(burner)
            (self.path(cgroup) / "cgroup.procs").write_text(str(burner.pid))

    def rest(self) -> None:
        """End the processes."""
        for burner in self._burners:
            burner.kill()
            burner.wait()
        self._burners.clear()

    def remove(self, cgroup: str) -> None:
        """Remove a group and those below it once their processes are gone."""
        until_s = time.monotonic() + PATIENCE_S
        for folder, _, _ in os.walk(self.path(cgroup), topdown=False):
            while Path(folder).exists() and time.monotonic() < until_s:
                with suppress(OSError):
                    Path(folder).rmdir()
                time.sleep(0.01)


@contextmanager
def pressure_groups() -> Iterator[PressureGroups]:
    """Make a root of groups with a burstable class, and remove all of it."""
    groups = PressureGroups(f"/xpu-pressure-{os.getpid()}-{next(_numbers)}")
    groups.make(groups.root)
    try:
        groups.make(f"{groups.root}/burstable")
        yield groups
    finally:
        groups.rest()
        groups.remove(groups.root)
