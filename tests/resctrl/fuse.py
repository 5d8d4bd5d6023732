"""Serves the emulated resctrl file system over `/dev/fuse`, so that real system calls reach it.

Reads are never cached and attributes are valid for no time, as in a file system of the kernel. FUSE
passes no empty write to its server; it is the only call that a kernel answers and this does not.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.resctrl.emulator import Resctrl

DEVICE = "/dev/fuse"
MAX_REQUEST = 1 << 18
MAX_WRITE = 1 << 16
DIRECT_IO = 1  # of an open file
ROOT_NODE = 1
MS_RDONLY, MNT_DETACH = 1, 2
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR

_LOOKUP, _FORGET, _GETATTR, _SETATTR = 1, 2, 3, 4
_MKDIR, _UNLINK, _RMDIR, _RENAME = 9, 10, 11, 12
_OPEN, _READ, _WRITE, _STATFS, _RELEASE = 14, 15, 16, 17, 18
_INIT, _OPENDIR, _READDIR, _RELEASEDIR = 26, 27, 28, 29
_INTERRUPT, _DESTROY, _BATCH_FORGET, _RENAME2 = 36, 38, 42, 45
_SILENT = (_FORGET, _BATCH_FORGET, _INTERRUPT)

_HEADER = struct.Struct("<IIQQIIII")
_ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")


def unavailable_reason() -> str:
    """Return why the emulator cannot be mounted here; empty if it can."""
    if os.geteuid() != 0:
        return "only root may mount a file system"
    if not Path(DEVICE).exists():
        return f"no {DEVICE}"
    try:
        os.close(os.open(DEVICE, os.O_RDWR))
    except OSError as error:
        return f"{DEVICE}: {error.strerror}"
    return ""


@dataclass(frozen=True)
class Node:
    """A path as long as its group exists: another group of that name is another node."""

    path: str
    group: int  # inode of the group


@contextmanager
def mounted(resctrl: Resctrl, folder: Path, *, read_only: bool = False) -> Iterator[Path]:
    """Mount on a folder for the length of the block."""
    device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    flags = MS_RDONLY if read_only else 0
    if libc.mount(b"resctrl", os.fsencode(folder), b"fuse.resctrl", flags, options) != 0:
        number = ctypes.get_errno()
        os.close(device)
        raise OSError(number, os.strerror(number))
    server = Server(resctrl, device)
    thread = threading.Thread(target=server.run, name="resctrl-fuse", daemon=True)
    thread.start()
    try:
        yield folder
    finally:
        libc.umount2(os.fsencode(folder), MNT_DETACH)
        thread.join(10)
        os.close(device)


class Server:
    """Answers the kernel's requests one after another."""

    def __init__(self, resctrl: Resctrl, device: int) -> None:
        self._resctrl = resctrl
        self._device = device
        self._nodes: dict[int, Node] = {ROOT_NODE: Node("", resctrl.inode(""))}
        self._ids: dict[Node, int] = {node: number for number, node in self._nodes.items()}
        self._texts: dict[int, bytes] = {}  # of open files, as at their first read
        self._handles = 0
        self._answers: dict[int, Callable[[int, bytes], bytes]] = {
            _INIT: self._init,
            _LOOKUP: self._lookup,
            _GETATTR: lambda node, _: struct.pack("<QII", 0, 0, 0) + self._attributes(node),
            _SETATTR: lambda node, _: struct.pack("<QII", 0, 0, 0) + self._attributes(node),
            _OPEN: self._open,
            _OPENDIR: self._open_folder,
            _READ: self._read,
            _READDIR: self._read_folder,
            _WRITE: self._write,
            _MKDIR: self._make,
            _RMDIR: self._remove,
            _UNLINK: _refuse,
            _RENAME: _refuse,
            _RENAME2: _refuse,
            _RELEASE: self._release,
            _RELEASEDIR: lambda node, body: b"",  # noqa: ARG005 - nothing is held
            _STATFS: lambda node, body: bytes(80),  # noqa: ARG005 - all figures are 0
            _DESTROY: lambda node, body: b"",  # noqa: ARG005 - nothing is held
        }

    def run(self) -> None:
        """Serve until the file system is unmounted."""
        while True:
            try:
                request = os.read(self._device, MAX_REQUEST)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                return  # unmounted
            length, operation, unique, node, *_ = _HEADER.unpack_from(request)
            if operation in _SILENT:
                continue
            number, body = self._answer(operation, node, request[_HEADER.size : length])
            try:
                os.write(self._device, struct.pack("<IiQ", 16 + len(body), -number, unique) + body)
            except OSError:  # the caller was interrupted
                continue

    def _answer(self, operation: int, node: int, body: bytes) -> tuple[int, bytes]:
        answer = self._answers.get(operation)
        if answer is None:
            return errno.ENOSYS, b""
        try:
            return 0, answer(node, body)
        except OSError as error:
            return error.errno or errno.EIO, b""

    def _init(self, node: int, body: bytes) -> bytes:  # noqa: ARG002 - see `_answers`
        _, minor, readahead, _ = struct.unpack_from("<IIII", body)
        return struct.pack(
            "<IIIIHHIIHHI28x", 7, min(minor, 31), readahead, 0, 16, 12, MAX_WRITE, 1, 0, 0, 0
        )

    def _path(self, node: int) -> str:
        """Return the path of a node; ENODEV if its group was removed, as of kernfs."""
        place = self._nodes[node]
        if self._group_inode(place.path) != place.group:
            raise OSError(errno.ENODEV, "the group was removed")
        return place.path

    def _group_inode(self, path: str) -> int:
        parts = path.split("/")
        for length in range(len(parts), -1, -1):
            try:
                inode = self._resctrl.inode("/".join(parts[:length]))
            except OSError:
                return -1
            if inode:
                return inode
        return 0

    def _child(self, node: int, name: bytes) -> int:
        """Return the node of a name in a folder."""
        above = self._path(node)
        path = f"{above}/{os.fsdecode(name)}" if above else os.fsdecode(name)
        self._resctrl.is_folder(path)
        place = Node(path, self._group_inode(path))
        number = self._ids.setdefault(place, len(self._ids) + 1)
        self._nodes[number] = place
        return number

    def _attributes(self, node: int) -> bytes:
        path = self._path(node)
        mode, links = stat.S_IFDIR | 0o755, 2
        if not self._resctrl.is_folder(path):
            mode, links = stat.S_IFREG | (0o644 if self._resctrl.is_writable(path) else 0o444), 1
        is_group = self._resctrl.is_folder(path) and self._resctrl.inode(path)
        inode = self._resctrl.inode(path) if is_group else (1 << 32) + node
        return _ATTRIBUTES.pack(inode, *[0] * 8, mode, links, 0, 0, 0, 4096, 0)

    def _lookup(self, node: int, body: bytes) -> bytes:
        return self._entry(self._child(node, body.rstrip(b"\0")))

    def _entry(self, node: int) -> bytes:
        return struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + self._attributes(node)

    def _open(self, node: int, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", body)
        if flags & _WRITE_FLAGS and not self._resctrl.is_writable(self._path(node)):
            raise OSError(errno.EACCES, "read-only")
        return self._open_folder(node, body)

    def _open_folder(self, node: int, body: bytes) -> bytes:  # noqa: ARG002 - see `_answers`
        self._path(node)
        self._handles += 1
        return struct.pack("<QII", self._handles, DIRECT_IO, 0)

    def _read(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        if offset == 0 or handle not in self._texts:
            self._texts[handle] = self._resctrl.read(self._path(node)).encode()
        return self._texts[handle][offset : offset + size]

    def _release(self, node: int, body: bytes) -> bytes:  # noqa: ARG002 - see `_answers`
        (handle,) = struct.unpack_from("<Q", body)
        self._texts.pop(handle, None)
        return b""

    def _read_folder(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        entries = b""
        for position, name in enumerate((".", "..", *self._resctrl.names(self._path(node)))):
            raw = os.fsencode(name)
            entry = struct.pack("<QQII", (1 << 40) + position, position + 1, len(raw), 0) + raw
            entry += bytes(-len(entry) % 8)
            if position >= offset:
                if len(entries) + len(entry) > size:
                    break
                entries += entry
        return entries

    def _write(self, node: int, body: bytes) -> bytes:
        _, _, size = struct.unpack_from("<QQI", body)
        text = body[40 : 40 + size].decode("utf-8", "surrogateescape")
        self._resctrl.write(self._path(node), text)
        return struct.pack("<II", size, 0)

    def _make(self, node: int, body: bytes) -> bytes:
        name = body[8:].rstrip(b"\0")
        above = self._path(node)
        self._resctrl.make(f"{above}/{os.fsdecode(name)}" if above else os.fsdecode(name))
        return self._entry(self._child(node, name))

    def _remove(self, node: int, body: bytes) -> bytes:
        above, name = self._path(node), os.fsdecode(body.rstrip(b"\0"))
        self._resctrl.remove(f"{above}/{name}" if above else name)
        return b""


def _refuse(node: int, body: bytes) -> bytes:  # noqa: ARG001 - see `_answers`
    raise OSError(errno.EPERM, "not in this file system")
