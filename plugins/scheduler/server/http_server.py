"""The HTTP server of the extender: kube-scheduler's verbs, probes, metrics and diagnosis."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

import msgspec
from aiohttp import web

from agent.access import connections
from agent.access.certificates import ACCEPT, NO_CERTIFICATES, TlsConfig, certificate_of
from agent.access.decision import certificate_names
from agent.access.rules import AccessFiles, AccessSettings, following_context
from agent.errors import AgentError, BadConfig, ParseError, failure_text
from plugins.scheduler.allocation_audit import AllocationAudit
from plugins.scheduler.cluster_state import ClusterState
from plugins.scheduler.server.binding import Binder, BindFailed
from plugins.scheduler.server.cluster_feed import ClusterFeed
from plugins.scheduler.server.extender import Extender
from plugins.scheduler.server.extender_metrics import (
    CallStatistics,
    call_lines,
    device_lines,
    term_lines,
)
from plugins.scheduler.server.extender_wire import (
    BadExtenderRequest,
    decode_bind_request,
    decode_nodes_request,
    decode_preemption_request,
    encode_error,
)
from plugins.scheduler.server.scheduler_events import SchedulerEvents
from plugins.scheduler.server.settings import TlsSettings
from plugins.scheduler.server.summaries import node_summary

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 256 << 20  # of one call that carries whole nodes
BODY_S = 30.0  # for the body of a call: kube-scheduler does not wait for longer
# the calls for all pods of a gang wait at the same time, each on a connection of its own
MAX_CONNECTIONS = 2048
DESCRIPTORS_PER_CONNECTION = 2
BACKLOG = 1024
JSON_TYPE = "application/json"
MAX_FLAG_DIGITS = 3


class CannotListen(AgentError):
    """The address is in use, or not of this machine."""


class Term(Protocol):
    """One term as the leader: the objects that answer, filled by watches."""

    state: ClusterState
    extender: Extender
    binder: Binder
    feed: ClusterFeed
    audit: AllocationAudit
    events: SchedulerEvents


class TermSource(Protocol):
    """Knows whether this replica answers now."""

    def current_term(self) -> Term | None:
        """Return the objects that answer.

        `None` while this replica is not the leader or not synced.
        """
        ...

    def why_silent(self) -> str:
        """Return why there is no term, for people."""
        ...


class ExtenderServer:
    """Serves one listen address. Belongs to the loop thread."""

    def __init__(
        self,
        terms: TermSource,
        context: ssl.SSLContext | None,
        client_names: Iterable[str] = (),
    ) -> None:
        """Without a context the server speaks plain HTTP.

        With `client_names`, a client's certificate must have one of them.
        """
        self.statistics = CallStatistics()
        self._terms = terms
        self._context = context
        self._client_names = frozenset(client_names)
        self._runner: web.AppRunner | None = None
        self._listeners: list[connections.HttpListener] = []

    async def open(self, host: str, port: int) -> str:
        """Listen, and return the address; raise `CannotListen`."""
        app = web.Application(
            client_max_size=MAX_BODY_BYTES,
            middlewares=[connections.track_request, self._check_client],
        )
        for prefix in ("", "/v1"):
            for verb, handler in self._verbs().items():
                app.router.add_post(f"{prefix}/{verb}", self._handler(verb, handler))
        app.router.add_get("/livez", self._live)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/metrics", self._metrics)
        summaries = "/apis/v1/plugins/DeviceShare/nodeDeviceSummaries"
        app.router.add_get(summaries, self._summaries)
        app.router.add_get(summaries + "/{node}", self._summary)
        app.router.add_get("/apis/v1/nodes/{node}", self._summary)
        app.router.add_get("/apis/v1/explain/{namespace}/{pod}", self._explain)
        app.router.add_get("/apis/v1/__services__", self._services)
        app.router.add_put("/debug/flags/v", self._set_verbosity)
        app.router.add_put("/debug/flags/s", self._set_logged_scores)
        self._runner = runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        await runner.setup()
        assert runner.server is not None  # noqa: S101 - made by `setup`
        limit = connections.max_connections(MAX_CONNECTIONS, DESCRIPTORS_PER_CONNECTION)
        try:
            for bound in await connections.bind_address(host, port, BACKLOG):
                listener = connections.HttpListener(
                    runner.server, bound, limit, lambda: self._context
                )
                self._listeners.append(listener)
                listener.open()
        except OSError as error:
            raise CannotListen(f"cannot listen on {host}:{port}: {failure_text(error)}") from error
        scheme = "https" if self._context is not None else "http"
        return f"{scheme}://{host}:{self._listeners[0].port}"

    async def close(self) -> None:
        """End all calls."""
        for listener in self._listeners:
            listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _check_client(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse clients whose certificate has none of the names in the settings."""
        if self._client_names:
            transport = request.transport
            connection = None if transport is None else transport.get_extra_info("ssl_object")
            names = certificate_names(certificate_of(connection)) or frozenset()
            if self._client_names.isdisjoint(names):
                return web.Response(status=403, text="this client certificate is not allowed\n")
        return await handler(request)

    def _verbs(self) -> Mapping[str, Callable[[Term, bytes], Awaitable[bytes]]]:
        return {
            "filter": _filter,
            "prioritize": _prioritize,
            "preempt": _preempt,
            "bind": _bind,
        }

    def _handler(
        self, verb: str, answer: Callable[[Term, bytes], Awaitable[bytes]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            begun_s = time.perf_counter()
            result = "bad_request"
            try:
                body = await _read_body(request)
                result = "error"  # unless an answer follows
                term = self._terms.current_term()
                if term is None:
                    result = "not_leader"
                    return web.Response(status=503, text=self._terms.why_silent() + "\n")
                response = web.Response(body=await answer(term, body), content_type=JSON_TYPE)
                result = "ok"
                return response
            except (BadExtenderRequest, ParseError) as error:
                result = "bad_request"
                return web.Response(status=400, text=f"{error}\n")
            except BindFailed as error:
                result = "failed"
                log.info("bind_failed", extra={"error": str(error)})
                return web.Response(body=encode_error(str(error)), content_type=JSON_TYPE)
            finally:
                self.statistics.add(verb, result, time.perf_counter() - begun_s)

        return handle

    async def _live(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _: web.Request) -> web.Response:
        if self._terms.current_term() is None:
            return web.Response(status=503, text=self._terms.why_silent() + "\n")
        return web.Response(text="ok\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        term = self._terms.current_term()
        lines = call_lines(self.statistics, is_leader=term is not None)
        if term is not None:
            lines += term_lines(term)
            lines += await device_lines(term.state)
        return web.Response(
            body=("\n".join(lines) + "\n").encode(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    def _required_term(self) -> Term:
        term = self._terms.current_term()
        if term is None:
            raise web.HTTPServiceUnavailable(text=self._terms.why_silent() + "\n")
        return term

    async def _summaries(self, _: web.Request) -> web.Response:
        state = self._required_term().state
        body = {}
        for count, name in enumerate(sorted(state.node_names())):
            if count % 256 == 255:  # thousands of nodes must not hold up a binding
                await asyncio.sleep(0)
            body[name] = node_summary(state.state(name), state.pods_of(name))
        return _json(body)

    async def _summary(self, request: web.Request) -> web.Response:
        state, name = self._required_term().state, request.match_info["node"]
        if not state.has_node(name):
            return web.Response(status=404, text=f"node {name!r} is not known\n")
        return _json(node_summary(state.state(name), state.pods_of(name)))

    async def _explain(self, request: web.Request) -> web.Response:
        namespace, pod = request.match_info["namespace"], request.match_info["pod"]
        records = self._required_term().extender.log.of_pod(namespace, pod)
        if not records:
            text = f"nothing was decided about pod {namespace}/{pod} lately\n"
            return web.Response(status=404, text=text)
        return _json(records)

    async def _services(self, _: web.Request) -> web.Response:
        return _json(SERVICES)

    async def _set_verbosity(self, request: web.Request) -> web.Response:
        """Set the level of the log as klog's verbosity does: from 4 on it is `debug`."""
        verbosity = await _flag(request)
        level = logging.DEBUG if verbosity >= DEBUG_VERBOSITY else logging.INFO
        logging.getLogger().setLevel(level)
        return web.Response(text=f"log level: {logging.getLevelName(level).lower()}\n")

    async def _set_logged_scores(self, request: web.Request) -> web.Response:
        """Log so many of the best nodes of each pod; 0: none."""
        count = await _flag(request)
        self._required_term().extender.logged_scores = count
        return web.Response(text=f"nodes logged with their scores: {count}\n")


DEBUG_VERBOSITY = 4
SERVICES = {
    "GET": [
        "/apis/v1/__services__",
        "/apis/v1/explain/{namespace}/{pod}",
        "/apis/v1/nodes/{node}",
        "/apis/v1/plugins/DeviceShare/nodeDeviceSummaries",
        "/apis/v1/plugins/DeviceShare/nodeDeviceSummaries/{node}",
    ],
    "PUT": ["/debug/flags/s", "/debug/flags/v"],
}


async def _read_body(request: web.Request) -> bytes:
    """Return the body of a call; until it is there, the connection may make room for another."""
    connection = request.protocol
    assert isinstance(connection, connections.HttpConnection)  # noqa: S101 - of the listener
    connection.report_body()
    try:
        async with asyncio.timeout(BODY_S):
            body = await request.read()
    except TimeoutError as error:
        raise web.HTTPRequestTimeout(text="the body did not come in time\n") from error
    connection.report_request()
    return body


async def _flag(request: web.Request) -> int:
    text = (await _read_body(request)).decode("utf-8", "replace").strip()
    if not text.isdecimal() or len(text) > MAX_FLAG_DIGITS:
        raise web.HTTPBadRequest(text=f"{text[:40]!r} is no number\n")
    return int(text)


async def _filter(term: Term, body: bytes) -> bytes:
    return term.extender.filter(decode_nodes_request(body))


async def _prioritize(term: Term, body: bytes) -> bytes:
    return term.extender.prioritize(decode_nodes_request(body))


async def _preempt(term: Term, body: bytes) -> bytes:
    return term.extender.preempt(decode_preemption_request(body))


async def _bind(term: Term, body: bytes) -> bytes:
    request = decode_bind_request(body)
    extender = term.extender
    try:
        await term.binder.bind(request)
    except BindFailed as error:
        extender.record_binding(request, str(error), error.outcome)
        table = term.state.state(request.node).table
        uid = "" if table is None else table.uid
        term.events.report_failed_binding(request, str(error), error.outcome, uid)
        raise
    extender.record_binding(request, "", "bound")
    return encode_error("")


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type=JSON_TYPE)


def tls_files(tls: TlsSettings) -> AccessFiles | None:
    """Return the certificates of the server, `None` without one; raise `BadConfig`."""
    if not tls.cert_file:
        if tls.client_ca_file:
            raise BadConfig("tls.client_ca_file: needs tls.cert_file and tls.key_file")
        return None
    if tls.client_names and not tls.client_ca_file:
        raise BadConfig("tls.client_names: needs tls.client_ca_file")
    config = TlsConfig(
        cert_file=tls.cert_file,
        key_file=tls.key_file,
        client_ca_file=tls.client_ca_file,
        client_auth=ACCEPT if tls.client_ca_file else NO_CERTIFICATES,
        min_version=tls.min_version,
    )
    return AccessFiles(AccessSettings(tls=config, where="tls"))


def tls_context(files: AccessFiles) -> ssl.SSLContext | None:
    """Return the context of the server; each handshake uses the present files.

    Every client needs a certificate where the settings name the authority of clients.
    """
    context = following_context(files)
    if context is not None and files.rules.tls.client_auth != NO_CERTIFICATES:
        context.verify_mode = ssl.CERT_REQUIRED
    return context
