"""Mux frames: how messages are cut for a reader in Go, and how bytes are taken apart."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.nri.wire.errors import FrameError
from agent.nri.wire.frames import (
    FIRST_FRAME_BYTES,
    MAX_PAYLOAD,
    PLUGIN_STREAM,
    REQUEST,
    RESPONSE,
    RUNTIME_STREAM,
    MuxReader,
    encode_frame,
    mux_frames,
)
from tests.unit.nri_wire.vectors import V1, V2, V3, V7, V25, V26


def read(*pieces: bytes) -> dict[int, bytes]:
    """Return what came for each connection."""
    reader, streams = MuxReader(), dict[int, bytes]()
    for piece in pieces:
        for connection, part in reader.feed(memoryview(piece)):
            streams[connection] = streams.get(connection, b"") + bytes(part)
    return streams


def cut(data: bytes) -> list[tuple[int, bytes]]:
    """Take whole frames apart, by other code than ours."""
    frames = []
    while data:
        connection, length = struct.unpack(">II", data[:8])
        assert len(data) >= 8 + length
        frames.append((connection, data[8 : 8 + length]))
        data = data[8 + length :]
    return frames


def test_a_short_message_is_one_frame_with_the_header_of_the_vectors() -> None:
    assert mux_frames(RUNTIME_STREAM, V2) == V3
    assert mux_frames(RUNTIME_STREAM, V2)[:8] == V1


def test_a_message_of_5000_bytes_is_two_frames_with_the_headers_of_the_vectors() -> None:
    sent = mux_frames(PLUGIN_STREAM, encode_frame(3, RESPONSE, bytes(5000)))
    assert sent[:18] == V25
    assert sent[8 + FIRST_FRAME_BYTES : 16 + FIRST_FRAME_BYTES] == V26
    assert len(sent) == 16 + 5010


@given(st.integers(0, 3 * FIRST_FRAME_BYTES), st.integers(1, 2))
def test_a_message_begins_in_a_small_frame_and_ends_with_the_second(
    size: int, connection: int
) -> None:
    message = encode_frame(1, REQUEST, b"x" * size)
    frames = cut(mux_frames(connection, message))
    assert b"".join(payload for _, payload in frames) == message
    assert {to for to, _ in frames} == {connection}
    assert len(frames[0][1]) <= FIRST_FRAME_BYTES
    assert len(frames) <= 2


@pytest.mark.parametrize("at", range(1, len(V7)))
def test_a_frame_may_be_cut_at_each_byte(at: int) -> None:
    assert read(V7[:at], V7[at:]) == {RUNTIME_STREAM: V7[8:]}


def test_a_frame_may_come_byte_by_byte() -> None:
    assert read(*(V7[at : at + 1] for at in range(len(V7)))) == {RUNTIME_STREAM: V7[8:]}


def test_a_frame_of_nothing_is_passed_over() -> None:
    assert read(bytes.fromhex("0000000100000000") + V3) == {RUNTIME_STREAM: V2}


@pytest.mark.parametrize("length", [MAX_PAYLOAD + 1, 1 << 31, (1 << 32) - 1])
def test_a_length_that_nobody_sends_is_refused_with_its_header(length: int) -> None:
    with pytest.raises(FrameError, match=str(length)):
        read(struct.pack(">II", PLUGIN_STREAM, length))


def test_the_largest_length_is_taken_and_costs_nothing_before_its_bytes_come() -> None:
    assert read(struct.pack(">II", PLUGIN_STREAM, MAX_PAYLOAD) + b"ab") == {PLUGIN_STREAM: b"ab"}


@given(st.lists(st.binary(max_size=64), max_size=20))
def test_no_bytes_do_more_than_be_refused(pieces: list[bytes]) -> None:
    try:
        result = read(*pieces)
    except FrameError:
        return
    assert sum(map(len, result.values())) <= sum(map(len, pieces))


@given(st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=99)), max_size=9), st.data())
def test_streams_are_whole_however_their_frames_are_cut(
    messages: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    whole = b"".join(mux_frames(to, body) for to, body in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=9)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    desired = dict[int, bytes]()
    for to, body in messages:
        if body:
            desired[to] = desired.get(to, b"") + body
    assert read(*pieces) == desired
