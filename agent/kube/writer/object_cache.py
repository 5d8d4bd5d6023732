"""What a writer remembers of the server; all of it can be lost, the server is the truth."""

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

LIMITS_RETRY_S = 21600.0  # what the server could not do: it or a CRD may have been upgraded

replace = msgspec.structs.replace


class FieldCheck(enum.Enum):
    """Whether a dry run has to find the fields that the schema of the server lacks."""

    NOT_NEEDED = "not needed"
    DUE = "due"
    DONE = "done"


class ObjectCache:
    """The object as it was last answered, and what was learnt of those who write it."""

    def __init__(self, kind: str, site: WriterContext) -> None:
        self._kind = kind
        self._site = site
        self.live: LiveObject | None = None  # None: not known, to be read
        self.conflict_history = ConflictHistory()
        self.unknown_fields: frozenset[SchemaPath] = frozenset()
        self.field_check = FieldCheck.NOT_NEEDED
        self.last_cleanup: object = None
        self._seen_s = self._able_s = site.clock.monotonic()
        self._jitter = site.jitter(1.0)
        self._reported: tuple[str | None] | None = None
        self._left: tuple[DesiredObject, object] | None = None

    def store(self, stored: JsonDict | None, server_s: float | None) -> None:
        """Take what the server answered."""
        self.live = LiveObject(stored=stored, server_s=server_s)
        self._seen_s = self._site.clock.monotonic()
        self._jitter = self._site.jitter(1.0)

    def note_version(self, version: str | None) -> None:
        """Take the version that a watch reports; `None`: there is no object."""
        self._reported = (version,)

    def begin_read(self) -> None:
        """Forget the version that a watch reported: the answer to a read is at least as new."""
        self._reported = None

    @property
    def is_outdated(self) -> bool:
        """Return whether a watch reported a newer version than the last answer of the server.

        The event of our own write may arrive after the answers to that write and to later ones.
        """
        if self._reported is None or self.live is None:
            return False
        (version,), stored = self._reported, self.live.stored
        have = None if stored is None else str(metadata_of(stored).get("resourceVersion") or "")
        late = version is not None and have is not None and is_older_version(version, have)
        return version != have and not late

    def clear(self) -> None:
        """Know no more what the server has."""
        self.live = None

    @property
    def is_object_missing(self) -> bool:
        """Say whether there was no object when it was last looked for."""
        return self.live is not None and self.live.stored is None

    def due_in_s(self) -> float:
        """Return the seconds until the object is to be read again."""
        if self.is_outdated:
            return 0.0
        pace = self._site.timing
        watched = self._site.is_watched(self._kind)
        interval_s = max(pace.resync_s, pace.watched_resync_s if watched else 0.0)
        return max(0.0, self._seen_s + interval_s * self._jitter - self._site.clock.monotonic())

    def rest_s(self) -> float:
        """Return the seconds until the next comparison, with or without a new read."""
        return min(self.due_in_s(), self._site.jitter(self._site.timing.resync_s))

    def at_current_time(self, sight: LiveObject) -> LiveObject:
        """Return a sight with the server's clock at this moment."""
        if sight.server_s is None:
            return sight
        passed_s = self._site.clock.monotonic() - self._seen_s
        return replace(sight, server_s=sight.server_s + passed_s)

    def detect_twin(self, before: LiveObject | None, subresource: str) -> None:
        """Find out whether an agent that is not us wrote in our name since `before`."""
        if before is None or self.live is None or before.stored is None:
            return
        written_s = _last_agent_write_s(self.live.stored, subresource)
        if written_s is not None and written_s != _last_agent_write_s(before.stored, subresource):
            self.conflict_history = replace(self.conflict_history, twin_s=written_s)

    def add_conflicts(self, names: frozenset[str]) -> None:
        """Take in whom a conflict named."""
        self.conflict_history = replace(
            self.conflict_history,
            managers_in_conflict=self.conflict_history.managers_in_conflict | names,
        )

    def record_takeover(self, step: ApplyStep | CleanupStep) -> None:
        """Remember whose fields became ours; what remains after a cleaning is still theirs."""
        new = tuple((rival.manager, rival.time_s) for rival in step.takeovers)
        before = self.conflict_history if isinstance(step, CleanupStep) else ConflictHistory()
        taken = tuple(dict.fromkeys(self.conflict_history.takeovers + new))[-MAX_TAKEOVERS:]
        self.conflict_history = replace(before, takeovers=taken)

    def reset_conflicts(self) -> None:
        """Forget accusations: the server has what is wanted."""
        self.conflict_history = ConflictHistory(takeovers=self.conflict_history.takeovers)

    def retry_limits(self) -> None:
        """Forget now and then what the server could not do, so that an upgrade is noticed."""
        now_s = self._site.clock.monotonic()
        if now_s - self._able_s >= LIMITS_RETRY_S:
            self._able_s = now_s
            self.unknown_fields, self._left = frozenset(), None
            self.field_check = FieldCheck.NOT_NEEDED

    def drop_fields(self, places: frozenset[SchemaPath]) -> frozenset[SchemaPath]:
        """Leave fields out from now on; return those that are new."""
        new = frozenset(
            list(places - self.unknown_fields)[: MAX_SCHEMA_PATHS - len(self.unknown_fields)]
        )
        self.unknown_fields |= new
        return new

    def accept_difference(self, desired: DesiredObject, residue: object) -> None:
        """Remember what the server did not take over of a content, so that it is not sent again."""
        self._left = (desired, residue)

    def is_accepted(self, desired: DesiredObject, residue: object) -> bool:
        """Say whether no more than that differs."""
        return (
            self._left is not None
            and residue is not None
            and self._left[0] is desired
            and self._left[1] == residue
        )


def _last_agent_write_s(stored: JsonDict | None, subresource: str) -> float | None:
    times = [
        writer.last_write_s
        for writer in field_managers(stored)
        if writer.name == FIELD_MANAGER and writer.subresource == subresource
    ]
    return max((time_s for time_s in times if time_s is not None), default=None)
