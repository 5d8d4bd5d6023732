"""Opens the host that a user names with `--host`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from agent.errors import NotAHost
from agent.host.files import LiveHostFiles
from agent.recording.directory import DirectoryFiles
from agent.recording.format import MAX_RECORDING_BYTES, parse_recording
from agent.recording.tree import RecordingError, TreeBuilder
from agent.snapshot.host_files import HostFiles

_ROOT_FOLDERS = ("sys", "proc")  # a folder with either is a machine's root
HOST_FILE = "host.txt"  # of a recording
TAPES_FOLDER = "tapes"  # folder of a recording: <vendor>.jsonl
_VENDOR = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")

MAX_SUBFOLDERS = 64  # folders that are searched for `sys` and `proc`

TapeSource = Path | bytes
T = TypeVar("T", Path, str)


class HostSource(msgspec.Struct, frozen=True, kw_only=True):
    """A host to read: this machine, a folder, an archive or a recording."""

    files: HostFiles
    source: str = "this machine"  # for people
    spec: str | None = None  # argument with which another process opens the same host
    wall_s: float | None = None  # time of the recording; None: a live host, or unknown
    tapes: Mapping[str, TapeSource] = msgspec.field(default_factory=dict)

    def tape(self, vendor: str) -> TapeSource | None:
        """Return the recorded answers of a vendor's library; `None` if there are none."""
        return self.tapes.get(vendor)


def open_host(path: str | None) -> HostSource:
    """Open this machine (`None` or `/`) or a recorded one.

    Raises `NotAHost`, whose message says what was expected.
    """
    if path is None or os.path.realpath(path) == "/":
        return HostSource(files=LiveHostFiles())
    location = Path(path)
    if location.is_dir():
        return _open_folder(location)
    if location.is_file():
        return _open_archive(location)
    remedy = "name a recording, or a folder or tar archive with sys/ and proc/ in it"
    raise NotAHost(f"{path}: no such folder or archive; {remedy}")


def _open_folder(location: Path) -> HostSource:
    try:
        recorded = location / HOST_FILE
        if recorded.is_file():
            with recorded.open("rb") as file:
                data = file.read(MAX_RECORDING_BYTES + 1)
            return _recorded_host(
                location, location.resolve().name, data, _tapes_of_folder(location)
            )
        subfolders = [item for item in sorted(location.iterdir())[:MAX_SUBFOLDERS] if item.is_dir()]
        top = _find_root(
            location, [location, *subfolders], lambda folder, name: (folder / name).is_dir()
        )
        return HostSource(
            files=DirectoryFiles(top),
            source=top.resolve().name,
            spec=str(location.resolve()),
            tapes=_tapes_of_folder(top),
        )
    except OSError as error:
        raise NotAHost(f"{location}: {error.strerror}") from error


def _open_archive(archive: Path) -> HostSource:
    from agent.recording.archive import read_archive  # noqa: PLC0415 - tarfile: 2 MB a process

    builder = read_archive(archive)
    places = ["", *(f"/{name}" for name in sorted(builder.directories[""])[:MAX_SUBFOLDERS])]
    for place in places:
        data = builder.get(f"{place}/{HOST_FILE}")
        if isinstance(data, bytes):
            tapes = _tapes_of_archive(builder, f"{place}/{TAPES_FOLDER}")
            return _recorded_host(archive, archive.name, data, tapes)
    top = _find_root(archive, places, lambda place, name: f"{place}/{name}" in builder.directories)
    return HostSource(
        files=builder.build(top),
        source=archive.name,
        spec=str(archive.resolve()),
        tapes=_tapes_of_archive(builder, f"{top}/{TAPES_FOLDER}"),
    )


def _recorded_host(
    location: Path, source: str, data: bytes, tapes: Mapping[str, TapeSource]
) -> HostSource:
    try:
        recording = parse_recording(data)
    except RecordingError as error:
        raise RecordingError(f"{location}: {HOST_FILE}: {error}") from error
    return HostSource(
        files=recording.files,
        source=source,
        spec=str(location.resolve()),
        wall_s=recording.wall_s,
        tapes=tapes,
    )


def _find_root(path: Path, places: Iterable[T], has: Callable[[T, str], bool]) -> T:
    for place in places:
        if any(has(place, name) for name in _ROOT_FOLDERS):
            return place
    raise NotAHost(f"{path}: no `sys`, `proc` or `host.txt` in it, nor in a folder of it")


def _tapes_of_folder(top: Path) -> dict[str, TapeSource]:
    paths = sorted((top.resolve() / TAPES_FOLDER).glob("*.jsonl"))
    return {item.stem: item for item in paths if _VENDOR.fullmatch(item.stem) and item.is_file()}


def _tapes_of_archive(builder: TreeBuilder, folder: str) -> dict[str, TapeSource]:
    return {
        name.removesuffix(".jsonl"): entry
        for name, entry in builder.directories.get(folder, {}).items()
        if isinstance(entry, bytes) and _VENDOR.fullmatch(name.removesuffix(".jsonl"))
    }
