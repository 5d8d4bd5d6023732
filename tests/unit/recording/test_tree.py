from __future__ import annotations

import errno

import pytest
from hypothesis import given

from agent.errors import HostFileError
from agent.host.files import MAX_ENTRIES
from agent.recording import tree as tree_module
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
from tests.unit.recording.trees import paths, trees

HOST = TreeFiles.from_entries(
    {
        "/sys/devices/pci0/dev/class": b"0x0302\n",
        "/sys/devices/pci0/dev/refused": ErrorEntry(errno.EACCES),
        "/sys/bus/dev": LinkEntry("../devices/pci0/dev"),
        "/sys/bus/absolute": LinkEntry("/sys/devices/pci0/dev"),
        "/sys/bus/above": LinkEntry("../../../../../../sys/devices/pci0/dev"),
        "/sys/bus/slashed": LinkEntry("..//devices/./pci0/dev/"),
        "/sys/bus/dangling": LinkEntry("../../etc/passwd"),
        "/sys/bus/self": LinkEntry("self"),
        "/sys/bus/ping": LinkEntry("pong"),
        "/sys/bus/pong": LinkEntry("ping"),
        "/sys/empty": EntryKind.DIRECTORY,
        "/dev/nvidia0": DeviceNodeEntry(195, 0),
    }
)


@pytest.mark.parametrize("way", ["dev", "absolute", "above", "slashed"])
def test_every_link_leads_to_its_target_inside_the_host(way: str) -> None:
    assert HOST.read(f"/sys/bus/{way}/class") == b"0x0302\n"
    assert HOST.names(f"/sys/bus/{way}") == ("class", "refused")
    assert HOST.exists(f"/sys/bus/{way}")


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("/sys/bus/dangling", errno.ENOENT),
        ("/sys/bus/self", errno.ELOOP),
        ("/sys/bus/ping/class", errno.ELOOP),
        ("/sys/bus/dev/class/x", errno.ENOTDIR),
        ("/sys/bus/dev/refused", errno.EACCES),
        ("/sys/bus/dev", errno.EISDIR),
        ("/", errno.EISDIR),
        ("/dev/nvidia0", errno.ENXIO),
        ("/nowhere/at/all", errno.ENOENT),
    ],
)
def test_reading_what_is_no_file_says_the_errno_and_the_path(path: str, number: int) -> None:
    with pytest.raises(HostFileError) as caught:
        HOST.read(path)
    assert (caught.value.errno, caught.value.path) == (number, path)


def test_a_link_answers_its_text_and_nothing_else_does() -> None:
    assert HOST.link("/sys/bus/dev") == "../devices/pci0/dev"
    assert HOST.link("/sys/bus/self") == "self"
    assert HOST.link("/sys/bus/dev/class") is None
    assert HOST.link("/sys/bus/absent") is None
    assert HOST.link("/sys/bus/dev/class/below") is None


def test_an_absent_directory_and_a_file_have_no_names_and_a_loop_is_an_error() -> None:
    assert HOST.names("/sys/empty") == HOST.names("/absent") == ()
    assert HOST.names("/sys/bus/dev/class") == ()
    with pytest.raises(HostFileError):
        HOST.names("/sys/bus/self")
    with pytest.raises(HostFileError):
        HOST.names("/sys/bus/dev/refused")


def test_a_device_node_has_numbers_and_exists() -> None:
    assert HOST.device_number("/dev/nvidia0") == (195, 0)
    assert HOST.exists("/dev/nvidia0")
    assert HOST.device_number("/sys/bus/dev/class") is None
    assert HOST.device_number("/dev/absent") is None


def test_the_requested_number_of_bytes_and_names_is_the_maximum() -> None:
    many = TreeFiles.from_entries({f"/d/{number:05}": b"" for number in range(MAX_ENTRIES + 9)})
    assert HOST.read("/sys/bus/dev/class", 4) == b"0x03"
    assert len(many.names("/d")) == MAX_ENTRIES
    assert many.names("/d")[-1] == f"{MAX_ENTRIES - 1:05}"


@pytest.mark.parametrize("path", ["sys", "/sys/../etc", ""])
def test_a_path_that_is_not_plain_is_a_bug(path: str) -> None:
    with pytest.raises(ValueError, match="plain absolute"):
        HOST.read(path)


def test_40_links_in_a_row_are_followed_and_41_are_not() -> None:
    chain: dict[str, TreeEntry] = {
        f"/l{number}": LinkEntry(f"l{number + 1}") for number in range(41)
    }
    host = TreeFiles.from_entries({**chain, "/l41": b"end"})
    assert host.read("/l1") == b"end"
    with pytest.raises(HostFileError, match="ELOOP"):
        host.read("/l0")


def test_a_link_longer_than_a_path_is_reported_and_not_followed() -> None:
    host = TreeFiles.from_entries(
        {"/a": LinkEntry("./" * 2047 + "b"), "/b": b"end", "/c": LinkEntry("./" * 5000)}
    )
    assert host.read("/a") == b"end"
    assert host.link("/c") == "./" * 5000
    with pytest.raises(HostFileError, match="ENAMETOOLONG"):
        host.read("/c")


@pytest.mark.parametrize(
    ("first", "then", "kept"),
    [
        (b"old", b"new", b"new"),
        (LinkEntry("x"), b"new", LinkEntry("x")),
        (b"old", LinkEntry("x"), b"old"),
        (EntryKind.DIRECTORY, b"new", EntryKind.DIRECTORY),
    ],
)
def test_a_file_replaces_a_file_and_else_the_first_one_stays(
    first: TreeEntry, then: TreeEntry, kept: TreeEntry
) -> None:
    builder = TreeBuilder()
    assert builder.put("/a/b", first)
    assert builder.put("/a/b", then) == (then == kept)
    assert builder.get("/a/b") == kept


@pytest.mark.parametrize("path", ["/a/link/x", "/a/file/x", "/a/..", "/a/../b", "/a//b", "/", "x"])
def test_nothing_is_put_through_links_or_files_or_odd_paths(path: str) -> None:
    builder = TreeBuilder()
    assert builder.put("/a/link", LinkEntry("/etc"))
    assert builder.put("/a/file", b"")
    assert not builder.put(path, b"bad")


def test_too_many_files_and_too_many_bytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "MAX_TREE_ENTRIES", 3)
    monkeypatch.setattr(tree_module, "MAX_CONTENT_BYTES", 10)
    with pytest.raises(RecordingError, match="3 files"):
        TreeFiles.from_entries({f"/{number}": b"" for number in range(4)})
    with pytest.raises(RecordingError, match="10 bytes"):
        TreeFiles.from_entries({"/a": bytes(11)})


def test_building_two_things_in_one_place_is_refused() -> None:
    with pytest.raises(RecordingError, match="in the way"):
        TreeFiles.from_entries({"/a": b"", "/a/b": b""})


@given(trees, paths)
def test_no_tree_makes_a_look_up_crash_or_hang(tree: TreeFiles, path: str) -> None:
    for ask in (tree.read, tree.names, tree.link):
        try:
            ask(path)
        except HostFileError:
            continue
    assert tree.exists(path) in (True, False)
    tree.device_number(path)
