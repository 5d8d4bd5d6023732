"""What becomes of a watch's stream when a fault strikes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from tests.apiserver.refusal import expired
from tests.apiserver.serve.watch import error_event

Events = AsyncIterator[dict[str, Any]]
Break = Callable[[web.StreamResponse, Events], Awaitable[None]]

PAGE = b"<html><head><title>502 Bad Gateway</title></head><body>proxy</body></html>\n"
HALF = b'{"type":"MODIFIED","object":{"metadata":'


def line_of(event: object) -> bytes:
    """Return an event as a line."""
    return msgspec.json.encode(event) + b"\n"


async def _close(_response: web.StreamResponse, _events: Events) -> None:
    """Nothing more comes."""


async def _silence(_response: web.StreamResponse, _events: Events) -> None:
    await asyncio.Event().wait()


async def _send_expired(response: web.StreamResponse, _events: Events) -> None:
    await response.write(line_of(error_event(expired())))


async def _html(response: web.StreamResponse, _events: Events) -> None:
    await response.write(PAGE)


async def _garbage(response: web.StreamResponse, events: Events) -> None:
    """A line that is no JSON, and then everything as if nothing had been."""
    await response.write(HALF + b"\n")
    async for event in events:
        await response.write(line_of(event))


async def _duplicate(response: web.StreamResponse, events: Events) -> None:
    async for event in events:
        await response.write(line_of(event) * 2)


async def _reorder(response: web.StreamResponse, events: Events) -> None:
    """Two lines each, the later one first."""
    line = b""
    async for event in events:
        if line:
            await response.write(line_of(event) + line)
            line = b""
        else:
            line = line_of(event)


async def _truncate(response: web.StreamResponse, _events: Events) -> None:
    await response.write(HALF)


BREAKS: Mapping[str, Break] = {
    "close": _close,
    "silence": _silence,
    "gone": _send_expired,
    "html": _html,
    "garbage": _garbage,
    "duplicate": _duplicate,
    "reorder": _reorder,
    "truncate": _truncate,
}
