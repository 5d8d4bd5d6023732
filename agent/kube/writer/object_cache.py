"""What a writer remembers of one object at the server.

All of it may be lost: it is read from the server again.
"""

from __future__ import annotations

import enum

import msgspec

from agent.kube.api import FIELD_MANAGER
from agent.kube.server_side_apply import MAX_SCHEMA_PATHS, SchemaPath, field_managers, metadata_of
from agent.kube.watch.machine import is_older_version
from agent.kube.writer.conflicts import MAX_TAKEOVERS, ConflictHistory
from agent.kube.writer.context import WriterContext
from agent.kube.writer.decision import ApplyStep, CleanupStep, LiveObject
from agent.snapshot.publications import DesiredObject
from agent.wire_formats.json_values import JsonDict

LIMITS_RETRY_S = 21600.0  # for unknown fields: the server or the CRD may have been upgraded

replace = msgspec.structs.replace


class FieldCheck(enum.Enum):
    """Whether a dry run must find the fields that the server's schema lacks."""

    NOT_NEEDED = "not needed"
    DUE = "due"
    DONE = "done"


class ObjectCache:
    """The object of the last response, and what is known of its other writers."""

    def __init__(self, kind: str, context: WriterContext) -> None:
        self._kind = kind
        self._context = context
        self.live: LiveObject | None = None  # None: must be read
        self.conflict_history = ConflictHistory()
        self.unknown_fields: frozenset[SchemaPath] = frozenset()
        self.field_check = FieldCheck.NOT_NEEDED
        self.last_cleanup: object = None
        self._read_s = self._limits_since_s = context.clock.monotonic()
        self._jitter = context.jitter(1.0)
        self._watched_version: tuple[str | None] | None = None
        self._accepted: tuple[DesiredObject, object] | None = None

    def store(self, stored: JsonDict | None, server_s: float | None) -> None:
        """Store the object of a response."""
        self.live = LiveObject(stored=stored, server_s=server_s)
        self._read_s = self._context.clock.monotonic()
        self._jitter = self._context.jitter(1.0)

    def note_version(self, version: str | None) -> None:
        """Take the version that a watch reports; `None` if there is no object."""
        self._watched_version = (version,)

    def begin_read(self) -> None:
        """Forget the version that a watch reported: the response to a read is at least as new."""
        self._watched_version = None

    @property
    def is_outdated(self) -> bool:
        """Return whether a watch reported a newer version than the last response.

        The watch event of the agent's own write may arrive after later responses.
        """
        if self._watched_version is None or self.live is None:
            return False
        (version,), stored = self._watched_version, self.live.stored
        stored_version = (
            None if stored is None else str(metadata_of(stored).get("resourceVersion") or "")
        )
        is_late = (
            version is not None
            and stored_version is not None
            and is_older_version(version, stored_version)
        )
        return version != stored_version and not is_late

    def clear(self) -> None:
        """Forget the object, so that it is read again."""
        self.live = None

    @property
    def is_object_missing(self) -> bool:
        """Return whether the last response was that there is no object."""
        return self.live is not None and self.live.stored is None

    def due_in_s(self) -> float:
        """Return the seconds until the object must be read again."""
        if self.is_outdated:
            return 0.0
        timing = self._context.timing
        is_watched = self._context.is_watched(self._kind)
        interval_s = max(timing.resync_s, timing.watched_resync_s if is_watched else 0.0)
        return max(0.0, self._read_s + interval_s * self._jitter - self._context.clock.monotonic())

    def rest_s(self) -> float:
        """Return the seconds until the next comparison, with or without a new read."""
        return min(self.due_in_s(), self._context.jitter(self._context.timing.resync_s))

    def at_current_time(self, live: LiveObject) -> LiveObject:
        """Return the object with the server's clock advanced to now."""
        if live.server_s is None:
            return live
        passed_s = self._context.clock.monotonic() - self._read_s
        return replace(live, server_s=live.server_s + passed_s)

    def detect_twin(self, before: LiveObject | None, subresource: str) -> None:
        """Record whether another agent wrote with this field manager's name since `before`."""
        if before is None or self.live is None or before.stored is None:
            return
        written_s = _last_agent_write_s(self.live.stored, subresource)
        if written_s is not None and written_s != _last_agent_write_s(before.stored, subresource):
            self.conflict_history = replace(self.conflict_history, twin_s=written_s)

    def add_conflicts(self, names: frozenset[str]) -> None:
        """Add the managers that a 409 named."""
        self.conflict_history = replace(
            self.conflict_history,
            managers_in_conflict=self.conflict_history.managers_in_conflict | names,
        )

    def record_takeover(self, step: ApplyStep | CleanupStep) -> None:
        """Record whose fields were taken over; after a cleanup the other conflicts remain."""
        new = tuple((conflict.manager, conflict.time_s) for conflict in step.takeovers)
        before = self.conflict_history if isinstance(step, CleanupStep) else ConflictHistory()
        takeovers = tuple(dict.fromkeys(self.conflict_history.takeovers + new))[-MAX_TAKEOVERS:]
        self.conflict_history = replace(before, takeovers=takeovers)

    def reset_conflicts(self) -> None:
        """Forget conflicts, but not takeovers: the server has the desired content."""
        self.conflict_history = ConflictHistory(takeovers=self.conflict_history.takeovers)

    def retry_limits(self) -> None:
        """Forget the server's limits once per interval, so that an upgrade is noticed."""
        now_s = self._context.clock.monotonic()
        if now_s - self._limits_since_s >= LIMITS_RETRY_S:
            self._limits_since_s = now_s
            self.unknown_fields, self._accepted = frozenset(), None
            self.field_check = FieldCheck.NOT_NEEDED

    def drop_fields(self, places: frozenset[SchemaPath]) -> frozenset[SchemaPath]:
        """Leave out these fields from now on; return the ones that are new."""
        new = frozenset(
            list(places - self.unknown_fields)[: MAX_SCHEMA_PATHS - len(self.unknown_fields)]
        )
        self.unknown_fields |= new
        return new

    def accept_difference(self, desired: DesiredObject, residue: object) -> None:
        """Remember a difference that the server does not accept, so that it is not sent again."""
        self._accepted = (desired, residue)

    def is_accepted(self, desired: DesiredObject, residue: object) -> bool:
        """Return whether only the accepted difference remains."""
        return (
            self._accepted is not None
            and residue is not None
            and self._accepted[0] is desired
            and self._accepted[1] == residue
        )


def _last_agent_write_s(stored: JsonDict | None, subresource: str) -> float | None:
    times = [
        writer.last_write_s
        for writer in field_managers(stored)
        if writer.name == FIELD_MANAGER and writer.subresource == subresource
    ]
    return max((time_s for time_s in times if time_s is not None), default=None)
