"""The HTTP server at its addresses."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable

from aiohttp import web

from agent.access import connections
from agent.config.address import ListenAddress
from agent.errors import AgentError, failure_text
from agent.web import server
from agent.web.server import Gate
from agent.web.view import AgentView


class ListenError(AgentError):
    """The address is in use, not of this machine, or not permitted."""


class HttpServer:
    """The HTTP server at its addresses; all of them serve the same pages."""

    def __init__(
        self,
        addresses: Iterable[ListenAddress],
        context: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """`context` returns the TLS context for the next connection; `None`: plain HTTP.

        A second address of the loopback has none: the page there is for port-forward.
        """
        self._addresses = tuple(addresses)
        self._context = context
        self._runner: web.AppRunner | None = None
        self._listeners: list[connections.HttpListener] = []

    async def open(self, view: AgentView, gate: Gate | None = None) -> str:
        """Listen at all addresses and return the first page's URL; raises `ListenError`.

        `gate` decides who may read `/metrics`, at every address; `None`: everybody.
        """
        self._runner = runner = web.AppRunner(
            server.create_page_app(view, gate),
            access_log=None,
            shutdown_timeout=1.0,
            handler_cancellation=True,
        )
        await runner.setup()
        assert runner.server is not None  # noqa: S101 - made by `setup`
        for number, address in enumerate(self._addresses):
            is_encrypted = number == 0 or not address.is_loopback
            context = self._context if is_encrypted else lambda: None
            try:
                for bound in await connections.bind_address(address.host, address.port):
                    limit = connections.max_connections()
                    listener = connections.HttpListener(runner.server, bound, limit, context)
                    self._listeners.append(listener)
                    listener.open()
            except OSError as error:
                location = f"{address.host}:{address.port}"
                raise ListenError(
                    f"cannot listen on {location}: {failure_text(error)}; choose with --listen"
                ) from error
        scheme = "http" if self._context() is None else "https"
        return ListenAddress(self._addresses[0].host, self._listeners[0].port).url(scheme)

    async def close(self) -> None:
        """Stop serving."""
        for listener in self._listeners:
            listener.close()
        if self._runner is not None:
            await self._runner.cleanup()
