"""A server that is away, slow, or silent."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.kube.errors import ApiError, Unreachable
from agent.kube.session import ApiSession
from tests.unit.kube_session.conftest import account, authority, no_names
from tests.unit.kube_session.servers import (
    GET,
    OK,
    Authority,
    ServedRequest,
    serving,
    session_with,
)

__all__ = ["account", "authority", "no_names"]

SOON = replace(GET, deadline_s=0.2)


async def error_of(session: ApiSession) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await session.call(SOON)
    assert isinstance(caught.value, Unreachable)
    assert caught.value.code is None
    assert session.state.reachable is False
    assert session.state.requests == {("GET", "none"): 1}
    return caught.value


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def test_a_server_that_is_down_is_out_of_reach_and_named(account: Path) -> None:
    async def run() -> None:
        url = f"https://127.0.0.1:{free_port()}"
        async with session_with(url, account) as session:
            error = await error_of(session)
            assert str(error) == f"GET /api/v1/nodes/n: {url}: Connection refused"
            assert session._connections.open_count == 0

    asyncio.run(run())


@pytest.mark.usefixtures("no_names")
def test_a_name_that_does_not_resolve_is_named(account: Path) -> None:
    async def run() -> None:
        async with session_with("https://nowhere.invalid:6443", account) as session:
            with pytest.raises(Unreachable, match=r"nowhere\.invalid: no such name"):
                await session.call(GET)

    asyncio.run(run())


def test_a_server_that_accepts_and_says_nothing_is_given_up(account: Path) -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:  # nobody shakes hands there
            async with session_with(
                f"https://127.0.0.1:{listener.getsockname()[1]}", account
            ) as session:
                error = await error_of(session)
        assert "not done within 0.2 s: connecting" in str(error)

    asyncio.run(run())


def test_a_server_that_takes_the_request_and_says_nothing_is_given_up(
    account: Path, authority: Authority
) -> None:
    async def run() -> None:
        async with (
            serving(ServedRequest.hold, authority.server) as server,
            session_with(server.url, account) as session,
        ):
            assert "waiting for the answer" in str(await error_of(session))
            await server.disconnected.wait()  # its connection is of no more use

    asyncio.run(run())


def test_a_deadline_is_of_the_last_byte_too(account: Path, authority: Authority) -> None:
    async def answer(request: ServedRequest) -> None:
        await request.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{")
        await request.hold()

    async def run() -> None:
        async with (
            serving(answer, authority.server) as server,
            session_with(server.url, account) as session,
        ):
            with pytest.raises(Unreachable, match="reading the answer"):
                await session.call(SOON)
            await server.disconnected.wait()

    asyncio.run(run())


def test_a_server_that_resets_is_out_of_reach(account: Path, authority: Authority) -> None:
    async def answer(request: ServedRequest) -> None:
        request.reset()

    async def run() -> None:
        async with (
            serving(answer, authority.server) as server,
            session_with(server.url, account) as session,
        ):
            with pytest.raises(Unreachable):
                await session.call(GET)
            assert len(server.requests) <= 2

    asyncio.run(run())


def test_a_server_that_comes_back_is_reached_again(account: Path, authority: Authority) -> None:
    async def run() -> None:
        async def fine(request: ServedRequest) -> None:
            await request.answer(OK)

        async with (
            serving(fine, authority.server) as server,
            session_with(server.url, account) as session,
        ):
            await session.call(GET)
            port = server.port
            async with session_with(f"https://127.0.0.1:{free_port()}", account) as elsewhere:
                await error_of(elsewhere)
            for served_request in server.requests:
                served_request.writer.close()  # as a restart would
            await server.disconnected.wait()
            await session.call(GET)
            assert (server.port, server.connections) == (port, 2)
            assert session.state.reachable is True

    asyncio.run(run())


def test_cancelling_a_call_closes_its_connection(account: Path, authority: Authority) -> None:
    async def run() -> None:
        came = asyncio.Event()

        async def answer(request: ServedRequest) -> None:
            came.set()
            await request.hold()

        async with (
            serving(answer, authority.server) as server,
            session_with(server.url, account) as session,
        ):
            call = asyncio.create_task(session.call(GET))
            await came.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await server.disconnected.wait()
            assert session.state.in_flight == 0

    asyncio.run(run())


def test_closing_the_session_ends_what_is_under_way(account: Path, authority: Authority) -> None:
    async def run() -> None:
        came = asyncio.Event()

        async def answer(request: ServedRequest) -> None:
            came.set()
            await request.hold()

        async with (
            serving(answer, authority.server) as server,
            session_with(server.url, account) as session,
        ):
            call = asyncio.create_task(session.call(replace(GET, method="POST")))
            await came.wait()
            await session.close()
            with pytest.raises(Unreachable):
                await call

    asyncio.run(run())


def test_an_ipv6_server_is_reached(account: Path, authority: Authority) -> None:
    async def fine(request: ServedRequest) -> None:
        await request.answer(OK)

    async def run() -> None:
        async with (
            serving(fine, authority.server, host="::1") as server,
            session_with(server.url, account) as session,
        ):
            assert "[::1]" in server.url
            assert (await session.call(GET)).body == b"{}"

    asyncio.run(run())
