"""Answers and streams on the wire, in order or broken as a fault says."""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
import time
from email.utils import formatdate

from aiohttp import web

from tests.apiserver.faults import Fault
from tests.apiserver.serve.answer import JSON, Answer
from tests.apiserver.serve.breaks import BREAKS, Events, line_of

GZIP_FROM_BYTES = 128 << 10


async def send(request: web.BaseRequest, answer: Answer, fault: Fault | None) -> web.StreamResponse:
    """Put an answer on the wire."""
    body = answer.encoded()
    headers = {"Content-Type": answer.content_type, "Cache-Control": "no-cache, private"}
    headers |= answer.headers | _headers_of(fault)
    accepts = "gzip" in request.headers.get("Accept-Encoding", "")
    if len(body) >= GZIP_FROM_BYTES and accepts:
        body = gzip.compress(body, 1)
        headers["Content-Encoding"] = "gzip"
    if fault is None or (fault.cut_after_bytes is None and not fault.bytes_per_s):
        return web.Response(status=answer.status, body=body, headers=headers)
    response = web.StreamResponse(status=answer.status, headers=headers)
    response.content_length = len(body)
    await response.prepare(request)
    end = len(body) if fault.cut_after_bytes is None else min(len(body), fault.cut_after_bytes)
    await _write(response, body[:end], fault)
    if end < len(body):
        if fault.cut_by_reset:
            reset(request)
        elif request.transport is not None:
            request.transport.close()
    return response


async def stream(
    request: web.BaseRequest, events: Events, fault: Fault | None
) -> web.StreamResponse:
    """Put the lines of a watch on the wire until they end or the fault ends them."""
    headers = {"Content-Type": JSON, "Cache-Control": "no-cache, private"} | _headers_of(fault)
    response = web.StreamResponse(headers=headers)
    response.enable_chunked_encoding()
    await response.prepare(request)
    if fault is not None and fault.stream and fault.after_lines == 0:
        return await _break(request, response, events, fault)
    count = 0
    async for event in events:
        edited = event if fault is None or fault.edit is None else fault.edit(event)
        await _write(response, line_of(edited), fault)
        count += 1
        if fault is not None and fault.stream and count == fault.after_lines:
            break
    else:
        await response.write_eof()
        return response
    return await _break(request, response, events, fault)


async def _break(
    request: web.BaseRequest, response: web.StreamResponse, events: Events, fault: Fault
) -> web.StreamResponse:
    """Do to a stream what the fault says, at its next line; a close needs nothing done."""
    if fault.stream.endswith("reset"):
        await BREAKS[fault.stream.removesuffix("reset").rstrip("-") or "close"](response, events)
        reset(request)
    else:
        await BREAKS[fault.stream](response, events)
    if request.transport is not None and not request.transport.is_closing():
        await response.write_eof()
    return response


async def _write(response: web.StreamResponse, body: bytes, fault: Fault | None) -> None:
    if fault is None or not fault.bytes_per_s:
        await response.write(body)
        return
    step = max(1, int(fault.bytes_per_s / 20))
    for start in range(0, len(body), step):
        await response.write(body[start : start + step])
        await asyncio.sleep(step / fault.bytes_per_s)


def reset(request: web.BaseRequest) -> None:
    """Close the connection with a TCP reset."""
    transport = request.transport
    if transport is None:
        return
    raw = transport.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _headers_of(fault: Fault | None) -> dict[str, str]:
    if fault is None:
        return {}
    headers = dict(fault.headers)
    if fault.warning:
        headers["Warning"] = f'299 - "{fault.warning}"'
    if fault.date_skew_s:
        headers["Date"] = formatdate(time.time() + fault.date_skew_s, usegmt=True)
    return headers
