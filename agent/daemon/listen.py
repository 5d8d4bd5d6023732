"""The addresses that the HTTP server listens on."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING

from agent.config.address import Address
from agent.errors import AgentError

if TYPE_CHECKING:
    from aiohttp import web

    from agent.web.base import AgentView
    from agent.web.connections import Listener


class CannotServe(AgentError):
    """The address is taken, not of this machine, or not allowed."""


class Site:
    """The HTTP server at its addresses; all of them serve the same pages."""

    def __init__(self, addresses: Iterable[Address]) -> None:
        self._addresses = tuple(addresses)
        self._runner: web.AppRunner | None = None
        self._listeners: list[Listener] = []

    async def open(self, view: AgentView) -> str:
        """Listen everywhere and return the first page's address; raise `CannotServe`."""
        from aiohttp import web  # noqa: PLC0415 - loaded late: it takes longer than all before it

        from agent.web.connections import Listener, max_connections  # noqa: PLC0415 - see above
        from agent.web.server import create_app  # noqa: PLC0415 - see above

        self._runner = runner = web.AppRunner(
            create_app(view), access_log=None, shutdown_timeout=1.0, handler_cancellation=True
        )
        await runner.setup()
        assert runner.server is not None  # noqa: S101 - made by `setup`
        for address in self._addresses:
            try:
                for bound in await _bind(address):
                    listener = Listener(runner.server, bound, max_connections())
                    self._listeners.append(listener)
                    listener.open()
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno else str(error)
                where = f"{address.host}:{address.port}"
                raise CannotServe(
                    f"cannot listen on {where}: {reason}; choose with --listen"
                ) from error
        return Address(self._addresses[0].host, self._listeners[0].port).url()

    async def close(self) -> None:
        """Answer nobody any more."""
        for listener in self._listeners:
            listener.close()
        if self._runner is not None:
            await self._runner.cleanup()


async def _bind(address: Address) -> list[socket.socket]:
    """Return listening sockets of an address; raise `OSError`."""
    from agent.web.connections import BACKLOG  # noqa: PLC0415 - loaded by now

    # asyncio resolves the name and binds the sockets; `Listener` accepts on them
    server = await asyncio.get_running_loop().create_server(
        asyncio.Protocol, address.host, address.port, start_serving=False
    )
    sockets = [bound.dup() for bound in server.sockets]
    server.close()
    for one in sockets:
        one.listen(BACKLOG)
    return sockets
