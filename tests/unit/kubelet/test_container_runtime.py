"""StopContainer at a CRI socket."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc import aio

from agent.kubelet.container_runtime import STOP_CONTAINER, ContainerRuntime
from proto.gen import cri_runtime_v1_pb2 as cri
from tests.patience import PATIENCE_S


@pytest.fixture
def socket() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="x", dir="/tmp")  # paths of sockets are short
    yield f"{folder}/cri.sock"
    shutil.rmtree(folder)


class Runtime(grpc.GenericRpcHandler):
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


def with_runtime(
    socket: str, runtime: Runtime, act: Callable[[ContainerRuntime], Awaitable[str]]
) -> str:
    async def run() -> str:
        server = aio.server()
        server.add_generic_rpc_handlers((runtime,))
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        try:
            return await asyncio.wait_for(act(ContainerRuntime(socket)), PATIENCE_S)
        finally:
            await server.stop(None)

    return asyncio.run(run())


def test_all_containers_are_stopped_with_the_grace_period(socket: str) -> None:
    runtime = Runtime("a", "b")
    error = with_runtime(socket, runtime, lambda one: one.stop_containers(("a", "b"), 7))
    assert error == ""
    assert sorted(runtime.stopped) == [("a", 7), ("b", 7)]


def test_a_container_that_the_runtime_does_not_have_is_stopped(socket: str) -> None:
    runtime = Runtime("a")
    assert with_runtime(socket, runtime, lambda one: one.stop_containers(("a", "gone"), 1)) == ""


def test_a_refusal_is_returned(socket: str) -> None:
    runtime = Runtime("a")
    runtime.code = grpc.StatusCode.FAILED_PRECONDITION
    error = with_runtime(socket, runtime, lambda one: one.stop_containers(("a",), 1))
    assert error == "StopContainer a: FAILED_PRECONDITION: no"


def test_without_a_socket_nothing_is_stopped(socket: str) -> None:
    assert Path(socket).exists() is False
    error = asyncio.run(ContainerRuntime(socket).stop_containers(("a",), 1))
    assert error == f"{socket}: no such socket"
