"""What is sent a second time, and what is not: refused tokens, connections that were closed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.clock import ManualClock
from agent.kube.api import APPLY_PATCH_TYPE, MERGE_PATCH_TYPE, ApiRequest
from agent.kube.errors import Unauthorized, Unreachable
from tests.unit.kube_session.conftest import account, authority
from tests.unit.kube_session.servers import GET, OK, Authority, ServedRequest, serving, session_with

__all__ = ["account", "authority"]


def test_a_401_is_tried_again_once_with_the_token_read_anew(
    account: Path, authority: Authority
) -> None:
    async def answer(request: ServedRequest) -> None:
        if request.headers["authorization"] == "Bearer token-2":
            await request.answer(OK)
        else:
            await request.status(401)

    async def run() -> None:
        async with (
            serving(answer, authority.server) as server,
            session_with(server.url, account, ManualClock()) as session,
        ):
            with pytest.raises(Unauthorized):
                await session.call(GET)
            assert len(server.requests) == 1  # the same token once more would be no other answer
            (account / "token").write_text("token-2")
            await session.call(GET)
            (account / "token").write_text("token-3")
            await session.call(GET)  # not read again: it was not refused
            sent = [
                request.headers["authorization"].removeprefix("Bearer ")
                for request in server.requests
            ]
            assert sent == ["token-1", "token-1", "token-2", "token-2"]

    asyncio.run(run())


def test_a_token_refused_in_use_is_replaced_without_the_caller_knowing(
    account: Path, authority: Authority
) -> None:
    good = ["Bearer token-1"]

    async def answer(request: ServedRequest) -> None:
        await request.status(200 if request.headers["authorization"] in good else 401)

    async def run() -> None:
        async with (
            serving(answer, authority.server) as server,
            session_with(server.url, account, ManualClock()) as session,
        ):
            await session.call(GET)
            good[:] = ["Bearer token-2"]
            (account / "token").write_text("token-2")
            await session.call(GET)
            async with session.stream(GET, idle_s=20) as lines:
                assert [line async for line in lines] == []
            assert session.state.retries == 1
            assert len(server.requests) == 4

    asyncio.run(run())


@pytest.mark.parametrize(
    ("request_", "is_repeated"),
    [
        (GET, True),
        (ApiRequest(method="PATCH", path="/x", body=b"{}", content_type=APPLY_PATCH_TYPE), True),
        (ApiRequest(method="PATCH", path="/x", body=b"{}", content_type=MERGE_PATCH_TYPE), True),
        (ApiRequest(method="DELETE", path="/x"), True),
        (ApiRequest(method="PATCH", path="/x", body=b"[]", content_type="json-patch"), False),
        (ApiRequest(method="POST", path="/x", body=b"{}"), False),
    ],
)
def test_a_request_on_a_connection_that_the_server_closed_is_repeated_if_that_is_safe(
    account: Path, authority: Authority, request_: ApiRequest, *, is_repeated: bool
) -> None:
    async def answer(request: ServedRequest) -> None:
        if len(server_of[0].requests) == 2:
            request.reset()  # as if it had been closed just when the request was sent
        else:
            await request.answer(OK)

    server_of = []

    async def run() -> None:
        async with (
            serving(answer, authority.server) as server,
            session_with(server.url, account) as session,
        ):
            server_of.append(server)
            await session.call(GET)
            if is_repeated:
                await session.call(request_)
                assert (session.state.retries, server.connections) == (1, 2)
            else:
                with pytest.raises(Unreachable):
                    await session.call(request_)
                assert len(server.requests) == 2

    asyncio.run(run())
