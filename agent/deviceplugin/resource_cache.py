"""What was listed last, kept for the agent's next start in the same boot of the machine.

A vendor's library may take seconds to answer after a start; its devices have not gone meanwhile.
A file that is damaged is put aside and said; it never stops the agent.
"""

from __future__ import annotations

import logging
import os

import msgspec

from agent.deviceplugin.resources import KubeletResource
from agent.errors import ParseError
from agent.state_writer import StateWriter
from agent.wire_formats.json_values import JSON_ERRORS

log = logging.getLogger(__name__)

CACHE_VERSION = 1
FILE_NAME = "device-plugin.json"
MAX_FILE_BYTES = 8 << 20
MAX_CACHED_RESOURCES = 64


class _ResourceCacheDocument(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    boot_id: str
    resources: tuple[KubeletResource, ...]


def encode_resources(resources: tuple[KubeletResource, ...], boot_id: str) -> bytes:
    """Return the file's bytes."""
    kept = resources[:MAX_CACHED_RESOURCES]
    return (
        msgspec.json.encode(
            _ResourceCacheDocument(version=CACHE_VERSION, boot_id=boot_id, resources=kept)
        )
        + b"\n"
    )


def decode_resources(data: bytes, boot_id: str) -> tuple[KubeletResource, ...]:
    """Return what was kept in this boot, nothing of another; raise `ParseError`."""
    try:
        found = msgspec.json.decode(data, type=_ResourceCacheDocument)
    except JSON_ERRORS as error:
        raise ParseError(f"kept devices: {str(error)[:120]}", "") from error
    if found.version != CACHE_VERSION:
        raise ParseError("version of the kept devices", str(found.version))
    same_boot = bool(boot_id) and found.boot_id == boot_id
    return found.resources[:MAX_CACHED_RESOURCES] if same_boot else ()


class ResourceCacheFile:
    """One file in the folder for lasting state; without a folder nothing is kept.

    `load` waits for the file system for a limited time; `write` does not wait.
    """

    def __init__(self, folder: str, boot_id: str, writer: StateWriter) -> None:
        self._writer = writer
        self._file = writer.file(os.path.join(folder, FILE_NAME)) if folder else None
        self._boot_id = boot_id

    def load(self) -> tuple[KubeletResource, ...]:
        """Return what was kept; a file that cannot be used is put aside as `.bad`."""
        if self._file is None:
            return ()
        try:
            data = self._writer.read(self._file.path, MAX_FILE_BYTES)
            if data is None:
                return ()
            if len(data) > MAX_FILE_BYTES:
                raise ParseError(f"kept devices: more than {MAX_FILE_BYTES} bytes", "")
            return decode_resources(data, self._boot_id)
        except ParseError as error:
            log.error("kept_devices_unusable", extra={"error": str(error)})
            self._set_aside(self._file.path)
        except OSError as error:
            log.error("kept_devices_unusable", extra={"error": str(error)})
        return ()

    def write(self, resources: tuple[KubeletResource, ...]) -> None:
        """Have these written soon."""
        if self._file is None:
            return
        data = encode_resources(resources, self._boot_id)
        if len(data) <= MAX_FILE_BYTES:
            self._file.write(data)

    def _set_aside(self, path: str) -> None:
        try:
            self._writer.set_aside(path)
        except OSError as error:
            log.warning("kept_devices_stay", extra={"error": str(error)})
