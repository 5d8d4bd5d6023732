"""Attribute files: a value, or nothing at all."""

from __future__ import annotations

import errno
import re

import pytest

from agent.host.files import (
    list_entries,
    numbered_entries,
    read_first_value,
    read_match,
    read_value,
)
from agent.recording.tree import ErrorEntry, TreeEntry, TreeFiles
from agent.wire_formats.kernel_text import parse_cpu_list, parse_size

HOST = TreeFiles.from_entries(
    {
        "/sys/good": b" 32K\n\0\0",
        "/sys/blank": b"\n\0 \t",
        "/sys/bad": b"many",
        "/sys/long": b"1" * (1 << 20),
        "/sys/refused": ErrorEntry(errno.EACCES),
        "/sys/broken/x": b"",
    }
)


@pytest.mark.parametrize(
    ("name", "size_bytes"),
    [
        ("good", 32768),
        *((name, None) for name in ("absent", "blank", "bad", "long", "refused", "broken")),
    ],
)
def test_an_unreadable_file_has_no_value(name: str, size_bytes: int | None) -> None:
    assert read_value(HOST, f"/sys/{name}", parse_size) == size_bytes


def test_the_first_file_with_a_value_counts() -> None:
    assert read_first_value(HOST, ("/sys/absent", "/sys/blank", "/sys/good"), parse_size) == 32768
    assert read_first_value(HOST, ("/sys/absent", "/sys/blank"), parse_size) is None


@pytest.mark.parametrize(("name", "found"), [("good", "32"), ("bad", None), ("absent", None)])
def test_a_match_is_group_one_of_the_whole_file(name: str, found: str | None) -> None:
    assert read_match(HOST, f"/sys/{name}", re.compile(r"([0-9]+)K")) == found


@pytest.mark.parametrize("entry", [ErrorEntry(errno.EIO), b"a file"], ids=str)
def test_what_cannot_be_listed_has_no_entries(entry: TreeEntry) -> None:
    assert list_entries(TreeFiles.from_entries({"/sys/class": entry}), "/sys/class") == ()


def test_numbered_names_are_sorted_by_number_and_malformed_ones_counted() -> None:
    names = ("cpu10", "cpu2", "cpu02", "cpu-1", "cpu65536", "cpuidle", "cpu_atom", "power", "cpu")
    assert numbered_entries(names, "cpu") == ([2, 10], 3)


def test_an_empty_set_is_a_value_only_where_the_text_says_so() -> None:
    host = TreeFiles.from_entries({"/sys/isolated": b"\n", "/sys/list": b","})
    assert read_value(host, "/sys/isolated", parse_cpu_list) is None
    assert read_value(host, "/sys/list", parse_cpu_list) == frozenset()
