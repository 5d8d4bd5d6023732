"""The sockets of the pod-resources API: the kubelet's, and the file of the proxy's own.

The proxy's socket is created under a temporary name and renamed; a socket of another program is
never replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agent.errors import AgentError

FOLDER, SOCKET = "pod-resources", "kubelet.sock"

MAX_MESSAGE_BYTES = 16 << 20

MAX_PATH_BYTES = 107  # of a socket's address

# of gRPC, for the socket of the kubelet or of the runtime
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # gRPC would send the path as authority, which Go's servers refuse
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # a kubelet restarts within seconds: by default the pause grows to two minutes
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


def kubelet_socket(root_dir: str) -> str:
    """Return the socket of the kubelet with this root folder."""
    return f"{root_dir.rstrip('/')}/{FOLDER}/{SOCKET}"


FOLDER_MODE = 0o750  # as that of the kubelet's own folder

SOCKET_MODE = 0o600  # as that of the kubelet's socket: only root may connect

TEMPORARY_PREFIX = ".making-"


class ProxySocketError(AgentError):
    """The socket cannot be created; the message has the path and advice."""


class ProxySocketFile:
    """`kubelet.sock` in a folder.

    gRPC removes the file at its address when it binds and when it stops. It therefore binds to
    another name in a private folder, and the socket is renamed: a successor's socket in the same
    place is never removed.

    The socket is identified by its inode number. The kernel gives that number to no other file as
    long as the server listens, so the server must be stopped after `remove`.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self.path = self._folder / SOCKET
        self._identity: tuple[int, int] | None = None

    @contextlib.contextmanager
    def create(self) -> Iterator[str]:
        """Yield the address to bind to; then rename the socket. Raises `ProxySocketError`."""
        try:
            self._folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            self._remove_temporary_folders()
            temporary_folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=self._folder))
        except OSError as error:
            raise self.error(error.strerror or str(error)) from error
        try:
            socket_path = temporary_folder / "s"
            if len(os.fsencode(socket_path)) > MAX_PATH_BYTES:
                raise self.error(f"longer than {MAX_PATH_BYTES} bytes")
            if self._is_listening():
                raise self.error("another proxy listens there, a koordlet perhaps")
            yield f"unix:{socket_path}"
            self._place(socket_path)
        finally:
            shutil.rmtree(temporary_folder, ignore_errors=True)

    def is_in_place(self) -> bool:
        """Return whether the socket in place is the one of this object."""
        return self._identity is not None and _inode(self.path) == self._identity

    def remove(self) -> None:
        """Remove the socket if it is the one of this object."""
        if self.is_in_place():
            with contextlib.suppress(OSError):  # a file system that became read-only keeps it
                self.path.unlink(missing_ok=True)
        self._identity = None

    def remove_dead(self) -> tuple[str, ...]:
        """Remove what a killed agent left; return the path of its socket if there was one.

        Raises `ProxySocketError`. A socket at which a process listens stays.
        """
        try:
            self._remove_temporary_folders()
            status = self._status()
            if status is None or not stat.S_ISSOCK(status.st_mode) or self._is_listening():
                return ()
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise self.error(error.strerror or str(error)) from error
        return (str(self.path),)

    def error(self, detail: str) -> ProxySocketError:
        """Return an error with the path and the setting."""
        return ProxySocketError(f"{self.path}: {detail}; see kubelet.pod_resources_proxy_dir")

    def _place(self, socket_path: Path) -> None:
        try:
            socket_path.chmod(SOCKET_MODE)
            status = self._status()
            if status is not None and not stat.S_ISSOCK(status.st_mode):
                raise self.error("something that is no socket stands there")
            identity = _inode(socket_path)
            socket_path.replace(self.path)
        except OSError as error:
            raise self.error(error.strerror or str(error)) from error
        self._identity = identity

    def _remove_temporary_folders(self) -> None:
        """Remove temporary folders of agents that were killed."""
        for folder in self._folder.glob(f"{TEMPORARY_PREFIX}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def _status(self) -> os.stat_result | None:
        try:
            return self.path.lstat()
        except FileNotFoundError:
            return None

    def _is_listening(self) -> bool:
        """Return whether a process accepts connections; a stale file does not."""
        status = self._status()
        if status is None or not stat.S_ISSOCK(status.st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(0)  # a local socket answers at once, unless its queue is full
            try:
                connection.connect(str(self.path))
            except OSError as error:
                # any other error, such as a full queue, means that a process listens
                return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
            return True


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
