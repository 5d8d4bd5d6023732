"""ttrpc frames and envelopes: exactly these bytes, cut anywhere, with lengths that lie."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.nri.wire.errors import CallError
from agent.nri.wire.frames import (
    DATA,
    MAX_DATA,
    PLUGIN_STREAM,
    REQUEST,
    RESPONSE,
    RUNTIME_STREAM,
    FrameReader,
    TtrpcFrame,
    encode_frame,
    error_frame,
    mux_frames,
    request_frame,
    response_frame,
)
from proto.gen import ttrpc_pb2
from tests.unit.nri_wire import vectors as v


def read(*pieces: bytes) -> list[TtrpcFrame]:
    """Return the frames that come of these bytes."""
    reader = FrameReader()
    return [one for piece in pieces for one in reader.feed(memoryview(piece))]


def test_success_with_nothing_to_say_has_no_data() -> None:
    assert response_frame(1, b"") == v.V2
    assert mux_frames(RUNTIME_STREAM, response_frame(1, b"")) == v.V3


def test_the_first_write_of_a_plug_in_is_that_of_the_vectors() -> None:
    call = request_frame(1, "nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin", v.V4, 5)
    assert call[10:] == v.V6
    assert mux_frames(RUNTIME_STREAM, call) == v.V7


def test_an_answer_with_a_payload_is_that_of_the_vectors() -> None:
    assert response_frame(1, v.V10)[10:] == v.V11
    assert mux_frames(PLUGIN_STREAM, response_frame(1, v.V10)) == v.V12


def test_an_error_is_that_of_the_vectors() -> None:
    assert error_frame(9, 12, "method Nope")[10:] == v.V15
    assert mux_frames(PLUGIN_STREAM, error_frame(9, 12, "method Nope")) == v.V16


def test_metadata_of_a_request_are_taken_and_passed_over() -> None:
    request = ttrpc_pb2.Request.FromString(v.V24)
    assert (request.method, request.payload) == ("Shutdown", b"")
    assert [(pair.key, pair.value) for pair in request.metadata] == [("traceparent", "00-01")]


def test_a_message_of_an_error_is_bounded_and_always_text() -> None:
    sent = ttrpc_pb2.Response.FromString(error_frame(1, 13, "\ud800" + "x" * 9999)[10:])
    assert sent.status.message == "?" + "x" * 1023


@pytest.mark.parametrize("at", range(1, 84))
def test_a_frame_may_be_cut_at_each_byte(at: int) -> None:
    whole = v.V9[8:]
    assert len(whole) == 84
    assert read(whole[:at], whole[at:]) == [TtrpcFrame(1, REQUEST, 74, whole[10:])]


def test_an_answer_and_a_call_may_come_in_one_piece_or_byte_by_byte() -> None:
    both = v.V2 + v.V9[8:]
    ttrpc_frames = [TtrpcFrame(1, RESPONSE, 0, b""), TtrpcFrame(1, REQUEST, 74, both[20:])]
    assert read(both) == ttrpc_frames
    assert read(*(both[at : at + 1] for at in range(len(both)))) == ttrpc_frames


@given(
    st.lists(
        st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 255), st.binary(max_size=99)),
        max_size=9,
    ),
    st.data(),
)
def test_frames_are_the_same_however_they_are_cut(
    frames: list[tuple[int, int, bytes]], data: st.DataObject
) -> None:
    whole = b"".join(encode_frame(stream, kind, body) for stream, kind, body in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=9)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert read(*pieces) == [TtrpcFrame(a, b, len(body), body) for a, b, body in frames]


@given(st.lists(st.binary(max_size=64), max_size=20))
def test_no_bytes_do_more_than_be_frames(pieces: list[bytes]) -> None:
    read(*pieces)


def test_an_oversized_frame_is_reported_at_once_and_skipped() -> None:
    header = struct.pack(">IIBB", MAX_DATA + 1, 5, REQUEST, 0)
    body = bytes(MAX_DATA + 1)
    result = read(header, body[:4000], body[4000:], v.V2)
    assert result == [TtrpcFrame(5, REQUEST, MAX_DATA + 1, b""), TtrpcFrame(1, RESPONSE, 0, b"")]
    assert [one.is_oversized for one in result] == [True, False]


def test_a_length_that_lies_takes_no_memory() -> None:
    reader = FrameReader()
    tracemalloc.start()
    try:
        for length in (MAX_DATA, (1 << 32) - 1):
            header = struct.pack(">IIBB", length, 5, DATA, 0)
            list(reader.feed(memoryview(header)))
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()


def test_the_largest_message_is_taken_and_given() -> None:
    whole = encode_frame(1, REQUEST, bytes(MAX_DATA))
    (result,) = read(whole[:70_000], whole[70_000:])
    assert (len(result.data), result.is_oversized) == (MAX_DATA, False)


def test_more_than_that_is_not_sent() -> None:
    with pytest.raises(CallError, match="4194305 exceed maximum message size of 4194304") as failed:
        encode_frame(1, REQUEST, bytes(MAX_DATA + 1))
    assert failed.value.code == 8
