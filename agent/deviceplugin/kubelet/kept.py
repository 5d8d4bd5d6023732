"""What was listed last, kept for the agent's next start in the same boot of the machine.

A vendor's library may take seconds to answer after a start; its devices have not gone meanwhile.
A file that is damaged is put aside and said; it never stops the agent.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from agent import durable
from agent.deviceplugin.base import Resource
from agent.errors import ParseError

log = logging.getLogger(__name__)

VERSION = 1
FILE_NAME = "device-plugin.json"
MAX_FILE = 8 << 20
MAX_RESOURCES = 64


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    boot_id: str
    resources: tuple[Resource, ...]


def encode(resources: tuple[Resource, ...], boot_id: str) -> bytes:
    """Return the file's bytes."""
    kept = resources[:MAX_RESOURCES]
    return msgspec.json.encode(_Document(version=VERSION, boot_id=boot_id, resources=kept)) + b"\n"


def decode(data: bytes, boot_id: str) -> tuple[Resource, ...]:
    """Return what was kept in this boot, nothing of another; raise `ParseError`."""
    try:
        found = msgspec.json.decode(data, type=_Document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"kept devices: {str(error)[:120]}", "") from error
    if found.version != VERSION:
        raise ParseError("version of the kept devices", str(found.version))
    same_boot = bool(boot_id) and found.boot_id == boot_id
    return found.resources[:MAX_RESOURCES] if same_boot else ()


class KeptFile:
    """One file in the folder for lasting state; without a folder nothing is kept. Both block."""

    def __init__(self, folder: str, boot_id: str) -> None:
        self._path = Path(folder, FILE_NAME) if folder else None
        self._boot_id = boot_id
        self._written = b""
        self.error = ""  # of the last attempt to write

    def load(self) -> tuple[Resource, ...]:
        """Return what was kept; a file that cannot be used is put aside as `.bad`."""
        if self._path is None:
            return ()
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_FILE + 1)
            if len(data) > MAX_FILE:
                raise ParseError(f"kept devices: more than {MAX_FILE} bytes", "")
            return decode(data, self._boot_id)
        except FileNotFoundError:
            return ()
        except (ParseError, OSError) as error:
            log.error("kept_devices_unusable", extra={"error": str(error)})
            _put_aside(self._path)
            return ()

    def write(self, resources: tuple[Resource, ...]) -> None:
        """Keep these, if they are others; a failure is said once, and tried again."""
        data = encode(resources, self._boot_id)
        if self._path is None or data == self._written or len(data) > MAX_FILE:
            return
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            durable.replace_file(str(self._path), data)
        except OSError as error:
            if not self.error:
                log.error("kept_devices_not_written", extra={"error": str(error)})
            self.error = f"{self._path}: {error.strerror}; a restart waits for the vendors' answers"
            return
        self.error, self._written = "", data


def _put_aside(path: Path) -> None:
    try:
        os.replace(path, path.with_name(f"{path.name}.bad"))
    except OSError as error:
        log.warning("kept_devices_stay", extra={"error": str(error)})
