"""A plug-in as the runtime sees it: what it asks, what it is asked, and when it is closed."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from proto.gen import ttrpc_pb2 as ttrpc
from tests.runtime.gobuf import MAX_DATA, Fatal, Message
from tests.runtime.trunk import PLUGIN, RUNTIME, Trunk

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
UNKNOWN, INVALID, EXHAUSTED, UNIMPLEMENTED, INTERNAL = 2, 3, 8, 12, 13
P = TypeVar("P", bound=Proto)


class Status(Exception):
    """An answer that is an error; `code` is gRPC's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"code {code}: {message}")
        self.code = code


class PluginClosed(Exception):
    """The plug-in is closed; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """One call to a plug-in: `code` 0 answered, above an error, None never answered."""

    plugin: str
    method: str
    seconds: float
    code: int | None


class Keeper(Protocol):
    """What a plug-in needs of its runtime."""

    request_s: float
    log: list[Logged]

    @property
    def extra(self) -> bytes: ...
    def broke(self, what: str) -> None: ...
    async def answer(
        self, plugin: Plugin, method: str, payload: bytes
    ) -> Proto | Literal["hang"]: ...


@dataclass(slots=True, eq=False)
class Plugin:
    """One connection. `state`: dialled, registered, configured, synchronized, closed."""

    keeper: Keeper
    trunk: Trunk = field(init=False)
    name: str = ""
    index: str = ""
    nri_version: str = ""
    events: int = 0
    state: str = "dialled"
    reason: str = ""  # why it is closed
    unanswered: str = ""  # the method of the strict call under way
    by_state_change: bool = False
    answers: list[Message] = field(default_factory=list)  # all that came on the asking connection
    registered: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    _streams: Iterator[int] = field(default_factory=lambda: itertools.count(1, 2))
    _waiting: dict[int, asyncio.Future[bytes]] = field(default_factory=dict)
    _given_up: set[int] = field(default_factory=set)
    _last_stream: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    # what tests do to it
    def pause(self) -> None:
        """Read nothing of it."""
        self.trunk.pause()

    def go_on(self) -> None:
        """Read again."""
        self.trunk.go_on()

    def half_close(self, half: Literal["read", "write", "both"]) -> None:
        """Shut one direction of the socket down."""
        self.trunk.half_close(half)

    async def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        await self.trunk.send(data)

    async def frame(self, conn: int, payload: bytes) -> None:
        """Write one frame."""
        await self.trunk.send(conn.to_bytes(4) + len(payload).to_bytes(4) + payload)

    async def message(self, conn: int, stream: int, kind: int, data: bytes) -> None:
        """Write one message."""
        await self.trunk.message(conn, stream, kind, data)

    def next_stream(self) -> int:
        """Take the stream of a call that a test writes by itself."""
        stream = next(self._streams)
        self._given_up.add(stream)
        return stream

    async def ask(
        self, method: str, message: Proto | bytes, *, service: str = PLUGIN_SERVICE
    ) -> bytes:
        """Call it without checks. Raises `Status`, `PluginClosed` or `TimeoutError`."""
        payload = message if isinstance(message, bytes) else message.SerializeToString()
        request = ttrpc.Request(
            service=service,
            method=method,
            payload=payload + self.keeper.extra,
            timeout_nano=int(self.keeper.request_s * 1e9),
            metadata=[ttrpc.KeyValue(key="traceparent", value="00-01")],
        )
        data = request.SerializeToString() + self.keeper.extra
        if len(data) > MAX_DATA:
            raise Status(EXHAUSTED, f"message length {len(data)} exceed maximum message size")
        if self.state == "closed":
            raise PluginClosed(self.reason)
        stream = next(self._streams)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[stream] = answer
        try:
            async with asyncio.timeout(self.keeper.request_s):
                await self.trunk.message(PLUGIN, stream, 1, data)
                return await answer
        except TimeoutError:
            self._given_up.add(stream)
            raise
        finally:
            self._waiting.pop(stream, None)

    async def call(self, method: str, message: Proto, answer: type[P]) -> P:
        """Call it as the runtime does. Raises `Status` or `PluginClosed`."""
        began = time.perf_counter()
        code: int | None = None
        self.unanswered = method
        try:
            payload = await self.ask(method, message)
            parsed = answer.FromString(payload)
            code = 0
        except Status as error:
            code = error.code
            raise
        except (TimeoutError, DecodeError) as error:
            self.close(f"{method}: {error!r}")
            raise PluginClosed(self.reason) from error
        else:
            return parsed
        finally:
            self.unanswered = ""
            seconds = time.perf_counter() - began
            self.keeper.log.append(
                Logged(plugin=self.name, method=method, seconds=seconds, code=code)
            )

    # what it does
    async def live(self) -> None:
        """Read until it ends; a rule that it breaks is told and ends it."""
        try:
            await self.trunk.read()
            self.close("the plug-in closed")
        except Fatal as error:
            self.keeper.broke(str(error))
            self.close(str(error))

    def take(self, conn: int, message: Message) -> None:
        """Take a message of either connection."""
        if conn == PLUGIN:
            self._take_answer(message)
        else:
            self._take_call(message)

    def close(self, reason: str) -> None:
        """End the connection; whoever waits gets `PluginClosed`."""
        if self.state == "closed":
            return
        self.state, self.reason = "closed", reason
        self.trunk.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(PluginClosed(reason))
        for task in self._tasks:
            task.cancel()
        self.closed.set()

    def _take_answer(self, message: Message) -> None:
        self.answers.append(message)
        stream, kind, data, length = message
        waiting = self._waiting.get(stream)
        if stream in self._given_up:
            return
        if kind != 2 or waiting is None or waiting.done():
            self.keeper.broke(f"message of type {kind} on stream {stream}, which waits for nothing")
        elif length > MAX_DATA:
            self.keeper.broke(f"answer of {length} bytes")
            waiting.set_exception(Status(EXHAUSTED, "answer too long"))
        else:
            _settle(waiting, data)

    def _take_call(self, message: Message) -> None:
        stream, kind, data, length = message
        if kind != 1:
            self.keeper.broke(f"message of type {kind} on the runtime's connection")
            self._reply_later(stream, _status(INVALID, "StreamID is no longer active"))
        elif stream % 2 == 0 or stream <= self._last_stream:
            self.keeper.broke(f"stream {stream} after {self._last_stream}")
            self._reply_later(stream, _status(INVALID, "StreamID cannot be re-used"))
        elif length > MAX_DATA:
            self._last_stream = stream
            self.keeper.broke(f"request of {length} bytes")
            self._reply_later(stream, _status(EXHAUSTED, f"message length {length} exceed"))
        else:
            self._last_stream = stream
            self._start(self._serve(stream, data))

    async def _serve(self, stream: int, data: bytes) -> None:
        try:
            request = ttrpc.Request.FromString(data)
            if request.service != RUNTIME_SERVICE:
                raise Status(UNIMPLEMENTED, f"service {request.service}")
            answer = await self.keeper.answer(self, request.method, request.payload)
            if answer == "hang":
                return
            response = ttrpc.Response(payload=answer.SerializeToString()).SerializeToString()
        except DecodeError as error:
            self.keeper.broke(f"request that cannot be read: {error}")
            response = _status(INVALID, "unmarshal request error")
        except Status as error:
            response = _status(error.code, str(error))
        await self.trunk.message(RUNTIME, stream, 2, response)

    def _reply_later(self, stream: int, response: bytes) -> None:
        self._start(self.trunk.message(RUNTIME, stream, 2, response))

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _status(code: int, message: str) -> bytes:
    status = ttrpc.Status(code=code, message=message)
    return ttrpc.Response(status=status).SerializeToString()


def _settle(waiting: asyncio.Future[bytes], data: bytes) -> None:
    """Give an answer to whom waits, as ttrpc's client does."""
    try:
        response = ttrpc.Response.FromString(data)
    except DecodeError as error:
        waiting.set_exception(error)
        return
    if response.HasField("status") and response.status.code != 0:
        waiting.set_exception(Status(response.status.code, response.status.message))
    else:
        waiting.set_result(response.payload)
