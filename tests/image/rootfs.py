"""The images' root file systems: assembled once a run, and entered as a container enters them."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from daemonset.image.__main__ import LAYERS
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
BASE = "python:3.11@sha256:" + "0" * 64
# a file system of its own, read-only but for /tmp, with nothing of this machine's but the kernel's
ENTER = """
set -e
root=$1 user=$2; shift 2
mount --bind "$root" "$root"
mount --rbind /proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
while [ "$1" != -- ]; do mkdir -p "$root$2"; mount --rbind "$1" "$root$2"; shift 2; done
shift
mount -o remount,bind,ro "$root"
exec env -i $ENVIRONMENT "$(command -v chroot)" --userspec="$user" "$root" "$@"
"""


def _why_not() -> str:
    if os.geteuid() != 0:
        return "only root may enter another root file system"
    probe = ["unshare", "--mount", "--propagation", "private", "mount", "-t", "tmpfs", "t", "/mnt"]
    if not shutil.which("unshare"):
        return "unshare is missing"
    result = subprocess.run(probe, capture_output=True, check=False)
    return "this machine does not allow mounts" if result.returncode else ""


needs_mounts = pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "none")


def assembled(folder: Path) -> Path:
    """Return the folder of the layers; the first of several processes assembles them."""
    out = folder / "layers"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.exists():
            command = [sys.executable, "-m", "daemonset.image", "--release", "--base", BASE]
            result = subprocess.run(
                [*command, "--out", str(folder / "new")],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            if "(from versions: none)" in result.stderr:
                pytest.skip(f"the package index does not answer: {result.stderr[:200]}")
            assert result.returncode == 0, result.stderr
            print(result.stdout)  # noqa: T201 - sizes
            (folder / "new").rename(out)
    return out


class Image:
    """One image's root file system, and commands that run in it."""

    def __init__(self, layers: Path, target: str, root: Path) -> None:
        """Put the layers above each other, as a container engine does."""
        self.root = root
        for layer in LAYERS[target]:
            subprocess.run(["cp", "-al", f"{layers / layer}/.", str(root)], check=True)

    def command(
        self,
        *arguments: str,
        user: str = "0:0",
        mounts: Mapping[Path, str] | None = None,
        **environment: str,
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command and its environment; `mounts` are folders and where they appear."""
        pairs = [word for source, place in (mounts or {}).items() for word in (str(source), place)]
        values = {"PATH": "/usr/local/bin", "MALLOC_ARENA_MAX": "2", **environment}
        own = {**os.environ, "ENVIRONMENT": " ".join(f"{k}={v}" for k, v in values.items())}
        words = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", ENTER, "sh"]
        return [*words, str(self.root), user, *pairs, "--", *arguments], own

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        command, environment = self.command(*arguments, **options)
        return subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )


def executables(root: Path) -> Sequence[str]:
    """Return the paths of all files that may be executed."""
    files = (path for path in root.rglob("*") if path.is_file() and os.access(path, os.X_OK))
    return sorted(str(path.relative_to(root)) for path in files)
