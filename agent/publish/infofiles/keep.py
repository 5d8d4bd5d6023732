"""Keeps our device-info file where koordlet reads it: whole, and written only on a difference."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from agent import durable
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
            for temporary in (str(_outside(path)), durable.temporary_of(str(path))):
                durable.remove(temporary)
            self._cleaned = True


def _read(path: Path, size: int) -> bytes | None:
    try:
        return durable.read_file(str(path), size + 1)
    except (FileNotFoundError, durable.NotRegularFileError):
        return None


def _replace(path: Path, data: bytes) -> None:
    """Write beside the folder, which koordlet reads whole, and only then let the file in.

    Where the folder is a mount of its own, a hidden file in it has to do.
    """
    outside = _outside(path)
    try:
        durable.write_new(str(outside), data, MODE)
        os.replace(outside, path)
    except OSError as error:
        durable.remove(str(outside))
        if error.errno not in (errno.EXDEV, errno.EACCES, errno.EROFS, errno.EPERM):
            raise
        durable.replace_file(str(path), data, MODE)


def _outside(path: Path) -> Path:
    return path.parent.with_name(f".{path.parent.name}.{path.name}.tmp")
