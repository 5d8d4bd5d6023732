"""Watches that go quiet, break off, or never end a line."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.kube import errors
from agent.kube.api import MAX_BODY_BYTES, ApiRequest
from agent.kube.errors import ApiError, BadResponse, Expired, Unreachable
from tests.patience import PATIENCE_S
from tests.stepped import pass_time_until, run_stepped, stepped_loop, turns
from tests.unit.kube_session.conftest import account, authority
from tests.unit.kube_session.servers import (
    CHUNKED,
    Answer,
    Authority,
    ServedRequest,
    serving,
    session_with,
)

__all__ = ["account", "authority"]

WATCH = ApiRequest(
    method="GET", path="/api/v1/pods", query=(("watch", "true"),), deadline_s=PATIENCE_S
)
LINE = b'{"type":"ADDED"}'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


END = b"0\r\n\r\n"
IDLE_S = 60.0


async def read(
    account: Path,
    authority: Authority,
    answer: Answer,
    idle_s: float = 20,
    lines: list[bytes] | None = None,
) -> tuple[list[bytes], ApiError | None]:
    """Return the lines that came, and how it ended; `lines` are those that came so far."""
    lines = [] if lines is None else lines
    async with (
        serving(answer, authority.server) as server,
        session_with(server.url, account) as session,
    ):
        error = None
        try:
            async with session.stream(WATCH, idle_s) as stream:
                async for line in stream:
                    lines.append(line)
        except ApiError as raised:
            error = raised
        assert session.state.last_error == (str(error) if error else "")
        assert session.state.streams == 0
        return lines, error


async def until(good: Callable[[], bool]) -> None:
    """Return when it is so: what travels over a socket comes in its own time."""
    while not good():
        await turns()


def came(
    account: Path, authority: Authority, *chunks: bytes, close: bool = True
) -> tuple[list[bytes], ApiError | None]:
    async def answer(request: ServedRequest) -> None:
        await request.answer(*chunks)
        if close:
            request.writer.close()

    return run_stepped(read(account, authority, answer))


def test_a_watch_that_ends_in_order_ends(account: Path, authority: Authority) -> None:
    chunks = (CHUNKED, chunk(LINE + b"\n" + LINE[:5]), chunk(LINE[5:] + b"\n\n"), END)
    assert came(account, authority, *chunks, close=False) == ([LINE, LINE], None)


def test_a_watch_without_any_line_ends(account: Path, authority: Authority) -> None:
    assert came(account, authority, CHUNKED + END, close=False) == ([], None)


def test_a_truncated_last_line_is_not_delivered(account: Path, authority: Authority) -> None:
    lines, error = came(account, authority, CHUNKED, chunk(LINE + b'\n{"type":"MOD'), END)
    assert lines == [LINE]
    assert isinstance(error, Unreachable)
    assert "within a line" in str(error)


@pytest.mark.parametrize(
    "rest", [LINE[:4], LINE + b"\r\n4", LINE + b"12\r\nnonsense\r\n", b"", None]
)
def test_a_stream_that_breaks_or_is_reset_in_mid_chunk_is_out_of_reach(
    account: Path, authority: Authority, rest: bytes | None
) -> None:
    async def answer(request: ServedRequest) -> None:
        await request.answer(CHUNKED + chunk(LINE + b"\n") + b"12\r\n{")
        await received.wait()
        if rest is None:
            request.reset()
        else:
            await request.answer(rest)
            request.writer.close()

    async def run() -> None:
        async with (
            serving(answer, authority.server) as server,
            session_with(server.url, account) as session,
            session.stream(WATCH, 20) as stream,
        ):
            assert await anext(stream) == LINE
            received.set()
            with pytest.raises(Unreachable) as caught:
                await anext(stream)
        assert "nothing came" not in str(caught.value)  # it was seen, not waited for

    received = asyncio.Event()
    run_stepped(run())


def test_a_silent_stream_is_given_up_after_its_idle_time(
    account: Path, authority: Authority
) -> None:
    async def answer(request: ServedRequest) -> None:
        await request.answer(CHUNKED + chunk(LINE + b"\n"))
        await until(lambda: len(lines) == 1)
        disconnect_wait = asyncio.create_task(request.hold())
        await pass_time_until(disconnect_wait.done, IDLE_S / 4)

    lines: list[bytes] = []
    _, error = run_stepped(read(account, authority, answer, IDLE_S, lines))
    assert lines == [LINE]
    assert isinstance(error, Unreachable)
    assert "no line came for 60 s" in str(error)


def test_a_stream_whose_lines_keep_coming_outlasts_its_idle_time(
    account: Path, authority: Authority
) -> None:
    async def answer(request: ServedRequest) -> None:
        await request.answer(CHUNKED)
        for sent in range(8):
            await turns()
            stepped_loop().advance(IDLE_S * 0.9)  # eight of them outlast the idle time, none alone
            await request.answer(chunk(LINE + b"\n"))
            await until(lambda sent=sent: len(lines) == sent + 1)  # type: ignore[misc]  # bound now
        await request.answer(END)

    lines: list[bytes] = []
    assert run_stepped(read(account, authority, answer, IDLE_S, lines)) == ([LINE] * 8, None)


@pytest.mark.parametrize("drop", [b"x", b"\n"])
def test_a_stream_of_bytes_that_never_end_a_line_is_given_up_like_a_silent_one(
    account: Path, authority: Authority, drop: bytes
) -> None:
    async def answer(request: ServedRequest) -> None:
        await request.answer(CHUNKED, chunk(LINE + b"\n"))
        await until(lambda: len(lines) == 1)
        disconnect_wait = asyncio.create_task(request.hold())
        while not disconnect_wait.done():
            with contextlib.suppress(OSError):  # it may have left just now
                await request.answer(chunk(drop))
            stepped_loop().advance(IDLE_S / 10)
            await turns()

    lines: list[bytes] = []
    _, error = run_stepped(read(account, authority, answer, IDLE_S, lines))
    assert lines == [LINE]
    assert "no line came for 60 s" in str(error)


def test_a_stream_whose_first_byte_is_late_is_given_up_at_the_deadline(
    account: Path, authority: Authority
) -> None:
    async def answer(request: ServedRequest) -> None:
        disconnect_wait = asyncio.create_task(request.hold())
        await pass_time_until(disconnect_wait.done, 1.0)

    async def run() -> None:
        request = ApiRequest(method="GET", path="/x", deadline_s=10)
        async with (
            serving(answer, authority.server) as server,
            session_with(server.url, account) as session,
        ):
            with pytest.raises(Unreachable, match=r"within 10 s: waiting for the answer"):
                await session.stream(request, 20).__aenter__()
            assert session.state.requests == {("WATCH", "none"): 1}

    run_stepped(run())


def test_a_line_over_the_limit_is_refused(account: Path, authority: Authority) -> None:
    megabyte = chunk(b"x" * (1 << 20))
    lines, error = came(account, authority, CHUNKED + chunk(LINE + b"\n"), *[megabyte] * 17)
    assert lines == [LINE]
    assert isinstance(error, BadResponse)
    assert str(MAX_BODY_BYTES) in str(error)


@pytest.mark.parametrize(
    ("status", "kind"), [(403, errors.Forbidden), (410, Expired), (503, errors.ServerError)]
)
def test_a_watch_that_is_refused_is_the_error_of_its_status(
    account: Path, authority: Authority, status: int, kind: type[ApiError]
) -> None:
    async def answer(request: ServedRequest) -> None:
        await request.status(status, b'{"kind":"Status","reason":"Expired"}')

    lines, error = run_stepped(read(account, authority, answer))
    assert lines == []
    assert type(error) is kind


def test_leaving_a_stream_closes_its_connection(account: Path, authority: Authority) -> None:
    async def answer(request: ServedRequest) -> None:
        await request.answer(CHUNKED + chunk(LINE + b"\n"))
        await request.hold()

    async def run() -> None:
        async with (
            serving(answer, authority.server) as server,
            session_with(server.url, account) as session,
        ):
            async with session.stream(WATCH, 20) as stream:
                assert await anext(stream) == LINE
                assert session.state.streams == 1
            await server.disconnected.wait()
            assert session.state.streams == 0

    run_stepped(run())


def test_cancelling_the_reader_closes_the_connection(account: Path, authority: Authority) -> None:
    async def answer(request: ServedRequest) -> None:
        await request.answer(CHUNKED + chunk(LINE + b"\n"))
        await request.hold()

    async def run() -> None:
        got = asyncio.Event()

        async def follow() -> None:
            async with session.stream(WATCH, 20) as stream:
                async for _ in stream:
                    got.set()

        async with (
            serving(answer, authority.server) as server,
            session_with(server.url, account) as session,
        ):
            reader = asyncio.create_task(follow())
            await got.wait()
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            await server.disconnected.wait()
            assert session.state.last_error == ""

    run_stepped(run())


def test_an_error_of_the_reader_is_not_an_error_of_the_server(
    account: Path, authority: Authority
) -> None:
    async def answer(request: ServedRequest) -> None:
        await request.answer(CHUNKED + chunk(LINE + b"\n"))
        await request.hold()

    async def run() -> None:
        async with (
            serving(answer, authority.server) as server,
            session_with(server.url, account) as session,
        ):
            with pytest.raises(BadResponse, match="mine"):
                async with session.stream(WATCH, 20):
                    raise BadResponse("decoding", "mine")
            assert session.state.last_error == ""

    run_stepped(run())
