"""Arbitrary recorded hosts for property tests, and how to lay one out on disk."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import strategies as st

from agent.recording.tree import (
    DeviceNodeEntry,
    EntryKind,
    ErrorEntry,
    LinkEntry,
    RecordingError,
    TreeBuilder,
    TreeEntry,
    TreeFiles,
)

plain_names = st.sampled_from(("a", "b", "sys", "0000:3b:00.0", "cpu,cpuacct", "x=y", "-"))
odd_names = st.text(min_size=1, max_size=6).filter(
    lambda name: "/" not in name and name not in (".", "..") and name.isprintable()
) | st.sampled_from(("[x]", "#1", "|", "a b", "%41", "\n", "\t", "= ", "\udcff", "\0"))
names = plain_names | odd_names
paths = st.lists(names, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))

lines = st.text(alphabet=st.sampled_from("ab |[#=:%0\t"), max_size=8)
texts = st.lists(lines, max_size=4).map(lambda some: "\n".join(some).encode())
contents = (
    texts
    | texts.map(lambda data: data + b"\n")
    | st.binary(max_size=100)
    | st.tuples(st.binary(max_size=40), st.integers(0, 200)).map(
        lambda part: part[0] + bytes(part[1]) + b"\x01"
    )
)
link_texts = st.lists(names | st.sampled_from(("..", ".", "")), min_size=1, max_size=5).map(
    "/".join
)
entries: st.SearchStrategy[TreeEntry] = st.one_of(
    contents,
    link_texts.map(LinkEntry),
    st.integers(0, 200).map(ErrorEntry),
    st.builds(DeviceNodeEntry, st.integers(0, 4095), st.integers(0, (1 << 20) - 1)),
    st.just(EntryKind.DIRECTORY),
)


def _build(result: list[tuple[str, TreeEntry]]) -> TreeFiles:
    builder = TreeBuilder()
    for path, entry in result:
        builder.put(path, entry)  # what is in the way of others stays
    return builder.build()


trees = st.lists(st.tuples(paths, entries), max_size=12).map(_build)
disk_paths = st.lists(plain_names, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
disk_links = st.lists(plain_names | st.sampled_from(("..", ".", "")), min_size=1, max_size=5).map(
    lambda parts: "/".join(parts) or "/"
)
disk_entries: st.SearchStrategy[TreeEntry] = st.one_of(
    contents, disk_links.map(LinkEntry), st.just(EntryKind.DIRECTORY)
)
disk_trees = st.lists(st.tuples(disk_paths, disk_entries), max_size=12).map(_build)


def lay_out(tree: TreeFiles, folder: Path) -> None:
    """Write files, links and directories of a tree below a folder."""
    for directory, inside in tree.walk():
        place = Path(f"{folder}{directory}")
        place.mkdir(parents=True, exist_ok=True)
        for name, entry in inside.items():
            if isinstance(entry, bytes):
                (place / name).write_bytes(entry)
            elif isinstance(entry, LinkEntry):
                os.symlink(entry.text, place / name)
            elif entry is not EntryKind.DIRECTORY:
                raise RecordingError(f"{name}: not for a disk")
