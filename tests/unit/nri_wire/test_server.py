"""The serving side of ttrpc: each rule for what is no call."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.nri.wire.connection import MAX_IN_FLIGHT, CallServer, RuntimeCall
from agent.nri.wire.frames import DATA, MAX_DATA, REQUEST, RESPONSE, TtrpcFrame
from proto.gen import ttrpc_pb2
from tests.unit.nri_wire.vectors import V9, V24

SERVICE = "nri.pkg.api.v1alpha1.Plugin"


def server() -> CallServer:
    return CallServer(SERVICE, ("Configure", "Shutdown"))


def request_frame(
    stream: int, method: str = "Configure", service: str = SERVICE, nano: int = 0
) -> TtrpcFrame:
    data = ttrpc_pb2.Request(service=service, method=method, timeout_nano=nano)
    body = data.SerializeToString()
    return TtrpcFrame(stream, REQUEST, len(body), body)


def error_of(answer: object) -> tuple[int, int, str]:
    """Return stream, code and message of an error."""
    assert isinstance(answer, bytes)
    status = ttrpc_pb2.Response.FromString(answer[10:]).status
    assert answer[8] == RESPONSE
    return int.from_bytes(answer[4:8], "big"), status.code, status.message


def test_a_call_is_taken_with_its_payload_and_time_limit() -> None:
    result = server().accept(TtrpcFrame(1, REQUEST, 74, V9[18:]))
    assert isinstance(result, RuntimeCall)
    assert (result.stream, result.method, result.timeout_s) == (1, "Configure", 2.0)
    assert len(result.payload) == 26


def test_metadata_do_no_harm() -> None:
    result = server().accept(TtrpcFrame(1, REQUEST, len(V24), V24))
    assert result == RuntimeCall(1, "Shutdown", b"", 0.0)


@pytest.mark.parametrize(
    ("frame", "stream", "code", "message"),
    [
        (request_frame(1, "Nope"), 1, 12, "method Nope"),
        (request_frame(1, "", ""), 1, 12, "service "),
        (request_frame(1, service="other.Service"), 1, 12, "service other.Service"),
        (request_frame(2), 2, 3, "StreamID must be odd for client initiated streams"),
        (request_frame(0), 0, 3, "StreamID must be odd for client initiated streams"),
        (TtrpcFrame(2, DATA, 0, b""), 2, 3, "StreamID must be odd for client initiated streams"),
        (TtrpcFrame(7, DATA, 0, b""), 7, 3, "StreamID is no longer active"),
        (
            TtrpcFrame(4, REQUEST, MAX_DATA + 1, b""),
            4,
            8,
            "message length 4194305 exceed maximum message size of 4194304",
        ),
    ],
)
def test_what_is_no_call_is_answered(
    frame: TtrpcFrame, stream: int, code: int, message: str
) -> None:
    assert error_of(server().accept(frame)) == (stream, code, message)


@pytest.mark.parametrize("stream", [1, 3, 5])
def test_a_stream_that_does_not_rise_is_refused(stream: int) -> None:
    own_values = server()
    assert isinstance(own_values.accept(request_frame(5)), RuntimeCall)
    text = "StreamID cannot be re-used and must increment"
    assert error_of(own_values.accept(request_frame(stream))) == (stream, 3, text)
    assert isinstance(own_values.accept(request_frame(7)), RuntimeCall)


def test_a_request_that_is_none_is_refused() -> None:
    stream, code, message = error_of(server().accept(TtrpcFrame(1, REQUEST, 1, b"\x0a")))
    assert (stream, code) == (1, 3)
    assert message.startswith("unmarshal request error: ")


@pytest.mark.parametrize("kind", [0, RESPONSE, 4, 255])
def test_frames_of_other_types_are_passed_over(kind: int) -> None:
    own_values = server()
    assert own_values.accept(TtrpcFrame(2, kind, 0, b"")) is None
    assert isinstance(own_values.accept(request_frame(1)), RuntimeCall)


def test_data_for_a_call_that_is_open_are_passed_over() -> None:
    own_values = server()
    own_values.accept(request_frame(1))
    assert own_values.accept(TtrpcFrame(1, DATA, 0, b"")) is None
    own_values.finish(1)
    assert error_of(own_values.accept(TtrpcFrame(1, DATA, 0, b"")))[1] == 3


def test_a_call_is_finished_once() -> None:
    own_values = server()
    own_values.accept(request_frame(1))
    assert [own_values.finish(1), own_values.finish(1), own_values.finish(9)] == [
        True,
        False,
        False,
    ]


def test_a_time_limit_in_the_past_is_none() -> None:
    result = server().accept(request_frame(1, nano=-5))
    assert isinstance(result, RuntimeCall)
    assert result.timeout_s == 0


def test_calls_that_wait_are_bounded() -> None:
    own_values = server()
    for number in range(MAX_IN_FLIGHT):
        assert isinstance(own_values.accept(request_frame(2 * number + 1)), RuntimeCall)
    last = 2 * MAX_IN_FLIGHT + 1
    assert error_of(own_values.accept(request_frame(last)))[:2] == (last, 8)
    own_values.finish(1)
    assert isinstance(own_values.accept(request_frame(last + 2)), RuntimeCall)


def test_a_foreign_name_is_repeated_in_part_only() -> None:
    assert len(error_of(server().accept(request_frame(1, "x" * 9999)))[2]) == len("method ") + 128


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 4), st.integers(0, 9), st.binary(max_size=9))
    )
)
def test_no_frames_raise_or_open_a_stream_twice(frames: list[tuple[int, int, int, bytes]]) -> None:
    own_values, opened = server(), list[int]()
    for stream, kind, length, data in frames:
        result = own_values.accept(TtrpcFrame(stream, kind, length, data))
        if isinstance(result, RuntimeCall):
            opened.append(result.stream)
    assert opened == sorted(set(opened))
