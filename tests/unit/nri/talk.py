"""A session with the runtime's end of its connection in the test's hands, in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

from google.protobuf.message import Message

from agent.nri.messages import RuntimeEvents
from agent.nri.runtime_view import RuntimeViewStore
from agent.nri.session import SERVICE, OpenRuntimeRequests, RuntimeSession
from agent.nri.statistics import NriCounters
from agent.nri.wire.connection import RuntimeConnection
from agent.nri.wire.frames import PLUGIN_STREAM, mux_frames, request_frame
from agent.snapshot.container import NO_ADJUSTMENT, Adjustment, HookRequest, RuntimeView
from proto.gen import nri_plugin_pb2 as calls
from proto.gen import ttrpc_pb2
from tests.patience import PATIENCE_S
from tests.runtime.handler import FunctionHandler

RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
Answer = Callable[[HookRequest], Awaitable[Adjustment]]


class Talk:
    """`asked` is what the hooks were asked; `answer` what they say."""

    def __init__(self, budget_s: float) -> None:
        self.views: list[RuntimeView] = []
        self.asked: list[HookRequest] = []
        self.answer: Answer = nothing
        self.handler = FunctionHandler(self._ask, self.views.append)
        self.picture = RuntimeViewStore(self.handler)
        self.figures = NriCounters()
        self.asking = OpenRuntimeRequests(self.handler, self.picture, self.figures)
        runtime_events = RuntimeEvents(self.picture)
        self.session = RuntimeSession(
            self.asking, runtime_events, self.picture, self.figures, budget_s
        )
        self.trunk = RuntimeConnection(
            self.session.handle_frame, self.session.handle_close, RUNTIME_SERVICE
        )
        self.session.attach(self.trunk)
        self.reader = asyncio.StreamReader()
        self.writer: asyncio.StreamWriter
        self._stream = -1

    async def _ask(self, hook_request: HookRequest) -> Adjustment:
        self.asked.append(hook_request)
        return await self.answer(hook_request)

    def send(self, method: str, message: Message | bytes, timeout_s: float = 0) -> int:
        """Begin a call; return its stream."""
        payload = message if isinstance(message, bytes) else message.SerializeToString()
        self._stream += 2
        whole = request_frame(self._stream, SERVICE, method, payload, timeout_s)
        self.writer.write(mux_frames(PLUGIN_STREAM, whole))
        return self._stream

    async def answered(self) -> tuple[int, ttrpc_pb2.Response]:
        """Return the next answer with its stream, read by other code than ours."""
        data = b""
        async with asyncio.timeout(PATIENCE_S):
            while len(data) < 10 or len(data) < 10 + int.from_bytes(data[:4], "big"):
                head = await self.reader.readexactly(8)
                connection, length = struct.unpack(">II", head)
                assert connection == PLUGIN_STREAM
                data += await self.reader.readexactly(length)
        length, stream, kind, flags = struct.unpack(">IIBB", data[:10])
        assert (length, kind, flags) == (len(data) - 10, 2, 0)
        return stream, ttrpc_pb2.Response.FromString(data[10:])

    async def call(
        self, method: str, message: Message | bytes = b"", timeout_s: float = 0
    ) -> ttrpc_pb2.Response:
        """Call, and return the answer."""
        stream = self.send(method, message, timeout_s)
        result, answer = await self.answered()
        assert result == stream
        return answer

    async def registered(self, version: str = "2.3.4") -> None:
        """Configure and synchronize with nothing in it."""
        configure_request = calls.ConfigureRequest(
            runtime_name="containerd", runtime_version=version
        )
        await self.call("Configure", configure_request)
        await self.call("Synchronize")
        await self.session.ready

    def results(self, method: str) -> dict[str, int]:
        """Return how often the method was answered, by how."""
        (result,) = (one for one in self.figures.statistics.methods if one.method == method)
        assert result.latency.buckets[-1] == sum(count for _, count in result.results)
        return dict(result.results)


async def nothing(hook_request: HookRequest) -> Adjustment:  # noqa: ARG001 - whatever it is
    """Change nothing."""
    return NO_ADJUSTMENT


async def never(hook_request: HookRequest) -> Adjustment:  # noqa: ARG001 - whatever it is
    """Do not answer."""
    await asyncio.Event().wait()
    return NO_ADJUSTMENT


@contextlib.asynccontextmanager
async def talk(budget_s: float = 5.0) -> AsyncIterator[Talk]:
    """Give a session that is connected, and not registered."""
    own_values, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    both = Talk(budget_s)
    await asyncio.get_running_loop().create_unix_connection(lambda: both.trunk, sock=own_values)
    both.reader, both.writer = await asyncio.open_unix_connection(sock=theirs)
    try:
        yield both
    finally:
        both.writer.transport.abort()
        await both.trunk.wait_closed("Test")
