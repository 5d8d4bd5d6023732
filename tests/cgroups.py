"""Trees of cgroup files, as both versions print them, in a directory of a test."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from agent.host.files import LiveHostFiles

PAGE = 4096


def container_id(number: int) -> str:
    """Return an id as container runtimes make them."""
    return f"{number:064x}"


@dataclass
class CgroupHost:
    """A host below a directory whose cgroups are moved by hand."""

    root: Path
    version: int = 2
    points: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lines = []
        if self.version == 2:
            self.points = dict.fromkeys(("cpu", "cpuacct", "memory"), "/sys/fs/cgroup")
            lines.append("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0")
        else:
            joined = "/sys/fs/cgroup/cpu,cpuacct"
            self.points = {"cpu": joined, "cpuacct": joined, "memory": "/sys/fs/cgroup/memory"}
            lines.append(f"cgroup {joined} cgroup rw,cpu,cpuacct 0 0")
            lines.append("cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0")
        self.write("/proc/mounts", "\n".join(lines) + "\n")
        for point in set(self.points.values()):
            for below in ("", "/burstable", "/besteffort"):
                self.path(f"{point}/kubepods{below}").mkdir(parents=True)
        self.node(busy=0, free_kb=500)

    @property
    def files(self) -> LiveHostFiles:
        """The host as the agent sees it."""
        return LiveHostFiles(str(self.root))

    def path(self, path: str) -> Path:
        """Return where a path of the host is."""
        return self.root / path.lstrip("/")

    def write(self, path: str, text: str) -> None:
        """Write a file and the directories above it."""
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        self.path(path).write_text(text)

    def node(self, busy: int, free_kb: int, total_kb: int = 1000) -> None:
        """Set the node's busy ticks and free memory."""
        self.write(
            "/proc/stat", f"cpu  {busy} 0 0 999 5 0 0 7 0 0\ncpu0 {busy} 0 0 999 5 0 0 7 0 0\n"
        )
        self.write(
            "/proc/meminfo",
            f"MemTotal: {total_kb} kB\nMemFree: {free_kb // 2} kB\nMemAvailable: {free_kb} kB\n",
        )

    def group(
        self,
        cgroup: str,
        cpu_ns: int = 0,
        anon: int = 0,
        cache: int = 0,
        throttling: tuple[int, int] = (0, 0),
    ) -> None:
        """Make a cgroup below `/kubepods` or set its files; memory in pages."""
        periods = f"nr_periods {throttling[0]}\nnr_throttled {throttling[1]}\nthrottled_usec 0\n"
        if self.version == 2:
            self._write("cpu", cgroup, "cpu.stat", f"usage_usec {cpu_ns // 1000}\n{periods}")
            self._write(
                "memory",
                cgroup,
                "memory.stat",
                f"anon 1\ninactive_anon 0\nactive_anon {anon * PAGE}\ninactive_file 0\n"
                f"active_file {cache * PAGE}\nunevictable 0\nslab 0\n",
            )
            return
        self._write("cpuacct", cgroup, "cpuacct.usage", f"{cpu_ns}\n")
        self._write("cpu", cgroup, "cpu.stat", periods)
        self._write(
            "memory",
            cgroup,
            "memory.stat",
            f"cache 0\ntotal_inactive_anon 0\ntotal_active_anon {anon * PAGE}\n"
            f"total_inactive_file 0\ntotal_active_file {cache * PAGE}\ntotal_unevictable 0\n",
        )

    def remove(self, cgroup: str) -> None:
        """Remove a cgroup with all below it."""
        for point in set(self.points.values()):
            shutil.rmtree(self.path(f"{point}/kubepods{cgroup}"))

    def _write(self, controller: str, cgroup: str, name: str, text: str) -> None:
        self.write(f"{self.points[controller]}/kubepods{cgroup}/{name}", text)
