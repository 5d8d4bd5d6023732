"""The HTTP server: metrics, probes, page and JSON; reads only, no action, no file from disk."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
from collections.abc import Awaitable, Callable

from aiohttp import web

from agent.publish.device_view import devices_json
from agent.publish.snapshot_json import dumps, plain, snapshot_json
from agent.web.base import AgentView
from agent.web.page import render_page
from agent.web.svg import topology_svg

TEXT_0_0_4 = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
JSON = "application/json; charset=utf-8"
MAX_REFRESH_S = 3600
MAX_RENDERING = 16  # pages that wait for their turn
MAX_CALLERS = 32  # connections that asked something: each may hold an answer that nobody reads
COMPRESS_LEVEL = 1  # a scrape is small; the processor is the node's, not ours

SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


PUBLIC = frozenset(("/metrics", "/livez", "/readyz"))  # all else is for loopback alone


def is_loopback(address: str | None) -> bool:
    """Say whether an address or a Host header names this machine's loopback."""
    name = (address or "").strip()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer GET and HEAD only; add the headers that keep other pages out.

    What names pods and devices is for loopback. The Host header counts too: a page of another
    site may resolve its own name to 127.0.0.1 and ask with it.
    """
    if request.method not in ("GET", "HEAD"):
        raise web.HTTPMethodNotAllowed(request.method, ["GET", "HEAD"])
    private = request.path not in PUBLIC
    if private and not (is_loopback(request.remote) and is_loopback(request.headers.get("Host"))):
        raise web.HTTPForbidden(text="only by loopback: use http://127.0.0.1 or port-forward\n")
    response = await handler(request)
    response.headers.update(SECURITY)
    return response


class Callers:
    """Holds a bounded number of connections; the one that asked last the longest ago goes."""

    def __init__(self) -> None:
        self._known: dict[asyncio.Transport, None] = {}  # in the order of their last questions

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer, and hang up on somebody else if there are too many."""
        transport = request.transport
        if transport is not None:
            self._known.pop(transport, None)
            self._known[transport] = None
        if len(self._known) > MAX_CALLERS:
            self._forget()
        return await handler(request)

    def _forget(self) -> None:
        self._known = {known: None for known in self._known if not known.is_closing()}
        for known in list(self._known)[: max(0, len(self._known) - MAX_CALLERS)]:
            del self._known[known]
            known.abort()


class Pages:
    """The handlers. Everything slow is rendered off the event loop's thread."""

    def __init__(self, view: AgentView) -> None:
        self._view = view
        self._rendering = 0

    async def _body(
        self, render: Callable[[], bytes], kind: str, request: web.Request
    ) -> web.Response:
        squeeze = "gzip" in request.headers.get("Accept-Encoding", "")

        def work() -> bytes:
            body = render()
            return gzip.compress(body, COMPRESS_LEVEL) if squeeze else body

        headers = {"Content-Type": kind, "Vary": "Accept-Encoding"}
        if squeeze:
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=await self._offload(work), headers=headers)

    async def _offload(self, work: Callable[[], bytes]) -> bytes:
        """Render in turn; refuse what would wait too long rather than let it pile up."""
        if self._rendering >= MAX_RENDERING:
            raise web.HTTPServiceUnavailable(text="too many requests at once\n")
        self._rendering += 1
        try:
            return await self._view.offload(work)
        except TimeoutError as error:
            raise web.HTTPServiceUnavailable(
                text="the collector is stuck; see /healthz\n"
            ) from error
        finally:
            self._rendering -= 1

    async def metrics(self, request: web.Request) -> web.Response:
        """Return the exposition in the format that `Accept` asks for."""
        wanted = "application/openmetrics-text" in request.headers.get("Accept", "")
        kind = OPENMETRICS if wanted else TEXT_0_0_4
        return await self._body(lambda: self._view.metrics(openmetrics=wanted), kind, request)

    async def livez(self, _: web.Request) -> web.Response:
        """Say that the event loop runs: it just did."""
        return web.Response(text="ok\n")

    async def readyz(self, _: web.Request) -> web.Response:
        """Return 200 when every check that gates readiness holds, else 503; one word."""
        ready = self._view.self_report().ready
        return web.Response(text="ok\n" if ready else "unready\n", status=200 if ready else 503)

    async def healthz(self, request: web.Request) -> web.Response:
        """Return the checks, one a line, with `?verbose`; else as `/readyz`."""
        if "verbose" not in request.query:
            return await self.readyz(request)
        report = self._view.self_report()
        lines = [f"[{'+' if c.ok else '-'}] {c.name} {c.message}".rstrip() for c in report.checks]
        lines.append("ready" if report.ready else "not ready")
        return web.Response(text="\n".join(lines) + "\n", status=200 if report.ready else 503)

    async def page(self, request: web.Request) -> web.Response:
        """Return the status page; `?refresh=SECONDS` makes it load itself again."""
        wanted = request.query.get("refresh", "")
        refresh = int(wanted) if wanted.isdecimal() and 1 <= len(wanted) <= 4 else None
        if refresh is not None:
            refresh = max(1, min(refresh, MAX_REFRESH_S))
        return await self._body(
            lambda: render_page(self._view, refresh).encode(), "text/html; charset=utf-8", request
        )

    async def picture(self, request: web.Request) -> web.Response:
        """Return the topology as SVG."""
        return await self._body(
            lambda: topology_svg(self._view.snapshot()).encode(),
            "image/svg+xml; charset=utf-8",
            request,
        )

    async def devices(self, request: web.Request) -> web.Response:
        """Return what `xpu-agent devices -o json` prints."""
        return await self._body(
            lambda: dumps(devices_json(self._view.snapshot().devices.value)), JSON, request
        )

    async def audit(self, request: web.Request) -> web.Response:
        """Return the last changes of files on this host, newest first."""

        def render() -> bytes:
            rows = [plain(one) for one in reversed(self._view.audit())]
            return dumps({"audit": rows})

        return await self._body(render, JSON, request)

    async def whole(self, request: web.Request) -> web.Response:
        """Return what `xpu-agent snapshot` prints."""

        def render() -> bytes:
            return dumps(snapshot_json(self._view.snapshot(), self._view.now_s()[0]))

        return await self._body(render, JSON, request)


def create_app(view: AgentView) -> web.Application:
    """Return the application; nothing listens yet."""
    pages = Pages(view)
    app = web.Application(middlewares=[Callers().admit, _guard], client_max_size=1024)
    app.router.add_get("/metrics", pages.metrics)
    app.router.add_get("/livez", pages.livez)
    app.router.add_get("/readyz", pages.readyz)
    app.router.add_get("/healthz", pages.healthz)
    app.router.add_get("/", pages.page)
    app.router.add_get("/status", pages.page)
    app.router.add_get("/topology.svg", pages.picture)
    app.router.add_get("/api/v1/devices", pages.devices)
    app.router.add_get("/api/v1/snapshot", pages.whole)
    app.router.add_get("/api/v1/audit", pages.audit)
    return app
