"""The pipe between the agent and a vendor's worker: typed JSON, one message a line.

The agent sends one `Start`, then one `Ask` at a time. The worker answers with `Opened`, then one
reply for each `Ask` under its number, and pushes `Happened` whenever it likes. Neither side keeps
more than one line's limit in memory, and whatever is not exactly this is a `WorkerError`.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar

import msgspec
from msgspec.structs import replace

from agent.errors import AgentError, HostFileError, WorkerError
from agent.model.inventory import DeviceEvent, DeviceSample, Inventory
from agent.model.runtime.slices import SlicesKept, SliceWish
from agent.probe.call_journal import Call

MAX_LINE = 4 * 1024 * 1024  # bytes of one message; a thousand devices need a tenth of it

GARBAGE = "Garbage"  # not a message, or not one that belongs here
TOO_LONG = "TooLong"
CLOSED = "Closed"
BAD_CONFIG = "BadConfig"
NOT_SUPPORTED = "NotSupported"  # what a vendor answers that cannot tell
NO_PERMISSION = "NoPermission"  # the kernel refused the worker; says nothing of any device
LIBRARY_REPLACED = "LibraryReplaced"  # a new process must load what is there now

T = TypeVar("T")
Method = Literal["discover", "sample", "clear", "slices", "ping", "close"]


class Start(msgspec.Struct, frozen=True, tag="start"):
    """What the worker needs to know before it opens its vendor."""

    settings: dict[str, object] = {}  # the vendor's own section; msgspec copies the default
    events: bool = True  # False: nobody listens, do not wait for them
    journal: str = ""  # path of the file for the call in progress, see `call_journal`; "": none
    record: bool = True  # False: another process keeps that file
    hung: Call | None = None  # the call that ended the process before this one


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """One question."""

    id: int
    method: Method
    device: str = ""  # key of the one that `clear` is about
    wishes: tuple[SliceWish, ...] = ()  # of `slices`
    pods: tuple[str, ...] | None = None  # of `slices`: uids on this node


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """The vendor is open; sent once, before any other message."""


class Discovered(msgspec.Struct, frozen=True, tag="discovered"):
    """The answer to `discover`."""

    id: int
    inventory: Inventory


class Sampled(msgspec.Struct, frozen=True, tag="sampled"):
    """The answer to `sample`."""

    id: int
    samples: tuple[DeviceSample, ...]


class Cleared(msgspec.Struct, frozen=True, tag="cleared"):
    """The answer to `clear`."""

    id: int
    cleared: bool  # False: there was nothing to clear


class Sliced(msgspec.Struct, frozen=True, tag="sliced"):
    """The answer to `slices`."""

    id: int
    kept: SlicesKept


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The answer to `ping` and `close`."""

    id: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The vendor raised; `kind` is the error's class. Number 0 belongs to no question."""

    id: int
    kind: str
    message: str


class Happened(msgspec.Struct, frozen=True, tag="happened"):
    """Events, pushed as they come."""

    events: tuple[DeviceEvent, ...]


Request = Start | Ask
Reply = Opened | Discovered | Sampled | Cleared | Sliced | Done | Failed | Happened
Answer = Discovered | Sampled | Cleared | Sliced | Done | Failed

_REQUESTS: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_REPLIES: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


class LineSplitter:
    """Cut a stream of bytes into lines, keeping at most one unfinished line below the limit."""

    def __init__(self, vendor: str, limit: int = MAX_LINE) -> None:
        self._vendor = vendor
        self._limit = limit
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes, without their ends; `TooLong` beyond the limit.

        Nothing may be fed after an error.
        """
        *whole, rest = data.split(b"\n")
        lines: list[bytes] = []
        for part in whole:
            lines.append(bytes(self._rest) + part)
            self._rest.clear()
        if max(map(len, lines), default=0) > self._limit or (
            len(self._rest) + len(rest) > self._limit
        ):
            self._rest.clear()
            raise WorkerError(self._vendor, TOO_LONG, f"a line of more than {self._limit} bytes")
        self._rest += rest
        return lines

    @property
    def unfinished(self) -> int:
        """Return how many bytes of a line have come without its end."""
        return len(self._rest)


def encode(message: Request | Reply) -> bytes:
    """Return the message as a line; text that is no Unicode raises `ValueError`."""
    return msgspec.json.encode(message) + b"\n"


def encode_start(
    vendor: str,
    settings: Mapping[str, object],
    *,
    events: bool,
    journal: str = "",
    record: bool = True,
    hung: Call | None = None,
) -> bytes:
    """Return the first line; settings that cannot be sent raise with the reason `BadConfig`."""
    try:
        line = encode(Start(dict(settings), events, journal, record, hung))
    except (TypeError, ValueError) as error:
        raise WorkerError(vendor, BAD_CONFIG, f"discovery.{vendor}: {error}") from error
    if len(line) > MAX_LINE:
        detail = f"discovery.{vendor}: more than {MAX_LINE} bytes of settings"
        raise WorkerError(vendor, BAD_CONFIG, detail)
    return line


def decode_request(vendor: str, line: bytes) -> Request:
    """Decode what the agent sent."""
    return _decode(_REQUESTS, vendor, line)


def decode_reply(vendor: str, line: bytes) -> Reply:
    """Decode what the worker sent."""
    return _decode(_REPLIES, vendor, line)


def _decode(decoder: msgspec.json.Decoder[T], vendor: str, line: bytes) -> T:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        extract = line[:60].decode("utf-8", "replace")
        raise WorkerError(vendor, GARBAGE, f"{error}: {extract!r}") from error


def kind_of(error: AgentError) -> str:
    """Return the error's class; a file that the kernel refuses is `NoPermission`."""
    refused = isinstance(error, HostFileError) and error.errno in (errno.EACCES, errno.EPERM)
    return NO_PERMISSION if refused else type(error).__name__


def finite(samples: Iterable[DeviceSample]) -> tuple[DeviceSample, ...]:
    """Leave out readings that are no number: JSON cannot say them, and they say nothing."""
    return tuple(
        sample
        if all(math.isfinite(r.value) for r in sample.readings)
        else replace(sample, readings=tuple(r for r in sample.readings if math.isfinite(r.value)))
        for sample in samples
    )
