"""A gRPC server that answers `Allocate` with what it was asked: `python -m … SOCKET`."""

from __future__ import annotations

import asyncio
import sys

import grpc
from grpc import aio

from proto.gen import deviceplugin_v1beta1_pb2 as pb

SERVICE, METHOD = "v1beta1.DevicePlugin", "Allocate"


async def _echo(
    request: pb.AllocateRequest, _: aio.ServicerContext[object, object]
) -> pb.AllocateRequest:
    return request


async def run(socket: str) -> None:
    """Serve until killed."""
    handler = grpc.unary_unary_rpc_method_handler(
        _echo,
        request_deserializer=pb.AllocateRequest.FromString,
        response_serializer=pb.AllocateRequest.SerializeToString,
    )
    server = aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
    )
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
