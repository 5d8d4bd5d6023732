"""Clients of the extender that do not finish what they began."""

from __future__ import annotations

import asyncio

import pytest

from plugins.scheduler.server import http_server
from plugins.scheduler.server.http_server import ExtenderServer, Term


class Silent:
    """A replica that is not the leader."""

    def current_term(self) -> Term | None:
        return None

    def why_silent(self) -> str:
        return "a test"


def test_a_body_that_does_not_end_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "BODY_S", 0.1)

    async def test() -> None:
        server = ExtenderServer(Silent(), None)
        port = int((await server.open("127.0.0.1", 0)).rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"POST /filter HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{")
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        finally:
            writer.close()
            await server.close()

    asyncio.run(asyncio.wait_for(test(), 60))
