"""Expected errors. Any other exception is a bug."""

from __future__ import annotations

import errno as errno_names
import os

MAX_EXTRACT = 80  # characters of foreign text that an error may repeat


class AgentError(Exception):
    """Base class of all expected failures.

    The message has the operation, the object and the remedy.
    """


def failure_text(error: OSError) -> str:
    """Return why a call failed, without the text that asyncio adds.

    Errors of name resolution have negative numbers, for which the system has no text.
    """
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)


class ParseError(AgentError, ValueError):
    """Text that does not conform to its format; the message has a short, safe extract of it."""

    def __init__(self, name: str, text: str) -> None:
        extract = f": {text[:MAX_EXTRACT]!r}" if text else ""
        super().__init__(f"bad {name}{extract}")


class HostFileError(AgentError):
    """A host file could not be read; names the path and the errno."""

    def __init__(self, path: str, errno: int) -> None:
        name = errno_names.errorcode.get(errno, str(errno))
        super().__init__(f"{path}: {name}")
        self.path = path
        self.errno = errno


class NotAHost(AgentError):
    """The path given as a host has no `sys/` and `proc/`, or is not readable."""


class BadConfig(AgentError, ValueError):
    """A setting is invalid; the message names the key and, if there is one, a similar key."""


class NotSupported(AgentError):
    """The device, driver or kernel does not have this fact; it stays absent."""


CALL_HUNG = "CallHung"  # reason of conditions, events and problems


class CallSuspended(NotSupported):
    """The call hung before and is skipped for a while; the message names the call and the time."""


class DeviceGone(AgentError):
    """The device no longer answers on its bus."""


class VendorFault(AgentError):
    """A vendor library failed for a reason that is not classified."""


class LibraryReplaced(VendorFault):
    """The vendor's library was replaced by an upgrade: only a new process can load the new file."""


class UnknownTarget(AgentError):
    """The node has no vendor or device of a name; the message lists the names that it has."""


class WorkerError(AgentError):
    """A vendor's worker process is late, has ended, or sends invalid data.

    `reason` is CamelCase.
    """

    def __init__(self, vendor: str, reason: str, detail: str) -> None:
        super().__init__(f"worker {vendor}: {reason}: {detail[:200]}")
        self.vendor = vendor
        self.reason = reason


class PublishError(AgentError):
    """An object could not be written; the message has the place and the errno, if any."""

    def __init__(self, place: str, detail: str, errno: int = 0) -> None:
        name = errno_names.errorcode.get(errno, "") if errno else ""
        super().__init__(f"{place}: {name + ': ' if name else ''}{detail[:200]}")
        self.place = place
        self.errno = errno


NO_PERMISSION = "NoPermission"  # the kernel refused the worker; this is no fact about a device
