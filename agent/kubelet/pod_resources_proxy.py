"""Serves the kubelet's pod-resources API with allocated devices, on a socket of its own.

Imports gRPC and its messages, which take 100 ms and 12 MB: load it where the proxy is used.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import grpc
import msgspec
from grpc import aio

from agent.errors import AgentError, ParseError
from agent.kube.errors import ApiError, BadResponse, ServerError, Throttled, Unreachable
from agent.kubelet.pod_list_file import PodListFile
from agent.kubelet.pod_resources_list import add_allocations
from agent.kubelet.pod_resources_socket import (
    CHANNEL_OPTIONS,
    MAX_MESSAGE_BYTES,
    MAX_PATH_BYTES,
    ProxySocketFile,
)
from agent.loop import await_shielded, run_in_thread
from agent.snapshot.cluster import PodResourcesProxyStatus
from agent.snapshot.node import SnapshotStore

log = logging.getLogger(__name__)

SERVICE = "v1.PodResourcesLister"

LIST, ALLOCATABLE, GET = "List", "GetAllocatableResources", "Get"

NO_SOCKET = "no socket: is the kubelet running? See kubelet.root_dir"

FIRST_WAIT_S = 0.02  # the kubelet accepts 100 calls a second

MAX_EXPONENT = 5

Sleep = Callable[[float], Awaitable[None]]


class PodResourcesChannel:
    """Calls the kubelet. Belongs to the loop thread; connects at the first call and when needed.

    The `reason` of its errors is the name of gRPC's status.
    """

    def __init__(
        self,
        path: str,
        *,
        deadline_s: float = 10.0,
        sleep: Sleep = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`path` is that of the socket."""
        self._path = path
        self._deadline_s = deadline_s
        self._sleep = sleep
        self._uniform = uniform
        self._channel: aio.Channel | None = None

    async def call(self, method: str, request: bytes) -> bytes:
        """Return the reply within the deadline; calls that the rate limit refuses are repeated."""
        if not os.path.exists(self._path):
            raise self._unreachable(method, "UNAVAILABLE", NO_SOCKET)
        if len(os.fsencode(self._path)) > MAX_PATH_BYTES:
            raise self._unreachable(method, "UNAVAILABLE", f"longer than {MAX_PATH_BYTES} bytes")
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._call_with_retry(method, request)
        except TimeoutError as error:
            detail = f"no answer within {self._deadline_s:g} s"
            raise self._unreachable(method, "DEADLINE_EXCEEDED", detail) from error

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    async def _call_with_retry(self, method: str, request: bytes) -> bytes:
        refusal_count = 0
        while True:
            try:
                return await self._call_once(method, request)
            except Throttled:
                ceiling_s = FIRST_WAIT_S * 2.0 ** min(refusal_count, MAX_EXPONENT)
                refusal_count += 1
                await self._sleep(self._uniform(ceiling_s / 2, ceiling_s))

    async def _call_once(self, method: str, request: bytes) -> bytes:
        if self._channel is None:
            self._channel = aio.insecure_channel(f"unix:{self._path}", options=CHANNEL_OPTIONS)
        call: aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            f"/{SERVICE}/{method}"
        )
        try:
            reply: bytes = await call(request)
        except aio.AioRpcError as error:
            raise self._failure(method, error.code().name, error.details() or "") from error
        return reply

    def _failure(self, method: str, code: str, detail: str) -> ApiError:
        request = f"{method} at {self._path}"
        if code == "UNAVAILABLE":
            return self._unreachable(method, code, detail)
        if code == "RESOURCE_EXHAUSTED":
            # the client's own size limit has the same status as the server's rate limit
            error_class = BadResponse if "larger than max" in detail else Throttled
            return error_class(request, detail, reason=code)
        return ServerError(request, f"{code}: {detail}", reason=code)

    def _unreachable(self, method: str, code: str, detail: str) -> Unreachable:
        return Unreachable(f"{method} at {self._path}", detail, reason=code)


CHECK_S = 10.0

STOP_S = 1.0  # for open calls

MAX_CALLS = 32  # open at once; gRPC refuses more with RESOURCE_EXHAUSTED


class PodResourcesProxy:
    """Answers calls of the pod-resources API. Belongs to the loop thread.

    `List` is the kubelet's present answer with the allocations of the known pods, which are as old
    as the last poll of the kubelet's pods. Other methods are passed through. While the kubelet does
    not answer, its error is the answer: an empty list would mean that all devices are free.
    """

    def __init__(
        self,
        folder: str,
        channel: PodResourcesChannel,
        store: SnapshotStore,
        pod_file: PodListFile | None = None,
    ) -> None:
        """`folder` gets the socket. The pods of `pod_file` replace the cluster's."""
        self.state = PodResourcesProxyStatus()
        self._channel = channel
        self._store = store
        self._pod_file = pod_file
        self._file = ProxySocketFile(folder)
        self._server: aio.Server | None = None
        self._calls: Counter[str] = Counter()

    async def run(self, sleep: Sleep = asyncio.sleep) -> None:
        """Serve until cancelled.

        Create the socket again if it was removed or could not be created.
        """
        try:
            while True:
                await self.check()
                await sleep(CHECK_S)
        finally:
            await self.stop()

    async def check(self) -> None:
        """Serve unless this already happens; update the state."""
        if self._server is not None and self._file.is_in_place():
            return
        await self.stop()
        try:
            await self._start()
        except AgentError as error:
            if not self.state.error:
                log.warning("pod_resources_proxy_down", extra={"error": str(error)})
            self._set_state(serving=False, error=str(error))
            return
        self._set_state(serving=True, error="")

    async def close(self) -> None:
        """Close the connection to the kubelet."""
        await self._channel.close()

    async def stop(self) -> None:
        """Remove the socket if it is still this object's, and end open calls."""
        if self._server is None:
            return
        server, self._server = self._server, None
        self._file.remove()
        await await_shielded(server.stop(STOP_S))
        self._set_state(serving=False, error="")

    async def _start(self) -> None:
        server = aio.server(
            options=(("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),),
            maximum_concurrent_rpcs=MAX_CALLS,
        )
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(self._method_handler(name))
            for name in (LIST, ALLOCATABLE, GET)
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            with self._file.create() as address:
                try:
                    server.add_insecure_port(address)
                except RuntimeError as error:
                    raise self._file.error(str(error)) from error
                # a start that is cancelled halfway leaves a server that cannot be stopped
                await await_shielded(server.start())
        except BaseException:  # also a cancellation halfway: no server may keep running
            await await_shielded(server.stop(None))
            raise
        self._server = server

    def _method_handler(
        self, method: str
    ) -> Callable[[bytes, aio.ServicerContext[bytes, bytes]], Awaitable[bytes]]:
        async def answer(request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
            try:
                reply = await self._reply(method, request)
            except ApiError as error:
                self._count(method, error.reason)
                await context.abort(grpc.StatusCode[error.reason], str(error))
            except ParseError as error:
                self._count(method, "INTERNAL")
                await context.abort(grpc.StatusCode.INTERNAL, str(error))
            self._count(method, "OK")
            return reply

        return answer

    async def _reply(self, method: str, request: bytes) -> bytes:
        reply = await self._channel.call(method, request)
        if method != LIST:
            return reply
        # the pods may be in a file, and a list may have thousands of devices
        return await run_in_thread(lambda: self._add_allocations(reply))

    def _add_allocations(self, reply: bytes) -> bytes:
        snapshot = self._store.current
        pods = snapshot.cluster.pods if self._pod_file is None else self._pod_file.read()
        return add_allocations(reply, pods, snapshot.served.value.held)

    def _count(self, method: str, status: str) -> None:
        self._calls[f"{method} {status}"] += 1
        calls = tuple(sorted(self._calls.items()))
        self.state = msgspec.structs.replace(self.state, calls=calls)

    def _set_state(self, *, serving: bool, error: str) -> None:
        self.state = msgspec.structs.replace(self.state, is_serving=serving, error=error)
