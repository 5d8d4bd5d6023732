"""Keeps our device-info file where koordlet reads it: whole, and written only on a difference."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from agent.errors import PublishError
from agent.publish.base import Desired
from agent.publish.files import Applied
from agent.publish.infofiles.render import DEVICES, encode

MODE = 0o644
FOLDER_MODE = 0o755


class InfoFileApplier:
    """Keeps our one file in the folder, replaced whole when it says something new.

    The file stays when the agent ends: devices do not vanish because the agent is upgraded.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self._cleaned = False

    def where(self, desired: Desired) -> str:
        """Return the path of the file."""
        return str(self.folder / desired.file_name)

    def apply(self, desired: Iterable[Desired]) -> Applied:
        """Make the file say what is desired; raise `PublishError` if that cannot be."""
        written: list[str] = []
        unchanged: list[str] = []
        for item in desired:
            path = Path(self.where(item))
            data = encode(item.body[DEVICES])
            try:
                self._clean(path)
                if _read(path, len(data)) == data:
                    unchanged.append(item.file_name)
                    continue
                self.folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
                _replace(path, data)
            except OSError as error:
                detail = f"{error.strerror}; make publish.device_info_directory writable"
                raise PublishError(str(path), detail, error.errno or 0) from error
            written.append(item.file_name)
        return Applied(tuple(written), tuple(unchanged))

    def _clean(self, path: Path) -> None:
        """Remove what a killed agent left: koordlet takes nothing while half a file is there."""
        if not self._cleaned:
            for temporary in _temporaries(path):
                _remove(temporary)
            self._cleaned = True


def _read(path: Path, size: int) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(size + 1)
    except FileNotFoundError:
        return None


def _replace(path: Path, data: bytes) -> None:
    """Write beside the folder, which koordlet reads whole, and only then let the file in.

    Where the folder is a mount of its own, a hidden file in it has to do.
    """
    outside, inside = _temporaries(path)
    try:
        _write(outside, data)
        os.replace(outside, path)
    except OSError as error:
        _remove(outside)
        if error.errno not in (errno.EXDEV, errno.EACCES, errno.EROFS, errno.EPERM):
            raise
        try:
            _write(inside, data)
            os.replace(inside, path)
        except OSError:
            _remove(inside)
            raise


def _temporaries(path: Path) -> tuple[Path, Path]:
    """Return where the file is written first: beside its folder, or else in it."""
    outside = path.parent.with_name(f".{path.parent.name}.{path.name}.tmp")
    return outside, path.with_name(f".{path.name}.tmp")


def _remove(path: Path) -> None:
    if path.is_symlink() or path.exists():  # a read-only file system refuses even what is not there
        path.unlink()


def _write(path: Path, data: bytes) -> None:
    _remove(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(path, flags, MODE), "wb") as file:  # noqa: PTH123 - of a descriptor
        os.fchmod(file.fileno(), MODE)  # whatever the umask: koordlet runs as somebody else
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
