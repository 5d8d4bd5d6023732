"""The HTTP server: metrics, probes, page and JSON; reads only, no action, no file from disk."""

from __future__ import annotations

import gzip
import ipaddress
import re
from collections.abc import Callable

from aiohttp import web

from agent.publish.device_view import devices_json
from agent.publish.snapshot_json import dumps, plain, snapshot_json
from agent.web.base import AgentView
from agent.web.connections import Handler, add_headers, note_request
from agent.web.page import render_page
from agent.web.svg import topology_svg

TEXT_0_0_4 = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
JSON = "application/json; charset=utf-8"
MAX_REFRESH_S = 3600
MAX_RENDERING = 16  # pages that wait for their turn
COMPRESS_LEVEL = 1  # a scrape is small; the processor is the node's, not ours


PUBLIC = frozenset(("/metrics", "/livez", "/readyz"))  # all else is for loopback alone


_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[0-9A-Za-z.-]+))(?::[0-9]{1,5})?")


def is_loopback(address: str | None) -> bool:
    """Return whether an IP address is one of this machine's loopback."""
    try:
        return ipaddress.ip_address(address or "").is_loopback
    except ValueError:
        return False


def names_loopback(host: str | None) -> bool:
    """Return whether a Host header, with or without a port, names the loopback and nothing else."""
    parts = _HOST.fullmatch((host or "").strip())
    if parts is None:
        return False
    name = parts["six"] or parts["name"]
    return name.lower() == "localhost" or is_loopback(name)


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer GET and HEAD only, and what names pods and devices to nobody else.

    What names pods and devices is for loopback. The Host header counts too: a page of another
    site may resolve its own name to 127.0.0.1 and ask with it.
    """
    if request.method not in ("GET", "HEAD"):
        raise web.HTTPMethodNotAllowed(request.method, ["GET", "HEAD"])
    local = is_loopback(request.remote) and names_loopback(request.headers.get("Host"))
    if request.path not in PUBLIC and not local:
        raise web.HTTPForbidden(text="only by loopback: use http://127.0.0.1 or port-forward\n")
    return await handler(request)


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

    async def objects(self, request: web.Request) -> web.Response:
        """Return each object as it was published last, as text, and where it went."""

        def render() -> bytes:
            return dumps({"objects": [plain(one) for one in self._view.objects()]})

        return await self._body(render, JSON, request)

    async def events(self, request: web.Request) -> web.Response:
        """Return the last events, oldest first."""

        def render() -> bytes:
            return dumps({"events": [plain(one) for one in self._view.events()]})

        return await self._body(render, JSON, request)

    async def whole(self, request: web.Request) -> web.Response:
        """Return what `xpu-agent snapshot` prints."""

        def render() -> bytes:
            return dumps(snapshot_json(self._view.snapshot(), self._view.now_s()[0]))

        return await self._body(render, JSON, request)


def create_app(view: AgentView) -> web.Application:
    """Return the application; nothing listens yet."""
    pages = Pages(view)
    app = web.Application(middlewares=[note_request, _guard], client_max_size=1024)
    app.on_response_prepare.append(add_headers)
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
    app.router.add_get("/api/v1/objects", pages.objects)
    app.router.add_get("/api/v1/events", pages.events)
    return app
