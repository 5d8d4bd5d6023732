"""A proxy on the way, real or broken."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.clock import SystemClock
from agent.kube.endpoint import Endpoint, HttpProxy, InClusterTarget, parse_proxy
from agent.kube.errors import BadResponse, Unreachable
from agent.kube.session import open_session
from tests.unit.kube_session.conftest import account, authority, no_names
from tests.unit.kube_session.servers import (
    GET,
    OK,
    Answer,
    Authority,
    ServedRequest,
    Server,
    serving,
    session_with,
)

__all__ = ["account", "authority", "no_names"]


async def fine(request: ServedRequest) -> None:
    await request.answer(OK)


async def tunnel(request: ServedRequest) -> None:
    """Do what CONNECT asks for: bytes both ways, until one side ends."""
    host, _, port = request.line.split()[1].rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    await request.answer(b"HTTP/1.1 200 Connection established\r\n\r\n")

    async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()

    await asyncio.gather(pass_on(request.reader, writer), pass_on(reader, request.writer))


@contextlib.asynccontextmanager
async def through(
    authority: Authority, answer: Answer, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[Server, Server, Endpoint]]:
    async with serving(fine, authority.server, host) as server, serving(answer, None) as proxy:
        way = parse_proxy(f"http://us:pa%20ss@127.0.0.1:{proxy.port}", "test")
        yield server, proxy, Endpoint(url=server.url, proxy=way)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_tunnel_is_requested_of_a_proxy_which_cannot_read_the_traffic(
    account: Path, authority: Authority, host: str
) -> None:
    async def run() -> None:
        async with (
            through(authority, tunnel, host) as (server, proxy, endpoint),
            session_with("", account, endpoint=endpoint) as session,
        ):
            await session.call(GET)
            await session.call(GET)
            assert proxy.requests[0].line.startswith("CONNECT ")
            assert str(server.port) in proxy.requests[0].line
            assert proxy.requests[0].headers["proxy-authorization"] == "Basic dXM6cGEgc3M="
            assert "authorization" not in proxy.requests[0].headers
            assert "proxy-authorization" not in server.requests[0].headers
            assert server.requests[0].headers["authorization"] == "Bearer token-1"
            assert len(proxy.requests) == 1  # the tunnel is kept

    asyncio.run(run())


@pytest.mark.parametrize("status", [403, 407, 502])
def test_a_proxy_that_refuses_is_named_with_its_status(
    account: Path, authority: Authority, status: int
) -> None:
    async def refuse(request: ServedRequest) -> None:
        await request.status(status)

    async def run() -> None:
        async with (
            through(authority, refuse) as (_, proxy, endpoint),
            session_with("", account, endpoint=endpoint) as session,
        ):
            words = f"the proxy http://127.0.0.1:{proxy.port} refused with {status}"
            with pytest.raises(Unreachable, match=words) as caught:
                await session.call(GET)
            assert "pa ss" not in str(caught.value)

    asyncio.run(run())


def test_a_proxy_that_is_down_is_named(account: Path, authority: Authority) -> None:
    async def run() -> None:
        async with serving(fine, authority.server) as server:
            endpoint = Endpoint(url=server.url, proxy=HttpProxy(url="http://127.0.0.1:1"))
            async with session_with("", account, endpoint=endpoint) as session:
                with pytest.raises(Unreachable, match=r"the proxy http://127\.0\.0\.1:1: "):
                    await session.call(GET)

    asyncio.run(run())


@pytest.mark.parametrize(
    "answer", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 X\r\n\r\nno TLS at all"]
)
def test_a_proxy_that_talks_nonsense_is_out_of_reach(
    account: Path, authority: Authority, answer: bytes
) -> None:
    async def nonsense(request: ServedRequest) -> None:
        await request.answer(answer)
        request.writer.close()

    async def run() -> None:
        async with (
            through(authority, nonsense) as (_, proxy, endpoint),
            session_with("", account, endpoint=endpoint) as session,
        ):
            with pytest.raises(
                (Unreachable, BadResponse), match=f"through http://127.0.0.1:{proxy.port}"
            ):
                await session.call(GET)

    asyncio.run(run())


@pytest.mark.usefixtures("no_names")
@pytest.mark.parametrize(("no_proxy", "count"), [("", 1), ("api.test", 0), (".test:443", 1)])
def test_a_pod_uses_the_proxy_of_its_environment_except_for_no_proxy(
    account: Path, no_proxy: str, count: int
) -> None:
    async def refuse(request: ServedRequest) -> None:
        await request.status(503)

    async def run() -> None:
        async with serving(refuse, None) as proxy:
            environ = {"HTTPS_PROXY": f"127.0.0.1:{proxy.port}", "NO_PROXY": no_proxy}
            target = InClusterTarget(url="https://api.test:1", folder=str(account))
            session = await open_session(target, SystemClock(), environ)
            with pytest.raises(Unreachable):
                await session.call(GET)
            assert len(proxy.requests) == count
            await session.close()

    asyncio.run(run())
