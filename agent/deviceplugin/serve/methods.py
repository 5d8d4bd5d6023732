"""The five methods as gRPC calls them: bytes in, bytes out, or a status with a reason."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from agent.deviceplugin.base import NotAllocated
from agent.deviceplugin.serve.answering import Answering
from agent.deviceplugin.serve.streaming import Streams

if TYPE_CHECKING:
    import grpc
    from grpc import aio

    Context = aio.ServicerContext[bytes, bytes]

log = logging.getLogger(__name__)

SERVICE = "v1beta1.DevicePlugin"

Answer = Callable[[bytes], Awaitable[bytes]]


def service_of(answering: Answering, streams: Streams, options: bytes) -> grpc.GenericRpcHandler:
    """Return the service of one server, which says these options. gRPC is loaded by then."""
    import grpc  # noqa: PLC0415 - see above

    from proto.gen import deviceplugin_v1beta1_pb2 as pb  # noqa: PLC0415 - see above

    async def tell_options(_: bytes) -> bytes:
        return options

    async def preferred(request: bytes) -> bytes:
        asked = pb.PreferredAllocationRequest.FromString(request)
        return (await answering.preferred(asked)).SerializeToString()

    async def allocate(request: bytes) -> bytes:
        answer = await answering.allocate(pb.AllocateRequest.FromString(request))
        return answer.SerializeToString()

    async def check_start(request: bytes) -> bytes:
        answering.check_start(tuple(pb.PreStartContainerRequest.FromString(request).devices_ids))
        return b""

    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.unary_unary_rpc_method_handler(_bounded(name, answer))
        for name, answer in (
            ("GetDevicePluginOptions", tell_options),
            ("GetPreferredAllocation", preferred),
            ("Allocate", allocate),
            ("PreStartContainer", check_start),
        )
    }
    handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(streams.follow)
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


def _bounded(name: str, answer: Answer) -> Callable[[bytes, Context], Awaitable[bytes]]:
    """Make of every error a status; a bug fails that one call, and is logged with its trace."""

    async def answered(request: bytes, context: Context) -> bytes:
        import grpc  # noqa: PLC0415 - loaded by now
        from google.protobuf.message import DecodeError  # noqa: PLC0415 - the same

        try:
            return await answer(request)
        except NotAllocated as error:
            code, text = grpc.StatusCode.FAILED_PRECONDITION, str(error)
        except DecodeError:
            code, text = grpc.StatusCode.INVALID_ARGUMENT, "not a message of v1beta1"
        except Exception:
            log.exception("device_plugin_failed", extra={"method": name})
            code, text = grpc.StatusCode.INTERNAL, "a bug of xpu-agent; its log has the trace"
        return await context.abort(code, text)

    return answered
