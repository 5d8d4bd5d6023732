"""StopContainer at a CRI socket."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import pytest

from agent.kubelet.container_runtime import ContainerRuntime
from tests.patience import PATIENCE_S
from tests.runtime.cri import CriServer, serve


@pytest.fixture
def socket() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="x", dir="/tmp")  # paths of sockets are short
    yield f"{folder}/cri.sock"
    shutil.rmtree(folder)


def with_runtime(
    socket: str, runtime: CriServer, act: Callable[[ContainerRuntime], Awaitable[str]]
) -> str:
    async def run() -> str:
        server = await serve(runtime, socket)
        try:
            return await asyncio.wait_for(act(ContainerRuntime(socket)), PATIENCE_S)
        finally:
            await server.stop(None)

    return asyncio.run(run())


def test_all_containers_are_stopped_with_the_grace_period(socket: str) -> None:
    runtime = CriServer("a", "b")
    error = with_runtime(socket, runtime, lambda one: one.stop_containers(("a", "b"), 7))
    assert error == ""
    assert sorted(runtime.stopped) == [("a", 7), ("b", 7)]


def test_a_container_that_the_runtime_does_not_have_is_stopped(socket: str) -> None:
    runtime = CriServer("a")
    assert with_runtime(socket, runtime, lambda one: one.stop_containers(("a", "gone"), 1)) == ""


def test_a_refusal_is_returned(socket: str) -> None:
    runtime = CriServer("a")
    runtime.code = grpc.StatusCode.FAILED_PRECONDITION
    error = with_runtime(socket, runtime, lambda one: one.stop_containers(("a",), 1))
    assert error == "StopContainer a: FAILED_PRECONDITION: no"


def test_without_a_socket_nothing_is_stopped(socket: str) -> None:
    assert Path(socket).exists() is False
    error = asyncio.run(ContainerRuntime(socket).stop_containers(("a",), 1))
    assert error == f"{socket}: no such socket"
