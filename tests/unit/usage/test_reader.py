from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.cgroup.usage_files import parse_counter
from agent.errors import ParseError
from agent.host.files import LiveHostFiles
from agent.recording.tree import TreeFiles
from agent.snapshot.host_files import HostFiles
from agent.usage.file_reader import DescriptorCache, FileBatchReader


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def column(host: HostFiles, *paths: str, limit: int | None = None) -> FileBatchReader[int]:
    batch_reader = FileBatchReader(DescriptorCache(host, limit=limit), parse_counter, 64)
    batch_reader.set_paths(paths)
    return batch_reader


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for i in range(3):
        (tmp_path / f"f{i}").write_text(f"{i}\n")
    return tmp_path


def test_values_come_in_the_order_of_the_paths(root: Path) -> None:
    assert column(LiveHostFiles(str(root)), "/f2", "/f0").read() == [2, 0]


def test_a_file_is_read_anew_in_each_cycle(root: Path) -> None:
    read = column(LiveHostFiles(str(root)), "/f0", "/f1")
    read.read()
    (root / "f0").write_text("70\n")
    assert read.read() == [70, 1]


def test_a_descriptor_is_opened_once_and_closed(root: Path) -> None:
    before = open_descriptors()
    read = column(LiveHostFiles(str(root)), "/f0", "/f1")
    for _ in range(3):
        read.read()
    assert open_descriptors() == before + 2
    read.set_paths(["/f1"])
    assert open_descriptors() == before + 1
    read.close()
    assert open_descriptors() == before


def test_an_absent_file_is_none_until_it_is_there(root: Path) -> None:
    read = column(LiveHostFiles(str(root)), "/f0", "/new")
    assert read.read() == [0, None]
    (root / "new").write_text("5\n")
    assert read.read() == [0, 5]
    assert not read.pop_file_loss()


def test_malformed_and_empty_files_are_none_and_not_zero(root: Path) -> None:
    (root / "f0").write_text("broken\n")
    (root / "f1").write_text("")
    assert column(LiveHostFiles(str(root)), "/f0", "/f1", "/f2").read() == [None, None, 2]


def test_only_changed_bytes_are_parsed(root: Path) -> None:
    parsed: list[bytes] = []

    def remember(data: bytes) -> int:
        parsed.append(data)
        return parse_counter(data)

    read = FileBatchReader(DescriptorCache(LiveHostFiles(str(root))), remember, 64)
    read.set_paths(["/f0", "/f1"])
    read.read()
    (root / "f1").write_text("9\n")
    read.read()
    assert parsed == [b"0\n", b"1\n", b"9\n"]


def test_beyond_the_bound_files_are_read_by_path(root: Path) -> None:
    before = open_descriptors()
    read = column(LiveHostFiles(str(root)), "/f0", "/f1", "/f2", limit=1)
    assert read.read() == [0, 1, 2]
    assert open_descriptors() == before + 1
    read.close()


def test_running_out_of_descriptors_loses_no_value(root: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    read = column(LiveHostFiles(str(root)), "/f0", "/f1", "/f2", limit=100)
    highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    entries = []
    try:
        while True:  # fill the gaps below the highest, all but one
            entries.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        os.close(entries.pop())
    try:
        first, second = read.read(), read.read()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in entries:
            os.close(fd)
        read.close()
    # one descriptor is kept and none is left to read the others by path: they are unknown
    assert first == [0, None, None]
    assert second == first


def test_a_file_longer_than_the_buffer_is_read_whole(root: Path) -> None:
    (root / "f0").write_text("x" * 300 + "\n")
    read = FileBatchReader(DescriptorCache(LiveHostFiles(str(root))), len, 64)
    read.set_paths(["/f0"])
    assert read.read() == [301]


def test_a_file_whose_start_is_enough_is_not_read_further(root: Path) -> None:
    (root / "f0").write_text("x" * 300)
    read = FileBatchReader(DescriptorCache(LiveHostFiles(str(root))), len, 64, cut=True)
    read.set_paths(["/f0"])
    assert read.read() == [64]


def test_all_files_longer_than_the_buffer_are_read_whole_at_once(root: Path) -> None:
    for name, size in (("f0", 100), ("f1", 300), ("f2", 50)):
        (root / name).write_text("x" * size)
    read = FileBatchReader(DescriptorCache(LiveHostFiles(str(root))), len, 64)
    read.set_paths(["/f0", "/f1", "/f2"])
    assert read.read() == [100, 300, 50]


def test_starts_that_the_parser_refuses_are_read_with_more_room(root: Path) -> None:
    for name, size in (("f0", 100), ("f1", 80), ("f2", 300)):
        (root / name).write_text("x" * size + "here\n" + "y" * 900)
    read = FileBatchReader(DescriptorCache(LiveHostFiles(str(root))), _where, 64, cut=True)
    read.set_paths(["/f0", "/f1", "/f2"])
    assert read.read() == [100, 80, 300]
    assert read.read() == [100, 80, 300]


def _where(data: bytes) -> int:
    if (at := data.find(b"here\n")) < 0:
        raise ParseError("mark", "")
    return at


def test_files_are_parsed_together_and_one_by_one_where_one_is_bad(root: Path) -> None:
    calls = []

    def together(texts: Sequence[bytes]) -> list[int]:
        calls.append(len(texts))
        if not all(map(bytes.strip, texts)):
            raise ParseError("number", "")
        return [int(text) for text in texts]

    names = [f"/g{n}" for n in range(3)]
    for name in names:
        (root / name[1:]).write_text("7\n")
    read = FileBatchReader(
        DescriptorCache(LiveHostFiles(str(root))), parse_counter, 64, batch_parser=together
    )
    read.set_paths(names)
    assert read.read() == [7, 7, 7]
    (root / "g1").write_text("8\n")
    assert read.read() == [7, 8, 7]
    (root / "g0").write_text("9\n")
    (root / "g2").write_text("\n")
    assert read.read() == [9, 8, None]
    assert calls == [3, 1, 2]  # those that changed


def test_a_recorded_host_is_read_by_path() -> None:
    host = TreeFiles.from_entries({"/a": b"1\n", "/b": b"2\n"})
    before = open_descriptors()
    assert column(host, "/a", "/none", "/b").read() == [1, None, 2]
    assert open_descriptors() == before


def test_a_returned_list_is_never_changed_afterwards(root: Path) -> None:
    read = column(LiveHostFiles(str(root)), "/f0")
    first = read.read()
    (root / "f0").write_text("3\n")
    read.read()
    assert first == [0]
