"""The kernel's uevents: a listener with libudev (pyudev), and a pure parser.

An event is a hint. It determines which part of the host to read again, and names the function; no
other fact is taken from it.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import os
import re
import select
import socket
from collections.abc import Mapping
from typing import Any

import msgspec

from agent.errors import AgentError, ParseError
from agent.snapshot.pci import parse_address

MAX_UEVENT_BYTES = 8192  # of one message; the kernel's own are a tenth of that
NO_ACTION = "no_action"
ODD_ACTION = "odd_action"
NO_DEVPATH = "no_devpath"
TOO_LONG = "too_long"
NOT_TEXT = "no_text"  # its names are not Unicode
REFUSED = "refused"  # by the library: not from the kernel, or not a message
ACTIONS = frozenset(("add", "remove", "change", "move", "bind", "unbind", "online", "offline"))
_SEQUENCE_NUMBER = re.compile(r"[0-9]{1,20}")
_VIRTUAL_NET = "/devices/virtual/"  # of containers: each pod creates some
_PASSTHROUGH_MODULES = ("vfio",)  # give devices of any vendor to virtual machines


class RescanScope(enum.Enum):
    """A part of the host that may have changed after an event."""

    HOST = enum.auto()  # CPUs, NUMA nodes, PCI
    RDMA = enum.auto()
    ACCELERATORS = enum.auto()


_ALL_SCOPES = frozenset(RescanScope)

_SCOPES_BY_SUBSYSTEM: dict[str, frozenset[RescanScope]] = {
    "pci": _ALL_SCOPES,
    "vfio": _ALL_SCOPES,
    "module": _ALL_SCOPES,
    "infiniband": frozenset((RescanScope.RDMA,)),
    "infiniband_verbs": frozenset((RescanScope.RDMA,)),
    "infiniband_mad": frozenset((RescanScope.RDMA,)),
    "net": frozenset((RescanScope.RDMA,)),
    "auxiliary": frozenset((RescanScope.RDMA,)),
    "drm": frozenset((RescanScope.ACCELERATORS,)),
    "accel": frozenset((RescanScope.ACCELERATORS,)),
    "nvme": frozenset((RescanScope.HOST,)),
    "cpu": frozenset((RescanScope.HOST,)),
    "node": frozenset((RescanScope.HOST,)),
    "memory": frozenset((RescanScope.HOST,)),
}


class Uevent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the kernel."""

    action: str
    subsystem: str
    devpath: str
    address: str | None = None  # of the PCI function that the event is about, or of the one above
    sequence_number: int | None = None  # in the kernel's sequence, which has no gaps

    def scopes(self, driver_modules: tuple[str, ...]) -> frozenset[RescanScope]:
        """Return the parts to read again; empty if the event concerns no device.

        `driver_modules` are prefixes of driver names. The kernel loads many other modules.
        """
        name = self.devpath.rpartition("/")[2]
        if self.subsystem == "net" and self.devpath.startswith(_VIRTUAL_NET):
            return frozenset()
        modules = (*driver_modules, *_PASSTHROUGH_MODULES)
        if self.subsystem == "module" and not name.startswith(modules):
            return frozenset()
        return _SCOPES_BY_SUBSYSTEM.get(self.subsystem, frozenset())

    @property
    def is_function_removed(self) -> bool:
        """Return whether the function itself was removed, not only an object of its driver."""
        return (self.action, self.subsystem) == ("remove", "pci") and self.address is not None

    @property
    def is_function_added(self) -> bool:
        """Return whether a function was added."""
        return (self.action, self.subsystem) == ("add", "pci") and self.address is not None


def parse_uevent(fields: Mapping[str, str]) -> Uevent | str:
    """Return the event, or the reason why it is dropped."""
    if sum(len(name) + len(value) + 2 for name, value in fields.items()) > MAX_UEVENT_BYTES:
        return TOO_LONG
    action, devpath = fields.get("ACTION", ""), fields.get("DEVPATH", "")
    if not action:
        return NO_ACTION
    if action not in ACTIONS:
        return ODD_ACTION
    if not devpath.startswith("/"):
        return NO_DEVPATH
    number = fields.get("SEQNUM", "")
    return Uevent(
        action=action,
        subsystem=fields.get("SUBSYSTEM", ""),
        devpath=devpath,
        address=_address(fields.get("PCI_SLOT_NAME", ""), devpath),
        sequence_number=int(number) if _SEQUENCE_NUMBER.fullmatch(number) else None,
    )


def _address(slot: str, devpath: str) -> str | None:
    """Return the slot's address, else that of the last function in the path."""
    for text in (slot, *reversed(devpath.split("/"))):
        try:
            return parse_address(text)
        except ParseError:
            continue
    return None


BUFFER_BYTES = 4 << 20  # of the socket: the events of a thousand virtual functions

MAX_BATCH = 16  # events per call, about a millisecond of work


LIBUDEV = "libudev.so.1"


class UeventsUnavailable(AgentError):
    """There are no events: no libudev, or the system refuses the socket."""


def _load_pyudev() -> Any:  # noqa: ANN401 - it has no types
    """Import pyudev, which then loads libudev by its name; raises `ImportError`.

    pyudev itself would run `ldconfig`, `gcc` and `ld` to find the library. The image of the agent
    has none of them, and each takes longer than loading it.
    """
    import pyudev  # noqa: PLC0415 - no start waits for it
    from pyudev._ctypeslib import utils  # noqa: PLC0415 - as above

    try:
        ctypes.CDLL(LIBUDEV)
    except OSError as error:
        raise ImportError(str(error)) from error
    utils.find_library = lambda name: LIBUDEV if name == "udev" else None
    return pyudev


class UeventsLost(AgentError):
    """The socket's buffer overflowed: events were lost."""


class UeventMonitor:
    """An open socket for the kernel's events; messages that libudev refuses are only counted."""

    def __init__(self) -> None:
        """Open the socket; raises `UeventsUnavailable` if that fails.

        Loads a library once, which takes tens of milliseconds.
        """
        try:
            pyudev = _load_pyudev()
            context = pyudev.Context()
            self._monitor: Any = pyudev.Monitor.from_netlink(context, source="kernel")
            self._set_buffer_size()
            self._monitor.start()
            self._socket = socket.socket(fileno=os.dup(self.fileno()))  # only to read its errors
            self._poll = select.poll()  # `select` does not support descriptors above 1023
            self._poll.register(self.fileno(), select.POLLIN)
        except ImportError as error:  # also if libudev is missing
            raise UeventsUnavailable(f"libudev cannot be loaded: {error}") from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise UeventsUnavailable(f"the kernel's events cannot be heard: {reason}") from error

    def _set_buffer_size(self) -> None:
        try:
            self._monitor.set_receive_buffer_size(BUFFER_BYTES)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EACCES):
                raise

    def fileno(self) -> int:
        """Return the descriptor, which becomes readable at events."""
        return int(self._monitor.fileno())

    def read_events(self) -> list[Uevent | str]:
        """Return pending events, a bounded number, or the reason why each was dropped; never wait.

        Raises `UeventsLost`, after which reading continues, and `UeventsUnavailable`, after which
        it ends.
        """
        events: list[Uevent | str] = []
        try:
            while len(events) < MAX_BATCH and self._poll.poll(0):
                events.append(self._read_event())
        except OSError as error:
            # reading the socket's error clears it
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or error.errno
            if code == errno.ENOBUFS:
                raise UeventsLost("more events came than the socket could hold") from error
            raise UeventsUnavailable(f"the kernel's events ended: {error}") from error
        return events

    def _read_event(self) -> Uevent | str:
        device = self._monitor.poll(0)
        try:
            return REFUSED if device is None else parse_uevent(dict(device.properties))
        except UnicodeDecodeError:  # a network device may have any name
            return NOT_TEXT

    def close(self) -> None:
        """Close the socket, which libudev does once it is unreferenced."""
        self._socket.close()
        self._monitor = None
