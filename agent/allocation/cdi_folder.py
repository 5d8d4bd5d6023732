"""The folder of CDI files: ours are there as they should be, others' are left alone.

A file is replaced whole, under a name that no runtime reads until it is complete: whenever the
agent is killed, each file is the old one or the new one.
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
MAX_BYTES = 8 << 20  # of a file that is read back
MAX_FOLDER_FILES = 4096  # of the folder that are looked at


class _CdiFileDevice(msgspec.Struct):
    name: str


class _CdiFileDocument(msgspec.Struct):
    kind: str
    devices: list[msgspec.Raw]
    version: str = msgspec.field(name="cdiVersion", default="0.3.0")


class CdiFolderChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What was done: names of files."""

    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class CdiFolder:
    """Belongs to the collector thread: all of it blocks. Every failure is a `PublishError`."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def synchronize(
        self, files: Sequence[CdiFile], in_use: Collection[str] = ()
    ) -> CdiFolderChanges:
        """Have the folder hold these files of ours and no other of ours.

        `in_use` are kinds of which containers may hold names: the kubelet gives the answer of
        then again when it starts a container again. What a file had is then left in it.
        """
        try:
            if files and not self._folder.is_dir():
                self._folder.mkdir(parents=True, exist_ok=True)
                self._folder.chmod(FOLDER_MODE)  # whatever the umask
            present = self._read_own_files()
            wanted = {file.name: file.text for file in files}
            for name, text in present.items():
                kind = _kind_of(text)
                if kind in in_use:
                    kept = keep_old_devices(text, wanted.get(name))
                    if kept != wanted.get(name):
                        wanted[name] = kept
            written = self._write(wanted, present)
            removed = tuple(name for name in present if name not in wanted)
            for name in removed:
                durable.remove(str(self._folder / name))
        except OSError as error:
            detail = "the folder of CDI files cannot be kept"
            raise PublishError(str(self._folder), detail, error.errno or 0) from error
        return CdiFolderChanges(written=written, removed=removed)

    def remove_all(self) -> tuple[str, ...]:
        """Remove every file of ours, as when the agent leaves the node for good."""
        return self.synchronize(()).removed

    def _write(self, wanted: Mapping[str, bytes], present: Mapping[str, bytes]) -> tuple[str, ...]:
        names = tuple(name for name in sorted(wanted) if present.get(name) != wanted[name])
        for name in names:
            durable.replace_file(str(self._folder / name), wanted[name], FILE_MODE)
        return names

    def _read_own_files(self) -> dict[str, bytes]:
        """Return our files; what a killed agent left half-written is removed.

        A file that has our name and another's kind is somebody else's.
        """
        found: dict[str, bytes] = {}
        try:
            names = sorted(os.listdir(self._folder))[:MAX_FOLDER_FILES]
        except FileNotFoundError:
            return found
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
                    found[name] = text
        return found


def keep_old_devices(old: bytes, new: bytes | None) -> bytes:
    """Return the new document with the devices of the old one that it does not have.

    Without a new one the old one stays. One of another kind, or that is damaged, gives nothing.
    """
    if new is None:
        return old
    before, after = _decode_document(old), _decode_document(new)
    if before is None or after is None or before.kind != after.kind:
        return new
    names = {_device_name(item) for item in after.devices}
    lost = [item for item in before.devices if _device_name(item) not in {*names, None}]
    if not lost:
        return new
    body = msgspec.json.decode(new)
    try:
        body["devices"] += [msgspec.json.decode(item) for item in lost]
    except JSON_ERRORS:
        return new  # their texts are looked at only now
    body["cdiVersion"] = max(before.version, after.version)  # as texts: all begin with 0
    return encode_document(body)


def _read_own_file(path: Path) -> bytes | None:
    """Return a file's content; `None` for one that is gone, or that we would never write."""
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
    found = _decode_document(text)
    return found.kind if found else None


def _device_name(item: msgspec.Raw) -> str | None:
    try:
        return msgspec.json.decode(item, type=_CdiFileDevice).name
    except JSON_ERRORS:
        return None
