"""The kubelet's folder for device plug-ins: whether it and the kubelet's socket are still the same.

The kernel tells of changes at once; a look every few seconds finds what it did not tell.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import stat
from collections.abc import Callable

import msgspec

from agent.deviceplugin.kubelet.inotify import FolderNews, NoNews
from agent.deviceplugin.serve.names import KUBELET, is_ours

log = logging.getLogger(__name__)

MAX_NAMES = 1000  # of the folder that are looked at
MAX_OTHERS = 64

File = tuple[int, int, int]  # device, inode, and the time of its last change in ns
Folder = tuple[int, int]  # device and inode


class FolderSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One look. Another socket means another kubelet, or one that began again."""

    folder: Folder | None = None  # None: it is not there
    socket: File | None = None  # None: there is none, or something that is no socket

    def replaced(self, now: FolderSeen) -> bool:
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
        watch: Callable[[str], FolderNews] = FolderNews,
    ) -> None:
        """Look every `poll_s`, or every `absent_s` while there is no folder or no socket."""
        self.path = path
        self.seen = FolderSeen()
        self.names: tuple[str, ...] = ()  # of what was in it then; a bounded number
        self.looks = 0
        self.problem = ""  # why there is no news
        self._heard = heard
        self._poll_s, self._absent_s = poll_s, absent_s
        self._watch = watch
        self._news: FolderNews | None = None
        self._watched: Folder | None = None

    async def run(self) -> None:
        """Look, until cancelled."""
        try:
            while True:
                self.look()
                await self._next()
        finally:
            self._disarm()

    def look(self) -> None:
        """Look now, and have the folder that is there now watched."""
        folder = _folder(self.path)
        if folder != self._watched or self._news is None:
            self._arm(folder)
        # after that: what happens from now on is told
        self.seen = FolderSeen(folder=folder, socket=_socket(self.kubelet))
        self.names = tuple(self._names())
        self.looks += 1
        self._heard()

    @property
    def kubelet(self) -> str:
        """Return the path of the kubelet's socket."""
        return os.path.join(self.path, KUBELET)

    def others(self) -> tuple[str, ...]:
        """Return names of sockets behind which another plug-in listens; a few."""
        names = [name for name in self._names() if name != KUBELET and not is_ours(name)]
        return tuple(itertools.islice(filter(self.answers, names), MAX_OTHERS))

    def answers(self, name: str) -> bool:
        """Say whether somebody listens behind a socket of that name."""
        path = os.path.join(self.path, name)
        return _socket(path) is not None and _answers(path)

    def sweep(self) -> None:
        """Remove sockets of agents that were killed: nobody listens there any more."""
        for name in self._names():
            path = os.path.join(self.path, name)
            if is_ours(name) and _socket(path) is not None and not _answers(path):
                try:
                    os.unlink(path)
                except OSError as error:
                    log.warning("socket_left", extra={"path": path, "error": error.strerror})

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.path))[:MAX_NAMES]
        except OSError:
            return []

    async def _next(self) -> None:
        """Return when there is news, or after a while."""
        there = self.seen.folder is not None and self.seen.socket is not None
        limit_s = self._poll_s if there else min(self._absent_s, self._poll_s)
        if self._news is None:
            await asyncio.sleep(limit_s)
            return
        told = asyncio.Event()
        loop, number = asyncio.get_running_loop(), self._news.fileno()
        loop.add_reader(number, told.set)
        try:
            async with asyncio.timeout(limit_s):
                await told.wait()
        except TimeoutError:
            return
        finally:
            loop.remove_reader(number)
        # a watch may have ended with its folder, and another folder can have the same inode
        self._disarm()

    def _arm(self, folder: Folder | None) -> None:
        self._disarm()
        if folder is None:
            return
        try:
            self._news = self._watch(self.path)
        except NoNews as error:
            if not self.problem:
                log.warning("kubelet_folder_not_watched", extra={"error": str(error)})
            self.problem = str(error)
            return
        self.problem, self._watched = "", folder

    def _disarm(self) -> None:
        if self._news is not None:
            self._news.close()
        self._news = self._watched = None


def _folder(path: str) -> Folder | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None


def _socket(path: str) -> File | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISSOCK(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _answers(path: str) -> bool:
    """Say whether a connection is taken, or may be: only a plain refusal says that it is not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)  # a local socket answers at once, or its queue is full
        try:
            probe.connect(path)
        except OSError as error:
            return not isinstance(error, ConnectionRefusedError | FileNotFoundError)
    return True
