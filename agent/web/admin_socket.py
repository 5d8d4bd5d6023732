"""The admin socket: its path, how it is bound, and the credentials of its peer."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
from pathlib import Path

from agent.errors import AgentError

SOCKET_NAME = "admin.sock"
SOCKET_OFF = "off"
SOCKET_MODE = 0o600
CONNECT_DEADLINE_S = 10.0
MIN_RELEASE_S, MAX_RELEASE_S = 1.0, 3600.0  # for how long a vendor's library may be released
_CREDENTIALS = struct.Struct("=iII")  # process, user, group
_BACKLOG = 64


class AdminSocketError(AgentError):
    """The admin socket cannot be used; names the path and what to do."""


def socket_path(setting: str, out: str) -> str | None:
    """Return where the running agent listens; `None` if that is switched off."""
    if setting == SOCKET_OFF:
        return None
    return setting or str(Path(out, SOCKET_NAME))


def bind_socket(path: str) -> socket.socket:
    """Listen at the path, for root and for who runs the agent.

    A file that nobody listens at any more is replaced. Raises `AdminSocketError`.
    """
    with contextlib.suppress(OSError):  # the next step says it better
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    with _SocketFolder(path) as folder:
        if folder.is_served():
            raise AdminSocketError(f"{path}: another agent listens there; choose with admin.socket")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            os.fchmod(
                listener.fileno(), SOCKET_MODE
            )  # the file is made with it: it is never open to all
            folder.remove(folder.new_name)  # of an agent that was killed here
            listener.bind(folder.new_address)
            listener.listen(_BACKLOG)
            listener.settimeout(0)
            folder.publish()  # whoever finds the file is accepted: it listens already
        except OSError as error:
            listener.close()
            raise AdminSocketError(f"{path}: {error.strerror}; choose with admin.socket") from error
    return listener


def socket_identity(path: str) -> tuple[int, int] | None:
    """Return which file is at the path, whatever it may lead to; `None` if there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def remove_socket(path: str, identity: tuple[int, int] | None) -> None:
    """Remove our own socket, while it is still listened at; never the one of another agent."""
    if identity is not None and socket_identity(path) == identity:
        Path(path).unlink(missing_ok=True)


def connect_socket(path: str, deadline_s: float = CONNECT_DEADLINE_S) -> socket.socket:
    """Return a connection to the agent that listens there, or raise `AdminSocketError`."""
    with _SocketFolder(path) as folder:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        peer.settimeout(deadline_s)
        try:
            peer.connect(folder.address)
        except OSError as error:
            peer.close()
            raise AdminSocketError(
                f"{path}: {error.strerror}: no agent listens there, or you may not; see --socket"
            ) from error
    return peer


def peer_uid(connected: socket.socket) -> int:
    """Return the user at the other end, as the kernel noted it when the connection was made."""
    data = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(data)[1]
    return uid


class _SocketFolder:
    """The folder of a socket, held open: an address has room for a hundred characters only."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._name = self._path.name
        self.new_name = f"{self._name}.new"
        self._fd = -1

    def __enter__(self) -> _SocketFolder:
        try:
            self._fd = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise AdminSocketError(f"{self._path.parent}: {error.strerror}") from error
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    @property
    def address(self) -> str:
        """Return a short name of the socket, good while the folder is held."""
        return f"/proc/self/fd/{self._fd}/{self._name}"

    @property
    def new_address(self) -> str:
        """Return the short name of a socket that is not published yet."""
        return f"/proc/self/fd/{self._fd}/{self.new_name}"

    def is_served(self) -> bool:
        """Say whether somebody listens already."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(self.address)
            except OSError as error:
                # all else, such as a full queue of a busy agent, is somebody
                return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
            return True

    def publish(self) -> None:
        """Give the new socket its name; raises `FileExistsError` for a file that is no socket."""
        status = self.status(self._name)
        if status is not None and not stat.S_ISSOCK(status.st_mode):
            self.remove(self.new_name)
            raise FileExistsError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        os.rename(self.new_name, self._name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        """Remove a socket that is there; anything else is not ours to remove."""
        status = self.status(name)
        if status is not None and stat.S_ISSOCK(status.st_mode):
            os.unlink(name, dir_fd=self._fd)

    def status(self, name: str) -> os.stat_result | None:
        """Return what is there now, a link itself; `None`: nothing."""
        try:
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
