"""The folder of CDI files: the agent writes and removes its own files only.

A file is replaced as a whole, under a name that runtimes ignore until it is complete. If the agent
is killed, each file is the old one or the new one.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from agent import durable
from agent.allocation.cdi_document import CdiFile, encode_document
from agent.allocation.cdi_files import AGENT_DOMAIN
from agent.errors import PublishError
from agent.wire_formats.json_values import JSON_ERRORS

FILE_PREFIX, FILE_SUFFIX = "xpu-agent-", ".json"
FOLDER_MODE, FILE_MODE = 0o755, 0o644
MAX_BYTES = 8 << 20  # of one file
MAX_FOLDER_FILES = 4096  # read in the folder


class _CdiFileDevice(msgspec.Struct):
    name: str


class _CdiFileDocument(msgspec.Struct):
    kind: str
    devices: list[msgspec.Raw]
    version: str = msgspec.field(name="cdiVersion", default="0.3.0")


class CdiFolderChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the written and the removed files."""

    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class CdiFolder:
    """Belongs to the collector thread: all methods block. Every failure is a `PublishError`."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def synchronize(
        self, files: Sequence[CdiFile], in_use: Collection[str] = ()
    ) -> CdiFolderChanges:
        """Write these files of the agent, and remove its other files.

        `in_use` are kinds whose names containers may use: the kubelet repeats its old answer when
        it restarts a container. Devices in existing files of these kinds are kept.
        """
        try:
            if files and not self._folder.is_dir():
                self._folder.mkdir(parents=True, exist_ok=True)
                self._folder.chmod(FOLDER_MODE)  # independent of the umask
            present = self._read_own_files()
            desired = {file.name: file.text for file in files}
            for name, text in present.items():
                kind = _kind_of(text)
                if kind in in_use:
                    merged = merge_old_devices(text, desired.get(name))
                    if merged != desired.get(name):
                        desired[name] = merged
            written = self._write(desired, present)
            removed = tuple(name for name in present if name not in desired)
            for name in removed:
                durable.remove(str(self._folder / name))
        except OSError as error:
            detail = "the folder of CDI files cannot be kept"
            raise PublishError(str(self._folder), detail, error.errno or 0) from error
        return CdiFolderChanges(written=written, removed=removed)

    def remove_all(self) -> tuple[str, ...]:
        """Remove all files of the agent, as when it is uninstalled."""
        return self.synchronize(()).removed

    def _write(self, desired: Mapping[str, bytes], present: Mapping[str, bytes]) -> tuple[str, ...]:
        names = tuple(name for name in sorted(desired) if present.get(name) != desired[name])
        for name in names:
            durable.replace_file(str(self._folder / name), desired[name], FILE_MODE)
        return names

    def _read_own_files(self) -> dict[str, bytes]:
        """Return the agent's files; remove temporary files of a killed agent.

        A file with an agent's name and another kind belongs to another program.
        """
        files: dict[str, bytes] = {}
        try:
            names = sorted(os.listdir(self._folder))[:MAX_FOLDER_FILES]
        except FileNotFoundError:
            return files
        for name in names:
            path = self._folder / name
            if name.startswith(f".{FILE_PREFIX}") and name.endswith(f"{FILE_SUFFIX}.tmp"):
                durable.remove(str(path))
            elif (
                name.startswith(FILE_PREFIX)
                and name.endswith(FILE_SUFFIX)
                and not path.is_symlink()
            ):
                text = _read_own_file(path)
                if text is not None and (_kind_of(text) or "").startswith(AGENT_DOMAIN):
                    files[name] = text
        return files


def merge_old_devices(old: bytes, new: bytes | None) -> bytes:
    """Return the new document, with devices that only the old one has added.

    Without a new document the old one stays. An old one of another kind, or an invalid one, adds
    nothing.
    """
    if new is None:
        return old
    before, after = _decode_document(old), _decode_document(new)
    if before is None or after is None or before.kind != after.kind:
        return new
    names = {_device_name(item) for item in after.devices}
    missing = [item for item in before.devices if _device_name(item) not in {*names, None}]
    if not missing:
        return new
    body = msgspec.json.decode(new)
    try:
        body["devices"] += [msgspec.json.decode(item) for item in missing]
    except JSON_ERRORS:
        return new  # the old devices are decoded only here
    body["cdiVersion"] = max(before.version, after.version)  # as texts: all begin with 0
    return encode_document(body)


def _read_own_file(path: Path) -> bytes | None:
    """Return a file's content; `None` if it is gone, or cannot be one of the agent."""
    try:
        data = durable.read_file(str(path), MAX_BYTES + 1)
    except (FileNotFoundError, durable.NotRegularFileError):
        return None
    return data if len(data) <= MAX_BYTES else None


def _decode_document(text: bytes) -> _CdiFileDocument | None:
    try:
        return msgspec.json.decode(text, type=_CdiFileDocument)
    except JSON_ERRORS:
        return None


def _kind_of(text: bytes) -> str | None:
    document = _decode_document(text)
    return document.kind if document else None


def _device_name(item: msgspec.Raw) -> str | None:
    try:
        return msgspec.json.decode(item, type=_CdiFileDevice).name
    except JSON_ERRORS:
        return None
