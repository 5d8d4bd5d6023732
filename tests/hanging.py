"""A real file system of the kernel (FUSE, in memory) that stops answering when a test says so."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import select
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

DEVICE = "/dev/fuse"
MAX_WRITE = 128 << 10
MNT_DETACH = 2
NO_DEVICES_NO_SUID = 6
_libc = ctypes.CDLL(None, use_errno=True)
_HEAD = struct.Struct("<IIQQIIIHH")
_ATTR = struct.Struct("<QQQQQQIIIIIIIIII")

needs_fuse = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(DEVICE, os.R_OK | os.W_OK),
    reason="needs root and /dev/fuse: a file system that hangs is mounted",
)


@dataclass
class _Node:
    number: int
    mode: int
    data: bytearray = field(default_factory=bytearray)
    names: dict[bytes, _Node] = field(default_factory=dict)


class _Refused(Exception):
    pass


class HangingFiles:
    """Files in memory. `hang` leaves every later request unanswered until `answer`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        self._numbers = itertools.count(1)
        root = self._node(stat.S_IFDIR | 0o755)
        self._nodes = {1: root}
        self._lock = threading.Lock()
        self._hangs = False
        self._ends, self._end = os.pipe()
        self._answers: dict[int, Callable[[_Node, bytes], bytes]] = {
            1: self._lookup,
            3: lambda node, _: struct.pack("<QII", 0, 0, 0) + _attributes(node),
            4: self._set_attributes,
            9: lambda node, body: self._made(node, body[8:], stat.S_IFDIR | 0o755),
            10: self._remove,
            11: self._remove,
            12: lambda node, body: self._rename(node, body, 8),
            14: lambda _node, _: bytes(16),
            15: self._read,
            16: self._write,
            17: lambda _node, _: struct.pack("<QQQQQIIII24x", 9, 9, 9, 9, 9, 4096, 255, 4096, 0),
            18: lambda _node, _: b"",
            20: lambda _node, _: b"",
            25: lambda _node, _: b"",
            26: self._begin,
            27: lambda _node, _: bytes(16),
            28: self._names,
            29: lambda _node, _: b"",
            30: lambda _node, _: b"",
            35: lambda node, body: self._made(node, body[16:], stat.S_IFREG | 0o640) + bytes(16),
            45: lambda node, body: self._rename(node, body, 16),
        }
        options = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0,allow_other"
        mounted = _libc.mount(
            b"hanging", os.fsencode(path), b"fuse", NO_DEVICES_NO_SUID, options.encode()
        )
        if mounted != 0:
            number = ctypes.get_errno()
            os.close(self._fd)
            raise OSError(number, os.strerror(number), str(path))
        self._thread = threading.Thread(target=self._serve, name="hanging files", daemon=True)
        self._thread.start()

    def hang(self) -> None:
        """Answer nothing from now on."""
        with self._lock:
            self._hangs = True

    def answer(self) -> None:
        """Answer everything again, what waits first."""
        with self._lock:
            self._hangs = False
        os.write(self._end, b"a")

    def close(self) -> None:
        """Take the file system away; requests that wait fail."""
        _libc.umount2(os.fsencode(self.path), MNT_DETACH)
        os.write(self._end, b"e")
        self._thread.join()
        for fd in (self._fd, self._ends, self._end):
            os.close(fd)

    def _serve(self) -> None:
        while True:
            with self._lock:
                watched = [self._ends] if self._hangs else [self._fd, self._ends]
            poll = select.poll()  # `select` fails for descriptors above 1,023
            for fd in watched:
                poll.register(fd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(50)}
            if self._ends in ready and os.read(self._ends, 1) == b"e":
                return
            with self._lock:
                if self._fd in ready and not self._hangs:
                    try:
                        self._one(os.read(self._fd, MAX_WRITE + 4096))
                    except (BlockingIOError, FileNotFoundError):
                        continue
                    except OSError:
                        return  # unmounted

    def _one(self, request: bytes) -> None:
        _, operation, unique, number, *_ = _HEAD.unpack_from(request)
        if operation in (2, 36, 42):  # has no answer
            return
        answer, result = self._answers.get(operation), 0
        body = b""
        if answer is None:
            result = -errno.ENOSYS
        else:
            try:
                body = answer(self._nodes.get(number, self._nodes[1]), request[_HEAD.size :])
            except _Refused as refusal:
                result = -int(str(refusal))
        os.write(self._fd, struct.pack("<IiQ", 16 + len(body), result, unique) + body)

    def _begin(self, _: _Node, body: bytes) -> bytes:
        _, _, ahead, _ = struct.unpack_from("<IIII", body)
        head = struct.pack("<IIIIHHII", 7, 31, ahead, 1 << 5, 12, 9, MAX_WRITE, 1)
        return head.ljust(64, b"\0")

    def _node(self, mode: int) -> _Node:
        return _Node(next(self._numbers), mode)

    def _lookup(self, node: _Node, body: bytes) -> bytes:
        child = node.names.get(_name(body))
        if child is None:
            raise _Refused(errno.ENOENT)
        return _entry(child)

    def _made(self, node: _Node, body: bytes, mode: int) -> bytes:
        name = _name(body)
        if name in node.names:
            raise _Refused(errno.EEXIST)
        child = node.names[name] = self._node(mode)
        self._nodes[child.number] = child
        return _entry(child)

    def _set_attributes(self, node: _Node, body: bytes) -> bytes:
        valid, _, _, size = struct.unpack_from("<IIQQ", body)
        if valid & 8:
            del node.data[size:]
            node.data.extend(bytes(size - len(node.data)))
        if valid & 1:
            node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(struct.unpack_from("<I", body, 68)[0])
        return struct.pack("<QII", 0, 0, 0) + _attributes(node)

    def _remove(self, node: _Node, body: bytes) -> bytes:
        if node.names.pop(_name(body), None) is None:
            raise _Refused(errno.ENOENT)
        return b""

    def _rename(self, node: _Node, body: bytes, at: int) -> bytes:
        folder = self._nodes[struct.unpack_from("<Q", body)[0]]
        old, new = body[at:].split(b"\0")[:2]
        if old not in node.names:
            raise _Refused(errno.ENOENT)
        folder.names[new] = node.names.pop(old)
        return b""

    def _read(self, node: _Node, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        return bytes(node.data[offset : offset + size])

    def _write(self, node: _Node, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        node.data.extend(bytes(max(0, offset - len(node.data))))
        node.data[offset : offset + size] = body[40 : 40 + size]
        return struct.pack("<II", size, 0)

    def _names(self, node: _Node, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        entries = b""
        for at, (name, child) in enumerate(list(node.names.items())):
            entry = struct.pack("<QQII", child.number, at + 1, len(name), child.mode >> 12) + name
            entry = entry.ljust(-(-len(entry) // 8) * 8, b"\0")
            if at >= offset and len(entries) + len(entry) <= size:
                entries += entry
        return entries


def _name(body: bytes) -> bytes:
    return body.split(b"\0", 1)[0]


def _attributes(node: _Node) -> bytes:
    size = len(node.data)
    return _ATTR.pack(node.number, size, 1, 0, 0, 0, 0, 0, 0, node.mode, 1, 0, 0, 0, 4096, 0)


def _entry(node: _Node) -> bytes:
    return struct.pack("<QQQQII", node.number, 0, 0, 0, 0, 0) + _attributes(node)


@contextmanager
def hanging_files(folder: Path) -> Iterator[HangingFiles]:
    """Mount such a file system in a new folder, for the time of a block."""
    folder.mkdir(parents=True, exist_ok=True)
    files = HangingFiles(folder)
    try:
        yield files
    finally:
        files.close()
