"""The kubelet's pod-resources socket for tests: with its rate limit, without some methods, gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
from grpc import aio

from proto.gen import podresources_v1_pb2 as pb

Context = aio.ServicerContext[bytes, bytes]
METHODS = ("List", "GetAllocatableResources", "Get")
PER_SECOND, BURST = 100.0, 10.0


class FakePodResources:
    """`start` after `stop` makes the socket anew, as a kubelet that restarts does."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "kubelet.sock"
        self.listed = pb.ListPodResourcesResponse()
        self.allocatable = pb.AllocatableResourcesResponse()
        self.offered: set[str] = set(METHODS)  # others are not known
        self.disabled: set[str] = set()  # known, but behind a feature gate that is off
        self.hangs = False
        self.raw: bytes | None = None  # answered in place of the truth
        self.calls: Counter[str] = Counter()
        self.refused = 0
        self._left, self._at_s = BURST, time.monotonic()
        self._server: aio.Server | None = None

    async def start(self) -> None:
        server = aio.server()
        answers = {"List": self._list, "GetAllocatableResources": self._allocatable}
        answers["Get"] = self._get
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(self._limited(name, answers[name]))
            for name in sorted(self.offered)
        }
        service = grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers)
        server.add_generic_rpc_handlers((service,))
        server.add_insecure_port(f"unix:{self.path}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)
        if os.path.lexists(self.path):
            self.path.unlink()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FakePodResources]:
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    def _limited(
        self, name: str, answer: Callable[[bytes, Context], Awaitable[bytes]]
    ) -> Callable[[bytes, Context], Awaitable[bytes]]:
        async def limited(request: bytes, context: Context) -> bytes:
            now_s = time.monotonic()
            self._left = min(BURST, self._left + (now_s - self._at_s) * PER_SECOND)
            self._at_s = now_s
            if self._left < 1:
                self.refused += 1
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            self._left -= 1
            self.calls[name] += 1
            if self.hangs:
                await asyncio.Event().wait()
            if name in self.disabled:
                text = f"PodResources API {name} method disabled"
                await context.abort(grpc.StatusCode.UNKNOWN, text)
            return self.raw if self.raw is not None else await answer(request, context)

        return limited

    async def _list(self, request: bytes, context: Context) -> bytes:
        del request, context
        return self.listed.SerializeToString()

    async def _allocatable(self, request: bytes, context: Context) -> bytes:
        del request, context
        return self.allocatable.SerializeToString()

    async def _get(self, request: bytes, context: Context) -> bytes:
        query = pb.GetPodResourcesRequest.FromString(request)
        for pod in self.listed.pod_resources:
            if (pod.name, pod.namespace) == (
                query.pod_name,
                query.pod_namespace,
            ):
                return pb.GetPodResourcesResponse(pod_resources=pod).SerializeToString()
        await context.abort(
            grpc.StatusCode.UNKNOWN,
            f"pod {query.pod_name} in namespace {query.pod_namespace} not found",
        )
        raise AssertionError("abort raises")
