"""The admin actions: HTTP over a unix socket, for root and the agent's own user.

    POST /debug/rescan
    POST /debug/release   {"vendor": "nvidia", "for_s": 600}
    POST /debug/clear     {"device": "0000:3b:00.0"}
    POST /debug/loglevel  {"level": "debug"}
    GET /api/v1/explain/{pod/NAMESPACE/NAME,device/ID,file/PATH}

Answers are `{"done": text}` or `{"error": text}`. Each action is reported to `AgentControl.audit`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Annotated, Literal, Protocol, TypeVar

import msgspec
from aiohttp import web

from agent.access.connections import BODY_S, RouteHandler, add_security_headers, track_request
from agent.errors import AgentError, UnknownTarget
from agent.web.admin_socket import MAX_RELEASE_S, MIN_RELEASE_S, peer_uid
from agent.web.explanation import ExplanationHandlers
from agent.web.view import AgentView
from agent.wire_formats.json_values import JSON_ERRORS

MAX_BODY_BYTES = 4096  # bytes
ROOT_UID = 0

T = TypeVar("T")


class AgentControl(Protocol):
    """The actions that people may perform. Each returns what was done, as text."""

    async def rescan(self) -> str:
        """Read the host and ask every vendor, also those that are released or paused."""
        ...

    async def release(self, vendor: str, for_s: float) -> str:
        """Release a vendor's library for `for_s` seconds; raise `UnknownTarget`."""
        ...

    async def clear(self, device: str) -> str:
        """Clear the lasting fault of a device; raise `UnknownTarget` or the error of its vendor."""
        ...

    def set_level(self, level: str) -> str:
        """Set the level of the log."""
        ...

    def audit(self, action: str, uid: int, outcome: str, *, done: bool) -> None:
        """Record who performed which action, and its outcome."""
        ...


class RescanRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request without fields."""


class ReleaseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The vendor to release, and for how long."""

    vendor: Annotated[str, msgspec.Meta(min_length=1, max_length=63)]
    for_s: Annotated[float, msgspec.Meta(ge=MIN_RELEASE_S, le=MAX_RELEASE_S)] = 600.0


class ClearRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The device to clear, by its key or uuid."""

    device: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class LogLevelRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lowest level that is logged."""

    level: Literal["debug", "info", "warning", "error"]


class AdminHandlers:
    """The handlers of the admin socket's requests."""

    def __init__(self, control: AgentControl) -> None:
        self._control = control

    async def rescan(self, request: web.Request) -> web.Response:
        """Read the host and ask every vendor now."""
        return await self._perform(request, RescanRequest, lambda _: self._control.rescan())

    async def release(self, request: web.Request) -> web.Response:
        """Release the library of a vendor."""
        return await self._perform(
            request, ReleaseRequest, lambda body: self._control.release(body.vendor, body.for_s)
        )

    async def clear(self, request: web.Request) -> web.Response:
        """Clear the lasting fault of a device."""
        return await self._perform(
            request, ClearRequest, lambda body: self._control.clear(body.device)
        )

    async def loglevel(self, request: web.Request) -> web.Response:
        """Set the level of the log."""

        async def set_level(body: LogLevelRequest) -> str:
            return self._control.set_level(body.level)

        return await self._perform(request, LogLevelRequest, set_level)

    async def _perform(
        self, request: web.Request, kind: type[T], act: Callable[[T], Awaitable[str]]
    ) -> web.Response:
        """Perform an action for an allowed user; record the request in any case."""
        action, uid = request.path.rpartition("/")[2], _uid_of(request)
        status, outcome = 200, ""
        if uid not in (ROOT_UID, os.geteuid()):
            status, outcome = 403, f"user {uid} may not: only root, or who runs the agent"
        else:
            try:
                outcome = await act(_decode(await _read_body(request), kind))
            except web.HTTPRequestTimeout:
                status, outcome = 408, f"{action}: no whole request within {BODY_S:g} s"
            except JSON_ERRORS as error:
                status, outcome = 400, f"{action}: {error}"
            except web.HTTPRequestEntityTooLarge:
                status, outcome = 413, f"{action}: more than {MAX_BODY_BYTES} bytes"
            except UnknownTarget as error:
                status, outcome = 404, str(error)
            except AgentError as error:
                status, outcome = 409, str(error)
        is_done = status == 200
        self._control.audit(action, uid, outcome, done=is_done)
        return web.json_response({"done" if is_done else "error": outcome}, status=status)


async def _read_body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError as error:
        raise web.HTTPRequestTimeout from error


def _decode(body: bytes, kind: type[T]) -> T:
    return msgspec.json.decode(body or b"{}", type=kind)


def _uid_of(request: web.Request) -> int:
    """Return the uid of the client; nobody (-1) if the connection has ended."""
    connected = request.get_extra_info("socket")
    try:
        return -1 if connected is None else peer_uid(connected)
    except OSError:
        return -1


@web.middleware
async def _restrict_reads(request: web.Request, handler: RouteHandler) -> web.StreamResponse:
    """Restrict GET requests to root and the agent's own user; actions check this themselves."""
    if request.method in ("GET", "HEAD") and _uid_of(request) not in (ROOT_UID, os.geteuid()):
        raise web.HTTPForbidden(text="only root, or who runs the agent\n")
    return await handler(request)


def create_admin_app(control: AgentControl, view: AgentView) -> web.Application:
    """Return the application; it does not listen yet."""
    actions = AdminHandlers(control)
    middlewares = [track_request, _restrict_reads]
    app = web.Application(middlewares=middlewares, client_max_size=MAX_BODY_BYTES)
    app.on_response_prepare.append(add_security_headers)
    app.router.add_post("/debug/rescan", actions.rescan)
    app.router.add_post("/debug/release", actions.release)
    app.router.add_post("/debug/clear", actions.clear)
    app.router.add_post("/debug/loglevel", actions.loglevel)
    ExplanationHandlers(view).add_routes(app)
    return app
