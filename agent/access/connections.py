"""Bounds the connections of a listening socket, and the time of each wait.

aiohttp bounds neither. Its event loop accepts every connection, so unfinished requests could use
up memory and descriptors until probes are not answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import resource
import socket
import ssl
import struct
import termios
from collections.abc import Awaitable, Callable

from aiohttp import web

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 32  # each may hold a header, or an answer that nobody reads
MIN_CONNECTIONS = 8
DESCRIPTORS_PER_CONNECTION = 8
BACKLOG = 128
RESERVED_DESCRIPTORS = (
    2  # descriptors reserved for connections of a process that has used up all others
)
GRACE_S = 0.05  # a connection has so long to send its request, however many others come
HANDSHAKE_S = 10.0  # for that of TLS
CLOSING_S = 1.0  # for the goodbye of TLS
IDLE_S = 20.0  # for the whole header of a request, and between two requests
BODY_S = 5.0
LINGER_S = 1.0  # a body that the handler did not read is read and dropped for so long
UNREAD_S = 10.0  # a peer that reads nothing of its answer for so long has gone
PAUSE_S = 0.1  # without a descriptor, accept is tried again after that time
READ_BYTES = 16 << 10

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
RouteHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_INT = struct.Struct("i")
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def max_connections(
    highest: int = MAX_CONNECTIONS, descriptors: int = DESCRIPTORS_PER_CONNECTION
) -> int:
    """Return how many connections one listening socket may hold in this process.

    The process must be allowed so many `descriptors` for each connection.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = highest if soft == resource.RLIM_INFINITY else soft // descriptors
    return max(MIN_CONNECTIONS, min(highest, allowed))


async def bind_address(host: str, port: int, backlog: int = BACKLOG) -> list[socket.socket]:
    """Return listening sockets of an address; raise `OSError`."""
    # asyncio resolves the name and binds the sockets; `HttpListener` accepts on them
    server = await asyncio.get_running_loop().create_server(
        asyncio.Protocol, host, port, start_serving=False
    )
    sockets = [bound.dup() for bound in server.sockets]
    server.close()
    for one in sockets:
        one.listen(backlog)
    return sockets


class HttpConnection(web.RequestHandler):
    """One connection of aiohttp. It closes itself if a request's header takes too long."""

    __slots__ = ("_link", "_listener", "unsent", "waiting_s")

    def __init__(self, listener: HttpListener, server: web.Server) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=IDLE_S,
            lingering_time=LINGER_S,
            read_bufsize=READ_BYTES,
            access_log=None,  # type: ignore[arg-type]  # aiohttp takes it for "no log"
        )
        self._listener = listener
        self.waiting_s = loop.time()  # since when a request is awaited
        self._link: asyncio.Transport | None = None  # aiohttp drops its own before all is sent
        self.unsent = (0, self.waiting_s)  # bytes of answers not sent yet, and since when

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection."""
        if isinstance(transport, asyncio.Transport):
            self._link = transport
        self._listener.add(self)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count the connection no longer."""
        self._listener.discard(self)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer invalid requests without a log line; add the headers of all pages to errors."""
        if status < 500 and request.writer.output_size == 0:
            answer: web.StreamResponse = web.Response(status=status, text=message)
            answer.force_close()
        else:
            answer = super().handle_error(request, status, exc, message)
        answer.headers.update(SECURITY_HEADERS)
        return answer

    def report_body(self) -> None:
        """Report to the listener that the body of a request is awaited."""
        self.waiting_s = self._loop.time()
        self._listener.mark_body(self)

    def report_request(self) -> None:
        """Report to the listener that a whole request has arrived."""
        self._listener.mark_request(self)

    def report_answer(self) -> None:
        """Report to the listener that the request is answered."""
        self._listener.mark_answer(self)

    def abort(self) -> None:
        """Close at once; unsent data is lost."""
        if self._link is not None:
            self._link.abort()

    def is_stalled(self, now_s: float, for_s: float) -> bool:
        """Return whether the peer has read nothing of its answer for so long."""
        unsent = 0 if self._link is None else _unsent_bytes(self._link)
        if unsent == 0 or unsent != self.unsent[0]:
            self.unsent = (unsent, now_s)
        return unsent > 0 and now_s - self.unsent[1] >= for_s


def _unsent_bytes(link: asyncio.Transport) -> int:
    """Return the bytes that wait here and in the kernel.

    Below TLS there is another buffer, which only the kernel's shows to be full.
    """
    waiting = link.get_write_buffer_size()
    connection = link.get_extra_info("socket")
    if connection is None:  # TLS drops it when the connection is lost
        return waiting
    with contextlib.suppress(OSError, ValueError):  # it was closed just now
        answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(_INT.size))
        waiting += _INT.unpack(answer)[0]
    return waiting


class HttpListener:
    """Accepts connections of one listening socket, and closes one if there are too many.

    It closes the oldest connection without a whole request, be it one whose TLS handshake has not
    ended. If more than half of all have sent one, it closes the one that was answered first, else
    one that does not read its answer. So no kind can keep the others out, and a request that is
    being answered is not lost to those that come after it.
    """

    def __init__(
        self,
        server: web.Server,
        listening: socket.socket,
        limit: int,
        context: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """`context` returns the present TLS context; `None`: plain HTTP."""
        self._loop = asyncio.get_running_loop()
        self._server = server
        self._socket = listening
        self._limit = limit
        self._context = context
        self._waiting: dict[HttpConnection, None] = {}  # without a whole request, the oldest first
        self._answering: dict[HttpConnection, None] = {}  # the oldest request first
        self._answered: dict[HttpConnection, None] = {}  # and idle since, the longest first
        # those whose TLS handshake has not ended, with the time of their arrival, the oldest first
        self._accepting: dict[asyncio.Task[object], float] = {}
        self._reserve: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """Return the port of a TCP socket."""
        port: int = self._socket.getsockname()[1]
        return port

    def open(self) -> None:
        """Begin to accept connections."""
        self._socket.settimeout(0)
        self._refill()
        self._loop.add_reader(self._socket, self._accept)
        self._sweep = self._loop.call_later(UNREAD_S / 4, self._close_stalled)

    def close(self) -> None:
        """Stop accepting connections; existing ones stay."""
        for timer in (self._timer, self._sweep):
            if timer is not None:
                timer.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
        for task in list(self._accepting):
            task.cancel()
        while self._reserve:
            os.close(self._reserve.pop())

    def add(self, connection: HttpConnection) -> None:
        """Count a connection."""
        self._waiting[connection] = None

    def mark_body(self, connection: HttpConnection) -> None:
        """Record that a connection has not sent the whole body of its request yet."""
        self._forget(connection)
        self._waiting[connection] = None

    def mark_request(self, connection: HttpConnection) -> None:
        """Record that a connection has sent a whole request."""
        self._forget(connection)
        self._answering[connection] = None

    def mark_answer(self, connection: HttpConnection) -> None:
        """Record that the request of a connection is answered."""
        if self._answering.pop(connection, self) is None:
            self._answered[connection] = None

    def _forget(self, connection: HttpConnection) -> None:
        for connections in (self._waiting, self._answering, self._answered):
            connections.pop(connection, None)

    def discard(self, connection: HttpConnection) -> None:
        """Stop counting a connection; its descriptor first fills the reserve."""
        self._forget(connection)
        if self._socket.fileno() >= 0:
            self._loop.call_soon(self._refill)  # the transport closes its socket after this

    def _accept(self) -> None:
        """Accept one connection; the event loop calls again while more connections wait."""
        if not self._has_room():
            return
        try:
            accepted, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                raise
            self._use_reserve()
            return
        accepted.settimeout(0)
        task: asyncio.Task[object] = self._loop.create_task(self._begin(accepted))
        self._accepting[task] = self._loop.time()
        task.add_done_callback(lambda task: self._accepting.pop(task, None))

    async def _begin(self, accepted: socket.socket) -> None:
        context = self._context()
        try:
            await self._loop.connect_accepted_socket(
                lambda: HttpConnection(self, self._server),
                accepted,
                ssl=context,
                ssl_handshake_timeout=None if context is None else HANDSHAKE_S,
                ssl_shutdown_timeout=None if context is None else CLOSING_S,
            )
        except OSError as error:
            log.debug("connection_lost", extra={"error": str(error)})
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise

    def _has_room(self) -> bool:
        """Return whether there is room for one more connection, and close one if needed.

        If none may be closed, accept again a bit later.
        """
        requests = len(self._answering) + len(self._answered)
        if len(self._waiting) + len(self._accepting) + requests < self._limit:
            return True
        if self._close_one():
            return True
        self._pause(GRACE_S)
        return False

    def _close_one(self) -> bool:
        """Close a connection to make room for another; return whether there was one to close."""
        requests = len(self._answering) + len(self._answered)
        if requests <= self._limit // 2 and (self._waiting or self._accepting):
            return self._close_oldest_without_request()
        answered = next(iter(self._answered), None) or self._oldest_unread()
        if answered is None:
            return self._close_oldest_without_request()
        self._close_connection(answered)
        return True

    def _oldest_unread(self) -> HttpConnection | None:
        """Return the connection with the oldest request whose peer does not read its answer."""
        now_s = self._loop.time()
        unread = [one for one in self._answering if one.is_stalled(now_s, GRACE_S)]
        return unread[0] if unread else None

    def _close_oldest_without_request(self) -> bool:
        oldest = self._oldest_without_request()
        if isinstance(oldest, asyncio.Task):
            self._accepting.pop(oldest, None)
            oldest.cancel()
        elif oldest is not None:
            self._close_connection(oldest)
        return oldest is not None

    def _oldest_without_request(self) -> HttpConnection | asyncio.Task[object] | None:
        """Return the oldest connection without a whole request; `None` while all are new."""
        now_s = self._loop.time()
        candidates: list[tuple[float, HttpConnection | asyncio.Task[object]]] = []
        for one in list(self._waiting)[:1]:
            candidates.append((one.waiting_s, one))
        for task, accepted_s in list(self._accepting.items())[:1]:
            candidates.append((accepted_s, task))
        if not candidates:
            return None
        accepted_s, oldest = min(candidates, key=lambda pair: pair[0])
        return oldest if now_s - accepted_s >= GRACE_S else None

    def _close_connection(self, connection: HttpConnection) -> None:
        self._forget(connection)
        connection.abort()

    def _use_reserve(self) -> None:
        """Provide a descriptor for the next connection, a reserved one if there is any.

        Else another connection is closed, whose descriptor becomes free.
        """
        if self._reserve:
            os.close(self._reserve.pop())
            return
        if not self._close_one():
            self._pause(PAUSE_S)

    def _refill(self) -> None:
        with contextlib.suppress(OSError):  # none is left: the next one that is closed is taken
            while len(self._reserve) < RESERVED_DESCRIPTORS and self._socket.fileno() >= 0:
                self._reserve.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _pause(self, pause_s: float) -> None:
        self._loop.remove_reader(self._socket)
        self._timer = self._loop.call_later(pause_s, self._resume)

    def _resume(self) -> None:
        self._loop.add_reader(self._socket, self._accept)

    def _close_stalled(self) -> None:
        now_s = self._loop.time()
        for connection in [
            one
            for one in (*self._waiting, *self._answering, *self._answered)
            if one.is_stalled(now_s, UNREAD_S)
        ]:
            self._close_connection(connection)
        self._sweep = self._loop.call_later(UNREAD_S / 4, self._close_stalled)


@web.middleware
async def track_request(request: web.Request, handler: RouteHandler) -> web.StreamResponse:
    """Report to the listener that a whole request has arrived on its connection."""
    connection = request.protocol
    if not isinstance(connection, HttpConnection):
        return await handler(request)
    connection.report_request()
    try:
        return await handler(request)
    finally:
        connection.report_answer()


async def add_security_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Add the headers that exclude other pages, also to error pages."""
    response.headers.update(SECURITY_HEADERS)
