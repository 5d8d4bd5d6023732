"""A server of the runtime's own interface (CRI) that stops containers, and nothing else."""

from __future__ import annotations

import grpc
from grpc import aio

from proto.gen import cri_runtime_v1_pb2 as cri

STOP_CONTAINER = "/runtime.v1.RuntimeService/StopContainer"


class CriServer(grpc.GenericRpcHandler):
    """A CRI server that knows some containers."""

    def __init__(self, *ids: str) -> None:
        self.ids = ids
        self.stopped: list[tuple[str, int]] = []
        self.code: grpc.StatusCode | None = None

    def service(
        self, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return grpc.unary_unary_rpc_method_handler(
            self._stop if details.method == STOP_CONTAINER else None  # type: ignore[arg-type]
        )

    async def _stop(self, data: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
        message = cri.StopContainerRequest.FromString(data)
        if self.code is not None:
            await context.abort(self.code, "no")
        if message.container_id not in self.ids:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such container")
        self.stopped.append((message.container_id, message.timeout))
        return cri.StopContainerResponse().SerializeToString()


async def serve(handler: CriServer, socket: str) -> aio.Server:
    """Serve at a socket until the server is stopped."""
    server = aio.server()
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    return server
