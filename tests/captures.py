"""Real machines' trees that tests read; they lie beside the checkout and not in it."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from agent.recording.archive import read_archive
from agent.recording.tree import LinkEntry, TreeBuilder, TreeFiles
from agent.snapshot.host_files import HostFiles

SHARED = Path(__file__).resolve().parents[2] / "shared"

needs_shared = pytest.mark.skipif(
    not (SHARED / "captures").is_dir(), reason="no captures: ../shared is not there"
)


@functools.lru_cache(maxsize=16)
def capture(name: str) -> HostFiles:
    """Return a captured host by the start of its file name: `32intel64`, `procfs-mlx4`, `qemu`."""
    result = sorted(
        path
        for folder in ("hwloc-linux", "infiniband", "qemu")
        for path in (SHARED / "captures" / folder).iterdir()
        if path.name.startswith(name) or (folder == name and ".tar" in path.name)
    )
    if len(result) != 1:
        raise LookupError(f"{name}: {len(result)} captures start so")
    return _from_json(result[0]) if result[0].suffix == ".json" else _from_archive(result[0])


def _from_archive(path: Path) -> TreeFiles:
    builder = read_archive(path)
    top = min(
        (item for item in builder.directories if item.rpartition("/")[2] in ("sys", "proc")),
        key=lambda item: item.count("/"),
    )
    return builder.build(top.rpartition("/")[0])


def _from_json(path: Path) -> TreeFiles:
    facts = json.loads(path.read_text())
    builder = TreeBuilder()
    for name, text in facts["files"].items():
        builder.put(f"/{name}", text.encode())
    for name, text in facts["symlinks"].items():
        builder.put(f"/{name}", LinkEntry(text))
    return builder.build("/fixtures")
