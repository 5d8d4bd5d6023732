"""Trees of files: copied, made equal for equal input, measured, hashed."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

EXECUTABLE, PLAIN, FOLDER = 0o755, 0o644, 0o755
_PROGRAM = re.compile(r"usr/local/bin/[^/]+|lib(?:64|32)?/ld-linux[^/]*")


class AssemblyError(Exception):
    """The image cannot be assembled; says what is missing and what to do."""


def copy_file(source: Path, target: Path) -> None:
    """Copy the content of a file, whatever links lead to it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def write_file(path: Path, text: str) -> None:
    """Write a file with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def normalize(root: Path, time_s: int) -> None:
    """Give every file and folder a mode and a time that do not depend on who assembled it.

    Only the programs and the dynamic loader are executable.
    """
    for path in (root, *walk(root)):
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            path.chmod(0o1777 if status.st_mode & stat.S_ISVTX else FOLDER)
        elif stat.S_ISREG(status.st_mode):
            is_program = _PROGRAM.fullmatch(str(path.relative_to(root)))
            path.chmod(EXECUTABLE if is_program else PLAIN)
        os.utime(path, (time_s, time_s), follow_symlinks=False)


def walk(root: Path) -> Iterator[Path]:
    """Yield everything below a folder, in the order of names."""
    for path in sorted(root.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from walk(path)


def sha256(path: Path) -> str:
    """Return the digest of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tree_digest(root: Path) -> str:
    """Return one digest of the paths, kinds, modes, times and contents of everything in a tree."""
    whole = hashlib.sha256()
    for path in walk(root):
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else sha256(path) if path.is_file() else ""
        line = f"{path.relative_to(root)} {status.st_mode:o} {status.st_mtime_ns} {content}\n"
        whole.update(line.encode())
    return whole.hexdigest()


def size_bytes(root: Path) -> int:
    """Return the sum of the sizes of all files."""
    return sum(path.lstat().st_size for path in walk(root) if path.is_file())
