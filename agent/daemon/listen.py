"""The addresses that the HTTP server listens on."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from agent.config.address import Address
from agent.errors import AgentError

if TYPE_CHECKING:
    from aiohttp import web

    from agent.web.base import AgentView


class CannotServe(AgentError):
    """The address is taken, not of this machine, or not allowed."""


class Site:
    """The HTTP server at its addresses; all of them serve the same pages."""

    def __init__(self, addresses: Iterable[Address]) -> None:
        self._addresses = tuple(addresses)
        self._runner: web.AppRunner | None = None

    async def open(self, view: AgentView) -> str:
        """Listen everywhere and return the first page's address; raise `CannotServe`."""
        from aiohttp import web  # noqa: PLC0415 - loaded late: it takes longer than all before it

        from agent.web.server import create_app  # noqa: PLC0415 - see above

        self._runner = runner = web.AppRunner(
            create_app(view), access_log=None, shutdown_timeout=1.0
        )
        await runner.setup()
        for address in self._addresses:
            try:
                await web.TCPSite(runner, address.host, address.port, backlog=64).start()
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno else str(error)
                where = f"{address.host}:{address.port}"
                raise CannotServe(
                    f"cannot listen on {where}: {reason}; choose with --listen"
                ) from error
        return Address(self._addresses[0].host, runner.addresses[0][1]).url()

    async def close(self) -> None:
        """Answer nobody any more."""
        if self._runner is not None:
            await self._runner.cleanup()
