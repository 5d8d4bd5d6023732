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
from agent.snapshot.inventory import (
    PROCESS_ENGINES,
    UTILIZATION,
    DeviceEvent,
    DeviceSample,
    Inventory,
    ProcessSample,
    Rejection,
    SliceReport,
    SliceRequest,
)
from agent.snapshot.settings import VendorSettings
from agent.snapshot.vendor import LIVE_CONTEXT, SessionContext
from agent.wire_formats.json_values import JSON_ERRORS
from agent.workers.call_journal import LibraryCall

MAX_LINE = 4 * 1024 * 1024  # bytes of one message; a thousand devices need a tenth of it
GARBAGE = "Garbage"  # not a message, or not one that is valid at this point
TOO_LONG = "TooLong"
CLOSED = "Closed"
BAD_CONFIG = "BadConfig"
NOT_SUPPORTED = "NotSupported"  # the vendor does not have this method
UNEXPECTED = "UnexpectedError"  # an exception that is a bug of the vendor or of the agent
LIBRARY_REPLACED = "LibraryReplaced"  # a new process must load the current library
T = TypeVar("T")

WorkerMethod = Literal["discover", "sample", "clear", "slices", "ping", "close"]


class StartMessage(msgspec.Struct, frozen=True, tag="start"):
    """What the worker needs before it opens its vendor."""

    settings: msgspec.Raw = msgspec.Raw(b"{}")  # the vendor's own section
    context: SessionContext = SessionContext()
    events: bool = True  # False: the agent does not use events, do not wait for them
    journal: str = ""  # path of the file for the call in progress, see `call_journal`; "": none
    record: bool = True  # False: another process writes that file
    hung_call: LibraryCall | None = None  # the call that ended the previous process


class MethodRequest(msgspec.Struct, frozen=True, tag="ask"):
    """One request."""

    id: int
    method: WorkerMethod
    device: str = ""  # key of the device for `clear`
    slice_requests: tuple[SliceRequest, ...] = ()  # for `slices`
    pods: tuple[str, ...] | None = None  # for `slices`: uids on this node


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
    report: SliceReport


class EmptyReply(msgspec.Struct, frozen=True, tag="done"):
    """The answer to `ping` and `close`."""

    id: int


class ErrorReply(msgspec.Struct, frozen=True, tag="failed"):
    """The vendor raised; `kind` is the error's class. Number 0 belongs to no request."""

    id: int
    kind: str
    message: str


class EventsMessage(msgspec.Struct, frozen=True, tag="happened"):
    """Events, sent as they occur."""

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
    """Splits a stream of bytes into lines; buffers at most one unfinished line below the limit."""

    def __init__(self, vendor: str, limit: int = MAX_LINE) -> None:
        self._vendor = vendor
        self._limit = limit
        self._remainder = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes, without their ends.

        Raises `WorkerError` with the reason `TooLong` beyond the limit; call it no more after an
        error.
        """
        *complete_parts, remainder = data.split(b"\n")
        lines: list[bytes] = []
        for part in complete_parts:
            lines.append(bytes(self._remainder) + part)
            self._remainder.clear()
        if max(map(len, lines), default=0) > self._limit or (
            len(self._remainder) + len(remainder) > self._limit
        ):
            self._remainder.clear()
            raise WorkerError(self._vendor, TOO_LONG, f"a line of more than {self._limit} bytes")
        self._remainder += remainder
        return lines

    @property
    def pending_bytes(self) -> int:
        """Return the number of bytes of the unfinished line."""
        return len(self._remainder)


def encode_message(message: AgentMessage | WorkerMessage) -> bytes:
    """Return the message as a line; raises `ValueError` for text that is not Unicode."""
    return msgspec.json.encode(message) + b"\n"


def encode_start(
    vendor: str,
    settings: VendorSettings,
    context: SessionContext = LIVE_CONTEXT,
    *,
    events: bool,
    journal: str = "",
    record: bool = True,
    hung_call: LibraryCall | None = None,
) -> bytes:
    """Return the first line; raises `BadConfig` as the reason if settings cannot be sent."""
    try:
        raw = msgspec.Raw(msgspec.json.encode(settings))
        line = encode_message(StartMessage(raw, context, events, journal, record, hung_call))
    except (TypeError, ValueError) as error:
        raise WorkerError(vendor, BAD_CONFIG, f"discovery.{vendor}: {error}") from error
    if len(line) > MAX_LINE:
        detail = f"discovery.{vendor}: more than {MAX_LINE} bytes of settings"
        raise WorkerError(vendor, BAD_CONFIG, detail)
    return line


def decode_request(vendor: str, line: bytes) -> AgentMessage:
    """Decode a message of the agent."""
    return _decode(_REQUESTS, vendor, line)


def decode_reply(vendor: str, line: bytes) -> WorkerMessage:
    """Decode a message of the worker."""
    return _decode(_REPLIES, vendor, line)


def _decode(decoder: msgspec.json.Decoder[T], vendor: str, line: bytes) -> T:
    try:
        return decoder.decode(line)
    except JSON_ERRORS as error:
        extract = line[:60].decode("utf-8", "replace")
        raise WorkerError(vendor, GARBAGE, f"{error}: {extract!r}") from error


def error_kind(error: AgentError) -> str:
    """Return the name of the error's class; `NoPermission` for a file that the kernel refuses."""
    is_refused = isinstance(error, HostFileError) and error.errno in (errno.EACCES, errno.EPERM)
    return NO_PERMISSION if is_refused else type(error).__name__


def reject_non_finite(samples: Iterable[DeviceSample]) -> tuple[DeviceSample, ...]:
    """Move values that are not finite to the rejections: JSON has no such numbers."""
    return tuple(map(_reject_non_finite, samples))


def _reject_non_finite(sample: DeviceSample) -> DeviceSample:
    processes = sample.processes or ()
    rejections = [
        *((r.family, r.value) for r in sample.readings if not math.isfinite(r.value)),
        *(
            (UTILIZATION, percent)
            for percent in (sample.core_percent, *(p.core_percent for p in processes))
            if percent is not None and not math.isfinite(percent)
        ),
        *(
            (PROCESS_ENGINES, percent)
            for process in processes
            for _, percent in process.engine_percents
            if not math.isfinite(percent)
        ),
    ]
    if not rejections:
        return sample
    return replace(
        sample,
        core_percent=_finite(sample.core_percent),
        processes=None if sample.processes is None else tuple(map(_finite_process, processes)),
        readings=tuple(r for r in sample.readings if math.isfinite(r.value)),
        rejections=(
            *sample.rejections,
            *(Rejection(family=family, value=str(value)) for family, value in rejections),
        ),
    )


def _finite_process(process: ProcessSample) -> ProcessSample:
    return replace(
        process,
        core_percent=_finite(process.core_percent),
        engine_percents=tuple(
            engine_percent
            for engine_percent in process.engine_percents
            if math.isfinite(engine_percent[1])
        ),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
