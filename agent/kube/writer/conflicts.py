"""Who else writes our fields, and whether that writer is gone."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.kube.api import FIELD_MANAGER
from agent.kube.server_side_apply import UNTRACKED, FieldManager, FieldPath, render_path
from agent.snapshot.publications import FieldConflict

TWIN = f"another {FIELD_MANAGER}"
MAX_SHOWN = 8  # fields of one rival
MAX_TAKEOVERS = 64  # that are remembered
PATIENCE_FACTOR = 12.0  # times as long for each time that a writer came back
MAX_PATIENCE_S = 86400.0


class ConflictHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of other writers beyond what the object itself says."""

    managers_in_conflict: frozenset[str] = frozenset()  # named by a 409
    # whose fields were taken in this life, and when it had last written then
    takeovers: tuple[tuple[str, float | None], ...] = ()
    twin_s: float | None = None  # when an agent that is not us last wrote in our name


def find_conflicts(
    lacking: Iterable[FieldPath], writers: tuple[FieldManager, ...], claims: ConflictHistory
) -> tuple[tuple[FieldConflict, ...], set[FieldPath]]:
    """Return the writers of what differs, and the places that they have.

    A writer that a 409 named counts as long as it has anything of the object.
    """
    lacking = tuple(lacking)
    rivals: dict[str, FieldConflict] = {}
    contested: set[FieldPath] = set()
    for writer in writers:
        owned = [path for path in lacking if writer.owns(path)]
        ours = writer.name == FIELD_MANAGER
        if ours and writer.name not in claims.managers_in_conflict:
            continue
        if not owned and writer.name not in claims.managers_in_conflict:
            continue
        contested.update(owned)
        known = rivals.get(writer.name)
        rivals[writer.name] = FieldConflict(
            manager=writer.name,
            fields=_merge_fields(known, owned),
            time_s=_later_write_s(known, writer),
        )
    if UNTRACKED in claims.managers_in_conflict and UNTRACKED not in rivals:
        rivals[UNTRACKED] = FieldConflict(manager=UNTRACKED, fields=())
    if claims.twin_s is not None and lacking:
        shown = tuple(render_path(path) for path in lacking[:MAX_SHOWN])
        rivals[TWIN] = FieldConflict(manager=TWIN, fields=shown, time_s=claims.twin_s)
        contested.update(lacking)
    return tuple(rivals[name] for name in sorted(rivals)), contested


def _merge_fields(known: FieldConflict | None, owned: list[FieldPath]) -> tuple[str, ...]:
    before = known.fields if known is not None else ()
    return tuple(dict.fromkeys([*before, *map(render_path, owned)]))[:MAX_SHOWN]


def _later_write_s(known: FieldConflict | None, writer: FieldManager) -> float | None:
    """Return the later of two writes; a writer of which one is not dated is not dated."""
    if known is None:
        return writer.last_write_s
    if known.time_s is None or writer.last_write_s is None:
        return None
    return max(known.time_s, writer.last_write_s)


def patience_s(rival: FieldConflict, takeover_s: float, claims: ConflictHistory) -> float:
    """Return how long a writer must be silent to count as gone.

    One whose fields were taken and who wrote again lives, though it may write the same for ever,
    which moves no time: each time it has twelve times as long, in the end a day.
    """
    back = {
        at_s for name, at_s in claims.takeovers if name == rival.manager and at_s != rival.time_s
    }
    return min(MAX_PATIENCE_S, takeover_s * PATIENCE_FACTOR ** len(back))


def are_silent(
    rivals: tuple[FieldConflict, ...],
    server_s: float | None,
    takeover_s: float,
    claims: ConflictHistory,
) -> bool:
    """Say whether all of them were silent so long, by the server's clock, that they count as gone.

    What was written in our own name by another kind of write is nobody's, and so is what was
    written before the server kept track.
    """

    def silent(rival: FieldConflict) -> bool:
        if rival.manager == FIELD_MANAGER or not takeover_s:
            return rival.manager == FIELD_MANAGER
        if rival.manager == UNTRACKED:
            return True
        if server_s is None or rival.time_s is None:
            return False
        return server_s - rival.time_s > patience_s(rival, takeover_s, claims)

    return all(silent(rival) for rival in rivals)


def describe_conflicts(rivals: tuple[FieldConflict, ...]) -> str:
    """Name the writers and their fields, for people."""
    return "; ".join(
        f"{rival.manager} has {', '.join(rival.fields) or 'fields of it'}" for rival in rivals
    )
