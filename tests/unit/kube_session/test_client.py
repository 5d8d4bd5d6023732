"""What a session sends, and when it sends again."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.clock import ManualClock
from agent.kube.api import APPLY_PATCH_TYPE, ApiRequest
from agent.kube.endpoint import Endpoint
from agent.kube.errors import Unreachable
from agent.kube.session import MAX_CALLS
from agent.version import VERSION
from tests.patience import PATIENCE_S
from tests.unit.kube_session.servers import GET, OK, Authority, ServedRequest, serving, session_with


async def fine(request: ServedRequest) -> None:
    await request.answer(OK)


def test_a_request_is_what_the_api_expects(account: Path, authority: Authority) -> None:
    request = ApiRequest(
        method="PATCH",
        path="/apis/g/v1/things/a b",
        query=(("fieldManager", "xpu-agent"), ("labelSelector", "a in (b,c)")),
        body=b'{"a": 1}',
        content_type=APPLY_PATCH_TYPE,
    )

    async def run() -> None:
        async with (
            serving(fine, authority.server) as server,
            session_with(server.url, account) as session,
        ):
            response = await session.call(request)
            served_request = server.requests[0]
        assert (response.status, response.body) == (200, b"{}")
        assert response.headers["content-length"] == "2"
        assert served_request.line == (
            "PATCH /apis/g/v1/things/a%20b?fieldManager=xpu-agent"
            "&labelSelector=a%20in%20%28b%2Cc%29 HTTP/1.1"
        )
        assert served_request.body == request.body
        assert (
            served_request.headers
            | {
                "authorization": "Bearer token-1",
                "content-type": APPLY_PATCH_TYPE,
                "accept": "application/json",
                "accept-encoding": "identity",
                "user-agent": f"xpu-agent/{VERSION}",
            }
            == served_request.headers
        )

    asyncio.run(run())


def test_a_peer_that_vanished_is_found_out_by_the_kernel(
    account: Path, authority: Authority
) -> None:
    async def run() -> None:
        async with (
            serving(fine, authority.server) as server,
            session_with(server.url, account) as session,
        ):
            await session.call(GET)
            (sock,) = session._connections._sockets
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            tcp = [
                sock.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT)
            ]
            assert tcp == [15, 5, 20_000]

    asyncio.run(run())


def test_an_object_of_a_megabyte_and_a_half_goes_both_ways(
    account: Path, authority: Authority
) -> None:
    async def echo(request: ServedRequest) -> None:
        await request.status(200, request.body)

    async def run() -> None:
        big = ApiRequest(method="POST", path="/x", body=b"x" * 1_500_000, deadline_s=PATIENCE_S)
        async with (
            serving(echo, authority.server) as server,
            session_with(server.url, account) as session,
        ):
            assert (await session.call(big)).body == big.body

    asyncio.run(run())


def test_a_path_of_the_server_comes_before_that_of_every_request(
    account: Path, authority: Authority
) -> None:
    async def run() -> None:
        async with serving(fine, authority.server) as server:
            async with session_with(f"{server.url}/k8s/clusters/c-1/", account) as session:
                await session.call(GET)
            assert server.requests[0].line == "GET /k8s/clusters/c-1/api/v1/nodes/n HTTP/1.1"

    asyncio.run(run())


def test_connections_are_reused(account: Path, authority: Authority) -> None:
    async def run() -> None:
        async with (
            serving(fine, authority.server) as server,
            session_with(server.url, account) as session,
        ):
            for _ in range(5):
                await session.call(GET)
            assert server.connections == 1
            state = session.state
            assert (session._connections.open_count, state.opened_connections) == (1, 1)
            assert state.requests == {("GET", "200"): 5}
            assert (state.retries, state.in_flight) == (0, 0)

    asyncio.run(run())


def test_no_more_than_a_few_calls_are_under_way_at_once(
    account: Path, authority: Authority
) -> None:
    async def run() -> None:
        full, go = asyncio.Event(), asyncio.Event()

        async def answer(request: ServedRequest) -> None:
            if len(server.requests) == MAX_CALLS:
                full.set()
            await go.wait()
            await request.answer(OK)

        async with (
            serving(answer, authority.server) as server,
            session_with(server.url, account) as session,
        ):
            calls = [asyncio.create_task(session.call(GET)) for _ in range(MAX_CALLS + 5)]
            await full.wait()
            late = replace(GET, deadline_s=0.1)
            with pytest.raises(Unreachable, match="waiting for one of 8 other calls"):
                await session.call(late)
            assert len(server.requests) == MAX_CALLS
            go.set()
            await asyncio.gather(*calls)
            assert server.connections == MAX_CALLS

    asyncio.run(run())


def test_what_ends_with_the_session_says_nothing_of_the_server(
    account: Path, authority: Authority
) -> None:
    async def run() -> None:
        async with serving(fine, authority.server) as server:
            async with session_with(server.url, account) as session:
                await session.call(GET)
            with pytest.raises(Unreachable):
                await session.call(GET)
            assert (session.state.reachable, session.state.last_error) == (True, "")

    asyncio.run(run())


def test_after_it_was_closed_nothing_is_sent(account: Path, authority: Authority) -> None:
    async def run() -> None:
        async with serving(fine, authority.server) as server:
            async with session_with(server.url, account) as session:
                await session.call(GET)
            with pytest.raises(Unreachable, match="closed"):
                await session.call(GET)
            assert len(server.requests) == 1

    asyncio.run(run())


def test_a_token_does_not_go_where_anybody_can_read_it(account: Path) -> None:
    async def run() -> None:
        async with serving(fine, None) as server:
            url = server.url.replace("https", "http")
            async with session_with(url, account, endpoint=Endpoint(url=url)) as session:
                await session.call(GET)
            assert "authorization" not in server.requests[0].headers

    asyncio.run(run())


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".y"])
def test_a_name_that_nobody_can_have_is_no_answer(host: str, account: Path) -> None:
    async def run() -> None:
        async with session_with(f"https://{host}:1", account) as session:
            with pytest.raises(Unreachable, match="no name that could be asked for"):
                await session.call(GET)

    asyncio.run(run())


def test_a_clock_that_differs_is_noticed(account: Path, authority: Authority) -> None:
    clock = ManualClock()  # of 2026-01-02 03:04:05

    async def answer(request: ServedRequest) -> None:
        await request.status(200, b"{}", "Date: Fri, 02 Jan 2026 04:04:05 GMT")

    async def run() -> None:
        async with (
            serving(answer, authority.server) as server,
            session_with(server.url, account, clock) as session,
        ):
            await session.call(GET)
            assert session.state.clock_skew_s == 3600.0

    asyncio.run(run())


def test_the_session_is_loaded_without_the_kubernetes_client() -> None:
    code = (
        "import sys; import agent.kube.session, agent.kube.kubeconfig; "
        "print(*{'kubernetes', 'yaml'} & set(sys.modules))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert loaded.stdout.split() == []
