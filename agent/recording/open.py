"""From the path that a user gives as `--host` to the files of that host."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from agent.errors import NotAHost
from agent.host.files import HostFiles, LiveRoot
from agent.recording.directory import DirectoryFiles
from agent.recording.entries import RecordingError
from agent.recording.parse import MAX_TEXT, parse
from agent.recording.tree import TreeBuilder

_TOP = ("sys", "proc")  # a folder with either is a machine's root
HOST_FILE = "host.txt"  # of a recording
TAPES = "tapes"  # folder of a recording: <vendor>.jsonl
_VENDOR = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")

MAX_BELOW = 64  # folders that are looked into for `sys` and `proc`

Tape = Path | bytes
T = TypeVar("T", Path, str)


class OpenedHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host to read: this machine, a folder, an archive or a recording."""

    files: HostFiles
    source: str = "this machine"  # as shown to people
    spec: str | None = None  # what another process opens the same host with
    wall_s: float | None = None  # when it was recorded; None: it is alive, or nobody noted it
    tapes: Mapping[str, Tape] = msgspec.field(default_factory=dict)

    def tape(self, vendor: str) -> Tape | None:
        """Return the recorded answers of a vendor's library; `None` if none were recorded."""
        return self.tapes.get(vendor)


def open_host(path: str | None) -> OpenedHost:
    """Open this machine (`None` or `/`) or a recorded one.

    Raises `NotAHost`, whose message says what was expected and what is there instead.
    """
    if path is None or Path(path).resolve() == Path("/"):
        return OpenedHost(files=LiveRoot())
    given = Path(path)
    if given.is_dir():
        return _open_folder(given)
    if given.is_file():
        return _open_archive(given)
    raise NotAHost(f"{path}: no such folder or archive")


def _open_folder(given: Path) -> OpenedHost:
    try:
        recorded = given / HOST_FILE
        if recorded.is_file():
            with recorded.open("rb") as file:
                data = file.read(MAX_TEXT + 1)
            return _opened(given, given.resolve().name, data, _tapes_of_folder(given))
        below = [item for item in sorted(given.iterdir())[:MAX_BELOW] if item.is_dir()]
        top = _top(given, [given, *below], lambda folder, name: (folder / name).is_dir())
        return OpenedHost(
            files=DirectoryFiles(top),
            source=top.resolve().name,
            spec=str(given.resolve()),
            tapes=_tapes_of_folder(top),
        )
    except OSError as error:
        raise NotAHost(f"{given}: {error.strerror}") from error


def _open_archive(given: Path) -> OpenedHost:
    # tarfile and the decompressors cost 10 ms, which an agent on a node need not pay
    from agent.recording.archive import read_archive  # noqa: PLC0415  # see above

    builder = read_archive(given)
    places = ["", *(f"/{name}" for name in sorted(builder.directories[""])[:MAX_BELOW])]
    for place in places:
        data = builder.get(f"{place}/{HOST_FILE}")
        if isinstance(data, bytes):
            tapes = _tapes_of_archive(builder, f"{place}/{TAPES}")
            return _opened(given, given.name, data, tapes)
    top = _top(given, places, lambda place, name: f"{place}/{name}" in builder.directories)
    return OpenedHost(
        files=builder.build(top),
        source=given.name,
        spec=str(given.resolve()),
        tapes=_tapes_of_archive(builder, f"{top}/{TAPES}"),
    )


def _opened(given: Path, source: str, data: bytes, tapes: Mapping[str, Tape]) -> OpenedHost:
    try:
        recording = parse(data)
    except RecordingError as error:
        raise RecordingError(f"{given}: {HOST_FILE}: {error}") from error
    return OpenedHost(
        files=recording.files,
        source=source,
        spec=str(given.resolve()),
        wall_s=recording.wall_s,
        tapes=tapes,
    )


def _top(shown: Path, places: Iterable[T], has: Callable[[T, str], bool]) -> T:
    for place in places:
        if any(has(place, name) for name in _TOP):
            return place
    raise NotAHost(f"{shown}: no `sys`, `proc` or `host.txt` in it, nor in a folder of it")


def _tapes_of_folder(top: Path) -> dict[str, Tape]:
    found = sorted((top.resolve() / TAPES).glob("*.jsonl"))
    return {item.stem: item for item in found if _VENDOR.fullmatch(item.stem) and item.is_file()}


def _tapes_of_archive(builder: TreeBuilder, folder: str) -> dict[str, Tape]:
    return {
        name.removesuffix(".jsonl"): entry
        for name, entry in builder.directories.get(folder, {}).items()
        if isinstance(entry, bytes) and _VENDOR.fullmatch(name.removesuffix(".jsonl"))
    }
