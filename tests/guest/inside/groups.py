"""Real version 2 groups below the kubelet's root, and bounded children that run in them."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

MOUNT = Path("/sys/fs/cgroup")
CONTROLLERS = "+cpu +memory +io +pids"
CHILD_S = 60.0

_ENTER = """\
import ctypes, json, sys, time
with open(sys.argv[1] + "/cgroup.procs", "w") as file: file.write("0")
told = {}
"""
_LEAVE = "print(json.dumps(told), flush=True)\ninput()\n"
# until this much CPU time is used
BUSY = """\
began = time.process_time()
while time.process_time() - began < float(sys.argv[2]): pass
told["cpu_s"] = time.process_time() - began
"""
# anonymous memory, then page cache of a file, all from one memory node
HOLD = """\
node, size, path = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
mask = ctypes.c_ulong(1 << node)
assert ctypes.CDLL(None).syscall(238, 2, ctypes.byref(mask), 65) == 0  # set_mempolicy, MPOL_BIND
kept = bytearray(b"x") * size
with open(path, "rb") as file:
    while file.read(1 << 16): pass
"""


class Groups:
    """Groups made in order and removed in the other, their children ended before."""

    def __init__(self) -> None:
        self._made = ExitStack()
        (MOUNT / "cgroup.subtree_control").write_text(CONTROLLERS)

    def __enter__(self) -> Groups:
        return self

    def __exit__(self, *_: object) -> None:
        self._made.close()

    def make(self, cgroup: str) -> Path:
        """Make a group and all above it; those above hand the controllers down."""
        path = MOUNT
        for name in cgroup.strip("/").split("/"):
            if path != MOUNT:
                (path / "cgroup.subtree_control").write_text(CONTROLLERS)
            path /= name
            if not path.exists():
                path.mkdir()
                self._made.callback(path.rmdir)
        return path

    def run(self, cgroup: str, code: str, *words: object) -> dict[str, Any]:
        """Run Python in a group; return what it told. It then waits to be ended."""
        child = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                "-c",
                _ENTER + code + _LEAVE,
                str(self.make(cgroup)),
                *map(str, words),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._made.callback(_end, child)
        assert child.stdout is not None
        reports: dict[str, Any] = json.loads(child.stdout.readline())
        return reports


def _end(child: subprocess.Popen[str]) -> None:
    child.communicate("\n", timeout=CHILD_S)


def read(path: Path) -> str | None:
    """Return a kernel file's text; `None` if it is absent or refuses."""
    try:
        return path.read_text()
    except OSError:
        return None
