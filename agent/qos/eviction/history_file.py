"""Stores the latest evictions over restarts of the agent, whose limits then still hold.

A file that cannot be used is reported and never stops evictions. Pure except `EvictionHistoryFile`.
"""

from __future__ import annotations

import logging
import os

import msgspec

from agent.errors import ParseError
from agent.qos.eviction.history import REMEMBERED_S, EvictionHistory, loop_of
from agent.state_writer import StateWriter
from agent.wire_formats.json_values import JSON_ERRORS

log = logging.getLogger(__name__)

VERSION = 1
FILE_NAME = "evictions.json"
MAX_FILE = 1 << 20
MAX_ENDING = 4096  # pods


class _HistoryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Times are monotonic, of the boot."""

    version: int
    boot_id: str
    times_s: tuple[float, ...] = ()
    last_s: dict[str, float] = {}
    ending_until_s: dict[str, float] = {}


def encode_history(history: EvictionHistory, boot_id: str) -> bytes:
    """Return the content of the file; a request without a result counts as an eviction."""
    in_flight = history.in_flight.values()
    started_s = {loop_of(one.request): one.at_s for one in in_flight}
    ending = {one.request.pod.uid: one.at_s + REMEMBERED_S for one in in_flight}
    document = _HistoryDocument(
        version=VERSION,
        boot_id=boot_id,
        times_s=(*history.times_s, *(one.at_s for one in in_flight)),
        last_s={**history.last_s, **started_s},
        ending_until_s={**history.ending_until_s, **ending},
    )
    return msgspec.json.encode(document) + b"\n"


def decode_history(data: bytes, boot_id: str, now_s: float) -> EvictionHistory:
    """Return the history; an empty one of another boot. Raise `ParseError` for invalid data."""
    try:
        document = msgspec.json.decode(data, type=_HistoryDocument)
    except JSON_ERRORS as error:
        text = data[:80].decode("utf-8", "replace")
        raise ParseError(f"evictions of an earlier agent: {error}", text) from error
    if document.version != VERSION:
        raise ParseError("version of the evictions of an earlier agent", str(document.version))
    if not boot_id or document.boot_id != boot_id:
        return EvictionHistory()
    ending = {
        uid: min(until_s, now_s + REMEMBERED_S)
        for uid, until_s in tuple(document.ending_until_s.items())[-MAX_ENDING:]
    }
    return EvictionHistory(
        times_s=tuple(min(at_s, now_s) for at_s in document.times_s[-MAX_ENDING:]),
        last_s={loop: min(at_s, now_s) for loop, at_s in document.last_s.items()},
        ending_until_s=ending,
    )


class EvictionHistoryFile:
    """The file in the state folder; the thread of `writer` writes it."""

    def __init__(self, folder: str, boot_id: str, writer: StateWriter) -> None:
        """Without a `folder` nothing is stored."""
        self._path = os.path.join(folder, FILE_NAME) if folder else ""
        self._writer = writer
        self._boot_id = boot_id

    def load(self, now_s: float) -> EvictionHistory:
        """Return the stored history; an unusable file is renamed to `.bad`."""
        if not self._path:
            return EvictionHistory()
        stored = self._writer.load(
            self._path, MAX_FILE, lambda data: decode_history(data, self._boot_id, now_s)
        )
        if stored.error is not None:
            log.error("evictions_not_read", extra={"path": self._path, "error": stored.reason})
        return stored.value or EvictionHistory()

    def save(self, history: EvictionHistory) -> bool:
        """Write the history, and wait for the disk for a short time; return whether it has it."""
        if not self._path:
            return False
        return self._writer.file(self._path).save(encode_history(history, self._boot_id))
