"""An API that answers by a script, on a clock that only waiting moves."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from agent.clock import ManualClock
from agent.kube.api import ApiRequest, ApiResponse
from agent.kube.errors import ApiError
from agent.kube.resources import OWN_PODS
from agent.kube.watch.reflector import Reflector, WatchScope
from agent.snapshot.pod import PodView
from agent.wire_formats.pod import PodObject

Answer = bytes | ApiError
Moment = bytes | ApiError | float  # a line, a break, or so many seconds of silence
T = TypeVar("T")
JsonObject = dict[str, object]


class EndOfScript(Exception):
    """The script has no further answer: the test's run is over."""


class ScriptedApi:
    """Answers lists and streams in the order given."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.lists: deque[Answer] = deque()
        self.streams: deque[list[Moment] | ApiError] = deque()
        self.requests: list[ApiRequest] = []

    async def call(self, request: ApiRequest) -> ApiResponse:
        self.requests.append(request)
        answer = _next(self.lists)
        if isinstance(answer, ApiError):
            raise answer
        return ApiResponse(status=200, headers={}, body=answer)

    def stream(
        self, request: ApiRequest, idle_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        assert idle_s > float(dict(request.query)["timeoutSeconds"])  # quiet streams are healthy
        return self._stream(request)

    @contextlib.asynccontextmanager
    async def _stream(self, request: ApiRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        self.requests.append(request)
        moments = _next(self.streams)
        if isinstance(moments, ApiError):
            raise moments
        yield self._lines(moments)

    async def _lines(self, moments: list[Moment]) -> AsyncIterator[bytes]:
        for moment in moments:
            if isinstance(moment, ApiError):
                raise moment
            if isinstance(moment, float):
                self.clock.advance(moment)
            else:
                yield moment

    def queries(self) -> list[dict[str, str]]:
        return [dict(request.query) for request in self.requests]


class Followed:
    """A watch of pods against a script; `waits` are its sleeps, `views` what it told."""

    def __init__(
        self,
        uniform: Callable[[float, float], float] = max,
        on_change: Callable[[Mapping[str, PodView]], None] | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.api = ScriptedApi(self.clock)
        self.waits: list[float] = []
        self.views: list[Mapping[str, PodView]] = []
        self.watch: Reflector[PodObject, PodView] = Reflector(
            OWN_PODS,
            self.api,
            on_change=on_change or self.views.append,
            clock=self.clock,
            scope=WatchScope(field_selector=OWN_PODS.node_selector("n")),
            sleep=self.slept,
            uniform=uniform,
        )

    async def slept(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.clock.advance(seconds)

    def listing(self, *answers: Answer) -> Followed:
        self.api.lists.extend(answers)
        return self

    def streaming(self, *streams: list[Moment] | ApiError) -> Followed:
        self.api.streams.extend(streams)
        return self

    def run(self) -> Followed:
        """Run until the script is at its end."""

        async def through() -> None:
            with contextlib.suppress(EndOfScript):
                await self.watch.run()

        asyncio.run(through())
        return self

    @property
    def names(self) -> list[str]:
        return sorted(self.watch.view)


def pod(name: str, version: int, **changes: object) -> JsonObject:
    metadata = {"name": name, "namespace": "d", "uid": f"u-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {}, **changes}


def page(version: int, *items: object, token: str = "") -> bytes:
    metadata = {"resourceVersion": str(version), "continue": token}
    return json.dumps({"kind": "PodList", "metadata": metadata, "items": items}).encode()


def line(kind: str, item: object) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode()


def bookmark(version: int) -> bytes:
    return line("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})


def status(code: int, reason: str, **details: object) -> bytes:
    status_json = {
        "kind": "Status",
        "code": code,
        "reason": reason,
        "message": "no",
        "details": details,
    }
    return line("ERROR", status_json)


def _next(answers: deque[T]) -> T:
    if not answers:
        raise EndOfScript
    return answers.popleft()
