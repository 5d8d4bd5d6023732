"""The edge to the kernel's events: libudev by pyudev, without a running udevd."""

from __future__ import annotations

import errno
import os
import select
import socket
from typing import Any

from agent.errors import AgentError
from agent.hotplug.uevent import NO_TEXT, REFUSED, Uevent, parse_uevent

BUFFER_BYTES = 4 << 20  # of the socket: the events of a thousand virtual functions
AT_ONCE = 16  # events a call, a millisecond's worth


class CannotListen(AgentError):
    """There are no events here: no libudev, or the system refuses the socket."""


class EventsLost(AgentError):
    """More came than the socket could hold; nobody knows what."""


class UeventMonitor:
    """An open socket of the kernel's events; what libudev itself refuses is only counted."""

    def __init__(self) -> None:
        """Open the socket; `CannotListen` says why that cannot be.

        Loads a library and takes tens of milliseconds, once.
        """
        try:
            import pyudev  # noqa: PLC0415 - no start waits for it

            context = pyudev.Context()
            self._monitor: Any = pyudev.Monitor.from_netlink(context, source="kernel")
            self._grow()
            self._monitor.start()
            self._socket = socket.socket(fileno=os.dup(self.fileno()))  # for its errors alone
            self._poll = select.poll()  # not `select`: it knows no descriptor beyond a thousand
            self._poll.register(self.fileno(), select.POLLIN)
        except ImportError as error:  # also when libudev is missing
            raise CannotListen(f"libudev cannot be loaded: {error}") from error
        except OSError as error:
            why = error.strerror or str(error)
            raise CannotListen(f"the kernel's events cannot be heard: {why}") from error

    def _grow(self) -> None:
        try:
            self._monitor.set_receive_buffer_size(BUFFER_BYTES)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EACCES):
                raise

    def fileno(self) -> int:
        """Return what becomes readable when there are events."""
        return int(self._monitor.fileno())

    def take(self) -> list[Uevent | str]:
        """Return events that have come, a bounded number, or why each was dropped; never wait.

        Raises `EventsLost`, after which events go on, and `CannotListen`, after which they do not.
        """
        found: list[Uevent | str] = []
        try:
            while len(found) < AT_ONCE and self._poll.poll(0):
                found.append(self._one())
        except OSError as error:
            # asking for the socket's error clears it
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or error.errno
            if code == errno.ENOBUFS:
                raise EventsLost("more events came than the socket could hold") from error
            raise CannotListen(f"the kernel's events ended: {error}") from error
        return found

    def _one(self) -> Uevent | str:
        device = self._monitor.poll(0)
        try:
            return REFUSED if device is None else parse_uevent(dict(device.properties))
        except UnicodeDecodeError:  # a network device may be called anything
            return NO_TEXT

    def close(self) -> None:
        """Close the socket, which libudev does when nobody holds it."""
        self._socket.close()
        self._monitor = None
