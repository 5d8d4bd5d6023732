"""From the path that a user gives as `--host` to the files of that host."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from agent.errors import NotAHost
from agent.host.files import HostFiles, LiveRoot
from agent.recording.archive import read_archive
from agent.recording.directory import DirectoryFiles
from agent.recording.tree import TreeBuilder

_TOP = ("sys", "proc")  # a folder with either is a machine's root
_VENDOR = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")

Tape = Path | bytes
T = TypeVar("T", Path, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedHost:
    """A host to read: this machine, a folder, an archive or a recording."""

    files: HostFiles
    source: str = "this machine"  # as shown to people
    spec: str | None = None  # what another process opens the same host with
    wall_s: float | None = None  # when it was recorded; None: it is alive, or nobody noted it
    tapes: Mapping[str, Tape] = field(default_factory=dict)

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
        below = [item for item in sorted(given.iterdir())[:64] if item.is_dir()]
        top = _top(given, [given, *below], lambda folder, name: (folder / name).is_dir())
        tapes = _tapes_of_folder(top)
    except OSError as error:
        raise NotAHost(f"{given}: {error.strerror}") from error
    return OpenedHost(
        files=DirectoryFiles(top),
        source=top.resolve().name,
        spec=str(given.resolve()),
        tapes=tapes,
    )


def _open_archive(given: Path) -> OpenedHost:
    builder = read_archive(given)
    below = [f"/{name}" for name in sorted(builder.directories[""])[:64]]
    top = _top(given, ["", *below], lambda folder, name: f"{folder}/{name}" in builder.directories)
    return OpenedHost(
        files=builder.build(top),
        source=given.name,
        spec=str(given.resolve()),
        tapes=_tapes_of_archive(builder, f"{top}/tapes"),
    )


def _top(shown: Path, places: Iterable[T], has: Callable[[T, str], bool]) -> T:
    for place in places:
        if any(has(place, name) for name in _TOP):
            return place
    raise NotAHost(f"{shown}: no `sys` or `proc` in it, nor in a folder of it")


def _tapes_of_folder(top: Path) -> dict[str, Tape]:
    found = sorted((top / "tapes").glob("*.jsonl"))
    return {item.stem: item for item in found if _VENDOR.fullmatch(item.stem) and item.is_file()}


def _tapes_of_archive(builder: TreeBuilder, folder: str) -> dict[str, Tape]:
    return {
        name.removesuffix(".jsonl"): entry
        for name, entry in builder.directories.get(folder, {}).items()
        if isinstance(entry, bytes) and _VENDOR.fullmatch(name.removesuffix(".jsonl"))
    }
