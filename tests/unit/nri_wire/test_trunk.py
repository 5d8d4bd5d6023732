"""The trunk: both directions over one socket, whatever the socket does."""

from __future__ import annotations

import asyncio

import pytest

from agent.nri.wire.errors import CallError, ConnectionClosed
from agent.nri.wire.frames import (
    MAX_DATA,
    PLUGIN_STREAM,
    REQUEST,
    RESPONSE,
    RUNTIME_STREAM,
    TtrpcFrame,
    encode_frame,
    error_frame,
    mux_frames,
    response_frame,
)
from tests.unit.nri_wire.vectors import V3, V4, V7, V9, V12, V16
from tests.unit.nri_wire.wired import Wired, wired


async def registering(both: Wired) -> asyncio.Task[bytes]:
    """Begin a call, and take it off the wire."""
    call = asyncio.create_task(both.trunk.calls.call("RegisterPlugin", V4, 5))
    assert await both.sent(len(V7)) == V7
    return call


def test_the_vectors_are_played_through_with_a_call_before_its_own_answer() -> None:
    async def through() -> None:
        async with wired() as both:
            call = await registering(both)
            await both.send(V9)  # Configure overtakes the answer to RegisterPlugin
            await both.until_taken(1)
            both.trunk.answer(V12[8:])
            assert await both.sent(len(V12)) == V12
            assert not call.done()
            await both.send(V3)
            assert await call == b""
            assert both.taken == [TtrpcFrame(1, REQUEST, 74, V9[18:])]

    asyncio.run(through())


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_an_answer_and_a_call_in_pieces_of_any_size_arrive(piece: int) -> None:
    async def through() -> None:
        async with wired() as both:
            call = await registering(both)
            data = V3 + V9
            await both.send(*(data[at : at + piece] for at in range(0, len(data), piece)))
            assert await call == b""
            await both.until_taken(1)

    asyncio.run(through())


def test_an_error_fails_the_call_and_not_the_connection() -> None:
    async def through() -> None:
        async with wired() as both:
            call = await registering(both)
            await both.send(
                mux_frames(RUNTIME_STREAM, error_frame(1, 2, "invalid plugin index: 1"))
            )
            with pytest.raises(CallError, match="invalid plugin index: 1") as failed:
                await call
            assert failed.value.code == 2
            assert not both.trunk.closed.is_set()

    asyncio.run(through())


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (encode_frame(1, RESPONSE, b"\x0a"), 13),  # no message
        ((MAX_DATA + 1).to_bytes(4, "big") + bytes.fromhex("000000010200"), 8),
    ],
)
def test_an_answer_that_is_none_fails_the_call(answer: bytes, code: int) -> None:
    async def through() -> None:
        async with wired() as both:
            call = await registering(both)
            await both.send(mux_frames(RUNTIME_STREAM, answer))
            with pytest.raises(CallError) as failed:
                await call
            assert failed.value.code == code

    asyncio.run(through())


def test_answers_that_nobody_waits_for_are_passed_over() -> None:
    async def through() -> None:
        async with wired() as both:
            call = await registering(both)
            await both.send(V16.replace(b"\x00\x00\x00\x01", b"\x00\x00\x00\x02", 1))
            await both.send(mux_frames(RUNTIME_STREAM, encode_frame(1, REQUEST, b"")), V3)
            assert await call == b""
            assert both.trunk.calls.stray == 1

    asyncio.run(through())


def test_streams_rise_by_two() -> None:
    async def through() -> None:
        async with wired() as both:
            first = await registering(both)
            second = asyncio.create_task(both.trunk.calls.call("RegisterPlugin", V4, 5))
            assert (await both.sent(len(V7)))[12:16] == bytes.fromhex("00000003")
            await both.send(
                mux_frames(RUNTIME_STREAM, response_frame(3, b"b") + response_frame(1, b"a"))
            )
            assert [await first, await second] == [b"a", b"b"]

    asyncio.run(through())


def test_a_call_ends_with_its_time_limit_and_its_answer_is_dropped() -> None:
    async def through() -> None:
        async with wired() as both:
            with pytest.raises(TimeoutError):
                await both.trunk.calls.call("RegisterPlugin", V4, 0.01)
            await both.send(V3, V9)
            await both.until_taken(1)
            assert both.trunk.calls.stray == 1

    asyncio.run(through())


def test_the_end_of_the_connection_fails_all_calls_and_later_ones() -> None:
    async def through() -> None:
        async with wired() as both:
            call = await registering(both)
            both.writer.close()
            with pytest.raises(ConnectionClosed, match="ClosedByRuntime"):
                await call
            await both.until_closed()
            with pytest.raises(ConnectionClosed, match="ClosedByRuntime"):
                await both.trunk.calls.call("RegisterPlugin", V4, 5)
            both.trunk.answer(V12[8:])  # to nobody
            assert [why.reason for why in both.lost] == ["ClosedByRuntime"]

    asyncio.run(through())


def test_a_runtime_that_shuts_one_direction_down_is_gone() -> None:
    async def through() -> None:
        async with wired() as both:
            both.writer.write_eof()
            await both.until_closed()
            assert [why.reason for why in both.lost] == ["ClosedByRuntime"]

    asyncio.run(through())


def test_a_length_that_nobody_sends_ends_the_connection() -> None:
    async def through() -> None:
        async with wired() as both:
            await both.send(bytes.fromhex("0000000101000001"))
            await both.until_closed()
            assert [why.reason for why in both.lost] == ["BadFrame"]

    asyncio.run(through())


def test_frames_of_an_unknown_connection_are_dropped() -> None:
    async def through() -> None:
        async with wired() as both:
            await both.send(mux_frames(7, bytes(99)), mux_frames(0, b"x"), V9)
            await both.until_taken(1)

    asyncio.run(through())


def test_a_runtime_that_takes_nothing_is_left_before_memory_runs_out() -> None:
    async def through() -> None:
        async with wired() as both:
            both.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it reads, too
            answer = response_frame(1, bytes(1 << 20))
            for _ in range(40):
                both.trunk.answer(answer)
            await both.until_closed()
            assert [why.reason for why in both.lost] == ["NotReading"]

    asyncio.run(through())


def test_what_was_answered_leaves_before_the_trunk_closes() -> None:
    async def through() -> None:
        async with wired() as both:
            both.trunk.answer(response_frame(1, bytes(1 << 20)))
            finish = asyncio.create_task(both.trunk.wait_closed("Test"))
            assert len(await both.sent((1 << 20) + 10 + 16)) > 1 << 20
            await finish
            assert both.trunk.closed.is_set()

    asyncio.run(through())


def test_a_trunk_that_was_never_connected_is_closed_at_once() -> None:
    async def through() -> None:
        both = Wired()
        await both.trunk.wait_closed("Test")
        assert [why.reason for why in both.lost] == ["Test"]

    asyncio.run(through())


def test_calls_that_wait_are_bounded() -> None:
    async def through() -> None:
        async with wired() as both:
            calls = [asyncio.create_task(both.trunk.calls.call("X", b"", 5)) for _ in range(65)]
            outcome, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            (refused,) = outcome
            assert isinstance(refused.exception(), CallError)
            both.trunk.abort("Test")
            await asyncio.wait(calls)

    asyncio.run(through())


def test_calls_of_the_runtime_are_not_read_after_the_end() -> None:
    async def through() -> None:
        async with wired() as both:
            trunk = both.trunk

            def take_and_end(ttrpc_frame: TtrpcFrame) -> None:
                both.taken.append(ttrpc_frame)
                trunk.abort("Test")

            trunk._handle_call = take_and_end
            await both.send(V9 + mux_frames(PLUGIN_STREAM, encode_frame(3, REQUEST, b"")))
            await both.until_closed()
            assert len(both.taken) == 1

    asyncio.run(through())
