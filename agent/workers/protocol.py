"""The messages between the agent and a worker: JSON lines over a pipe.

The agent sends one `Start`, then one request at a time. The worker sends `Opened`, then one reply
for each request with its number, and events at any time. Neither side buffers more than one line;
any other input is a `WorkerError`.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Iterable
from typing import Literal, TypeVar

import msgspec
from msgspec.structs import replace

from agent.errors import NO_PERMISSION, AgentError, HostFileError, WorkerError
from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory, SliceReport, SliceRequest
from agent.snapshot.vendor import LIVE_CONTEXT, SessionContext, VendorSettings
from agent.wire_formats.json_values import JSON_ERRORS
from agent.workers.call_journal import LibraryCall

MAX_LINE = 4 * 1024 * 1024  # bytes of one message; a thousand devices need a tenth of it

GARBAGE = "Garbage"  # not a message, or not one that belongs here

TOO_LONG = "TooLong"

CLOSED = "Closed"

BAD_CONFIG = "BadConfig"

NOT_SUPPORTED = "NotSupported"  # what a vendor answers that cannot tell

LIBRARY_REPLACED = "LibraryReplaced"  # a new process must load what is there now

T = TypeVar("T")

WorkerMethod = Literal["discover", "sample", "clear", "slices", "ping", "close"]


class StartMessage(msgspec.Struct, frozen=True, tag="start"):
    """What the worker needs to know before it opens its vendor."""

    settings: msgspec.Raw = msgspec.Raw(b"{}")  # the vendor's own section
    context: SessionContext = SessionContext()
    events: bool = True  # False: nobody listens, do not wait for them
    journal: str = ""  # path of the file for the call in progress, see `call_journal`; "": none
    record: bool = True  # False: another process keeps that file
    hung: LibraryCall | None = None  # the call that ended the process before this one


class MethodRequest(msgspec.Struct, frozen=True, tag="ask"):
    """One question."""

    id: int
    method: WorkerMethod
    device: str = ""  # key of the one that `clear` is about
    wishes: tuple[SliceRequest, ...] = ()  # of `slices`
    pods: tuple[str, ...] | None = None  # of `slices`: uids on this node


class OpenReply(msgspec.Struct, frozen=True, tag="opened"):
    """The vendor is open; sent once, before any other message."""


class DiscoverReply(msgspec.Struct, frozen=True, tag="discovered"):
    """The answer to `discover`."""

    id: int
    inventory: Inventory


class SampleReply(msgspec.Struct, frozen=True, tag="sampled"):
    """The answer to `sample`."""

    id: int
    samples: tuple[DeviceSample, ...]


class ClearReply(msgspec.Struct, frozen=True, tag="cleared"):
    """The answer to `clear`."""

    id: int
    cleared: bool  # False: there was nothing to clear


class SlicesReply(msgspec.Struct, frozen=True, tag="sliced"):
    """The answer to `slices`."""

    id: int
    kept: SliceReport


class EmptyReply(msgspec.Struct, frozen=True, tag="done"):
    """The answer to `ping` and `close`."""

    id: int


class ErrorReply(msgspec.Struct, frozen=True, tag="failed"):
    """The vendor raised; `kind` is the error's class. Number 0 belongs to no question."""

    id: int
    kind: str
    message: str


class EventsMessage(msgspec.Struct, frozen=True, tag="happened"):
    """Events, pushed as they come."""

    events: tuple[DeviceEvent, ...]


AgentMessage = StartMessage | MethodRequest

WorkerMessage = (
    OpenReply
    | DiscoverReply
    | SampleReply
    | ClearReply
    | SlicesReply
    | EmptyReply
    | ErrorReply
    | EventsMessage
)

MethodReply = DiscoverReply | SampleReply | ClearReply | SlicesReply | EmptyReply | ErrorReply

_REQUESTS: msgspec.json.Decoder[AgentMessage] = msgspec.json.Decoder(AgentMessage)

_REPLIES: msgspec.json.Decoder[WorkerMessage] = msgspec.json.Decoder(WorkerMessage)


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
    def pending_bytes(self) -> int:
        """Return how many bytes of a line have come without its end."""
        return len(self._rest)


def encode_message(message: AgentMessage | WorkerMessage) -> bytes:
    """Return the message as a line; text that is no Unicode raises `ValueError`."""
    return msgspec.json.encode(message) + b"\n"


def encode_start(
    vendor: str,
    settings: VendorSettings,
    context: SessionContext = LIVE_CONTEXT,
    *,
    events: bool,
    journal: str = "",
    record: bool = True,
    hung: LibraryCall | None = None,
) -> bytes:
    """Return the first line; settings that cannot be sent raise with the reason `BadConfig`."""
    try:
        raw = msgspec.Raw(msgspec.json.encode(settings))
        line = encode_message(StartMessage(raw, context, events, journal, record, hung))
    except (TypeError, ValueError) as error:
        raise WorkerError(vendor, BAD_CONFIG, f"discovery.{vendor}: {error}") from error
    if len(line) > MAX_LINE:
        detail = f"discovery.{vendor}: more than {MAX_LINE} bytes of settings"
        raise WorkerError(vendor, BAD_CONFIG, detail)
    return line


def decode_request(vendor: str, line: bytes) -> AgentMessage:
    """Decode what the agent sent."""
    return _decode(_REQUESTS, vendor, line)


def decode_reply(vendor: str, line: bytes) -> WorkerMessage:
    """Decode what the worker sent."""
    return _decode(_REPLIES, vendor, line)


def _decode(decoder: msgspec.json.Decoder[T], vendor: str, line: bytes) -> T:
    try:
        return decoder.decode(line)
    except JSON_ERRORS as error:
        extract = line[:60].decode("utf-8", "replace")
        raise WorkerError(vendor, GARBAGE, f"{error}: {extract!r}") from error


def error_kind(error: AgentError) -> str:
    """Return the error's class; a file that the kernel refuses is `NoPermission`."""
    refused = isinstance(error, HostFileError) and error.errno in (errno.EACCES, errno.EPERM)
    return NO_PERMISSION if refused else type(error).__name__


def drop_non_finite(samples: Iterable[DeviceSample]) -> tuple[DeviceSample, ...]:
    """Leave out readings that are no number: JSON cannot say them, and they say nothing."""
    return tuple(
        sample
        if all(math.isfinite(r.value) for r in sample.readings)
        else replace(sample, readings=tuple(r for r in sample.readings if math.isfinite(r.value)))
        for sample in samples
    )
