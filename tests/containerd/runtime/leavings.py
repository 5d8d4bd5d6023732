"""What a runtime leaves behind when it or a test ends badly: processes and cgroups."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
GONE_S = 5.0


def remove(folder: Path, cgroup: str) -> None:
    """End the shims of one runtime's folder, remove its cgroup everywhere."""
    shims = [_pid(path) for path in folder.glob("state/io.containerd.runtime.v2.task/*/*/shim.pid")]
    for pid in filter(None, (*_members(cgroup), *shims)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _remove_cgroup(cgroup)


def groups(cgroup: str) -> list[Path]:
    """Return the folders of a cgroup in all hierarchies, and all below it, the deepest first."""
    above = [CGROUPS, *(path for path in CGROUPS.iterdir() if path.is_dir())]
    roots = {Path(str(one) + cgroup) for one in above}
    result = [Path(at) for root in roots for at, _, _ in os.walk(root) if root.is_dir()]
    return sorted(result, key=lambda path: -len(path.parts))


def _members(cgroup: str) -> set[int]:
    pids: set[int] = set()
    for folder in groups(cgroup):
        with contextlib.suppress(OSError):
            pids.update(map(int, (folder / "cgroup.procs").read_text().split()))
    return pids


def _pid(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _remove_cgroup(cgroup: str) -> None:
    end_s = time.monotonic() + GONE_S
    while (remaining := groups(cgroup)) and time.monotonic() < end_s:
        for folder in remaining:
            with contextlib.suppress(OSError):  # its last process is still on its way out
                folder.rmdir()
        if groups(cgroup):
            time.sleep(0.05)
