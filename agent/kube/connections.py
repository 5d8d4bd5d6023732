"""The pool of HTTP connections to one server, and bounded reading of bodies and lines."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from ssl import SSLContext
from types import SimpleNamespace

import aiohttp
import yarl

from agent.kube.api import JSON_TYPE, ApiRequest
from agent.kube.endpoint import Endpoint
from agent.kube.errors import BadResponse
from agent.kube.http_errors import RequestRoute, translate_errors
from agent.version import VERSION

CONNECT_S = 5.0  # TCP and TLS to one address
IDLE_S = 80.0  # an API server closes after 90; the reads of each minute find the connection open
MAX_CONNECTIONS = 32

# A server that vanished sends no reset: keepalive probes of the kernel detect it.
KEEPALIVE_IDLE_S = 15
KEEPALIVE_EVERY_S = 5
KEEPALIVE_TRIES = 3
UNACKNOWLEDGED_MS = 20_000
READ_BUFFER_BYTES = 256 << 10
USER_AGENT = f"xpu-agent/{VERSION}"


class RequestAttempt:
    """The progress of one request; updated while it is sent."""

    def __init__(self, verb: str) -> None:
        """Start before any connection is used."""
        self.verb = verb
        self.stage = "waiting for a connection"
        self.is_reused = False
        self.is_answered = False
        self._connections = 0
        self._reported_repeats = 0

    def use_connection(self, *, reused: bool) -> None:
        """Record the connection that the request uses."""
        self.stage = "waiting for the answer"
        self.is_reused = reused
        self._connections += 1

    def take_repeats(self) -> int:
        """Return how often the request was sent again since the last call of this method."""
        repeats = max(0, self._connections - 1) - self._reported_repeats
        self._reported_repeats += repeats
        return repeats


class ConnectionPool:
    """Creates the HTTP client at its first use. Belongs to the loop thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Open nothing yet."""
        self._endpoint = endpoint
        self._http: aiohttp.ClientSession | None = None
        self._sockets: tuple[socket.socket, ...] = ()  # replaced as a whole: other threads read it
        self.opened_count = 0
        self.is_closed = False

    @property
    def open_count(self) -> int:
        """Return the number of open connections, idle ones included."""
        return sum(sock.fileno() >= 0 for sock in self._sockets)

    @property
    def http(self) -> aiohttp.ClientSession:
        """Return the client; it follows no redirect and uses no cookie, `.netrc` or compression.

        Responses are not compressed: the server would compress each list of 128 KiB or more again
        for each node of a fleet that reconnects at once, to save bytes that cost less inside a
        cluster. Data that are never decompressed cannot exhaust memory either.
        """
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=MAX_CONNECTIONS, keepalive_timeout=IDLE_S, socket_factory=self._socket
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
                auto_decompress=False,
                trust_env=False,
                read_bufsize=READ_BUFFER_BYTES,
                trace_configs=[_tracing()],
            )
        return self._http

    async def send(
        self,
        request: ApiRequest,
        authorization: str | None,
        tls: SSLContext | None,
        attempt: RequestAttempt,
    ) -> aiohttp.ClientResponse:
        """Send a request and return the response, its body unread; raise the library's errors."""
        headers = {"Accept": JSON_TYPE}
        if authorization is not None:
            headers["Authorization"] = authorization
        if request.body:
            headers["Content-Type"] = request.content_type
        proxy = self._endpoint.proxy
        return await self.http.request(
            request.method,
            yarl.URL(self._endpoint.url_of(request), encoded=True),
            data=request.body or None,
            headers=headers,
            allow_redirects=False,
            ssl=True if tls is None else tls,
            server_hostname=self._endpoint.server_name or None,
            proxy=proxy.url if proxy else None,
            proxy_headers=proxy.headers() if proxy else None,
            trace_request_ctx=attempt,
        )

    async def close(self) -> None:
        """Close all connections; requests in progress fail."""
        self.is_closed = True
        if self._http is not None:
            await self._http.close()

    def _socket(self, address: tuple[int, int, int, str, object]) -> socket.socket:
        family, kind, protocol, _, _ = address
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
            (socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S),
            (socket.TCP_KEEPCNT, KEEPALIVE_TRIES),
            (socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS),
        ):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self.opened_count += 1
        self._sockets = (*(old for old in self._sockets if old.fileno() >= 0), sock)
        return sock


def _tracing() -> aiohttp.TraceConfig:
    async def opened(_: object, context: SimpleNamespace, __: object) -> None:
        context.trace_request_ctx.use_connection(reused=False)

    async def reused(_: object, context: SimpleNamespace, __: object) -> None:
        context.trace_request_ctx.use_connection(reused=True)

    async def opening(_: object, context: SimpleNamespace, __: object) -> None:
        context.trace_request_ctx.stage = "connecting"

    config = aiohttp.TraceConfig()
    config.on_connection_create_start.append(opening)
    config.on_connection_create_end.append(opened)
    config.on_connection_reuseconn.append(reused)
    return config


@contextlib.contextmanager
def fail_body_on_disconnect(response: aiohttp.ClientResponse) -> Iterator[None]:
    """Make a read of the body fail when the connection is lost.

    The library does so itself except after a broken chunk: aiohttp 3.14 then closes the connection
    and leaves the reader waiting.
    """
    protocol = response.connection.protocol if response.connection is not None else None
    lost = protocol.closed if protocol is not None else None
    if lost is None:  # the whole body has arrived
        yield
        return

    def end(_: asyncio.Future[None]) -> None:
        if not response.content.is_eof() and response.content.exception() is None:
            response.content.set_exception(aiohttp.ClientPayloadError("the connection is gone"))

    lost.add_done_callback(end)
    try:
        yield
    finally:
        lost.remove_done_callback(end)
        lost.remove_done_callback(
            _retrieve_exception
        )  # of an earlier response on the same connection
        lost.add_done_callback(_retrieve_exception)


def _retrieve_exception(lost: asyncio.Future[None]) -> None:
    """Retrieve the exception of a connection's end; else asyncio logs it as never retrieved."""
    if not lost.cancelled():
        lost.exception()


async def read_body(
    response: aiohttp.ClientResponse, description: str, route: RequestRoute, limit_bytes: int
) -> bytes:
    """Return a whole body; raise `BadResponse` as soon as it exceeds the limit."""
    too_long = BadResponse(description, f"an answer of more than {limit_bytes} bytes")
    if (response.content_length or 0) > limit_bytes:
        raise too_long
    body = bytearray()
    with translate_errors(description, route, begun=True):
        while chunk := await response.content.readany():
            body += chunk
            if len(body) > limit_bytes:
                raise too_long
    return bytes(body)


async def read_chunk(
    response: aiohttp.ClientResponse, description: str, route: RequestRoute, until_s: float
) -> bytes:
    """Return the next bytes, empty at an orderly end; raise `TimeoutError`.

    `until_s` is a time of the event loop's clock.
    """
    async with asyncio.timeout_at(until_s):
        with translate_errors(description, route, begun=True):
            return await response.content.readany()


class LineReader:
    """Joins lines that are spread over chunks; each byte is copied once.

    A line raises `BadResponse` as soon as it is longer than `limit_bytes`.
    """

    def __init__(self, description: str, limit_bytes: int) -> None:
        """Take a description for messages, and the limit of one line."""
        self._description = description
        self._limit_bytes = limit_bytes
        self._line_chunks: list[bytes] = []
        self.pending_bytes = 0
        """Bytes of a line whose end has not arrived yet."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that this chunk completes, without line ends; skip empty lines."""
        first, *rest = chunk.split(b"\n")
        self._append(first)
        lines: list[bytes] = []
        for part in rest:
            lines.append(b"".join(self._line_chunks))
            self._line_chunks.clear()
            self.pending_bytes = 0
            self._append(part)
        return [line for line in (line.rstrip(b"\r") for line in lines) if line]

    def _append(self, part: bytes) -> None:
        self.pending_bytes += len(part)
        if self.pending_bytes > self._limit_bytes:
            raise BadResponse(self._description, f"a line of more than {self._limit_bytes} bytes")
        if part:
            self._line_chunks.append(part)
