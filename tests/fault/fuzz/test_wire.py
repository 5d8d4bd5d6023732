"""Bytes of the runtime's socket: the connection may end for them, nothing else may."""

from __future__ import annotations

import asyncio
import logging
import struct

import pytest

from agent.errors import ParseError
from agent.nri.messages import RuntimeEvents
from agent.nri.runtime_view import RuntimeViewStore
from agent.nri.session import SERVICE, OpenRuntimeRequests, RuntimeSession
from agent.nri.statistics import NriCounters
from agent.nri.synchronization import SynchronizationList
from agent.nri.versions import RuntimePeer
from agent.nri.wire.connection import READ_BYTES, RuntimeConnection
from agent.snapshot.container import NO_ADJUSTMENT, Adjustment, HookRequest
from proto.gen import nri_plugin_pb2 as nri
from proto.gen import ttrpc_pb2 as ttrpc
from tests.fault.fuzz.mutating import Mutator
from tests.fault.fuzz.shares import SHARES
from tests.runtime.handler import FunctionHandler
from tests.runtime.pods import container, sandbox

POD = sandbox("web", annotations={"a": "b"})
CONTAINER = container(POD, "main", env={"A": "1"}, memory_bytes=1 << 30)
BATCH = 50  # inputs between two turns of the loop


class Socket(asyncio.Transport):
    """Takes what is written and forgets it."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def write(self, data: object) -> None:
        """Forget it."""

    def get_write_buffer_size(self) -> int:
        """Return 0."""
        return 0

    def abort(self) -> None:
        """Be closed."""
        self.closed = True

    close = abort


def frame(conn: int, stream: int, kind: int, data: bytes) -> bytes:
    """Return a message in one frame."""
    message = struct.pack(">IIBB", len(data), stream, kind, 0) + data
    return struct.pack(">II", conn, len(message)) + message


def request_bytes(method: str, message: bytes, stream: int = 1) -> bytes:
    """Return a question."""
    request = ttrpc.Request(
        service=SERVICE,
        method=method,
        payload=message,
        timeout_nano=10**9,
        metadata=[ttrpc.KeyValue(key="a", value="b")],
    )
    return frame(1, stream, 1, request.SerializeToString())


QUESTIONS: dict[str, bytes] = {
    name: message.SerializeToString()
    for name, message in {
        "Configure": nri.ConfigureRequest(runtime_name="containerd", runtime_version="v2.0.5"),
        "Synchronize": nri.SynchronizeRequest(pods=[POD], containers=[CONTAINER], more=True),
        "CreateContainer": nri.CreateContainerRequest(pod=POD, container=CONTAINER),
        "UpdateContainer": nri.UpdateContainerRequest(
            pod=POD, container=CONTAINER, linux_resources=CONTAINER.linux.resources
        ),
        "StopContainer": nri.StopContainerRequest(pod=POD, container=CONTAINER),
        "StateChange": nri.StateChangeEvent(event="REMOVE_POD_SANDBOX", pod=POD),
        "RunPodSandbox": nri.RunPodSandboxRequest(pod=POD),
        "PostStartContainer": nri.PostStartContainerRequest(pod=POD, container=CONTAINER),
    }.items()
}
REFUSED = ttrpc.Response(status=ttrpc.Status(code=12, message="method Nope")).SerializeToString()
FRAMES = [
    *(request_bytes(name, payload) for name, payload in QUESTIONS.items()),
    request_bytes("Configure", b"") + request_bytes("Synchronize", b"", 3),
    frame(2, 1, 2, b""),
    frame(2, 1, 2, REFUSED),
]


def wounded(mutator: Mutator) -> bytes:
    """Return bytes that are wrong in their frames, in their envelope, or in what that holds."""
    kind = mutator.random.randrange(3)
    if kind == 0:
        return mutator.mutated(FRAMES)
    if kind == 1:
        return frame(1, 1, 1, mutator.mutated([data[18:] for data in FRAMES]))
    name = mutator.random.choice(tuple(QUESTIONS))
    return request_bytes(name, mutator.mutated(tuple(QUESTIONS.values())))


async def nothing(_: HookRequest) -> Adjustment:
    """Change nothing."""
    return NO_ADJUSTMENT


class End:
    """The agent's end of one connection."""

    def __init__(self, picture: RuntimeViewStore, figures: NriCounters) -> None:
        self.asking = OpenRuntimeRequests(FunctionHandler(nothing), picture, figures)
        runtime_events = RuntimeEvents(picture)
        self.session = RuntimeSession(self.asking, runtime_events, picture, figures, 0.5)
        self.trunk = RuntimeConnection(self.session.handle_frame, self.session.handle_close, "r")
        self.session.attach(self.trunk)
        self.trunk.connection_made(Socket())

    def take(self, data: bytes) -> None:
        """Have the bytes come as the loop brings them."""
        for at in range(0, len(data), READ_BYTES):
            if self.trunk.close_reason is not None:
                return
            piece = data[at : at + READ_BYTES]
            self.trunk.get_buffer(-1)[: len(piece)] = piece
            self.trunk.buffer_updated(len(piece))

    def end(self) -> None:
        """Close, as the socket does."""
        self.trunk.connection_lost(None)


def test_only_the_connection_ends_for_bytes_that_are_no_frames(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mutator, figures, ended = Mutator("wire"), NriCounters(), 0
    bugs: list[object] = []

    async def run() -> int:
        loop, closed = asyncio.get_running_loop(), 0
        loop.set_exception_handler(lambda _, context: bugs.append(context))
        picture = RuntimeViewStore(FunctionHandler(nothing))
        for number in range(SHARES["wire"]):
            data, end = wounded(mutator), End(picture, figures)
            try:
                end.take(data)
            except Exception as error:
                raise AssertionError(f"{type(error).__name__} for {data.hex()}") from error
            if number % BATCH == 0:
                await asyncio.sleep(0)
            closed += end.trunk.close_reason is not None
            end.end()
        await asyncio.sleep(0)
        return closed

    with caplog.at_level(logging.ERROR):
        ended = asyncio.run(run())
    assert bugs == []
    assert [record.message for record in caplog.records] == []  # a boundary that caught a bug
    assert ended > 0
    results = [pair for each in figures.statistics.methods for pair in each.results]
    assert {"ok", "malformed"} <= {result for result, _ in results}
    assert sum(count for _, count in results) > SHARES["wire"] // 4


def test_invalid_lists_raise_only_errors_of_the_agent() -> None:
    mutator = Mutator("lists")
    seeds = [
        nri.SynchronizeRequest(pods=[POD] * 3, containers=[CONTAINER] * 3).SerializeToString(),
        nri.SynchronizeRequest(more=True).SerializeToString(),
    ]

    async def run() -> tuple[int, int]:
        good = left_out = 0
        for _ in range(SHARES["lists"]):
            data, parts = mutator.mutated(seeds), SynchronizationList()
            try:
                parts.add(data)
            except ParseError:
                continue
            pods, containers = await parts.read(RuntimePeer())
            assert len(pods) + len(containers) <= len(data)
            left_out += parts.dropped
            good += 1
        return good, left_out

    good, left_out = asyncio.run(run())
    assert good > 0
    assert left_out > 0
