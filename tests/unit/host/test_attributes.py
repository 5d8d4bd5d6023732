"""Attribute files: a value, or nothing at all."""

from __future__ import annotations

import errno
import re

import pytest

from agent.host.attributes import entries, fact, first_fact, numbered, word
from agent.recording.entries import Entry, Refused
from agent.recording.tree import TreeFiles
from agent.topology.text import parse_cpu_list, parse_size

HOST = TreeFiles.of(
    {
        "/sys/good": b" 32K\n\0\0",
        "/sys/blank": b"\n\0 \t",
        "/sys/bad": b"many",
        "/sys/long": b"1" * (1 << 20),
        "/sys/refused": Refused(errno.EACCES),
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
def test_a_file_that_cannot_tell_has_no_value(name: str, size_bytes: int | None) -> None:
    assert fact(HOST, f"/sys/{name}", parse_size) == size_bytes


def test_the_first_file_with_a_value_counts() -> None:
    assert first_fact(HOST, ("/sys/absent", "/sys/blank", "/sys/good"), parse_size) == 32768
    assert first_fact(HOST, ("/sys/absent", "/sys/blank"), parse_size) is None


@pytest.mark.parametrize(("name", "found"), [("good", "32"), ("bad", None), ("absent", None)])
def test_a_word_is_group_one_of_the_whole_file(name: str, found: str | None) -> None:
    assert word(HOST, f"/sys/{name}", re.compile(r"([0-9]+)K")) == found


@pytest.mark.parametrize("entry", [Refused(errno.EIO), b"a file"], ids=str)
def test_what_cannot_be_listed_has_no_entries(entry: Entry) -> None:
    assert entries(TreeFiles.of({"/sys/class": entry}), "/sys/class") == ()


def test_numbered_names_are_sorted_by_number_and_others_are_told_apart() -> None:
    names = ("cpu10", "cpu2", "cpu02", "cpu-1", "cpu65536", "cpuidle", "cpu_atom", "power", "cpu")
    assert numbered(names, "cpu") == ([2, 10], 3)


def test_an_empty_set_is_a_value_only_where_the_text_says_so() -> None:
    host = TreeFiles.of({"/sys/isolated": b"\n", "/sys/list": b","})
    assert fact(host, "/sys/isolated", parse_cpu_list) is None
    assert fact(host, "/sys/list", parse_cpu_list) == frozenset()
