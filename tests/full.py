"""Real file systems that are full: small ones in memory, without room or without a name left."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0
    or subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True,
        check=False,
    ).returncode
    != 0,
    reason="needs root that may mount: a file system that is full is mounted",
)


@contextmanager
def small_files(folder: Path, *, names: int = 100) -> Iterator[Path]:
    """Mount 16 KiB in memory in a new folder; `names` is how many files and folders it can have."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size=16k,nr_inodes={names + 1}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Use up all room of a small file system, and all names if there are few; return what does."""
    path = folder / "filler"
    try:
        with path.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        return path
