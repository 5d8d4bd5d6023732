"""Stores the health of failed and flapping devices over restarts of the agent.

A damaged file is renamed and reported; it never stops the agent. Without a folder nothing is
stored. Pure except `HealthFile`.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from agent.devices.health import NEVER_S, OUT_OF_SERVICE, HealthCause, HealthTrack, TimePoint
from agent.errors import ParseError
from agent.snapshot.device import HealthState
from agent.snapshot.self_check import SelfCheck
from agent.state_writer import NO_STATE_FOLDER, StateStatus, StateWriter
from agent.wire_formats.json_values import JSON_ERRORS

log = logging.getLogger(__name__)

VERSION = 1
FILE_NAME = "health.json"
MAX_FILE = 4 << 20
HEAD_BYTES = 4096  # bytes of the file for other fields than tracks
MAX_STORED_TRACKS = 4096  # tracks of all vendors
MAX_TURNS = 1000
MAX_TEXT = 1024  # characters of a reason or message
MODE = 0o640

TracksByVendor = Mapping[str, Mapping[str, HealthTrack]]  # by vendor, by key of the device or slice


class _TrackRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    state: HealthState
    reason: str
    message: str
    since_s: float | None = None
    turns: tuple[float, ...] = ()  # monotonic, of the boot that the file names
    worse: bool = False
    flapping: bool = False


class _HealthDocument(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    boot_id: str
    mono_s: float
    wall_s: float
    vendors: dict[str, dict[str, _TrackRecord]]


def select_records(tracks_by_vendor: TracksByVendor) -> dict[str, dict[str, _TrackRecord]]:
    """Return the records that must survive a restart, devices out of service first.

    Checks that change nothing relevant give equal records.
    """
    selected = [
        (vendor, key, track)
        for vendor, tracks in sorted(tracks_by_vendor.items())
        for key, track in sorted(tracks.items())
        if track.state is not HealthState.HEALTHY or track.turn_times_s
    ]
    selected.sort(key=lambda entry: entry[2].state not in OUT_OF_SERVICE)
    records: dict[str, dict[str, _TrackRecord]] = {}
    remaining_bytes = MAX_FILE - HEAD_BYTES
    for vendor, key, track in selected[:MAX_STORED_TRACKS]:
        name, record = _as_json_text(key), _track_record(track)
        remaining_bytes -= len(msgspec.json.encode({vendor: {name: record}}))
        if remaining_bytes < 0:  # a larger file would not be read
            break
        records.setdefault(vendor, {})[name] = record
    return records


def _track_record(track: HealthTrack) -> _TrackRecord:
    return _TrackRecord(
        state=track.state,
        reason=_as_json_text(track.cause.reason),
        message=_as_json_text(track.cause.message),
        since_s=track.since_s,
        turns=track.turn_times_s,
        worse=track.is_worse,
        flapping=track.is_flapping,
    )


def _as_json_text(text: str) -> str:
    """Return text of a vendor in a form that JSON allows: cut, and without lone surrogates."""
    return text[:MAX_TEXT].encode("utf-8", "replace").decode()


def encode_health(
    records: dict[str, dict[str, _TrackRecord]], boot_id: str, now: TimePoint
) -> bytes:
    """Return the contents of the file."""
    document = _HealthDocument(
        version=VERSION, boot_id=boot_id, mono_s=now.mono_s, wall_s=now.wall_s, vendors=records
    )
    return msgspec.json.encode(document) + b"\n"


def decode_health(data: bytes, boot_id: str, now: TimePoint) -> dict[str, dict[str, HealthTrack]]:
    """Return the tracks as they are after a restart; raise `ParseError` for invalid data.

    A device that had failed is probing: it was not checked meanwhile. Times of another boot are
    shifted by the wall clock.
    """
    try:
        document = msgspec.json.decode(data, type=_HealthDocument)
    except JSON_ERRORS as error:
        raise ParseError(f"health state: {error}", data[:80].decode("utf-8", "replace")) from error
    if document.version != VERSION:
        raise ParseError("version of the health state", str(document.version))
    same_boot = bool(boot_id) and document.boot_id == boot_id and document.mono_s <= now.mono_s
    elapsed_s = now.mono_s - document.mono_s if same_boot else now.wall_s - document.wall_s
    shift_s = now.mono_s - max(0.0, elapsed_s) - document.mono_s
    return {
        vendor: {
            key: _restore_track(record, shift_s, now)
            for key, record in itertools.islice(tracks.items(), MAX_STORED_TRACKS)
        }
        for vendor, tracks in document.vendors.items()
    }


def _restore_track(record: _TrackRecord, shift_s: float, now: TimePoint) -> HealthTrack:
    is_healthy = record.state is HealthState.HEALTHY
    state = HealthState.PROBING if record.state in OUT_OF_SERVICE else record.state
    return HealthTrack(
        state=state,
        cause=HealthCause(record.reason, record.message),
        since_s=record.since_s,
        last_state=state if state is not HealthState.PROBING else HealthState.FAILED,
        last_check_s=now.mono_s,
        last_bad_s=NEVER_S if is_healthy else now.mono_s,
        streak=0,
        turn_times_s=tuple(min(at_s + shift_s, now.mono_s) for at_s in record.turns[-MAX_TURNS:]),
        is_worse=record.worse,
        is_flapping=record.flapping,
        is_restored=True,
    )


class HealthFile:
    """The file in the state folder; the thread of `writer` writes it.

    `load` comes first, and waits for the file system for a limited time; `save` does not wait.
    """

    def __init__(
        self,
        folder: str,
        boot_id: str,
        writer: StateWriter | None = None,
        *,
        absent_because: str = NO_STATE_FOLDER,
    ) -> None:
        """Without a `folder` nothing is stored; `absent_because` says why there is none."""
        self._absent_because = absent_because
        self._path = Path(folder, FILE_NAME) if folder else None
        self._writer = writer or StateWriter()
        self._file = self._writer.file(str(self._path), MODE) if self._path is not None else None
        self._boot_id = boot_id
        # last records to write; None: unknown
        self._records: dict[str, dict[str, _TrackRecord]] | None = {}
        self._problem = ""  # problem of the file that was read

    def load(self, now: TimePoint) -> TracksByVendor:
        """Return the stored tracks; an unusable file is renamed to `.bad`."""
        if self._path is None:
            return {}
        stored = self._writer.load(
            str(self._path), MAX_FILE, lambda data: decode_health(data, self._boot_id, now)
        )
        if stored.error is None:
            self._records = {} if stored.status is StateStatus.ABSENT else None
            return stored.value or {}
        if stored.status is StateStatus.DAMAGED:
            self._problem = f"{self._path} was damaged and is put aside as .bad: {stored.reason}"
        else:
            self._problem = f"{self._path} could not be read: {stored.reason}"
        if stored.rename_reason:
            self._problem += f"; that failed too: {stored.rename_reason}"
        log.error("health_state_unusable", extra={"error": self._problem})
        return {}

    def save(self, tracks: TracksByVendor, now: TimePoint) -> None:
        """Request that the tracks be written soon, if they differ from the last ones."""
        if self._file is None:
            return
        records = select_records(tracks)
        if records != self._records:
            self._records = records
            self._file.write(encode_health(records, self._boot_id, now))

    def check(self) -> SelfCheck:
        """Return whether health survives a restart; readiness does not depend on it."""
        error = self._file.error if self._file is not None else ""
        problem = f"{error}; a restart would forget what failed" if error else self._problem
        location = (
            f"nothing is kept: {self._absent_because}" if self._path is None else str(self._path)
        )
        return SelfCheck(
            name="health-state",
            ok=not problem,
            message=problem or location,
            gates_ready=False,
            reason="HealthNotStored",
        )
