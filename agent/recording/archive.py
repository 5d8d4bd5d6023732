"""Reads tar archives with `sys/` and `proc/`, plain or compressed, as hosts."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from agent.errors import NotAHost
from agent.recording.tree import (
    MAX_TREE_ENTRIES,
    DeviceNodeEntry,
    EntryKind,
    LinkEntry,
    RecordingError,
    TreeBuilder,
    TreeEntry,
)
from agent.snapshot.host_files import MAX_READ

MAX_UNPACKED_BYTES = 1024 * 1024 * 1024  # bytes of archive after decompression
_MAX_STEP_BYTES = 32 * 1024 * 1024  # bytes that one header or file may need at once
_MAX_DEVICE_NUMBER = (1 << 20) - 1  # of a device, major or minor
_DAMAGED = (
    tarfile.TarError, lzma.LZMAError, zlib.error, OSError, EOFError,
    ValueError, OverflowError, RecursionError, IndexError,
)  # fmt: skip
# what the decompressors and tarfile raise for damaged input; the last four are tarfile's
# own arithmetic and recursion on forged headers


class _BoundedStream:
    """A decompressed stream that refuses to grow without end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_STEP_BYTES:
            raise RecordingError(f"a part of {size} bytes")
        return self._stream.read(size)

    def seek(self, position: int) -> int:
        if position > MAX_UNPACKED_BYTES:
            raise RecordingError(f"more than {MAX_UNPACKED_BYTES} bytes when unpacked")
        return self._stream.seek(position)

    def tell(self) -> int:
        return self._stream.tell()


def read_archive(path: Path) -> TreeBuilder:
    """Read an archive's files, links and device numbers, and nothing outside of it.

    Of a file the first 64 KiB are kept, or all of it (up to 32 MiB) if it is part of a recording.
    Members with `..` in their name, FIFOs and sparse files are left out, and so are members below a
    link or a file. Raises `RecordingError` if the archive is damaged or too large.
    """
    builder = TreeBuilder()
    try:
        with path.open("rb") as file, _decompress(file) as stream:
            for member, name, archive in _members(stream):
                entry = _entry(builder, archive, member, reads_all=_is_recording(name))
                if entry is not None:
                    builder.put(name, entry)
    except NotAHost as error:
        raise RecordingError(f"{path}: {error}") from error
    except _DAMAGED as error:
        raise RecordingError(
            f"{path}: no tar archive, or damaged: {type(error).__name__}"
        ) from error
    return builder


def _decompress(file: IO[bytes]) -> IO[bytes]:
    start = file.read(6)
    file.seek(0)
    if start.startswith(b"\xfd7zXZ\0"):
        return lzma.open(file)
    if start.startswith(b"BZh"):
        return bz2.open(file)
    if start.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file))
    return file


def _members(stream: IO[bytes]) -> Iterator[tuple[tarfile.TarInfo, str, tarfile.TarFile]]:
    bounded = cast("IO[bytes]", _BoundedStream(stream))  # mode "r:" uses only these methods
    count = 0
    with tarfile.open(fileobj=bounded, mode="r:") as archive:
        while (member := archive.next()) is not None:
            # otherwise all headers stay in memory
            archive.members = []  # type: ignore[attr-defined]
            count += 1
            if count > MAX_TREE_ENTRIES:
                raise RecordingError(f"more than {MAX_TREE_ENTRIES} files")
            components = [part for part in member.name.split("/") if part not in ("", ".")]
            if components and ".." not in components:
                yield member, "/" + "/".join(components), archive


def _entry(
    builder: TreeBuilder, archive: tarfile.TarFile, member: tarfile.TarInfo, *, reads_all: bool
) -> TreeEntry | None:
    if member.isdir():
        return EntryKind.DIRECTORY
    if member.issym():
        return LinkEntry(member.linkname)
    if member.islnk():
        target = builder.get("/" + member.linkname.strip("/"))
        return target if isinstance(target, bytes) else None
    if member.ischr() or member.isblk():
        entry = (
            0 <= member.devmajor <= _MAX_DEVICE_NUMBER
            and 0 <= member.devminor <= _MAX_DEVICE_NUMBER
        )
        return DeviceNodeEntry(member.devmajor, member.devminor) if entry else None
    source = archive.extractfile(member) if member.isreg() and not member.issparse() else None
    if source is None:
        return None
    limit = _MAX_STEP_BYTES if reads_all else MAX_READ
    data = source.read(min(limit, member.size))
    if len(data) < min(limit, member.size):
        raise RecordingError(f"{member.name[:200]}: truncated")
    return data


def _is_recording(name: str) -> bool:
    components = name.split("/")[1:]
    return (len(components) <= 2 and components[-1] == "host.txt") or (
        len(components) <= 3
        and components[-1].endswith(".jsonl")
        and components[-2:-1] == ["tapes"]
    )
