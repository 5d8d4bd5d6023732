"""Stops containers through the runtime's CRI socket, as the kubelet does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from agent.kubelet.pod_resources_socket import CHANNEL_OPTIONS
from agent.loop import run_in_thread

if TYPE_CHECKING:
    from grpc import aio

STOP_CONTAINER = "/runtime.v1.RuntimeService/StopContainer"
ANSWER_S = 5.0  # after the grace period, and for a connection


def load_runtime_client() -> None:
    """Load gRPC and the messages: 100 ms and 12 MB, so on a thread and only where they are used."""
    from grpc import aio  # noqa: F401, PLC0415 - grpc

    from proto.gen import cri_runtime_v1_pb2  # noqa: F401, PLC0415 - protobuf


class ContainerRuntime:
    """The runtime of this node. Belongs to the loop thread; connects for each call."""

    def __init__(self, socket: str) -> None:
        """`socket` is the path of the runtime's CRI socket."""
        self._socket = socket

    async def stop_containers(self, ids: Iterable[str], grace_s: int) -> str:
        """Stop the containers at the same time; return why one was not stopped, else nothing.

        A container that has ended already, or that the runtime does not have, is stopped.
        """
        if not os.path.exists(self._socket):
            return f"{self._socket}: no such socket"
        await run_in_thread(load_runtime_client)
        from grpc import aio  # noqa: PLC0415 - grpc

        async with aio.insecure_channel(f"unix:{self._socket}", options=CHANNEL_OPTIONS) as channel:
            errors = await asyncio.gather(*(_stop_container(channel, one, grace_s) for one in ids))
        return next((error for error in errors if error), "")


async def _stop_container(channel: aio.Channel, container_id: str, grace_s: int) -> str:
    import grpc  # noqa: PLC0415 - grpc

    from proto.gen import cri_runtime_v1_pb2  # noqa: PLC0415 - protobuf

    message = cri_runtime_v1_pb2.StopContainerRequest(container_id=container_id, timeout=grace_s)
    call: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(STOP_CONTAINER)
    try:
        await call(message.SerializeToString(), timeout=grace_s + ANSWER_S)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return ""
        return f"StopContainer {container_id[:12]}: {error.code().name}: {error.details()}"
    return ""
