"""The model of how Go reads: what it takes, what ends the connection."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.runtime.gobuf import MAX_DATA, Fatal, GoReader, Message
from tests.runtime.ways import Cut, as_go, by_bytes, header_first, whole


def message(length: int, stream: int = 1) -> bytes:
    return length.to_bytes(4) + stream.to_bytes(4) + b"\x02\x00" + bytes(length)


def in_small_frames(body: bytes) -> Iterator[bytes]:
    return (body[at : at + 4096] for at in range(0, len(body), 4096))


def read(cut: Cut, *messages: bytes) -> list[Message]:
    reader = GoReader()
    return [result for one in messages for part in cut(one) for result in reader.frame(part)]


@pytest.mark.parametrize("cut", [as_go, header_first])
def test_both_safe_ways_to_cut_are_read_whatever_the_lengths(cut: Cut) -> None:
    lengths = random.Random(3)
    sizes = [0, 1, 4085, 4086, 4087, 8182, 1 << 20, MAX_DATA]
    sizes += [lengths.randrange(20_000) for _ in range(300)]
    result = read(cut, *(message(size) for size in sizes))
    assert [len(data) for _, _, data, _ in result] == sizes


@pytest.mark.parametrize("length", [4087, 5000, 8176, 100_000])
def test_a_long_message_in_one_frame_ends_the_connection(length: int) -> None:
    with pytest.raises(Fatal, match="ENOMEM"):
        read(whole, message(length))


def test_a_message_of_4096_bytes_goes_in_one_frame() -> None:
    assert len(read(whole, message(4086))) == 1


def test_too_many_small_frames_of_one_message_end_the_connection() -> None:
    body = message((1 << 20) - 10)
    assert len(list(in_small_frames(body))) == 256
    assert read(in_small_frames, body)
    body = message((1 << 20) - 9)
    with pytest.raises(Fatal, match="queue"):
        read(in_small_frames, body)


def test_a_second_message_may_share_a_small_frame_and_no_larger_one() -> None:
    reader = GoReader()
    assert len(reader.frame(message(10) + message(20))) == 2
    with pytest.raises(Fatal, match="ENOMEM"):
        reader.frame(message(10) + message(4090))


def test_a_frame_of_nothing_and_one_above_the_limit_end_the_connection() -> None:
    with pytest.raises(Fatal):
        GoReader().frame(b"")
    with pytest.raises(Fatal):
        GoReader().frame(bytes(MAX_DATA + 11))


def test_a_message_above_the_limit_is_passed_over_and_the_next_is_read() -> None:
    reader = GoReader()
    long = message(MAX_DATA + 1)
    result = [m for at in range(0, len(long), 4096) for m in reader.frame(long[at : at + 4096])]
    result += reader.frame(message(3))
    assert [(len(data), length) for _, _, data, length in result] == [(0, MAX_DATA + 1), (3, 3)]


def test_bytes_one_by_one_are_read_while_they_are_few() -> None:
    assert len(read(by_bytes, message(100), message(200))) == 2
