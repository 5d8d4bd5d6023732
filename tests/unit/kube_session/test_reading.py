"""Lines of a stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kube.connections import LineReader
from agent.kube.errors import BadResponse


@given(st.lists(st.binary(max_size=20)), st.integers(1, 7))
def test_lines_come_out_the_same_however_they_are_cut(chunks: list[bytes], size: int) -> None:
    lines = [part.replace(b"\n", b"").replace(b"\r", b"") for part in chunks]
    stream = b"".join(line + b"\n" for line in lines) + b"rest"
    reader = LineReader("GET /x", 100)
    read_lines = [
        line
        for start in range(0, len(stream), size)
        for line in reader.feed(stream[start : start + size])
    ]
    assert read_lines == [line for line in lines if line]
    assert reader.pending_bytes == len(b"rest")


def test_ends_of_both_kinds_are_taken_off() -> None:
    assert LineReader("GET /x", 100).feed(b"a\r\n\r\n\nb\n") == [b"a", b"b"]


@pytest.mark.parametrize(
    "chunks", [[b"x" * 11], [b"x" * 6, b"y" * 5], [b"a\n" + b"x" * 11 + b"\n"]]
)
def test_a_line_over_the_limit_is_refused_as_soon_as_it_is_that_long(chunks: list[bytes]) -> None:
    reader = LineReader("GET /x", 10)
    for chunk in chunks[:-1]:
        reader.feed(chunk)
    with pytest.raises(BadResponse, match="more than 10 bytes"):
        reader.feed(chunks[-1])


def test_a_line_of_just_the_limit_is_delivered() -> None:
    assert LineReader("GET /x", 10).feed(b"x" * 10 + b"\n") == [b"x" * 10]
