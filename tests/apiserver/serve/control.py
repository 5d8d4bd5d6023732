"""Steering from other processes: `/_control/…`, on loopback, without a token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from tests.apiserver.faults import Fault

if TYPE_CHECKING:
    from tests.apiserver.serve.app import App

PREFIX = "/_control/"


async def answer(app: App, request: web.BaseRequest) -> web.Response:
    """Answer `requests`, `watches`, `faults`, `put` and `compact`; what else is asked, with 404."""
    what = request.path.removeprefix(PREFIX)
    if what == "requests":
        body: Any = [msgspec.to_builtins(entry) for entry in app.log]
        if request.method == "DELETE":
            app.log.clear()
    elif what == "watches":
        body = [msgspec.to_builtins(watch.asked) for watch in app.watches]
    elif what == "faults":
        if request.method == "DELETE":
            app.faults.clear()
        elif request.method == "POST":
            app.faults.add(Fault(**msgspec.json.decode(await request.read())))
        body = {}
    elif what == "compact" and request.method == "POST":
        with app.store.lock:
            app.store.history.compact()
        body = {}
    elif what == "put" and request.method == "POST":
        body = app.put(msgspec.json.decode(await request.read()))
    else:
        return web.Response(status=404)
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
