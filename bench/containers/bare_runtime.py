"""A runtime of blocking calls: what it adds to a figure is two system calls and a parse."""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path

from proto.gen import nri_plugin_pb2 as nri
from proto.gen import ttrpc_pb2 as ttrpc

SERVICE = "nri.pkg.api.v1alpha1.Plugin"
DEADLINE_S = 30.0
FIRST_BYTES = 4096
_FRAME = struct.Struct(">II")
_HEAD = struct.Struct(">IIBB")


class BareRuntime:
    """Listens; `register` takes a plug-in in, `ask` asks it and says how long that took."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "nri.sock"
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.path))
        self._listening.listen()
        self._listening.settimeout(DEADLINE_S)
        self._plugin: socket.socket | None = None
        self._stream = -1

    def __enter__(self) -> BareRuntime:
        return self

    def __exit__(self, *_: object) -> None:
        if self._plugin is not None:
            self._plugin.close()
        self._listening.close()

    def register(self, picture: bytes = b"") -> float:
        """Take the next plug-in in; return the seconds that Synchronize took."""
        if self._plugin is not None:
            self._plugin.close()
        self._plugin, _ = self._listening.accept()
        self._plugin.settimeout(DEADLINE_S)
        self._stream = -1
        conn, stream, _ = self._message()
        if conn != 2:
            raise RuntimeError("the plug-in does not begin with its registration")
        self._send(2, stream, 2, b"")
        self.ask(
            "Configure",
            nri.ConfigureRequest(
                runtime_name="containerd",
                runtime_version="v2.1.4",
                registration_timeout=5000,
                request_timeout=2000,
            ).SerializeToString(),
        )
        return self.ask("Synchronize", picture)[0]

    def ask(self, method: str, payload: bytes) -> tuple[float, bytes]:
        """Ask; return the seconds until the whole answer was read, and its payload."""
        self._stream += 2
        request = ttrpc.Request(
            service=SERVICE, method=method, payload=payload, timeout_nano=2 * 10**9
        ).SerializeToString()
        began_s = time.perf_counter()
        self._send(1, self._stream, 1, request)
        conn, stream, data = self._message()
        took_s = time.perf_counter() - began_s
        answer = ttrpc.Response.FromString(data)
        if (conn, stream) != (1, self._stream) or answer.status.code:
            raise RuntimeError(f"{method}: {answer.status.code} {answer.status.message}")
        return took_s, answer.payload

    def _send(self, conn: int, stream: int, kind: int, data: bytes) -> None:
        assert self._plugin is not None
        message = _HEAD.pack(len(data), stream, kind, 0) + data
        parts = (message[:FIRST_BYTES], message[FIRST_BYTES:])
        self._plugin.sendall(b"".join(_FRAME.pack(conn, len(p)) + p for p in parts if p))

    def _message(self) -> tuple[int, int, bytes]:
        conn, message = self._frame()
        length, stream, _, _ = _HEAD.unpack_from(message)
        while len(message) < length + _HEAD.size:
            message += self._frame()[1]
        return conn, stream, message[_HEAD.size :]

    def _frame(self) -> tuple[int, bytes]:
        conn, length = _FRAME.unpack(self._exactly(_FRAME.size))
        return conn, self._exactly(length)

    def _exactly(self, length: int) -> bytes:
        assert self._plugin is not None
        data = self._plugin.recv(length, socket.MSG_WAITALL)
        if len(data) < length:
            raise RuntimeError("the plug-in closed")
        return data
