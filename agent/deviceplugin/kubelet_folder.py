"""The kubelet's folder for device plug-ins: socket names, inotify watch, and scans.

A scan shows whether the folder and the kubelet's socket were replaced. Inotify events start a scan
at once; a scan every few seconds covers changes without an event.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import itertools
import logging
import os
import re
import socket
import stat
from collections.abc import Callable

import msgspec

from agent.errors import AgentError

log = logging.getLogger(__name__)

PLUGIN_FOLDER = "device-plugins"  # below the kubelet's root folder
KUBELET_SOCKET = "kubelet.sock"
CHECKPOINT_FILE = "kubelet_internal_checkpoint"
SOCKET_PREFIX, SOCKET_SUFFIX = "xpu-agent-", ".sock"
MAX_PATH_BYTES = 107  # of a socket's address
MAX_SOCKET_NAME = 60  # characters: leaves 47 for the folder and its slash
HASH_LENGTH = 8  # characters of the resource's hash in a shortened name
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]")


def plugin_folder(root_dir: str) -> str:
    """Return the folder in which a kubelet with this root folder listens for device plug-ins."""
    return f"{root_dir.rstrip('/')}/{PLUGIN_FOLDER}"


def socket_name(resource: str, number: int) -> str:
    """Return the file name of a resource's server; each server has another number.

    A long name is cut; its hash keeps it different from other names with the same start. Names that
    differ in `/` only give the same file name: check that the file does not exist.
    """
    readable, suffix = _UNSAFE_CHARACTERS.sub("-", resource), f".{number}{SOCKET_SUFFIX}"
    max_length = MAX_SOCKET_NAME - len(SOCKET_PREFIX) - len(suffix)
    if len(readable) > max_length:
        digest = hashlib.sha256(resource.encode("utf-8", "replace")).hexdigest()[:HASH_LENGTH]
        readable = f"{readable[: max_length - HASH_LENGTH - 1]}-{digest}"
    return f"{SOCKET_PREFIX}{readable}{suffix}"


def is_agent_socket(name: str) -> bool:
    """Return whether a socket of that name is an agent's."""
    return name.startswith(SOCKET_PREFIX) and name.endswith(SOCKET_SUFFIX)


def is_path_too_long(path: str) -> bool:
    """Return whether the path is too long for a socket address."""
    return len(os.fsencode(path)) > MAX_PATH_BYTES


# linux/inotify.h
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF, ONLY_FOLDER = 0x400, 0x800, 0x0100_0000
WATCH_MASK = MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF | ONLY_FOLDER


class FolderWatchError(AgentError):
    """The folder cannot be watched with inotify; only polling remains."""


class FolderWatch:
    """An inotify watch of the folder that a path leads to now; it stays with that folder."""

    def __init__(self, path: str) -> None:
        """Open the watch; raises `FolderWatchError`."""
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _watch_error(path, "see fs.inotify.max_user_instances")
        if libc.inotify_add_watch(self._fd, os.fsencode(path), WATCH_MASK) < 0:
            error = _watch_error(path, "see fs.inotify.max_user_watches")
            os.close(self._fd)
            raise error

    def fileno(self) -> int:
        """Return the descriptor, which becomes readable at an event."""
        return self._fd

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _watch_error(path: str, advice: str) -> FolderWatchError:
    return FolderWatchError(
        f"{path}: cannot be watched: {os.strerror(ctypes.get_errno())}; {advice}"
    )


MAX_FILE_NAMES = 1000  # of the folder that are read

MAX_OTHER_PLUGINS = 64

SocketIdentity = tuple[int, int, int]  # device, inode, and the time of its last change in ns

FolderIdentity = tuple[int, int]  # device and inode


class FolderState(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a scan. A different socket means that the kubelet was replaced or restarted."""

    folder: FolderIdentity | None = None  # None: there is no folder
    socket: SocketIdentity | None = None  # None: there is no socket of that name

    def is_replaced_by(self, now: FolderState) -> bool:
        """Return whether `now` shows another kubelet. An absent kubelet is no other kubelet."""
        if now.folder is not None and now.folder != self.folder:
            return True
        return now.socket is not None and now.socket != self.socket


class KubeletFolder:
    """Watches and scans the folder. `state` is the last scan. Belongs to the loop thread."""

    def __init__(
        self,
        path: str,
        on_scan: Callable[[], None],
        *,
        poll_s: float = 5.0,
        absent_s: float = 1.0,
        watch: Callable[[str], FolderWatch] = FolderWatch,
    ) -> None:
        """Scan every `poll_s`, or every `absent_s` without folder or socket.

        Then call `on_scan`.
        """
        self.path = path
        self.state = FolderState()
        self.names: tuple[str, ...] = ()  # file names of the last scan; a bounded number
        self.scan_count = 0
        self.problem = ""  # why the folder cannot be watched
        self._on_scan = on_scan
        self._poll_s, self._absent_s = poll_s, absent_s
        self._watch = watch
        self._folder_watch: FolderWatch | None = None
        self._watched_folder: FolderIdentity | None = None

    async def run(self) -> None:
        """Scan until cancelled."""
        try:
            while True:
                self.scan()
                await self._wait_for_change()
        finally:
            self._stop_watch()

    def scan(self) -> None:
        """Scan now, and watch the folder that exists now."""
        folder = _folder_identity(self.path)
        if folder != self._watched_folder or self._folder_watch is None:
            self._start_watch(folder)
        # read after the watch has begun, so that every later change causes an event
        self.state = FolderState(folder=folder, socket=_socket_identity(self.kubelet_socket))
        self.names = tuple(self._names())
        self.scan_count += 1
        self._on_scan()

    @property
    def kubelet_socket(self) -> str:
        """Return the path of the kubelet's socket."""
        return os.path.join(self.path, KUBELET_SOCKET)

    def other_plugins(self) -> tuple[str, ...]:
        """Return names of sockets on which other plug-ins listen; a bounded number."""
        names = [
            name for name in self._names() if name != KUBELET_SOCKET and not is_agent_socket(name)
        ]
        return tuple(itertools.islice(filter(self.is_listening, names), MAX_OTHER_PLUGINS))

    def is_listening(self, name: str) -> bool:
        """Return whether a process listens on the socket of that name."""
        path = os.path.join(self.path, name)
        return _socket_identity(path) is not None and _accepts_connection(path)

    def remove_dead_sockets(self) -> None:
        """Remove sockets of agents that were killed."""
        for name in self._names():
            path = os.path.join(self.path, name)
            if (
                is_agent_socket(name)
                and _socket_identity(path) is not None
                and not _accepts_connection(path)
            ):
                try:
                    os.unlink(path)
                except OSError as error:
                    log.warning("socket_left", extra={"path": path, "error": error.strerror})

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.path))[:MAX_FILE_NAMES]
        except OSError:
            return []

    async def _wait_for_change(self) -> None:
        """Return after an event, or after the polling interval."""
        is_complete = self.state.folder is not None and self.state.socket is not None
        limit_s = self._poll_s if is_complete else min(self._absent_s, self._poll_s)
        if self._folder_watch is None:
            await asyncio.sleep(limit_s)
            return
        event = asyncio.Event()
        loop, descriptor = asyncio.get_running_loop(), self._folder_watch.fileno()
        loop.add_reader(descriptor, event.set)
        try:
            async with asyncio.timeout(limit_s):
                await event.wait()
        except TimeoutError:
            return
        finally:
            loop.remove_reader(descriptor)
        # the watch may have ended with its folder, and a new folder can have the same inode
        self._stop_watch()

    def _start_watch(self, folder: FolderIdentity | None) -> None:
        self._stop_watch()
        if folder is None:
            return
        try:
            self._folder_watch = self._watch(self.path)
        except FolderWatchError as error:
            if not self.problem:
                log.warning("kubelet_folder_not_watched", extra={"error": str(error)})
            self.problem = str(error)
            return
        self.problem, self._watched_folder = "", folder

    def _stop_watch(self) -> None:
        if self._folder_watch is not None:
            self._folder_watch.close()
        self._folder_watch = self._watched_folder = None


def _folder_identity(path: str) -> FolderIdentity | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None


def _socket_identity(path: str) -> SocketIdentity | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISSOCK(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _accepts_connection(path: str) -> bool:
    """Return whether a connection is accepted or pending; only a refusal means no."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(0)  # a local socket answers at once, unless its queue is full
        try:
            connection.connect(path)
        except OSError as error:
            return not isinstance(error, ConnectionRefusedError | FileNotFoundError)
    return True
