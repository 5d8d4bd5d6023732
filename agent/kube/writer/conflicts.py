"""Other managers of the agent's fields, and whether such a manager still writes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.kube.api import FIELD_MANAGER
from agent.kube.server_side_apply import UNTRACKED, FieldManager, FieldPath, render_path
from agent.snapshot.publications import FieldConflict

TWIN = f"another {FIELD_MANAGER}"
MAX_SHOWN = 8  # fields of one conflict
MAX_TAKEOVERS = 64  # that are remembered
PATIENCE_FACTOR = 12.0  # multiplies the patience for each return of a writer
MAX_PATIENCE_S = 86400.0


class ConflictHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of other writers beside the object's managedFields."""

    managers_in_conflict: frozenset[str] = frozenset()  # named by a 409
    # writers whose fields this process took over, with their last write at that time
    takeovers: tuple[tuple[str, float | None], ...] = ()
    twin_s: float | None = None  # last write of another agent with this field manager's name


def find_conflicts(
    differing: Iterable[FieldPath], writers: tuple[FieldManager, ...], history: ConflictHistory
) -> tuple[tuple[FieldConflict, ...], set[FieldPath]]:
    """Return the conflicting writers of the differing fields, and the fields that they own.

    A writer that a 409 named is included as long as it owns any field of the object.
    """
    differing = tuple(differing)
    conflicts: dict[str, FieldConflict] = {}
    contested: set[FieldPath] = set()
    for writer in writers:
        owned = [path for path in differing if writer.owns(path)]
        is_own = writer.name == FIELD_MANAGER
        if is_own and writer.name not in history.managers_in_conflict:
            continue
        if not owned and writer.name not in history.managers_in_conflict:
            continue
        contested.update(owned)
        known_conflict = conflicts.get(writer.name)
        conflicts[writer.name] = FieldConflict(
            manager=writer.name,
            fields=_merge_fields(known_conflict, owned),
            time_s=_later_write_s(known_conflict, writer),
        )
    if UNTRACKED in history.managers_in_conflict and UNTRACKED not in conflicts:
        conflicts[UNTRACKED] = FieldConflict(manager=UNTRACKED, fields=())
    if history.twin_s is not None and differing:
        fields = tuple(render_path(path) for path in differing[:MAX_SHOWN])
        conflicts[TWIN] = FieldConflict(manager=TWIN, fields=fields, time_s=history.twin_s)
        contested.update(differing)
    return tuple(conflicts[name] for name in sorted(conflicts)), contested


def _merge_fields(known_conflict: FieldConflict | None, owned: list[FieldPath]) -> tuple[str, ...]:
    before = known_conflict.fields if known_conflict is not None else ()
    return tuple(dict.fromkeys([*before, *map(render_path, owned)]))[:MAX_SHOWN]


def _later_write_s(known_conflict: FieldConflict | None, writer: FieldManager) -> float | None:
    """Return the later of two writes; `None` if one of them has no time."""
    if known_conflict is None:
        return writer.last_write_s
    if known_conflict.time_s is None or writer.last_write_s is None:
        return None
    return max(known_conflict.time_s, writer.last_write_s)


def patience_s(conflict: FieldConflict, takeover_s: float, history: ConflictHistory) -> float:
    """Return after how long a silence a writer counts as gone.

    A writer that wrote again after its fields were taken over is alive. It may write the same
    values for ever, which does not change its time, so each return makes the wait twelve times as
    long, at most a day.
    """
    returns = {
        at_s
        for name, at_s in history.takeovers
        if name == conflict.manager and at_s != conflict.time_s
    }
    return min(MAX_PATIENCE_S, takeover_s * PATIENCE_FACTOR ** len(returns))


def are_silent(
    conflicts: tuple[FieldConflict, ...],
    server_s: float | None,
    takeover_s: float,
    history: ConflictHistory,
) -> bool:
    """Return whether all of these writers were silent for so long that they count as gone.

    The server's clock is used. Fields written under the agent's own name by another kind of write
    belong to no writer, and neither do fields from before the server tracked managers.
    """

    def is_silent(conflict: FieldConflict) -> bool:
        if conflict.manager == FIELD_MANAGER or not takeover_s:
            return conflict.manager == FIELD_MANAGER
        if conflict.manager == UNTRACKED:
            return True
        if server_s is None or conflict.time_s is None:
            return False
        return server_s - conflict.time_s > patience_s(conflict, takeover_s, history)

    return all(is_silent(conflict) for conflict in conflicts)


def describe_conflicts(conflicts: tuple[FieldConflict, ...]) -> str:
    """Return the writers and their fields, for people."""
    return "; ".join(
        f"{conflict.manager} has {', '.join(conflict.fields) or 'fields of it'}"
        for conflict in conflicts
    )
