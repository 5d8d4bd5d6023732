"""The API server's store behind no network, which can be away: `agent.kube.api.ApiClient` on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from agent.clock import Clock
from agent.kube.api import APPLY_PATCH_TYPE, ApiRequest, ApiResponse
from agent.kube.errors import Expired, Unreachable
from agent.kube.http_errors import error_of_response
from tests.apiserver.admin import Object, Objects, namespace
from tests.apiserver.apply.patches import merge_patch
from tests.apiserver.refusal import Refusal, not_found
from tests.apiserver.schema.kinds import builtin_kinds, custom_kinds
from tests.apiserver.serve.route import ServedRequest, read_route
from tests.apiserver.store.history import Change
from tests.apiserver.store.objects import Store
from tests.apiserver.store.registry import Registry

ANSWER_S = 0.002


class AwayApi:
    """Objects with all rules of apply. `served` counts answers by verb and plural.

    While it is `away` no call is answered and no stream lasts.
    """

    def __init__(self, clock: Clock) -> None:
        self._store = Store((*builtin_kinds(), *custom_kinds()))
        self.objects = Objects(self._store, Registry(self._store, validation=False))
        self.served: Counter[tuple[str, str]] = Counter()
        self.refused = 0
        self._clock = clock
        self._away = False
        self._stir = asyncio.Event()
        self.objects.put(namespace("default"))
        self._store.changed = self._stirred

    def leave(self) -> None:
        """Be gone."""
        self._away = True
        self._stirred()

    def come_back(self) -> None:
        """Be back: nobody can go on from where a stream broke off."""
        self._store.history.compact()
        self._away = False

    async def call(self, request: ApiRequest) -> ApiResponse:
        requests = await self._reached(request)
        try:
            answer = self._answer(requests, request)
        except Refusal as refusal:
            body = msgspec.json.encode(refusal.body())
            wall_s = self._clock.wall()
            raise error_of_response(
                str(request), refusal.code, {}, body, wall_s=wall_s
            ) from refusal
        self.served[requests.verb, requests.resource] += 1
        return ApiResponse(status=200, headers={}, body=msgspec.json.encode(answer))

    def stream(
        self, request: ApiRequest, idle_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        assert idle_s > float(dict(request.query)["timeoutSeconds"])  # quiet streams are healthy
        return self._opened(request)

    @contextlib.asynccontextmanager
    async def _opened(self, request: ApiRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        requests = await self._reached(request)
        query = dict(request.query)
        version = int(query["resourceVersion"])
        if version < self._store.history.oldest:
            raise Expired(str(request), "too old", code=410)
        self.served[requests.verb, requests.resource] += 1
        until_s = self._clock.monotonic() + float(query["timeoutSeconds"])
        yield self._lines(request, requests.resource, version, until_s)

    async def _lines(
        self, request: ApiRequest, plural: str, version: int, until_s: float
    ) -> AsyncIterator[bytes]:
        while (left_s := until_s - self._clock.monotonic()) > 0:
            if self._away:
                raise Unreachable(str(request), "connection reset by peer")
            stir = self._stir
            for change in list(self._store.history.since(version)):
                version = change.version
                if change.plural == plural:
                    yield _line(change)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await stir.wait()

    async def _reached(self, request: ApiRequest) -> ServedRequest:
        await asyncio.sleep(ANSWER_S)
        if self._away:
            self.refused += 1
            raise Unreachable(str(request), "connection refused")
        return read_route(request.method, request.path, dict(request.query))

    def _answer(self, served_request: ServedRequest, request: ApiRequest) -> object:
        if served_request.verb == "list":
            version = str(self._store.history.version)
            items = self.objects.list(served_request.resource)
            return {"metadata": {"resourceVersion": version}, "items": items}
        if served_request.verb == "create":
            return self.objects.put(msgspec.json.decode(request.body), manager="agent")
        kind = self._store.kinds[served_request.resource]
        live = self.objects.get(
            served_request.resource, served_request.name, served_request.namespace
        )
        if served_request.verb == "patch" and request.content_type == APPLY_PATCH_TYPE:
            return self.objects.apply(
                msgspec.json.decode(request.body),
                manager=dict(request.query)["fieldManager"],
                subresource=served_request.subresource,
            )
        if live is None:
            raise not_found(kind.plural, kind.group, served_request.name)
        if served_request.verb == "get":
            return live
        assert served_request.verb == "patch", served_request
        merged: Object = merge_patch(live, msgspec.json.decode(request.body))
        return self.objects.put(merged, manager="agent")

    def _stirred(self) -> None:
        self._stir.set()
        self._stir = asyncio.Event()


def _line(change: Change) -> bytes:
    kind = "DELETED" if change.deleted else "MODIFIED" if change.previous else "ADDED"
    event: dict[str, Any] = {"type": kind, "object": change.body}
    return msgspec.json.encode(event)
