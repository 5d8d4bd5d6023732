"""The last offered resources in a file, for the agent's next start within the same boot.

A vendor's library may take seconds to answer after a start; its devices still exist meanwhile. A
damaged file is renamed and logged; it never stops the agent.
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
    """Return the file's contents."""
    stored = resources[:MAX_CACHED_RESOURCES]
    return (
        msgspec.json.encode(
            _ResourceCacheDocument(version=CACHE_VERSION, boot_id=boot_id, resources=stored)
        )
        + b"\n"
    )


def decode_resources(data: bytes, boot_id: str) -> tuple[KubeletResource, ...]:
    """Return the resources stored in this boot, else none; raises `ParseError`."""
    try:
        document = msgspec.json.decode(data, type=_ResourceCacheDocument)
    except JSON_ERRORS as error:
        raise ParseError(f"kept devices: {str(error)[:120]}", "") from error
    if document.version != CACHE_VERSION:
        raise ParseError("version of the kept devices", str(document.version))
    same_boot = bool(boot_id) and document.boot_id == boot_id
    return document.resources[:MAX_CACHED_RESOURCES] if same_boot else ()


class ResourceCacheFile:
    """The file in the state folder; without a folder nothing is stored.

    `load` waits for the file system for a limited time; `write` does not wait.
    """

    def __init__(self, folder: str, boot_id: str, writer: StateWriter) -> None:
        self._writer = writer
        self._file = writer.file(os.path.join(folder, FILE_NAME)) if folder else None
        self._boot_id = boot_id

    def load(self) -> tuple[KubeletResource, ...]:
        """Return the stored resources; an unusable file is renamed to `.bad`."""
        if self._file is None:
            return ()
        stored = self._writer.load(
            self._file.path, MAX_FILE_BYTES, lambda data: decode_resources(data, self._boot_id)
        )
        if stored.error is not None:
            log.error("kept_devices_unusable", extra={"error": str(stored.error)})
        if stored.rename_error is not None:
            log.warning("kept_devices_stay", extra={"error": str(stored.rename_error)})
        return stored.value or ()

    def write(self, resources: tuple[KubeletResource, ...]) -> None:
        """Request that these resources be written soon."""
        if self._file is None:
            return
        data = encode_resources(resources, self._boot_id)
        if len(data) <= MAX_FILE_BYTES:
            self._file.write(data)
