"""A kubelet of blocking calls: gRPC's frames by hand (HTTP/2, RFC 9113), so that it adds little.

The kubelet is no Python program: a client of Python would be most of what is measured.
"""

from __future__ import annotations

import socket
import struct
import time

from proto.gen import deviceplugin_v1beta1_pb2 as pb

DEADLINE_S = 30.0
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ROOM = struct.pack(">I", 1 << 30)  # so that no answer waits for more of it
MESSAGE = struct.Struct(">BI")  # gRPC's head of a message: not compressed, and its length
ASKED = {
    ":method": "POST",
    ":scheme": "http",
    ":path": "/v1beta1.DevicePlugin/Allocate",
    ":authority": "localhost",
    "te": "trailers",
    "content-type": "application/grpc",
}


def _literal(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()  # HPACK, plain text of less than 127 bytes


ASKED_BLOCK = b"".join(b"\x00" + _literal(name) + _literal(ASKED[name]) for name in ASKED)


class BareKubelet:
    """One connection to a plug-in's socket."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(DEADLINE_S)
        self._socket.connect(path)
        self._stream = -1
        opening = PREFACE + _frame(SETTINGS, 0, 0, b"") + _frame(WINDOW, 0, 0, ROOM)
        self._socket.sendall(opening)
        self._read = self._socket.makefile("rb")

    def allocate(self, ids: list[str]) -> float:
        """Return the seconds until the answer; raise if it is a refusal."""
        request = pb.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        body = request.SerializeToString()
        self._stream += 2
        question = _frame(HEADERS, END_HEADERS, self._stream, ASKED_BLOCK)
        question += _frame(DATA, END_STREAM, self._stream, MESSAGE.pack(0, len(body)) + body)
        began_s = time.perf_counter()
        self._socket.sendall(question)
        answer = self._answer()
        took_s = time.perf_counter() - began_s
        if len(answer) <= MESSAGE.size:
            raise RuntimeError("the plug-in refused, or answered with nothing")
        return took_s

    def close(self) -> None:
        """Hang up."""
        self._read.close()
        self._socket.close()

    def _answer(self) -> bytes:
        """Return the data of the stream, once it has ended; answer what the connection asks."""
        data = b""
        while True:
            kind, flags, stream, body = self._frame()
            if kind in (RESET, GOAWAY):
                raise RuntimeError("the plug-in ended the call")
            if kind in (SETTINGS, PING) and not flags & ACK:
                reply = body if kind == PING else b""
                self._socket.sendall(_frame(kind, ACK, 0, reply))
            elif kind == DATA and stream == self._stream:
                data += body
            if kind in (DATA, HEADERS) and stream == self._stream and flags & END_STREAM:
                return data

    def _frame(self) -> tuple[int, int, int, bytes]:
        head = self._read.read(9)
        if len(head) < 9:
            raise RuntimeError("the plug-in hung up")
        return (
            head[3],
            head[4],
            int.from_bytes(head[5:9], "big"),
            self._read.read(int.from_bytes(head[:3], "big")),
        )


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
