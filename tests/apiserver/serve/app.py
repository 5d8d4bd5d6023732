"""One request, from its bytes to its answer: fault, identity, right, route, answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec
from aiohttp import web

from tests.apiserver.access import ADMIN, AGENT, Access
from tests.apiserver.faults import Fault, Faults
from tests.apiserver.log import MAX_BODIES, MAX_LOGGED, Logged
from tests.apiserver.rbac import Rule, authorize
from tests.apiserver.refusal import (
    Cause,
    Refusal,
    no_resource,
    not_found,
    of_status,
    unauthorized,
)
from tests.apiserver.schema.kinds import Kind
from tests.apiserver.schema.versions import Object, shown
from tests.apiserver.serve import (
    bindings,
    control,
    discovery,
    evictions,
    own_access,
    reviews,
    table,
    wire,
)
from tests.apiserver.serve.answer import Answer, refused
from tests.apiserver.serve.breaks import PAGE
from tests.apiserver.serve.reads import list_objects
from tests.apiserver.serve.route import ServedRequest, read_route
from tests.apiserver.serve.watch import Watch
from tests.apiserver.serve.writes import Writes, decode
from tests.apiserver.store.objects import Store
from tests.apiserver.store.registry import Registry

LOOK_S = 0.005  # between two looks whether a held request may go on
_POST_ONLY = (evictions.SUBRESOURCE, bindings.SUBRESOURCE)
_OF_LISTS = ("list", "watch", "create", "deletecollection")


class App:
    """The server's inside. `handle` runs on the loop thread; the rest may be read from any."""

    def __init__(
        self,
        *,
        store: Store,
        registry: Registry,
        access: Access,
        faults: Faults,
        rules: list[Rule],
        server_side_apply: bool,
        bookmark_interval_s: float | None,
        max_body_bytes: int,
        notes: Callable[[], None],
        put: Callable[[Object], Object],
    ) -> None:
        self.store = store
        self.registry = registry
        self.access = access
        self.faults = faults
        self.rules = rules
        self.user_rules: dict[str, list[Rule]] = {}  # for reviews of what others may do
        self.pages_from_cache = False
        self.bookmark_interval_s = bookmark_interval_s
        self.max_body_bytes = max_body_bytes
        self.log: deque[Logged] = deque(maxlen=MAX_LOGGED)
        self.watches: list[Watch] = []
        self.writes = Writes(store, registry, server_side_apply=server_side_apply)
        self.bugs: list[Exception] = []
        self.put = put
        self._noted = notes

    def wake_watches(self) -> None:
        """Let all watches look for changes."""
        for watch in self.watches:
            watch.wake()

    def close_watches(self) -> None:
        """End all watches in order."""
        for watch in self.watches:
            watch.close()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        started = time.monotonic()
        if request.path.startswith(control.PREFIX):
            return await control.answer(self, request)
        logged = _new_entry(request)
        logged.user = self.access.user(request.headers.get("Authorization", ""))
        fault = self.faults.strike(logged)
        if fault is not None:
            logged.faults = (fault.name or fault.stream or str(fault.status or "fault"),)
        self.log.append(logged)
        if len(self.log) > MAX_BODIES:
            self.log[-MAX_BODIES].body = None
        self._noted()
        try:
            return await self._answer(request, logged, fault)
        except ConnectionError:  # the client left
            return web.Response(status=499)
        except Exception as bug:
            self.bugs.append(bug)
            raise
        finally:
            logged.took_s = time.monotonic() - started
            self._noted()

    async def _answer(
        self, request: web.BaseRequest, logged: Logged, fault: Fault | None
    ) -> web.StreamResponse:
        instead = None if fault is None else await self._instead(request, logged, fault)
        if instead is not None:
            return instead
        try:
            await self._read_body(request, logged)
            allowed = self._allowed(logged)
            if allowed.verb == "watch" and allowed.resource:
                return await self._watch(request, allowed, logged, fault)
            answer = self._serve(allowed, logged)
        except Refusal as refusal:
            answer = refused(refusal)
        if fault is not None:
            if fault.edit is not None and answer.raw is None:
                answer.body = fault.edit(answer.body)
            await asyncio.sleep(fault.after_s)
            if fault.lose_answer:
                wire.reset(request)
        return await self._send(request, answer, logged, fault)

    async def _instead(
        self, request: web.BaseRequest, logged: Logged, fault: Fault
    ) -> web.StreamResponse | None:
        """Do what a fault does instead of handling the request; `None` where it is handled."""
        if fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        while fault.until is not None and not fault.until.is_set():
            await asyncio.sleep(LOOK_S)
        if fault.hang:
            await asyncio.Event().wait()
        if fault.reset:
            await request.read()
            wire.reset(request)
            return web.Response(status=499)
        if not fault.status and fault.raw is None and not fault.html:
            return None
        with contextlib.suppress(Refusal):  # of a body that would be refused anyway
            await self._read_body(request, logged)
        answer = _told_by(fault)
        return await self._send(request, answer, logged, fault)

    async def _send(
        self, request: web.BaseRequest, answer: Answer, logged: Logged, fault: Fault | None
    ) -> web.StreamResponse:
        logged.status = answer.status
        response = await wire.send(request, answer, fault)
        if isinstance(response, web.Response) and isinstance(response.body, bytes):
            logged.answer_bytes = len(response.body)
        return response

    async def _read_body(self, request: web.BaseRequest, logged: Logged) -> None:
        payload = await request.read()
        logged.body_bytes = len(payload)
        if len(payload) > self.max_body_bytes:
            message = f"Request entity too large: limit is {self.max_body_bytes}"
            raise Refusal(413, "RequestEntityTooLarge", message)
        logged.body = decode(payload, logged.content_type)

    def _allowed(self, logged: Logged) -> ServedRequest:
        route = read_route(logged.method, logged.path, logged.query)
        if not logged.user:
            raise unauthorized()
        if logged.user != ADMIN and not own_access.is_review(route):
            authorize(logged.user, self.rules, route)
        return route

    def _serve(self, served_request: ServedRequest, logged: Logged) -> Answer:
        if not served_request.resource:
            return discovery.answer(self.store, logged.path)
        if own_access.is_review(served_request):
            return own_access.review(logged.user, self.rules, served_request, logged)
        if reviews.is_review(served_request):
            rules = {**self.user_rules, AGENT: self.rules}
            return reviews.review(self.access, rules, served_request, logged)
        kind = self._kind(served_request)
        if served_request.subresource == evictions.SUBRESOURCE:
            return evictions.evict(self.store, self.registry, served_request, logged)
        if served_request.subresource == bindings.SUBRESOURCE:
            return bindings.bind(self.store, served_request, logged)
        if served_request.verb in ("list", "get"):
            answer = self._read(kind, served_request, logged)
            if table.accepts_table(kind.plural, logged.accept):
                answer.body = table.table(kind.plural, answer.body)
            return answer
        return self.writes.write(
            kind, served_request, logged, partial(self._may_create, served_request, logged)
        )

    def _read(self, kind: Kind, served_request: ServedRequest, logged: Logged) -> Answer:
        if served_request.verb == "list":
            return list_objects(
                self.store,
                kind,
                served_request,
                logged.query,
                pages_from_cache=self.pages_from_cache,
            )
        target = (served_request.namespace if kind.namespaced else "", served_request.name)
        result = self.store.of(kind).get(target)
        if result is None:
            raise not_found(kind.plural, served_request.group, served_request.name)
        return Answer(body=shown(kind, served_request.group, served_request.version, result))

    def _may_create(self, served_request: ServedRequest, logged: Logged) -> None:
        """Refuse an apply that would create where only the patch is allowed."""
        if logged.user != ADMIN:
            authorize(
                logged.user, self.rules, msgspec.structs.replace(served_request, verb="create")
            )

    def _kind(self, served_request: ServedRequest) -> Kind:
        kind = self.store.kinds.get(served_request.resource)
        if kind is None:
            raise no_resource()
        here = (served_request.group == kind.group and served_request.version in kind.shapes) or (
            kind.plural == "events" and (served_request.group, served_request.version) == ("", "v1")
        )
        status = served_request.subresource == "status" and kind.status
        is_post_only = kind.plural == "pods" and served_request.subresource in _POST_ONLY
        if not here or (served_request.subresource and not (status or is_post_only)):
            raise no_resource()
        if bool(served_request.namespace) != kind.namespaced and (
            served_request.namespace or served_request.name
        ):
            raise no_resource()
        is_wrong = bool(served_request.name) == (served_request.verb in _OF_LISTS)
        if is_post_only:
            is_wrong = served_request.verb != "create"
        if is_wrong or (status and served_request.verb == "delete"):
            raise Refusal(
                405,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            )
        return kind

    async def _watch(
        self,
        request: web.BaseRequest,
        served_request: ServedRequest,
        logged: Logged,
        fault: Fault | None,
    ) -> web.StreamResponse:
        watch = Watch(
            self.store,
            self._kind(served_request),
            served_request,
            logged.query,
            bookmark_interval_s=self.bookmark_interval_s,
        )
        logged.status = 200
        self.watches.append(watch)
        self._noted()
        try:
            events = watch.events()
            if table.accepts_table(watch.kind.plural, logged.accept):
                events = table.tables(watch.kind.plural, events)
            return await wire.stream(request, events, fault)
        finally:
            self.watches.remove(watch)


def _new_entry(request: web.BaseRequest) -> Logged:
    route = read_route(request.method, request.path, request.query)
    return Logged(
        time_s=time.time(),
        method=request.method,
        path=request.path,
        query=dict(request.query),
        verb=route.verb if route.resource else "",
        group=route.group,
        resource=route.resource,
        subresource=route.subresource,
        namespace=route.namespace,
        name=route.name,
        user_agent=request.headers.get("User-Agent", ""),
        content_type=request.headers.get("Content-Type", ""),
        accept=request.headers.get("Accept", ""),
        connection=_peer_port(request),
    )


def _peer_port(request: web.BaseRequest) -> int:
    peer = request.transport.get_extra_info("peername") if request.transport else None
    return int(peer[1]) if peer else 0


def _told_by(fault: Fault) -> Answer:
    if fault.html:
        return Answer(status=fault.status or 200, raw=PAGE, content_type="text/html")
    if fault.raw is not None:
        raw = fault.raw.encode()
        return Answer(status=fault.status or 200, raw=raw, content_type=fault.content_type)
    refusal = of_status(fault.status, fault.message, fault.reason)
    refusal.retry_after_s = fault.retry_after_s
    refusal.causes = tuple(
        Cause(item.get("reason", ""), item.get("message", ""), item.get("field", ""))
        for item in fault.causes
    )
    return refused(refusal)
