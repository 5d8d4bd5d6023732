"""The admin actions: HTTP over a unix socket, for root and the agent's own user.

    POST /debug/rescan
    POST /debug/release   {"vendor": "nvidia", "for_s": 600}
    POST /debug/clear     {"device": "0000:3b:00.0"}
    POST /debug/loglevel  {"level": "debug"}

Answers are `{"done": text}` or `{"error": text}`. Each action is reported to `AgentControl.audit`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Annotated, Literal, Protocol, TypeVar

import msgspec
from aiohttp import web

from agent.errors import AgentError, UnknownTarget
from agent.web.admin_socket import MAX_RELEASE_S, MIN_RELEASE_S, peer_uid
from agent.web.connections import BODY_S, add_security_headers, track_request
from agent.wire_formats.json_values import JSON_ERRORS

MAX_BODY_BYTES = 4096  # bytes
ROOT_UID = 0

T = TypeVar("T")


class AgentControl(Protocol):
    """The agent as those see it who may act on it. Each action returns what was done, in words."""

    async def rescan(self) -> str:
        """Look at the host and ask every vendor, also those that are released or resting."""
        ...

    async def release(self, vendor: str, for_s: float) -> str:
        """Let go of a vendor's library for so long; raise `UnknownName`."""
        ...

    async def clear(self, device: str) -> str:
        """Have a device's lasting fault forgotten; raise `UnknownName` or what keeps it."""
        ...

    def set_level(self, level: str) -> str:
        """Log from that level on."""
        ...

    def audit(self, action: str, uid: int, outcome: str, *, done: bool) -> None:
        """Write down who did what, and what came of it."""
        ...


class RescanRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to say."""


class ReleaseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which vendor, and for how long."""

    vendor: Annotated[str, msgspec.Meta(min_length=1, max_length=63)]
    for_s: Annotated[float, msgspec.Meta(ge=MIN_RELEASE_S, le=MAX_RELEASE_S)] = 600.0


class ClearRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which device, by its key or uuid."""

    device: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class LogLevelRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From which level on."""

    level: Literal["debug", "info", "warning", "error"]


class AdminHandlers:
    """The handlers."""

    def __init__(self, control: AgentControl) -> None:
        self._control = control

    async def rescan(self, request: web.Request) -> web.Response:
        """Look at everything now."""
        return await self._perform(request, RescanRequest, lambda _: self._control.rescan())

    async def release(self, request: web.Request) -> web.Response:
        """Let go of a driver."""
        return await self._perform(
            request, ReleaseRequest, lambda asked: self._control.release(asked.vendor, asked.for_s)
        )

    async def clear(self, request: web.Request) -> web.Response:
        """Forget a device's lasting fault."""
        return await self._perform(
            request, ClearRequest, lambda asked: self._control.clear(asked.device)
        )

    async def loglevel(self, request: web.Request) -> web.Response:
        """Log more, or less."""

        async def set_level(asked: LogLevelRequest) -> str:
            return self._control.set_level(asked.level)

        return await self._perform(request, LogLevelRequest, set_level)

    async def _perform(
        self, request: web.Request, kind: type[T], act: Callable[[T], Awaitable[str]]
    ) -> web.Response:
        """Do what is asked for by those who may; write down in any case that it was asked."""
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
        done = status == 200
        self._control.audit(action, uid, outcome, done=done)
        return web.json_response({"done" if done else "error": outcome}, status=status)


async def _read_body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError as error:
        raise web.HTTPRequestTimeout from error


def _decode(body: bytes, kind: type[T]) -> T:
    return msgspec.json.decode(body or b"{}", type=kind)


def _uid_of(request: web.Request) -> int:
    """Return who asks; nobody (-1) if the connection is gone."""
    connected = request.get_extra_info("socket")
    try:
        return -1 if connected is None else peer_uid(connected)
    except OSError:
        return -1


def create_admin_app(control: AgentControl) -> web.Application:
    """Return the application; nothing listens yet."""
    actions = AdminHandlers(control)
    app = web.Application(middlewares=[track_request], client_max_size=MAX_BODY_BYTES)
    app.on_response_prepare.append(add_security_headers)
    app.router.add_post("/debug/rescan", actions.rescan)
    app.router.add_post("/debug/release", actions.release)
    app.router.add_post("/debug/clear", actions.clear)
    app.router.add_post("/debug/loglevel", actions.loglevel)
    return app
