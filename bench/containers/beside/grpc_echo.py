"""A gRPC server that answers with what it was asked: `python -m … SOCKET`, on one event loop."""

from __future__ import annotations

import asyncio
import sys

import grpc
from grpc import aio

from proto.gen import nri_plugin_pb2 as nri

METHOD = "/nri.pkg.api.v1alpha1.Plugin/CreateContainer"


async def _echo(
    request: nri.CreateContainerRequest, _: aio.ServicerContext[object, object]
) -> nri.CreateContainerRequest:
    return request


async def run(socket: str) -> None:
    """Serve until killed."""
    handler = grpc.unary_unary_rpc_method_handler(
        _echo,
        request_deserializer=nri.CreateContainerRequest.FromString,
        response_serializer=nri.CreateContainerRequest.SerializeToString,
    )
    server = aio.server()
    service, method = METHOD[1:].split("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
