"""Control groups of this machine's own kernel, below one directory of a test, and gone after it."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import pytest

from agent.cgroup.layout import CgroupLayout

MOUNT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuset", "memory")
UID = "7712555c-ce62-454a-9e18-9ff0217b8941"

_numbers = itertools.count()


def _usable() -> bool:
    return os.geteuid() == 0 and all(
        (MOUNT / c / "cgroup.procs").exists() and os.access(MOUNT / c, os.W_OK) for c in CONTROLLERS
    )


needs_v1 = pytest.mark.skipif(
    not _usable(), reason="needs root and cgroup v1 with cpu, cpuset and memory mounted apart"
)


needs_blkio = pytest.mark.skipif(
    not (_usable() and os.access(MOUNT / "blkio/blkio.throttle.read_bps_device", os.W_OK)),
    reason="needs root and block IO of cgroup v1",
)


class PodGroups(Protocol):
    """Groups of one kubelet on a real kernel, of either version and driver."""

    @property
    def root(self) -> str:
        """The kubelet's root, below the mounts."""
        ...

    @property
    def layout(self) -> CgroupLayout:
        """The machine, with this root."""
        ...

    def pod_path(self, uid: str) -> str:
        """Return the path of a pod's group."""
        ...

    def container_path(self, pod: str, number: int) -> str:
        """Return the path of a container's group; `number` makes its id."""
        ...

    def pod(self, uid: str = UID) -> str:
        """Make a pod's group."""
        ...

    def container(self, pod: str, number: int) -> str:
        """Make a container's group."""
        ...

    def path(self, controller: str, cgroup: str) -> Path:
        """Return a group's directory."""
        ...

    def get(self, cgroup: str, name: str) -> str:
        """Read a file."""
        ...

    def put(self, cgroup: str, name: str, text: str) -> None:
        """Write a file."""
        ...


class RealGroups:
    """A kubelet's tree in miniature: a root, pods, containers. Paths are those of the agent."""

    def __init__(self, root: str, controllers: tuple[str, ...] = CONTROLLERS) -> None:
        self.root = root
        self.controllers = controllers
        self._children: list[subprocess.Popen[bytes]] = []

    @property
    def layout(self) -> CgroupLayout:
        """The machine, with the test's directory as the kubelet's root."""
        return CgroupLayout(
            version=1,
            driver="cgroupfs",
            mounts=tuple((c, str(MOUNT / c)) for c in self.controllers),
            unified=None,
            root=self.root,
        )

    def make(self, cgroup: str) -> str:
        """Make a group in each hierarchy, with all CPUs and memory of the one above."""
        for controller in self.controllers:
            path = self.path(controller, cgroup)
            path.mkdir()
            if controller == "cpuset":
                for name in ("cpuset.mems", "cpuset.cpus"):
                    self.write(path / name, (path.parent / name).read_text())
        return cgroup

    def pod_path(self, uid: str) -> str:
        """Return the path of a pod's group."""
        return f"{self.root}/pod{uid}"

    def container_path(self, pod: str, number: int) -> str:
        """Return the path of a container's group; `number` makes its id."""
        return f"{pod}/{number:064x}"

    def pod(self, uid: str = UID) -> str:
        """Make a pod's group."""
        return self.make(self.pod_path(uid))

    def container(self, pod: str, number: int) -> str:
        """Make a container's group."""
        return self.make(self.container_path(pod, number))

    def path(self, controller: str, cgroup: str) -> Path:
        """Return a group's directory."""
        return MOUNT / controller / cgroup.lstrip("/")

    def get(self, cgroup: str, name: str) -> str:
        """Read a file, whose name starts with its controller's."""
        return (self.path(name.partition(".")[0], cgroup) / name).read_text().strip()

    def put(self, cgroup: str, name: str, text: str) -> None:
        """Write a file with one system call, so that the kernel's answer is not lost."""
        self.write(self.path(name.partition(".")[0], cgroup) / name, text)

    @staticmethod
    def write(path: Path, text: str) -> None:
        """Write with one system call."""
        fd = os.open(path, os.O_WRONLY)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    def sleeper(self, cgroup: str) -> int:
        """Start a process in all hierarchies of a group; return its pid."""
        child = subprocess.Popen(["sleep", "1000"])
        self._children.append(child)
        for controller in self.controllers:
            self.write(self.path(controller, cgroup) / "cgroup.procs", str(child.pid))
        return child.pid

    def hog(self, cgroup: str, size_bytes: int = 8 << 20) -> int:
        """Start a process in a memory group that holds memory no kernel can take back."""
        procs = self.path("memory", cgroup) / "cgroup.procs"
        code = (
            "import os,sys,time;"
            f"os.write(os.open({str(procs)!r}, os.O_WRONLY), b'0');"
            f"held = b'x' * {size_bytes};"
            "print(flush=True);time.sleep(1000)"
        )
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        self._children.append(child)
        assert child.stdout is not None
        child.stdout.readline()
        return child.pid

    def stop(self) -> None:
        """End the processes and remove all groups, depth first."""
        for child in self._children:
            child.send_signal(signal.SIGKILL)
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
        for controller in self.controllers:
            top = self.path(controller, self.root)
            for folder, _, _ in os.walk(top, topdown=False):
                with suppress(OSError):
                    Path(folder).rmdir()


@contextmanager
def real_groups(*more: str) -> Iterator[RealGroups]:
    """Make a root of groups, and remove everything below it; `more` are further controllers."""
    groups = RealGroups(f"/xpu-{os.getpid()}-{next(_numbers)}", (*CONTROLLERS, *more))
    try:
        groups.make(groups.root)
        yield groups
    finally:
        groups.stop()
