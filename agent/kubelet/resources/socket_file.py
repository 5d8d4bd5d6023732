"""The proxy's socket as a file: made aside and moved into place whole, never taken from another."""

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
from agent.kubelet.resources.channel import MAX_PATH_BYTES, SOCKET

FOLDER_MODE = 0o750  # as the kubelet's own
MODE = 0o600  # as who may connect to the kubelet's: root, and nobody else
ASIDE = ".making-"


class NoProxySocket(AgentError):
    """The socket cannot be made; names the path and what to do."""


class SocketFile:
    """`kubelet.sock` in a folder. gRPC unlinks where it binds, and again when it stops.

    So it binds to a name of its own below a folder that only we enter, and that name is gone by
    then: a successor's socket in the same place is never touched.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self.path = self._folder / SOCKET
        self._ours: tuple[int, int] | None = None

    @contextlib.contextmanager
    def being_made(self) -> Iterator[str]:
        """Yield the address to listen at; then move it into place. Raises `NoProxySocket`."""
        try:
            self._folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            self._sweep()
            aside = Path(tempfile.mkdtemp(prefix=ASIDE, dir=self._folder))
        except OSError as error:
            raise self.failed(error.strerror or str(error)) from error
        try:
            made = aside / "s"
            if len(os.fsencode(made)) > MAX_PATH_BYTES:
                raise self.failed(f"longer than {MAX_PATH_BYTES} bytes")
            if self._somebody_listens():
                raise self.failed("another proxy listens there, a koordlet perhaps")
            yield f"unix:{made}"
            self._place(made)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def is_ours(self) -> bool:
        """Say whether our socket is the one in place."""
        return self._ours is not None and _file_of(self.path) == self._ours

    def remove(self) -> None:
        """Remove the socket, if it is ours."""
        if self.is_ours():
            with contextlib.suppress(OSError):  # a file system that became read-only keeps it
                self.path.unlink(missing_ok=True)
        self._ours = None

    def failed(self, detail: str) -> NoProxySocket:
        """Return the error; it names the path and the setting."""
        return NoProxySocket(f"{self.path}: {detail}; see kubelet.pod_resources_proxy_dir")

    def _place(self, made: Path) -> None:
        try:
            made.chmod(MODE)
            status = self._status()
            if status is not None and not stat.S_ISSOCK(status.st_mode):
                raise self.failed("something that is no socket stands there")
            ours = _file_of(made)
            made.replace(self.path)
        except OSError as error:
            raise self.failed(error.strerror or str(error)) from error
        self._ours = ours

    def _sweep(self) -> None:
        """Remove what an agent that was killed while making its socket left."""
        for left in self._folder.glob(f"{ASIDE}*"):
            shutil.rmtree(left, ignore_errors=True)

    def _status(self) -> os.stat_result | None:
        try:
            return self.path.lstat()
        except FileNotFoundError:
            return None

    def _somebody_listens(self) -> bool:
        """Say whether a connection is taken; a stale file takes none."""
        status = self._status()
        if status is None or not stat.S_ISSOCK(status.st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(0)  # a local socket answers at once, or its queue is full
            try:
                probe.connect(str(self.path))
            except OSError as error:
                # all else, such as a full queue, is somebody
                return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
            return True


def _file_of(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
