"""A node to run the whole agent on: 250 pods with two containers each, and eight fake cards.

The agent runs unchanged in a process of its own; only its view of the root folder is arranged:
the pods' cgroups are real ones of version 1 where this machine has them and lets us make some,
else files of version 2's shape. CPU, memory and PCI facts are this machine's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.cgroup.layout import CgroupLayout
from bench.usage.cgroup_trees import version_1, version_2

CARDS = 8
DEADLINE_S = 30.0
_CARD = """
- kind: gpu
  bus_id: "0000:{bus:02x}:00.0"
  uuid: GPU-00000000-0000-4000-8000-{minor:012d}
  minor: {minor}
  model: NVIDIA H100 80GB HBM3
  memory_bytes: 85520809984
  resources:
    koordinator.sh/gpu-core: "100"
    koordinator.sh/gpu-memory: 81559Mi
    koordinator.sh/gpu-memory-ratio: "100"
  core_percent: {{mean: 50, swing: 50, period_s: 60}}
  memory_used_bytes: 1073741824
  power_watts: 300
  nodes: [{{path: /dev/card{minor}, major: 1, minor: 3}}]
"""
_LINKS = (
    *("proc/stat", "proc/meminfo", "proc/cpuinfo", "proc/cmdline", "proc/pressure", "proc/sys"),
    *("sys/devices", "sys/bus", "sys/class", "sys/kernel"),
)


@dataclass(frozen=True, slots=True)
class BusyNode:
    """Where the node is and what its cgroups are."""

    root: Path
    fake_file: Path
    cgroups: str  # v1 real, v2 files
    layout: CgroupLayout  # of the pods, outside the root


@contextmanager
def busy_node() -> Iterator[BusyNode]:
    """Make the node; everything is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="xpu-bench-") as folder, version_1() as real:
        root = Path(folder) / "root"
        for name in _LINKS:
            link = root / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path("/") / name)
        (root / "proc" / "self").mkdir()
        (root / "dev").mkdir()
        for number in range(CARDS):  # a node with the numbers that the file of cards says
            (root / "dev" / f"card{number}").symlink_to("/dev/null")
        fake = Path(folder) / "cards.yaml"
        cards = "".join(_CARD.format(minor=i, bus=0x10 + i) for i in range(CARDS))
        fake.write_text(f"devices:{cards}")
        cgroup = root / "sys" / "fs" / "cgroup"
        cgroup.mkdir(parents=True)
        if real is not None:
            lines = []
            for controller, point in real.mounts:
                own = cgroup / controller
                own.mkdir()
                (own / "kubepods").symlink_to(f"{point}{real.root}")
                lines.append(f"cgroup /sys/fs/cgroup/{controller} cgroup rw,{controller} 0 0\n")
            (root / "proc" / "mounts").write_text("".join(lines))
            yield BusyNode(root, fake, "v1 real", real)
            return
        with version_2() as files:
            (cgroup / "kubepods").symlink_to(f"{files.unified}{files.root}")
            (cgroup / "cgroup.controllers").write_text("cpu memory\n")
            mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
            (root / "proc" / "mounts").write_text(mounts)
            yield BusyNode(root, fake, "v2 files", files)


@dataclass(slots=True)
class RunningAgent:
    """The agent's process and where it serves."""

    process: subprocess.Popen[str]
    url: str

    def cpu_s(self, pid: int | None = None) -> float:
        """Return CPU seconds used so far by the agent, or by one of its workers."""
        fields = (
            Path(f"/proc/{pid or self.process.pid}/stat").read_text().rpartition(")")[2].split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_kib(self, pid: int | None = None) -> int:
        """Return resident memory."""
        status = Path(f"/proc/{pid or self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def workers(self) -> list[int]:
        """Return the process ids of the vendors' workers."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]

    def scrape(self) -> int:
        """Scrape once; return the number of samples."""
        with urllib.request.urlopen(f"{self.url}metrics", timeout=DEADLINE_S) as page:
            lines = page.read().decode().splitlines()
        return sum(1 for line in lines if line and not line.startswith("#"))


@contextmanager
def running_agent(node: BusyNode, **surroundings: str) -> Iterator[RunningAgent]:
    """Run the agent on the node until the block ends; it is ended by its own process id.

    `surroundings` are added to its environment.
    """
    with tempfile.TemporaryDirectory(prefix="xpu-bench-out-") as out:
        module = [sys.executable, "-m", "bench.node.busy_agent"]
        command = [*module, str(node.root), str(node.fake_file), out]
        environment = {**os.environ, "MALLOC_ARENA_MAX": "2", **surroundings}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, env=environment
        )
        try:
            yield RunningAgent(process, _served(process))
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


def _served(process: subprocess.Popen[str]) -> str:
    began_s = time.monotonic()
    assert process.stdout is not None
    for line in process.stdout:
        if " serves " in line:
            return line.split()[-1]
        if time.monotonic() - began_s > DEADLINE_S:
            break
    raise RuntimeError(f"the agent does not serve; its status is {process.poll()}")
