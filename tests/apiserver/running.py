"""A thread with an event loop that serves HTTPS; stopped and started on the same port."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable

from aiohttp import web

from tests.patience import PATIENCE_S

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

START_TIMEOUT_S = PATIENCE_S


class Running:
    """One listening socket on loopback; all that belongs to it ends with `stop`."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._stopping = asyncio.Event()
        self._failure: OSError | None = None

    def start(self, handler: Handler, context: ssl.SSLContext) -> None:
        """Listen; raise what the system says against it."""
        if self._thread is not None:
            return
        self._started.clear()
        self._failure = None
        self._thread = threading.Thread(
            target=self._run, args=(handler, context), name="apiserver", daemon=True
        )
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S):
            raise TimeoutError("the API server did not start")
        if self._failure is not None:
            self._thread = None
            raise self._failure

    def stop(self) -> None:
        """Close the socket and all connections, at once."""
        loop, thread = self.loop, self._thread
        self.loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(self._stopping.set)
            thread.join(START_TIMEOUT_S)

    def _run(self, handler: Handler, context: ssl.SSLContext) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._serve(handler, context))
        except OSError as error:
            self._failure = error
            self._started.set()
        finally:
            loop.close()

    async def _serve(self, handler: Handler, context: ssl.SSLContext) -> None:
        server = web.Server(handler, handler_cancellation=True, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=0.0)
        await runner.setup()
        site = web.TCPSite(runner, self.host, self.port, ssl_context=context, reuse_address=True)
        await site.start()
        self.port = runner.addresses[0][1]
        self._stopping = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self._started.set()
        await self._stopping.wait()
        await _end(server, runner)


async def _end(server: web.Server, runner: web.ServerRunner) -> None:
    """Drop connections instead of waiting for what is being answered."""
    for handler in server.connections:
        if handler.transport is not None:
            handler.transport.abort()
    await runner.cleanup()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
