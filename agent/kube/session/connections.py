"""The pool of connections to one server: kept alive, bounded, given up when the peer is gone."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from agent.kube.base import JSON, Request
from agent.kube.proxy import Proxy
from agent.version import VERSION

if TYPE_CHECKING:
    from ssl import SSLContext
    from types import SimpleNamespace

    import aiohttp
    from aiohttp.abc import AbstractCookieJar

CONNECT_S = 5.0  # TCP and TLS to one address
IDLE_S = 80.0  # an API server closes after 90; the looks of each minute find it open
MAX_CONNECTIONS = 32
# A node that vanished answers nothing, not even a reset: the kernel asks it and gives up.
KEEPALIVE_IDLE_S = 15
KEEPALIVE_EVERY_S = 5
KEEPALIVE_TRIES = 3
UNACKNOWLEDGED_MS = 20_000
SAFE_PATH = "/:@!$&'()*+,;=~-._"
READ_BUFFER_BYTES = 256 << 10
USER_AGENT = f"xpu-agent/{VERSION}"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server is. `url` may have a path, which then comes before that of every request."""

    url: str
    server_name: str = ""  # in its certificate, where that is not the host of `url`
    proxy: Proxy | None = None

    @property
    def is_tls(self) -> bool:
        """Say whether others on the way can read what is sent."""
        return self.url.lower().startswith("https://")

    def __str__(self) -> str:
        """Return scheme, host and port, for messages."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def url_of(self, request: Request) -> str:
        """Return where a request goes, everything escaped that must be."""
        query = f"?{urlencode(request.query, quote_via=quote)}" if request.query else ""
        return f"{self.url.rstrip('/')}{quote(request.path, safe=SAFE_PATH)}{query}"


class Attempt:
    """What became of one request on its way; filled in while it is sent."""

    def __init__(self, verb: str) -> None:
        """Begin: nothing is known yet."""
        self.verb = verb
        self.stage = "waiting for a connection"
        self.reused = False
        self.answered = False
        self._connections = 0
        self._told = 0

    def took(self, *, reused: bool) -> None:
        """Note the connection it goes over."""
        self.stage = "waiting for the answer"
        self.reused = reused
        self._connections += 1

    def repeats(self) -> int:
        """Return how often it was sent again since this was asked last."""
        again = max(0, self._connections - 1) - self._told
        self._told += again
        return again


class Connections:
    """Makes the HTTP client when it is first needed. Belongs to the loop thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Open nothing yet."""
        self._endpoint = endpoint
        self._http: aiohttp.ClientSession | None = None
        self._sockets: tuple[socket.socket, ...] = ()  # replaced whole: read by other threads
        self.opened = 0
        self.closed = False

    @property
    def open(self) -> int:
        """Count the connections that are open, idle ones too."""
        return sum(sock.fileno() >= 0 for sock in self._sockets)

    @property
    def http(self) -> aiohttp.ClientSession:
        """Return the client; no redirect, cookie, `.netrc` or compression is its own idea.

        Nothing is asked for compressed: the server would pack every list of 128 KiB anew, for
        each node of a fleet that comes back at once, to spare bytes that cost less inside a
        cluster; and what is never unpacked cannot burst.
        """
        if self._http is None:
            # imported here: 180 ms that only a session needs, see `load_http`
            import aiohttp  # noqa: PLC0415 - see above

            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=MAX_CONNECTIONS, keepalive_timeout=IDLE_S, socket_factory=self._socket
                ),
                cookie_jar=_no_cookies(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
                auto_decompress=False,
                trust_env=False,
                read_bufsize=READ_BUFFER_BYTES,
                trace_configs=[_tracing()],
            )
        return self._http

    async def send(
        self, request: Request, authorization: str | None, tls: SSLContext | None, attempt: Attempt
    ) -> aiohttp.ClientResponse:
        """Send a request and return the answer, its body unread; raise the library's errors."""
        import yarl  # noqa: PLC0415 - comes with the HTTP library

        headers = {"Accept": JSON}
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
        """Close all connections; what is under way fails."""
        self.closed = True
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
        self.opened += 1
        self._sockets = (*(old for old in self._sockets if old.fileno() >= 0), sock)
        return sock


def _no_cookies() -> AbstractCookieJar:
    import aiohttp  # noqa: PLC0415 - as above

    return aiohttp.DummyCookieJar()


def _tracing() -> aiohttp.TraceConfig:
    import aiohttp  # noqa: PLC0415 - as above

    async def opened(_: object, context: SimpleNamespace, __: object) -> None:
        context.trace_request_ctx.took(reused=False)

    async def reused(_: object, context: SimpleNamespace, __: object) -> None:
        context.trace_request_ctx.took(reused=True)

    async def opening(_: object, context: SimpleNamespace, __: object) -> None:
        context.trace_request_ctx.stage = "connecting"

    config = aiohttp.TraceConfig()
    config.on_connection_create_start.append(opening)
    config.on_connection_create_end.append(opened)
    config.on_connection_reuseconn.append(reused)
    return config
