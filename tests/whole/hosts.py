"""Hosts broken at random: recorded trees with entries missing, truncated, looping or absurd."""

from __future__ import annotations

import errno

from hypothesis import strategies as st

from agent.recording.host_source import open_host
from agent.recording.tree import EntryKind, ErrorEntry, LinkEntry, TreeEntry, TreeFiles
from tests.process.agent import EIGHT_CARDS, NO_DEVICES

ABSURD = (
    *(b"", b"\0" * 64, b"-1\n", b"18446744073709551616\n", b"9" * 400, b"0x\n", b"nan\n"),
    *(b"\xff\xfe\x00binary", b"0-99999999999\n", b"../../..", b"1\n1\n", b"\n" * 500),
)
ERRORS = (errno.EACCES, errno.EIO, errno.ENODEV, errno.EINVAL, errno.ENOENT)

damage = st.one_of(
    st.just(None),
    st.sampled_from(ABSURD),
    st.binary(max_size=80),
    st.sampled_from(ERRORS).map(ErrorEntry),
    st.sampled_from(("self", "..", "/", "../../../../../etc/passwd", "a" * 5000)).map(LinkEntry),
    st.just(EntryKind.DIRECTORY),
    st.just("truncated"),
)


def entries_of(path: str) -> dict[str, TreeEntry]:
    """Return a recorded host flat: every path with its entry."""
    files = open_host(path).files
    assert isinstance(files, TreeFiles)
    return {
        f"{directory.rstrip('/')}/{name}": entry
        for directory, inside in files.walk()
        for name, entry in inside.items()
    }


HOSTS = {path.name: entries_of(str(path)) for path in (EIGHT_CARDS, NO_DEVICES)}


@st.composite
def broken_hosts(draw: st.DrawFn) -> TreeFiles:
    """Break up to forty entries of one host, those that many readers need more often."""
    entries = dict(HOSTS[draw(st.sampled_from(sorted(HOSTS)))])
    paths = sorted(entries)
    busy = [p for p in paths if p.startswith(("/proc", "/sys/devices/system", "/sys/bus/pci"))]
    one = st.one_of(st.sampled_from(paths), st.sampled_from(busy))
    for path in draw(st.lists(one, min_size=1, max_size=40, unique=True)):
        how = draw(damage)
        before = entries.get(path)
        if how is None:
            entries = {
                p: e for p, e in entries.items() if p != path and not p.startswith(f"{path}/")
            }
        elif how == "truncated":
            if isinstance(before, bytes):
                entries[path] = before[: draw(st.integers(0, max(0, len(before) - 1)))]
        elif not isinstance(how, str):
            if how is not EntryKind.DIRECTORY:  # nothing is below what is no directory
                entries = {p: e for p, e in entries.items() if not p.startswith(f"{path}/")}
            if any(not isinstance(entries.get(up), EntryKind | None) for up in above(path)):
                continue  # an earlier breakage took the directory that this one was in
            entries[path] = how
    return TreeFiles.from_entries(entries)


def above(path: str) -> list[str]:
    """Return the directories that a path is in."""
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]
