"""Builds the limits that are written in C."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BUILD_S = 60


@contextmanager
def built(source: Path) -> Iterator[ctypes.CDLL | None]:
    """Build and load a shared library; `None` without a compiler."""
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "limit.so"
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
        try:
            subprocess.run(command, check=True, timeout=BUILD_S)
        except (OSError, subprocess.SubprocessError):
            yield None
            return
        yield ctypes.CDLL(str(library))
