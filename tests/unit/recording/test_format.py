from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.recording.format import FIRST_LINE, format_recording, parse_recording
from agent.recording.tree import (
    DeviceNodeEntry,
    EntryKind,
    ErrorEntry,
    LinkEntry,
    TreeEntry,
    TreeFiles,
)
from tests.unit.recording.trees import trees


def written(entry: TreeEntry) -> list[str]:
    text = format_recording(TreeFiles.from_entries({"/sys/name": entry}), {})
    return text.removeprefix(f"{FIRST_LINE}\n\n[/sys]\n").splitlines()


@pytest.mark.parametrize(
    ("entry", "lines"),
    [
        (b"0x0302\n", ["name = 0x0302"]),
        (b"0x0302", ["name := 0x0302"]),
        (b"", ["name :="]),
        (b"\n", ["name ="]),
        (b" a = b \n", ["name =  a = b "]),
        (b"a\nb\n", ["name |", "|a", "|b"]),
        (b"a\nb", ["name |-", "|a", "|b"]),
        (b"\n\n", ["name |", "|", "|"]),
        (b"\0\0", ["name x 2"]),
        (b"\0" * 40 + b"\x01\xff", ["name x 42", "|0020 000000000000000001ff"]),
        ("å\n".encode(), ["name x 3", "|0000 c3a50a"]),
        (LinkEntry("../../bus/pci drivers/x"), ["name -> ../../bus/pci%20drivers/x"]),
        (ErrorEntry(13), ["name ! EACCES"]),
        (ErrorEntry(9999), ["name ! 9999"]),
        (DeviceNodeEntry(195, 255), ["name @ 195:255"]),
        (EntryKind.DIRECTORY, [f"{FIRST_LINE}", "", "[/sys/name]"]),
    ],
)
def test_an_entry_is_written_for_people_and_restored_to_the_byte(
    entry: TreeEntry, lines: list[str]
) -> None:
    assert written(entry) == lines
    tree = TreeFiles.from_entries({"/sys/name": entry})
    assert list(parse_recording(format_recording(tree, {}).encode()).files.walk()) == list(
        tree.walk()
    )


def test_a_recording_is_sorted_and_has_its_header_first() -> None:
    tree = TreeFiles.from_entries({"/sys/b": b"2\n", "/proc/x y": b"1\n", "/sys/a": b"0\n"})
    assert format_recording(tree, {"recorded": "2026-11-21T16:00:00Z", "kernel": "6.1.0"}) == (
        "xpu-agent host recording 1\n"
        "kernel: 6.1.0\n"
        "recorded: 2026-11-21T16:00:00Z\n"
        "\n[/proc]\nx%20y = 1\n"
        "\n[/sys]\na = 0\nb = 2\n"
    )


@given(trees, st.dictionaries(st.sampled_from(("recorded", "kernel", "x")), st.just("v 1")))
def test_any_tree_comes_back_as_it_was(tree: TreeFiles, header: dict[str, str]) -> None:
    text = format_recording(tree, header)
    recording = parse_recording(text.encode())
    assert list(recording.files.walk()) == list(tree.walk())
    assert recording.header == header
    assert format_recording(recording.files, recording.header) == text


@given(trees)
def test_a_recording_is_plain_text_of_one_line_an_entry(tree: TreeFiles) -> None:
    text = format_recording(tree, {})
    assert text.isascii()
    assert all(line.isprintable() or "\t" in line for line in text.split("\n"))
