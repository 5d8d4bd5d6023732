"""Whatever a server sends, a call ends in an answer or an error of ours, and the next one works."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.kube.errors import ApiError
from tests.unit.kube_session.conftest import account, authority
from tests.unit.kube_session.servers import GET, OK, Authority, ServedRequest, serving, session_with

__all__ = ["account", "authority"]

PARTS = (
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 429 \r\n",
    b"HTTP/1.0 503 X\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n",
    b"HTTP/1.1 304 X\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: -5\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Content-Encoding: br\r\n",
    b"Content-Type: \xff\xfe\r\n",
    b"Date: yesterday\r\n",
    b"Retry-After: -1e9\r\n",
    b"Connection: upgrade\r\n",
    b"Location: \r\n",
    b": \r\n",
    b"\r\n",
    b"5\r\n{\"a\":\r\n",
    b"ffffffffffffffff\r\n",
    b"0\r\n\r\n",
    b'{"kind":"Status","details":{"causes":[{}]}}',
    b"\0" * 50,
    b"\n",
    b"x",
)  # fmt: skip
ROUNDS = 120


def nonsense(seed: int) -> Iterator[bytes]:
    dice = random.Random(seed)
    while True:
        chunks = dice.choices(PARTS, k=dice.randint(0, 8))
        if dice.random() < 0.6:  # most begin as an answer would
            chunks = [PARTS[dice.randint(0, 2)], *chunks]
        yield b"".join(chunks)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_bytes_raise_anything_but_our_errors(
    account: Path, authority: Authority, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    answers = nonsense(seed)
    is_well = False

    async def answer(request: ServedRequest) -> None:
        if is_well:
            await request.answer(OK)
            return
        await request.answer(next(answers))
        request.writer.close()

    async def run() -> None:
        nonlocal is_well
        failures = 0
        async with (
            serving(answer, authority.server) as server,
            session_with(server.url, account) as session,
        ):
            for number in range(ROUNDS):
                try:
                    if number % 2:
                        await session.call(replace(GET, method="POST"))
                    else:
                        async with session.stream(GET, 20) as lines:
                            _ = [line async for line in lines]
                except ApiError as error:
                    failures += 1
                    assert len(str(error)) < 400  # noqa: PT017 - it may also succeed
            is_well = True
            assert (await session.call(GET)).body == b"{}"
            assert (session.state.in_flight, session.state.streams) == (0, 0)
            assert failures > ROUNDS / 2

    asyncio.run(run())
    gc.collect()  # what the loop has to say of errors that nobody took, it says now
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
