"""Whatever comes over the socket: the connection may end for it, the plug-in never does."""

from __future__ import annotations

import asyncio
import struct
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from proto.gen import nri_plugin_pb2 as nri
from proto.gen import ttrpc_pb2 as ttrpc
from tests.fault.nri.attached import Agent, attached, gets_its_grant
from tests.patience import PATIENCE_S
from tests.runtime import Plugin, PluginClosed, Runtime, Status
from tests.runtime.gobuf import MAX_DATA
from tests.runtime.plugin import PLUGIN_SERVICE

UNIMPLEMENTED, INVALID, EXHAUSTED, INTERNAL = 12, 3, 8, 13
PING = "ValidateContainerAdjustment"  # which has no say, and is answered
Scene = Callable[[Runtime, Agent, Plugin], Awaitable[None]]


def play(folder: Path, scene: Scene) -> None:
    """Play a scene with a plug-in in step; afterwards a container gets its grant all the same."""

    async def run() -> None:
        async with attached(folder) as (runtime, agent):
            plugin = await runtime.plugged()
            await agent.synchronized()
            await scene(runtime, agent, plugin)
            if plugin.state == "closed":
                await runtime.plugged()
            await agent.synchronized()
            await gets_its_grant(runtime)

    asyncio.run(run())


def message(conn: int, stream: int, kind: int, data: bytes) -> bytes:
    """Return a frame with a whole message."""
    whole = struct.pack(">IIBB", len(data), stream, kind, 0) + data
    return struct.pack(">II", conn, len(whole)) + whole


def question(stream: int, method: str, payload: bytes) -> bytes:
    """Return a frame with a whole question."""
    request = ttrpc.Request(service=PLUGIN_SERVICE, method=method, payload=payload)
    return message(1, stream, 1, request.SerializeToString())


def creation() -> bytes:
    """Return a frame with the question of a creation."""
    container_request = nri.CreateContainerRequest()
    container_request.pod.id, container_request.container.id = "p", "c"
    return question(1001, "CreateContainer", container_request.SerializeToString())


def test_a_question_cut_at_each_byte_ends_that_connection_alone(folder: Path) -> None:
    whole = creation()

    async def run() -> None:
        async with attached(folder) as (runtime, agent):
            for length in range(len(whole)):
                plugin = await runtime.plugged()
                await plugin.send(whole[:length])
                plugin.half_close("write")
                await plugin.closed.wait()
            await runtime.plugged()
            await agent.synchronized()
            await gets_its_grant(runtime)
            assert not any(request.pod.id == "p" for request in agent.asked)

    asyncio.run(run())


def test_a_registration_cut_at_each_byte_is_begun_again(folder: Path) -> None:
    pod = nri.SynchronizeRequest()
    pod.pods.add(id="half")
    configure = nri.ConfigureRequest(runtime_name="containerd", runtime_version="v2.1.4")
    whole = b"".join(
        (
            message(2, 1, 2, b""),
            question(1, "Configure", configure.SerializeToString()),
            question(3, "Synchronize", nri.SynchronizeRequest(more=True).SerializeToString()),
            question(5, "Synchronize", pod.SerializeToString()),
        )
    )

    async def run() -> None:
        async with attached(folder) as (runtime, agent):
            runtime.ways.registration = "hang"
            for length in range(1, len(whole)):
                plugin = await runtime.dialled(length)
                await plugin.send(whole[:length])
                plugin.half_close("write")
                await plugin.closed.wait()
            assert not any(view.is_synchronized for view in agent.views)
            runtime.take_broken()  # answers to questions that the checker did not put itself
            runtime.ways.registration = "answer"
            await runtime.plugged()
            await agent.synchronized()
            await gets_its_grant(runtime)
            assert "half" not in agent.view.sandboxes

    asyncio.run(run())


@pytest.mark.parametrize("length", [(1 << 24) + 1, 0xFFFFFFFF])
def test_a_frame_that_says_it_is_huge_is_refused_before_memory_is_taken(
    folder: Path, length: int
) -> None:
    async def scene(_: Runtime, __: Agent, plugin: Plugin) -> None:
        tracemalloc.start()
        try:
            await plugin.send(struct.pack(">II", 1, length) + bytes(64))
            await plugin.closed.wait()
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()

    play(folder, scene)


@pytest.mark.parametrize("length", [MAX_DATA + 1, 0xFFFFFFFF])
def test_a_message_that_says_it_is_huge_is_refused_before_memory_is_taken(
    folder: Path, length: int
) -> None:
    async def scene(_: Runtime, __: Agent, plugin: Plugin) -> None:
        stream = plugin.next_stream()
        tracemalloc.start()
        try:
            await plugin.frame(1, struct.pack(">IIBB", length, stream, 1, 0))
            async with asyncio.timeout(PATIENCE_S):
                while not any(answer[0] == stream for answer in plugin.answers):
                    await asyncio.sleep(0.001)
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()
        status = ttrpc.Response.FromString(plugin.answers[-1][2]).status
        assert (status.code, str(length) in status.message) == (EXHAUSTED, True)
        plugin.close("its message will never come")

    play(folder, scene)


def test_a_message_over_the_limit_is_passed_over_and_the_next_is_answered(folder: Path) -> None:
    async def scene(_: Runtime, __: Agent, plugin: Plugin) -> None:
        await plugin.message(1, plugin.next_stream(), 1, bytes(MAX_DATA + 5))
        await plugin.ask(PING, b"")

    play(folder, scene)


def test_a_question_whose_length_is_short_of_its_data_does_not_end_the_plug_in(
    folder: Path,
) -> None:
    async def scene(runtime: Runtime, _: Agent, plugin: Plugin) -> None:
        stream = plugin.next_stream()
        await plugin.frame(1, struct.pack(">IIBB", 3, stream, 1, 0) + creation()[18:])
        await plugin.send(creation())
        async with asyncio.timeout(PATIENCE_S):
            while not any(answer[0] == stream for answer in plugin.answers):
                await asyncio.sleep(0.001)
        plugin.close("out of step")
        runtime.take_broken()

    play(folder, scene)


def test_an_unknown_method_or_service_is_answered_so(folder: Path) -> None:
    async def scene(_: Runtime, __: Agent, plugin: Plugin) -> None:
        with pytest.raises(Status, match="method Nope") as refusal:
            await plugin.ask("Nope", b"")
        assert refusal.value.code == UNIMPLEMENTED
        with pytest.raises(Status, match=r"service a\.B") as refusal:
            await plugin.ask(PING, b"", service="a.B")
        assert refusal.value.code == UNIMPLEMENTED

    play(folder, scene)


@pytest.mark.parametrize("method", ["Configure", "Synchronize", "CreateContainer", "StateChange"])
def test_a_payload_that_is_no_message_is_answered_with_an_error(folder: Path, method: str) -> None:
    async def scene(_: Runtime, __: Agent, plugin: Plugin) -> None:
        with pytest.raises(Status) as refusal:
            await plugin.ask(method, b"\xff\xff\xff")
        assert refusal.value.code == INTERNAL

    play(folder, scene)


def test_a_question_that_is_no_envelope_is_answered_with_an_error(folder: Path) -> None:
    async def scene(_: Runtime, __: Agent, plugin: Plugin) -> None:
        stream = plugin.next_stream()
        await plugin.message(1, stream, 1, b"\xff\xff")
        await plugin.ask(PING, b"")
        answers = {answer[0]: ttrpc.Response.FromString(answer[2]) for answer in plugin.answers}
        assert answers[stream].status.code == INVALID

    play(folder, scene)


@pytest.mark.parametrize(("stream", "kind"), [(1002, 1), (1, 1), (1001, 3), (0, 1)])
def test_a_stream_that_is_wrong_is_answered_and_the_connection_stays(
    folder: Path, stream: int, kind: int
) -> None:
    async def scene(runtime: Runtime, _: Agent, plugin: Plugin) -> None:
        await plugin.message(1, stream, kind, b"")
        await plugin.ask(PING, b"")
        wrong = [answer for answer in plugin.answers if answer[0] == stream]
        assert ttrpc.Response.FromString(wrong[-1][2]).status.code == INVALID
        runtime.take_broken()  # its answer is to a stream that the checker never opened

    play(folder, scene)


@pytest.mark.parametrize("kind", [0, 2, 4, 255])
def test_a_message_of_another_type_is_passed_over(folder: Path, kind: int) -> None:
    async def scene(_: Runtime, __: Agent, plugin: Plugin) -> None:
        await plugin.message(1, 1001, kind, b"abc")
        await plugin.ask(PING, b"")

    play(folder, scene)


@pytest.mark.parametrize("conn", [0, 3, 0xFFFFFFFF])
def test_a_frame_of_an_unknown_connection_is_passed_over(folder: Path, conn: int) -> None:
    async def scene(_: Runtime, __: Agent, plugin: Plugin) -> None:
        await plugin.frame(conn, b"what is this")
        await plugin.ask(PING, b"")

    play(folder, scene)


def test_an_answer_to_a_call_that_nobody_made_is_passed_over(folder: Path) -> None:
    async def scene(_: Runtime, __: Agent, plugin: Plugin) -> None:
        await plugin.message(2, 77, 2, b"")
        await plugin.ask(PING, b"")

    play(folder, scene)


def test_noise_ends_the_connection_and_a_new_one_is_good(folder: Path) -> None:
    async def scene(_: Runtime, __: Agent, plugin: Plugin) -> None:
        await plugin.send(bytes(range(255, 0, -1)) * 40)
        await plugin.closed.wait()
        with pytest.raises(PluginClosed):
            await plugin.ask(PING, b"")

    play(folder, scene)
