"""Names of sockets in the kubelet's folder: ours are told from others, and are never too long.

The kernel's news of one folder. That there is some is all that is heard: one has to look.

The kubelet's folder for device plug-ins: whether it and the kubelet's socket are still the
same. The kernel tells of changes at once; a look every few seconds finds what it did not tell.
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

PLUGIN_FOLDER = "device-plugins"  # below the kubelet's own

KUBELET_SOCKET = "kubelet.sock"

CHECKPOINT_FILE = "kubelet_internal_checkpoint"

SOCKET_PREFIX, SOCKET_SUFFIX = "xpu-agent-", ".sock"

MAX_PATH_BYTES = 107  # of a socket's address

MAX_SOCKET_NAME = 60  # characters: leaves 47 for the folder and its slash

HASH_LENGTH = 8  # characters of the resource's hash in a name that was cut

_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]")


def plugin_folder(root_dir: str) -> str:
    """Return where the kubelet with that folder listens for device plug-ins."""
    return f"{root_dir.rstrip('/')}/{PLUGIN_FOLDER}"


def socket_name(resource: str, number: int) -> str:
    """Return the file name of a resource's server; each of its incarnations has another number.

    The start of a long name stays readable; its hash keeps it apart from others with that start.
    Names that differ only where `/` stands are the same file name: look before one is taken.
    """
    plain, tail = _UNSAFE_CHARACTERS.sub("-", resource), f".{number}{SOCKET_SUFFIX}"
    room = MAX_SOCKET_NAME - len(SOCKET_PREFIX) - len(tail)
    if len(plain) > room:
        digest = hashlib.sha256(resource.encode("utf-8", "replace")).hexdigest()[:HASH_LENGTH]
        plain = f"{plain[: room - HASH_LENGTH - 1]}-{digest}"
    return f"{SOCKET_PREFIX}{plain}{tail}"


def is_agent_socket(name: str) -> bool:
    """Say whether an agent made a socket of that name."""
    return name.startswith(SOCKET_PREFIX) and name.endswith(SOCKET_SUFFIX)


def is_path_too_long(path: str) -> bool:
    """Say whether the system refuses a path as the address of a socket."""
    return len(os.fsencode(path)) > MAX_PATH_BYTES


# linux/inotify.h
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200

DELETE_SELF, MOVE_SELF, ONLY_FOLDER = 0x400, 0x800, 0x0100_0000

WATCH_MASK = MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF | ONLY_FOLDER


class FolderWatchError(AgentError):
    """The folder cannot be watched; it has to be looked at from time to time."""


class FolderWatch:
    """An open watch of the folder that a path leads to now; it stays with that very folder."""

    def __init__(self, path: str) -> None:
        """Open the watch; raise `NoNews`."""
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _watch_error(path, "see fs.inotify.max_user_instances")
        if libc.inotify_add_watch(self._fd, os.fsencode(path), WATCH_MASK) < 0:
            error = _watch_error(path, "see fs.inotify.max_user_watches")
            os.close(self._fd)
            raise error

    def fileno(self) -> int:
        """Return what becomes readable when something happened."""
        return self._fd

    def close(self) -> None:
        """Let go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _watch_error(path: str, advice: str) -> FolderWatchError:
    return FolderWatchError(
        f"{path}: cannot be watched: {os.strerror(ctypes.get_errno())}; {advice}"
    )


log = logging.getLogger(__name__)

MAX_FILE_NAMES = 1000  # of the folder that are looked at

MAX_OTHER_PLUGINS = 64

SocketIdentity = tuple[int, int, int]  # device, inode, and the time of its last change in ns

FolderIdentity = tuple[int, int]  # device and inode


class FolderState(msgspec.Struct, frozen=True, kw_only=True):
    """One look. Another socket means another kubelet, or one that began again."""

    folder: FolderIdentity | None = None  # None: it is not there
    socket: SocketIdentity | None = None  # None: there is none, or something that is no socket

    def is_replaced_by(self, now: FolderState) -> bool:
        """Say whether what a later look found is another kubelet's. One that is gone is nobody."""
        if now.folder is not None and now.folder != self.folder:
            return True
        return now.socket is not None and now.socket != self.socket


class KubeletFolder:
    """Belongs to the loop thread. `seen` is the last look; `heard` is called after each."""

    def __init__(
        self,
        path: str,
        heard: Callable[[], None],
        *,
        poll_s: float = 5.0,
        absent_s: float = 1.0,
        watch: Callable[[str], FolderWatch] = FolderWatch,
    ) -> None:
        """Look every `poll_s`, or every `absent_s` while there is no folder or no socket."""
        self.path = path
        self.state = FolderState()
        self.names: tuple[str, ...] = ()  # of what was in it then; a bounded number
        self.scan_count = 0
        self.problem = ""  # why there is no news
        self._on_scan = heard
        self._poll_s, self._absent_s = poll_s, absent_s
        self._watch = watch
        self._folder_watch: FolderWatch | None = None
        self._watched_folder: FolderIdentity | None = None

    async def run(self) -> None:
        """Look, until cancelled."""
        try:
            while True:
                self.scan()
                await self._wait_for_change()
        finally:
            self._stop_watch()

    def scan(self) -> None:
        """Look now, and have the folder that is there now watched."""
        folder = _folder_identity(self.path)
        if folder != self._watched_folder or self._folder_watch is None:
            self._start_watch(folder)
        # after that: what happens from now on is told
        self.state = FolderState(folder=folder, socket=_socket_identity(self.kubelet_socket))
        self.names = tuple(self._names())
        self.scan_count += 1
        self._on_scan()

    @property
    def kubelet_socket(self) -> str:
        """Return the path of the kubelet's socket."""
        return os.path.join(self.path, KUBELET_SOCKET)

    def other_plugins(self) -> tuple[str, ...]:
        """Return names of sockets behind which another plug-in listens; a few."""
        names = [
            name for name in self._names() if name != KUBELET_SOCKET and not is_agent_socket(name)
        ]
        return tuple(itertools.islice(filter(self.is_listening, names), MAX_OTHER_PLUGINS))

    def is_listening(self, name: str) -> bool:
        """Say whether somebody listens behind a socket of that name."""
        path = os.path.join(self.path, name)
        return _socket_identity(path) is not None and _accepts_connection(path)

    def remove_dead_sockets(self) -> None:
        """Remove sockets of agents that were killed: nobody listens there any more."""
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
        """Return when there is news, or after a while."""
        there = self.state.folder is not None and self.state.socket is not None
        limit_s = self._poll_s if there else min(self._absent_s, self._poll_s)
        if self._folder_watch is None:
            await asyncio.sleep(limit_s)
            return
        told = asyncio.Event()
        loop, number = asyncio.get_running_loop(), self._folder_watch.fileno()
        loop.add_reader(number, told.set)
        try:
            async with asyncio.timeout(limit_s):
                await told.wait()
        except TimeoutError:
            return
        finally:
            loop.remove_reader(number)
        # a watch may have ended with its folder, and another folder can have the same inode
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
    """Say whether a connection is taken, or may be: only a plain refusal says that it is not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)  # a local socket answers at once, or its queue is full
        try:
            probe.connect(path)
        except OSError as error:
            return not isinstance(error, ConnectionRefusedError | FileNotFoundError)
    return True
