"""Bodies of pages: rendered and compressed in slices off the event loop, then sent in slices.

A page that many read is rendered once for all of them.

No job on the collector thread takes much longer than `SLICE_S`, so that the thread's other work
waits for one slice and not for a page. No write holds the event loop for more than `WRITE_BYTES`.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping

from aiohttp import web

SLICE_S = 0.004
WRITE_BYTES = 128 << 10
SHARE_S = 1.0  # a page may be that old when it is sent to another reader
RENDER_DEADLINE_S = 8.0  # Prometheus stops waiting after ten
SCRAPE_SHARE = 0.9  # part of a scraper's timeout for rendering; the rest is for sending
# metrics: level 6 needs three times the CPU time for a fifth less data
COMPRESS_LEVEL = 1
_GZIP_WINDOW = 31  # the largest window, with gzip's header

Offload = Callable[[Callable[[], bytes | None]], Awaitable[bytes | None]]


def deadline_s(scrape_timeout_s: float | None) -> float:
    """Return how long a page may take to render."""
    if scrape_timeout_s is None:
        return RENDER_DEADLINE_S
    return min(RENDER_DEADLINE_S, SCRAPE_SHARE * scrape_timeout_s)


class SlicedBody:
    """A body in progress; `render_slice` is called on one thread at a time."""

    def __init__(self, render: Callable[[], Iterable[bytes]], *, compress: bool) -> None:
        """Render nothing yet: `render` returns the chunks and is called in the first slice."""
        self._chunks = _call(render)
        self._compressor = (
            zlib.compressobj(COMPRESS_LEVEL, zlib.DEFLATED, _GZIP_WINDOW) if compress else None
        )
        self._parts: list[bytes] = []

    def render_slice(self) -> bytes | None:
        """Render for `SLICE_S`; return the whole body after the last chunk, else `None`."""
        until_s = time.monotonic() + SLICE_S
        for chunk in self._chunks:
            self._parts.append(self._compressor.compress(chunk) if self._compressor else chunk)
            if time.monotonic() >= until_s:
                return None
        if self._compressor is not None:
            self._parts.append(self._compressor.flush())
        return b"".join(self._parts)


def _call(render: Callable[[], Iterable[bytes]]) -> Iterator[bytes]:
    yield from render()


async def render_body(body: SlicedBody, offload: Offload, within_s: float) -> bytes:
    """Return the whole body; raise `TimeoutError` if it is not rendered within the time."""
    async with asyncio.timeout(within_s):
        while (whole := await offload(body.render_slice)) is None:
            pass
        return whole


class SharedBodies:
    """Bodies that are rendered once for all that ask for them at the same time.

    Without it a hundred open pages, or scrapers, would take all time of the collector thread.
    Belongs to the loop thread; there are few different keys.
    """

    def __init__(self) -> None:
        self._tasks: dict[Hashable, tuple[float, asyncio.Task[bytes]]] = {}

    async def get(
        self, key: Hashable, render: Callable[[], Awaitable[bytes]], share_s: float
    ) -> bytes:
        """Return the body of a page that is being rendered or is younger than `share_s`."""
        now_s = asyncio.get_running_loop().time()
        began_s, task = self._tasks.get(key, (0.0, None))
        if task is None or (task.done() and (now_s - began_s >= share_s or _has_failed(task))):
            task = asyncio.ensure_future(_await(render))
            task.add_done_callback(_has_failed)  # its readers may have gone before it fails
            self._tasks[key] = now_s, task
        return await asyncio.shield(task)  # a reader that goes ends nobody's page


async def _await(render: Callable[[], Awaitable[bytes]]) -> bytes:
    return await render()


def _has_failed(task: asyncio.Task[bytes]) -> bool:
    return task.cancelled() or task.exception() is not None


async def send_body(
    request: web.Request, headers: Mapping[str, str], body: bytes
) -> web.StreamResponse:
    """Send a body in slices; other callbacks of the event loop run between them.

    Each write waits while the client reads nothing, the last one because it ends the response:
    aiohttp does not wait after a short write. It cancels this call when the client goes.
    """
    response = web.StreamResponse(headers=headers)
    response.content_length = len(body)
    await response.prepare(request)
    rest = memoryview(body)
    while len(rest) > WRITE_BYTES:
        await response.write(rest[:WRITE_BYTES])
        await asyncio.sleep(0)
        rest = rest[WRITE_BYTES:]
    await response.write_eof(bytes(rest))
    return response
