"""A started process on the event loop: its output and its end as calls, its input as a buffer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Protocol

from agent.probe.process.launch import Launched

READ_BYTES = 64 * 1024
POLL_S = 0.1  # how often an end is looked for on kernels without pidfd (before 5.3)


class Listener(Protocol):
    """Who is told of the process. Nothing is called after `detached`."""

    def heard(self, data: bytes) -> None:
        """Take what the process wrote to standard output."""
        ...

    def heard_error(self, data: bytes) -> None:
        """Take what it wrote to standard error."""
        ...

    def silent(self) -> None:
        """Notice that standard output is closed."""
        ...

    def exited(self) -> None:
        """Notice the end of the process; it is reaped, `status` tells how it ended."""
        ...

    def detached(self) -> None:
        """Notice that all is over: the process has ended and its pipes are closed."""
        ...


class Child:
    """Watches one process from being adopted until it has ended and said its last word."""

    def __init__(self, launched: Launched, listener: Listener) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self.pid = launched.pid
        self.ended = False  # and reaped
        self.status: int | None = None  # exit status, or minus the signal that ended it
        self._stdin: int | None = launched.stdin
        self._unsent = bytearray()
        self._open = {launched.stdout, launched.stderr}
        self._stdout = launched.stdout
        self._told = False
        for fd in self._open:
            self._loop.add_reader(fd, self._read, fd)
        self._pidfd: int | None = None
        with contextlib.suppress(OSError):  # an old kernel
            self._pidfd = os.pidfd_open(self.pid)
        if self._pidfd is None:
            self._loop.call_soon(self._poll)
        else:
            self._loop.add_reader(self._pidfd, self._reap)

    def write(self, data: bytes) -> None:
        """Send bytes; what the pipe does not take now follows. Lost once the process is gone."""
        if self._stdin is not None:
            self._unsent += data
            self._send()

    def kill(self) -> None:
        """Send SIGKILL, unless the process has been reaped."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close our ends of the pipes; the process's end is still watched."""
        self._close_stdin()
        for fd in tuple(self._open):
            self._close_output(fd)

    def _send(self) -> None:
        if self._stdin is None:
            return
        try:
            sent = os.write(self._stdin, self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:  # the process reads no more; its end tells why
            self._close_stdin()
            return
        del self._unsent[:sent]
        if self._unsent:
            self._loop.add_writer(self._stdin, self._send)
        else:
            self._loop.remove_writer(self._stdin)

    def _close_stdin(self) -> None:
        if self._stdin is not None:
            self._loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = None
            self._unsent.clear()

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close_output(fd)
        elif fd == self._stdout:
            self._listener.heard(data)
        else:
            self._listener.heard_error(data)

    def _close_output(self, fd: int) -> None:
        if fd in self._open:
            self._open.discard(fd)
            self._loop.remove_reader(fd)
            os.close(fd)
            if fd == self._stdout:
                self._listener.silent()
            self._tell_if_over()

    def _poll(self) -> None:
        self._reap()
        if not self.ended:
            self._loop.call_later(POLL_S, self._poll)

    def _reap(self) -> None:
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # somebody else reaped it: how it ended is not known
            self._end()
            return
        if pid:
            self.status = os.waitstatus_to_exitcode(status)
            self._end()

    def _end(self) -> None:
        if self.ended:
            return
        self.ended = True
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        self._close_stdin()
        self._listener.exited()
        self._tell_if_over()

    def _tell_if_over(self) -> None:
        if self.ended and not self._open and not self._told:
            self._told = True
            self._listener.detached()
