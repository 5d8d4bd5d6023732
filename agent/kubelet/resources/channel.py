"""One gRPC channel to the kubelet's pod-resources socket: bytes in, bytes out, or why not."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from agent.kube.errors import ApiError, BadAnswer, ServerError, Throttled, Unreachable
from agent.kubelet.base import in_thread

if TYPE_CHECKING:
    from grpc import aio

SERVICE = "v1.PodResourcesLister"
LIST, ALLOCATABLE, GET = "List", "GetAllocatableResources", "Get"
FOLDER, SOCKET = "pod-resources", "kubelet.sock"
MAX_MESSAGE_BYTES = 16 << 20
MAX_PATH_BYTES = 107  # of a socket's address
NO_SOCKET = "no socket: is the kubelet running? See kubelet.root_dir"
FIRST_WAIT_S = 0.02  # the kubelet lets 100 a second through
MAX_EXPONENT = 5
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # a path is no authority, and Go's servers refuse it
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # a kubelet that restarts is away for seconds: by default the pause grows to two minutes
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

Sleep = Callable[[float], Awaitable[None]]


def kubelet_socket(root_dir: str) -> str:
    """Return where the kubelet with that folder listens."""
    return f"{root_dir.rstrip('/')}/{FOLDER}/{SOCKET}"


def load_grpc() -> None:
    """Load gRPC and the messages: 100 ms and 12 MB, so in a thread and only where they are used."""
    from grpc import aio  # noqa: F401, PLC0415 - see above

    from proto.gen import podresources_v1_pb2  # noqa: F401, PLC0415 - see above


class PodResourcesChannel:
    """Belongs to the loop thread. Connects at the first call, and again when the kubelet did.

    `reason` of the errors it raises is the name of gRPC's status.
    """

    def __init__(
        self,
        path: str,
        *,
        deadline_s: float = 10.0,
        sleep: Sleep = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`path` is the socket's."""
        self._path = path
        self._deadline_s = deadline_s
        self._sleep = sleep
        self._uniform = uniform
        self._channel: aio.Channel | None = None

    async def call(self, method: str, request: bytes) -> bytes:
        """Return the reply within the deadline; what the rate limit refuses is asked again."""
        if not os.path.exists(self._path):
            raise self._unreachable(method, "UNAVAILABLE", NO_SOCKET)
        if len(os.fsencode(self._path)) > MAX_PATH_BYTES:
            raise self._unreachable(method, "UNAVAILABLE", f"longer than {MAX_PATH_BYTES} bytes")
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._patiently(method, request)
        except TimeoutError as error:
            detail = f"no answer within {self._deadline_s:g} s"
            raise self._unreachable(method, "DEADLINE_EXCEEDED", detail) from error

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    async def _patiently(self, method: str, request: bytes) -> bytes:
        refused = 0
        while True:
            try:
                return await self._once(method, request)
            except Throttled:
                ceiling_s = FIRST_WAIT_S * 2.0 ** min(refused, MAX_EXPONENT)
                refused += 1
                await self._sleep(self._uniform(ceiling_s / 2, ceiling_s))

    async def _once(self, method: str, request: bytes) -> bytes:
        if self._channel is None:
            await in_thread(load_grpc)
        from grpc import aio  # noqa: PLC0415 - loaded by now

        if self._channel is None:
            self._channel = aio.insecure_channel(f"unix:{self._path}", options=OPTIONS)
        ask: aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            f"/{SERVICE}/{method}"
        )
        try:
            reply: bytes = await ask(request)
        except aio.AioRpcError as error:
            raise self._failure(method, error.code().name, error.details() or "") from error
        return reply

    def _failure(self, method: str, code: str, detail: str) -> ApiError:
        what = f"{method} at {self._path}"
        if code == "UNAVAILABLE":
            return self._unreachable(method, code, detail)
        if code == "RESOURCE_EXHAUSTED":
            # the client's own limit has the same status as the server's rate limit
            kind = BadAnswer if "larger than max" in detail else Throttled
            return kind(what, detail, reason=code)
        return ServerError(what, f"{code}: {detail}", reason=code)

    def _unreachable(self, method: str, code: str, detail: str) -> Unreachable:
        return Unreachable(f"{method} at {self._path}", detail, reason=code)
