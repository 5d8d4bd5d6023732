"""How the writing of one object stands, for the page, /healthz and metrics."""

from __future__ import annotations

import enum

import msgspec


class Phase(enum.Enum):
    """What an object's writer does."""

    IDLE = "idle"  # the server has what is wanted
    PENDING = "pending"  # something is to be written; after a failure, when the pause is over
    WRITING = "writing"
    HELD = "held"  # another writer has (some of) our fields, and is not fought
    ABSENT = "absent"  # the server has no such resource: its CRD is not installed
    FORBIDDEN = "forbidden"
    REFUSED = "refused"  # the server does not take this content
    WAITING = "waiting"  # for the Node's uid, or for whoever makes the object


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How often an object is looked at, and when another writer counts as gone."""

    resync_s: float = 60.0  # between reads of an object that no watch reports; about
    watched_resync_s: float = 3600.0  # of one that a watch reports, in case the watch is wrong
    takeover_s: float = 300.0  # 0: nobody's fields are ever taken
    slow_s: float = 60.0  # between tries where nothing will change soon: no CRD, no right
    absent_s: float = 300.0  # without a CRD, if a watch reports when it is installed
    deadline_s: float = 10.0  # of one call


class Rival(msgspec.Struct, frozen=True, kw_only=True):
    """Another writer that has fields of ours with other values."""

    name: str  # its field manager
    fields: tuple[str, ...]  # .spec.devices, .metadata.labels["a/b"]
    time_s: float | None = None  # its last change, by the server's clock


class WriterState(msgspec.Struct, frozen=True, kw_only=True):
    """One object; counts are since the start of the process, times Unix seconds."""

    kind: str
    name: str
    publisher: str
    uid: str = ""  # of the object; empty while none is known
    phase: Phase = Phase.PENDING
    error: str = ""  # why not idle, for people
    written: int = 0  # acknowledged by the server
    unchanged: int = 0  # contents offered that the server had already
    repaired: int = 0  # written again because somebody changed or removed it
    failed: int = 0  # calls
    last_ack_s: float | None = None  # the server last said that it has what is wanted
    ack_latency_s: float | None = None  # of the last write, from its offer on
    pending_since_s: float | None = None  # offered and not acknowledged
    rivals: tuple[Rival, ...] = ()

    @property
    def behind(self) -> bool:
        """Say whether the server lacks something that it should have got by now."""
        if self.phase is Phase.PENDING:
            return bool(self.error)
        return self.phase in (Phase.HELD, Phase.FORBIDDEN, Phase.REFUSED)
