"""The programs a real runtime is made of, where `.ci/system-packages` puts them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

NAMES = ("containerd", "containerd-shim-runc-v2", "ctr", "runc", "busybox")


@dataclass(frozen=True, slots=True)
class Programs:
    """One folder with containerd, its shim and client, runc, and a static busybox."""

    folder: Path

    def __getitem__(self, name: str) -> Path:
        return self.folder / name


def programs() -> Programs:
    """Return where the programs are; which of them are there says `missing`."""
    return Programs(Path(sys.prefix) / "containerd")


def missing() -> str:
    """Say why no runtime can be started on this machine; empty if one can."""
    if os.geteuid() != 0:
        return "only root starts containers"
    absent = [name for name in NAMES if not os.access(programs()[name], os.X_OK)]
    if absent:
        return f"no {', '.join(absent)} in {programs().folder}; .ci/system-packages fetches them"
    return ""
