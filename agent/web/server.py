"""The HTTP server: metrics, probes, page and JSON. It reads memory only and changes nothing."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Protocol

from aiohttp import web

from agent.access.certificates import certificate_of
from agent.access.connections import RouteHandler, add_security_headers, track_request
from agent.access.decision import ClientCredentials, Refusal, certificate_names
from agent.objects.yaml_text import to_yaml
from agent.runbook.self_checks import self_report
from agent.snapshot.publications import Publication
from agent.snapshot.self_check import SelfCheckReport
from agent.web.body import SHARE_S, SharedBodies, SlicedBody, deadline_s, render_body, send_body
from agent.web.device_json import devices_json
from agent.web.explanation import ExplanationHandlers
from agent.web.negotiation import (
    OPENMETRICS,
    OPENMETRICS_VERSION,
    accepts_gzip,
    accepts_openmetrics,
    scrape_timeout_s,
)
from agent.web.page.document import SCRIPT_PATH, StatusPage, script
from agent.web.page.svg import topology_svg
from agent.web.view import AgentView
from agent.wire_formats.snapshot_json import encode_json, snapshot_json, to_json_data

TEXT_FORMAT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = f"{OPENMETRICS}; version={OPENMETRICS_VERSION}; charset=utf-8"
JSON_TYPE = "application/json; charset=utf-8"
HTML_TYPE = "text/html; charset=utf-8"
SCRIPT_TYPE = "text/javascript; charset=utf-8"
MAX_REFRESH_S = 3600
STUCK = "the collector is stuck; see /healthz\n"
MAX_RENDERS = 16  # pages that wait for their turn
SCRAPE_TIMEOUT_HEADER = "X-Prometheus-Scrape-Timeout-Seconds"


# all other paths are for clients of this machine only
PUBLIC_PATHS = frozenset(("/metrics", "/livez", "/readyz"))
# those that a gate guards; the kubelet's probes have no credentials
GUARDED_PATHS = frozenset(("/metrics",))


class Gate(Protocol):
    """Decides who may read a guarded path; `agent.access.gate` implements it."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Return headers for the answers of guarded paths."""
        ...

    def is_current(self, context: ssl.SSLContext | None) -> bool:
        """Return whether a connection with this context was made by the rules in force."""
        ...

    async def check(self, credentials: ClientCredentials, path: str) -> Refusal | None:
        """Return `None` if the client may read the path, else the answer."""
        ...


def client_credentials(request: web.Request) -> ClientCredentials:
    """Return what the client presents with a request."""
    return ClientCredentials(
        peer=request.remote or "",
        authorization=request.headers.get("Authorization", ""),
        certificate_names=certificate_names(certificate_of(_ssl_object(request))),
    )


def _ssl_object(request: web.Request) -> ssl.SSLObject | None:
    transport = request.transport
    return None if transport is None else transport.get_extra_info("ssl_object")


_HOST_HEADER = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[0-9A-Za-z.-]+))(?::[0-9]{1,5})?"
)


def is_loopback(address: str | None) -> bool:
    """Return whether an IP address is a loopback address of this machine."""
    try:
        return ipaddress.ip_address(address or "").is_loopback
    except ValueError:
        return False


def names_loopback(host: str | None) -> bool:
    """Return whether a Host header, with or without a port, names the loopback."""
    parts = _HOST_HEADER.fullmatch((host or "").strip())
    if parts is None:
        return False
    name = parts["six"] or parts["name"]
    return name.lower() == "localhost" or is_loopback(name)


@web.middleware
async def _restrict_access(request: web.Request, handler: RouteHandler) -> web.StreamResponse:
    """Allow GET and HEAD only; pages that name pods and devices are for clients of this machine.

    The Host header must name the loopback, too: a page of another site may resolve its own name to
    127.0.0.1 and send requests with it.
    """
    if request.method not in ("GET", "HEAD"):
        raise web.HTTPMethodNotAllowed(request.method, ["GET", "HEAD"])
    local = is_loopback(request.remote) and names_loopback(request.headers.get("Host"))
    if request.path not in PUBLIC_PATHS and not local:
        raise web.HTTPForbidden(text="only by loopback: use http://127.0.0.1 or port-forward\n")
    return await handler(request)


def _guard(gate: Gate) -> Callable[..., Awaitable[web.StreamResponse]]:
    """Return the middleware that asks the gate before a guarded path is answered."""

    @web.middleware
    async def guard(request: web.Request, handler: RouteHandler) -> web.StreamResponse:
        if request.path not in GUARDED_PATHS:
            return await handler(request)
        refusal = await gate.check(client_credentials(request), request.path)
        if refusal is not None:
            return web.Response(
                status=refusal.status, text=refusal.text, headers=dict(refusal.headers)
            )
        return await handler(request)

    return guard


def _header_adder(
    gate: Gate,
) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        if request.path not in GUARDED_PATHS:
            return
        response.headers.update(gate.headers)
        connection = _ssl_object(request)
        if connection is not None and not gate.is_current(connection.context):
            # the client's certificate was checked by an authority of before
            response.force_close()
            response.headers["Connection"] = "close"

    return add_headers


class RenderRefused(Exception):
    """A page is not rendered now; the message is the answer."""


class PageHandlers:
    """The handlers. Slow pages are rendered on another thread than the event loop's."""

    def __init__(self, view: AgentView) -> None:
        self._view = view
        self._page = StatusPage(view)
        self._shared = SharedBodies()
        self._rendering = 0

    async def _respond(
        self,
        render: Callable[[], Iterable[bytes]],
        kind: str,
        request: web.Request,
        *,
        share_s: float | None = None,
    ) -> web.StreamResponse:
        """Answer with a page; `render` returns its chunks.

        A HEAD request gets only the headers, without a length: nothing is rendered for it. With
        `share_s`, readers get a body that is being rendered for another one, or is that young.
        """
        compress = accepts_gzip(request.headers.get("Accept-Encoding", ""))
        headers = {"Content-Type": kind, "Vary": "Accept, Accept-Encoding"}
        if compress:
            headers["Content-Encoding"] = "gzip"
        if request.method == "HEAD":
            return web.StreamResponse(headers=headers)
        timeout_s = scrape_timeout_s(request.headers.get(SCRAPE_TIMEOUT_HEADER, ""))
        within_s = deadline_s(timeout_s)
        try:
            if share_s is None:
                body = await self._render(render, compress=compress, within_s=within_s)
            else:
                # not within this reader's time: another one, with more time, may share the body
                whole_s = deadline_s(None)
                async with asyncio.timeout(within_s):
                    body = await self._shared.get(
                        (request.path, kind, compress),
                        lambda: self._render(render, compress=compress, within_s=whole_s),
                        share_s,
                    )
        except TimeoutError as error:
            raise web.HTTPServiceUnavailable(text=STUCK) from error
        except RenderRefused as error:
            raise web.HTTPServiceUnavailable(text=str(error)) from error
        return await send_body(request, headers, body)

    async def _render(
        self, render: Callable[[], Iterable[bytes]], *, compress: bool, within_s: float
    ) -> bytes:
        """Render pages one at a time; refuse a request if too many wait."""
        if self._rendering >= MAX_RENDERS:
            raise RenderRefused("too many requests at once\n")
        self._rendering += 1
        try:
            body = SlicedBody(render, compress=compress)
            return await render_body(body, self._view.offload, within_s)
        except TimeoutError as error:
            raise RenderRefused(STUCK) from error
        finally:
            self._rendering -= 1

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """Return the exposition in the format that `Accept` asks for."""
        openmetrics = accepts_openmetrics(request.headers.get("Accept", ""))
        kind = OPENMETRICS_TYPE if openmetrics else TEXT_FORMAT_TYPE
        return await self._respond(
            lambda: self._view.metrics(openmetrics=openmetrics), kind, request, share_s=0.0
        )

    def _report(self) -> SelfCheckReport:
        return self_report(self._view.snapshot(), self._view.now_s()[0])

    async def livez(self, _: web.Request) -> web.Response:
        """Answer that the event loop runs."""
        return web.Response(text="ok\n")

    async def readyz(self, _: web.Request) -> web.Response:
        """Return 200 if every check that gates readiness holds, else 503; the body is one word."""
        ready = self._report().is_ready
        return web.Response(text="ok\n" if ready else "unready\n", status=200 if ready else 503)

    async def healthz(self, request: web.Request) -> web.Response:
        """Return the checks, one per line, with `?verbose`; else as `/readyz`."""
        if "verbose" not in request.query:
            return await self.readyz(request)
        report = self._report()
        lines = [f"[{'+' if c.ok else '-'}] {c.name} {c.message}".rstrip() for c in report.checks]
        lines.append("ready" if report.is_ready else "not ready")
        return web.Response(text="\n".join(lines) + "\n", status=200 if report.is_ready else 503)

    async def page(self, request: web.Request) -> web.StreamResponse:
        """Return the status page; with `?refresh=SECONDS` the browser reloads it."""
        value = request.query.get("refresh", "")
        refresh = int(value) if value.isdecimal() and 1 <= len(value) <= 4 else None
        if refresh is not None:
            refresh = max(1, min(refresh, MAX_REFRESH_S))
        pieces = self._page.render
        return await self._respond(
            lambda: _encode(pieces(refresh)),
            HTML_TYPE,
            request,
            share_s=SHARE_S if refresh is None else None,
        )

    async def runbook(self, request: web.Request) -> web.StreamResponse:
        """Return the runbook; `/runbook#ANCHOR` is the entry of a reason."""
        return await self._respond_html(self._page.render_runbook, request)

    async def pods(self, request: web.Request) -> web.StreamResponse:
        """Return the page with every pod."""
        return await self._respond_html(self._page.render_pods, request)

    async def settings(self, request: web.Request) -> web.StreamResponse:
        """Return the page with every setting, its value and its origin."""
        return await self._respond_html(self._page.render_settings, request)

    async def object_texts(self, request: web.Request) -> web.StreamResponse:
        """Return the page with the text of every published object."""
        return await self._respond_html(self._page.render_objects, request)

    async def distances(self, request: web.Request) -> web.StreamResponse:
        """Return the page with the distances of all pairs of devices."""
        return await self._respond_html(self._page.render_distances, request)

    async def _respond_html(
        self, render: Callable[[], Iterator[str]], request: web.Request
    ) -> web.StreamResponse:
        return await self._respond(lambda: _encode(render()), HTML_TYPE, request, share_s=SHARE_S)

    async def script(self, _: web.Request) -> web.Response:
        """Return the script that renews the page."""
        return web.Response(body=script(), headers={"Content-Type": SCRIPT_TYPE})

    async def topology_svg(self, request: web.Request) -> web.StreamResponse:
        """Return the topology as SVG."""
        return await self._respond(
            lambda: [topology_svg(self._view.snapshot()).encode()],
            "image/svg+xml; charset=utf-8",
            request,
        )

    async def devices(self, request: web.Request) -> web.StreamResponse:
        """Return what `xpu-agent devices -o json` prints."""
        return await self._respond(
            lambda: [encode_json(devices_json(self._view.snapshot().devices.value))],
            JSON_TYPE,
            request,
        )

    async def audit(self, request: web.Request) -> web.StreamResponse:
        """Return the last changes of files on this host, newest first."""

        def render() -> list[bytes]:
            rows = [to_json_data(record) for record in reversed(self._view.snapshot().audit)]
            return [encode_json({"audit": rows})]

        return await self._respond(render, JSON_TYPE, request)

    async def objects(self, request: web.Request) -> web.StreamResponse:
        """Return each object as it was last published, as text, with its destination."""

        def render() -> list[bytes]:
            published = self._view.snapshot().publications
            return [encode_json({"objects": [_publication_json(one) for one in published]})]

        return await self._respond(render, JSON_TYPE, request)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Return the last events, oldest first."""

        def render() -> list[bytes]:
            events = [to_json_data(event) for event in self._view.snapshot().events]
            return [encode_json({"events": events})]

        return await self._respond(render, JSON_TYPE, request)

    async def problems(self, request: web.Request) -> web.StreamResponse:
        """Return everything that is wrong on the node, the worst first."""

        def render() -> list[bytes]:
            problems = self._page.problems(self._view.snapshot())
            return [encode_json({"problems": [to_json_data(one) for one in problems]})]

        return await self._respond(render, JSON_TYPE, request)

    async def snapshot(self, request: web.Request) -> web.StreamResponse:
        """Return what `xpu-agent snapshot` prints."""

        def render() -> list[bytes]:
            return [encode_json(snapshot_json(self._view.snapshot(), self._view.now_s()[0]))]

        return await self._respond(render, JSON_TYPE, request)


def _encode(pieces: Iterable[str]) -> Iterator[bytes]:
    """Yield the pieces of a page as bytes; names that are not UTF-8 are made readable."""
    return (piece.encode("utf-8", "replace") for piece in pieces)


def _publication_json(publication: Publication) -> dict[str, str]:
    return {
        "kind": publication.desired.kind,
        "text": to_yaml(publication.desired.body).decode(),
        "where": publication.where,
        "problem": publication.problem,
    }


def create_page_app(view: AgentView, gate: Gate | None = None) -> web.Application:
    """Return the application; it does not listen yet. Without a gate everybody reads metrics."""
    pages = PageHandlers(view)
    middlewares = [track_request, _restrict_access]
    app = web.Application(
        middlewares=middlewares if gate is None else [*middlewares, _guard(gate)],
        client_max_size=1024,
    )
    app.on_response_prepare.append(add_security_headers)
    if gate is not None:
        app.on_response_prepare.append(_header_adder(gate))
    app.router.add_get("/metrics", pages.metrics)
    app.router.add_get("/livez", pages.livez)
    app.router.add_get("/readyz", pages.readyz)
    app.router.add_get("/healthz", pages.healthz)
    app.router.add_get("/", pages.page)
    app.router.add_get("/status", pages.page)
    app.router.add_get("/runbook", pages.runbook)
    app.router.add_get("/pods", pages.pods)
    app.router.add_get("/settings", pages.settings)
    app.router.add_get("/distances", pages.distances)
    app.router.add_get("/objects", pages.object_texts)
    app.router.add_get(SCRIPT_PATH, pages.script)
    app.router.add_get("/topology.svg", pages.topology_svg)
    app.router.add_get("/api/v1/devices", pages.devices)
    app.router.add_get("/api/v1/snapshot", pages.snapshot)
    app.router.add_get("/api/v1/audit", pages.audit)
    app.router.add_get("/api/v1/objects", pages.objects)
    app.router.add_get("/api/v1/events", pages.events)
    app.router.add_get("/api/v1/problems", pages.problems)
    ExplanationHandlers(view).add_routes(app)
    return app
