"""Recorded answers of a vendor, written on a real node and played back on any machine.

A tape is a text file of JSON lines. The first is the header:

    {"tape": 1, "vendor": "nvidia"}

Every other line is one answer, in order. `elapsed_s` is the duration of the call; `at_s` is the
time of the events, in seconds after the session was opened:

    {"method": "discover", "elapsed_s": 0.8, "answer": {"vendor": "nvidia", "devices": [...]}}
    {"method": "sample", "elapsed_s": 0.01, "answer": [{"key": "0000:3b:00.0", ...}]}
    {"method": "events", "at_s": 12.5, "answer": [{"key": "0000:3b:00.0", "reason": "Xid79"}]}

Answers have the fields of `agent.snapshot.inventory`. A reader refuses other versions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from agent.clock import SYSTEM_CLOCK, Clock
from agent.errors import NotSupported, ParseError
from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory, MetricValue
from agent.wire_formats.json_values import JSON_ERRORS
from agent.workers.protocol import MAX_LINE, reject_non_finite

VERSION = 1
MAX_TAPE = 64 * 1024 * 1024  # bytes
MAX_ANSWERS = 100_000


class TapeHeader(msgspec.Struct, frozen=True):
    """The first line."""

    tape: int
    vendor: str


class DiscoverLine(msgspec.Struct, frozen=True, tag_field="method", tag="discover"):
    """One answer to `discover`."""

    elapsed_s: float
    answer: Inventory


class SampleLine(msgspec.Struct, frozen=True, tag_field="method", tag="sample"):
    """One answer to `sample`."""

    elapsed_s: float
    answer: tuple[DeviceSample, ...]


class EventsLine(msgspec.Struct, frozen=True, tag_field="method", tag="events"):
    """Events that occurred together."""

    at_s: float
    answer: tuple[DeviceEvent, ...]


TapeLine = DiscoverLine | SampleLine | EventsLine

_HEADER = msgspec.json.Decoder(TapeHeader)
_LINE: msgspec.json.Decoder[TapeLine] = msgspec.json.Decoder(TapeLine)


class Tape(msgspec.Struct, frozen=True, kw_only=True):
    """A tape's content by method; there is at least one inventory."""

    vendor: str
    inventories: tuple[Inventory, ...]
    samples: tuple[tuple[DeviceSample, ...], ...] = ()
    events: tuple[tuple[float, tuple[DeviceEvent, ...]], ...] = ()  # by offset in seconds


class TapeWriter:
    """Writes a session's answers, line by line, to `write`; the header at once."""

    def __init__(self, vendor: str, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._write_line(TapeHeader(VERSION, vendor))

    def write_inventory(self, inventory: Inventory, elapsed_s: float) -> None:
        """Add an answer to `discover`."""
        self._write_line(DiscoverLine(elapsed_s, inventory))

    def write_samples(self, samples: tuple[DeviceSample, ...], elapsed_s: float) -> None:
        """Add an answer to `sample`."""
        self._write_line(SampleLine(elapsed_s, reject_non_finite(samples)))

    def _write_line(self, line: TapeHeader | TapeLine) -> None:
        self._write(msgspec.json.encode(line) + b"\n")


def parse_tape(data: bytes, vendor: str) -> Tape:
    """Parse a tape of this vendor; anything else, or too much data, raises `ParseError`."""
    lines = data.split(b"\n", MAX_ANSWERS + 1)
    if len(data) > MAX_TAPE or len(lines) > MAX_ANSWERS + 1 or max(map(len, lines)) > MAX_LINE:
        raise ParseError("tape: too large, begins with", _extract(data))
    try:
        header = _HEADER.decode(lines[0])
        answers = [_LINE.decode(line) for line in lines[1:] if line.strip()]
    except JSON_ERRORS as error:
        raise ParseError(f"tape of {vendor} ({error})", _extract(data)) from error
    if header.tape != VERSION or header.vendor != vendor:
        raise ParseError(f"tape: version {VERSION} of {vendor} wanted, found", _extract(data))
    inventories = tuple(
        _fill_vendor_minors(a.answer) for a in answers if isinstance(a, DiscoverLine)
    )
    if not inventories:
        raise ParseError("tape: no answer to discover in", _extract(data))
    events = ((a.at_s, a.answer) for a in answers if isinstance(a, EventsLine))
    return Tape(
        vendor=vendor,
        inventories=inventories,
        samples=tuple(a.answer for a in answers if isinstance(a, SampleLine)),
        events=tuple(sorted(events, key=lambda pair: pair[0])),
    )


def _fill_vendor_minors(inventory: Inventory) -> Inventory:
    """Fill in the driver's numbers that tapes of earlier versions have as `minor` only."""
    if any(device.vendor_minor is not None for device in inventory.devices):
        return inventory
    devices = (replace(device, vendor_minor=device.minor) for device in inventory.devices)
    return replace(inventory, devices=tuple(devices))


_ReadingKey = tuple[str, str, tuple[str, ...]]  # device, family, labels


def _reading_key(sample: DeviceSample, reading: MetricValue) -> _ReadingKey:
    return sample.key, reading.family, reading.labels


def _is_counter(reading: MetricValue) -> bool:
    return reading.family.endswith("_total")  # only counters may have such names


def _counter_increases(samples: tuple[tuple[DeviceSample, ...], ...]) -> dict[_ReadingKey, float]:
    """Return the growth of each counter from its first value of the tape to its last."""
    first: dict[_ReadingKey, float] = {}
    last: dict[_ReadingKey, float] = {}
    for sample in (sample for answer in samples for sample in answer):
        for reading in filter(_is_counter, sample.readings):
            first.setdefault(_reading_key(sample, reading), reading.value)
            last[_reading_key(sample, reading)] = reading.value
    return {series: max(0.0, value - first[series]) for series, value in last.items()}


class TapeSession:
    """Plays a tape as a `VendorSession`, without the delays of the recording.

    `discover` returns one inventory after the other and then repeats the last. `sample` starts
    over, with counters that continue: a counter that falls would be taken for a restart.
    """

    def __init__(self, tape: Tape, clock: Clock = SYSTEM_CLOCK) -> None:
        self._tape = tape
        self._clock = clock
        self._open_s = clock.monotonic()
        self._discovery_count = 0
        self._sample_count = 0
        self._increase = _counter_increases(tape.samples)
        self._played_count = 0  # number of events
        self._closed = threading.Event()

    def discover(self) -> Inventory:
        """Return the next inventory."""
        inventories = self._tape.inventories
        inventory = inventories[min(self._discovery_count, len(inventories) - 1)]
        self._discovery_count += 1
        return inventory

    def sample(self) -> tuple[DeviceSample, ...]:
        """Return the next samples; a tape without any raises `NotSupported`."""
        if not self._tape.samples:
            raise NotSupported(f"the tape of {self._tape.vendor} has no samples")
        lap, at = divmod(self._sample_count, len(self._tape.samples))
        self._sample_count += 1
        samples = self._tape.samples[at]
        return (
            samples
            if lap == 0
            else tuple(self._advance_counters(sample, lap) for sample in samples)
        )

    def _advance_counters(self, sample: DeviceSample, lap: int) -> DeviceSample:
        """Return a sample whose counters include the increase of all earlier laps."""
        readings = tuple(
            replace(
                reading, value=reading.value + lap * self._increase[_reading_key(sample, reading)]
            )
            if _is_counter(reading)
            else reading
            for reading in sample.readings
        )
        return replace(sample, readings=readings)

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Return the events that are due; wait for the next one at most `wait_s`."""
        remaining = self._tape.events[self._played_count :]
        until_s = self._open_s + remaining[0][0] - self._clock.monotonic() if remaining else wait_s
        if until_s > 0:
            self._closed.wait(min(until_s, wait_s))
        now_s = self._clock.monotonic() - self._open_s
        due_events = [events for at_s, events in remaining if at_s <= now_s]
        self._played_count += len(due_events)
        return tuple(event for events in due_events for event in events)

    def close(self) -> None:
        """End a wait for events."""
        self._closed.set()


def _extract(data: bytes) -> str:
    return data[:80].decode("utf-8", "replace")
