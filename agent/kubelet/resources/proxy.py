"""Serves the kubelet's pod-resources once more, with the devices of our grants in the list."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from agent.errors import AgentError, ParseError
from agent.kube.errors import ApiError
from agent.kubelet.base import Offload, in_thread
from agent.kubelet.resources.channel import (
    ALLOCATABLE,
    GET,
    LIST,
    MAX_MESSAGE_BYTES,
    SERVICE,
    PodResourcesChannel,
    load_grpc,
)
from agent.kubelet.resources.granted import with_grants
from agent.kubelet.resources.socket_file import SocketFile
from agent.loop import to_its_end
from agent.model.pod import PodView
from agent.model.runtime.served import Held
from agent.model.snapshot import Counts

if TYPE_CHECKING:
    from grpc import aio

log = logging.getLogger(__name__)

CHECK_S = 10.0
STOP_S = 1.0  # for answers in progress
MAX_CALLS = 32  # at once; more are refused by gRPC with RESOURCE_EXHAUSTED

Sleep = Callable[[float], Awaitable[None]]


class ProxyState(msgspec.Struct, frozen=True, kw_only=True):
    """How the proxy does, for metrics and people; counts are since the agent's start."""

    serving: bool = False
    error: str = ""  # why not
    calls: Counts = ()  # by method and gRPC status: `List OK`


class PodResourcesProxy:
    """Belongs to the loop thread.

    `List` is the kubelet's answer of this moment with the grants of the pods known by now, which
    are as old as the last look at the kubelet's pods. The other methods are handed through. While
    the kubelet does not answer its error is the answer: an empty list would say that all is free.
    """

    def __init__(
        self,
        folder: str,
        channel: PodResourcesChannel,
        pods: Callable[[], tuple[PodView, ...]],
        offload: Offload = in_thread,
        held: Callable[[], tuple[Held, ...]] = tuple,
    ) -> None:
        """`folder` is where the socket is made; `pods` and `held` return those of the snapshot."""
        self.state = ProxyState()
        self._channel = channel
        self._pods = pods
        self._held = held
        self._offload = offload
        self._file = SocketFile(folder)
        self._server: aio.Server | None = None
        self._calls: Counter[str] = Counter()

    async def run(self, sleep: Sleep = asyncio.sleep) -> None:
        """Serve until cancelled; a socket that was taken away or could not be made is made anew."""
        try:
            while True:
                await self.check()
                await sleep(CHECK_S)
        finally:
            await self.stop()

    async def check(self) -> None:
        """Serve, if nobody took the socket's place; say so in the state."""
        if self._server is not None and self._file.is_ours():
            return
        await self.stop()
        try:
            await self._start()
        except AgentError as error:
            if not self.state.error:
                log.warning("pod_resources_proxy_down", extra={"error": str(error)})
            self._tell(serving=False, error=str(error))
            return
        self._tell(serving=True, error="")

    async def stop(self) -> None:
        """Remove the socket, if it is ours still, and end what is being answered."""
        if self._server is None:
            return
        server, self._server = self._server, None
        self._file.remove()
        await to_its_end(server.stop(STOP_S))
        self._tell(serving=False, error="")

    async def _start(self) -> None:
        await in_thread(load_grpc)
        import grpc  # noqa: PLC0415 - loaded by now
        from grpc import aio  # noqa: PLC0415 - the same

        server = aio.server(
            options=(("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),),
            maximum_concurrent_rpcs=MAX_CALLS,
        )
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(self._answerer(name))
            for name in (LIST, ALLOCATABLE, GET)
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            with self._file.being_made() as address:
                try:
                    server.add_insecure_port(address)
                except RuntimeError as error:
                    raise self._file.failed(str(error)) from error
                # a start that is cancelled in the middle leaves a server that cannot be stopped
                await to_its_end(server.start())
        except BaseException:  # a stop in the middle of a start too: nothing goes on serving
            await to_its_end(server.stop(None))
            raise
        self._server = server

    def _answerer(
        self, method: str
    ) -> Callable[[bytes, aio.ServicerContext[bytes, bytes]], Awaitable[bytes]]:
        async def answer(request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
            import grpc  # noqa: PLC0415 - loaded by now

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
        # a file of pods is read here, and a list may have thousands of devices
        return await self._offload(lambda: with_grants(reply, self._pods(), self._held()))

    def _count(self, method: str, status: str) -> None:
        self._calls[f"{method} {status}"] += 1
        calls = tuple(sorted(self._calls.items()))
        self.state = msgspec.structs.replace(self.state, calls=calls)

    def _tell(self, *, serving: bool, error: str) -> None:
        self.state = msgspec.structs.replace(self.state, serving=serving, error=error)
