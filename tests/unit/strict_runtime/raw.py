"""The least of a plug-in, written byte by byte: it does what a test says, right or wrong."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

from google.protobuf.message import Message

from proto.gen import nri_plugin_pb2 as nri
from proto.gen import ttrpc_pb2 as ttrpc

HEAD = struct.Struct(">IIIIBB")  # frame: connection, length; message: length, stream, type, flags


class RawPlugin:
    """Dials; then `register`, `asked`, `answer`."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._stream = -1

    async def __aenter__(self) -> RawPlugin:
        self._reader, self._writer = await asyncio.open_unix_connection(self._socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    def write(self, conn: int, stream: int, kind: int, data: bytes) -> None:
        """Write one message in one frame."""
        self._writer.write(HEAD.pack(conn, len(data) + 10, len(data), stream, kind, 0) + data)

    def call(self, method: str, message: Message) -> int:
        """Call the runtime; return the stream."""
        self._stream += 2
        request = ttrpc.Request(
            service="nri.pkg.api.v1alpha1.Runtime",
            method=method,
            payload=message.SerializeToString(),
        )
        self.write(2, self._stream, 1, request.SerializeToString())
        return self._stream

    async def frame(self) -> tuple[int, int, int, bytes]:
        """Return the next message's connection, stream, type, data; `IncompleteReadError`."""
        conn, length = struct.unpack(">II", await self._reader.readexactly(8))
        frame = await self._reader.readexactly(length)
        whole, stream, kind, _ = struct.unpack(">IIBB", frame[:10])
        while len(frame) < whole + 10:
            _, length = struct.unpack(">II", await self._reader.readexactly(8))
            frame += await self._reader.readexactly(length)
        return conn, stream, kind, frame[10:]

    async def next_request(self) -> tuple[int, ttrpc.Request]:
        """Return the next question; answers to our own calls are passed over."""
        while True:
            conn, stream, _, data = await self.frame()
            if conn == 1:
                return stream, ttrpc.Request.FromString(data)

    def answer(self, stream: int, message: Message | None = None, code: int = 0) -> None:
        """Answer a question."""
        status = ttrpc.Status(code=code, message="no") if code else None
        payload = message.SerializeToString() if message is not None else b""
        answer = ttrpc.Response(payload=payload, status=status)
        self.write(1, stream, 2, answer.SerializeToString())

    async def register(self, events: int = 0x8D, name: str = "raw", index: str = "10") -> None:
        """Come as far as the end of a Synchronize in one part."""
        self.call("RegisterPlugin", nri.RegisterPluginRequest(plugin_name=name, plugin_idx=index))
        stream, _ = await self.next_request()
        self.answer(stream, nri.ConfigureResponse(events=events))
        stream, _ = await self.next_request()
        self.answer(stream, nri.SynchronizeResponse())
