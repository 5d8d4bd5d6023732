"""Who else writes our fields, and whether that writer is gone."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.kube.apply.compare import Path, show
from agent.kube.apply.managed import UNTRACKED, Manager
from agent.kube.apply.requests import MANAGER
from agent.publish.cluster.state import Rival

TWIN = f"another {MANAGER}"
MAX_SHOWN = 8  # fields of one rival
MAX_TAKEN = 64  # that are remembered
PATIENCE = 12.0  # times as long for each time that a writer came back
MOST_PATIENCE_S = 86400.0


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of other writers beyond what the object itself says."""

    accused: frozenset[str] = frozenset()  # named by a 409
    # whose fields were taken in this life, and when it had last written then
    taken: tuple[tuple[str, float | None], ...] = ()
    twin_s: float | None = None  # when an agent that is not us last wrote in our name


def contested_by(
    lacking: Iterable[Path], writers: tuple[Manager, ...], claims: Claims
) -> tuple[tuple[Rival, ...], set[Path]]:
    """Return the writers of what differs, and the places that they have.

    A writer that a 409 named counts as long as it has anything of the object.
    """
    lacking = tuple(lacking)
    rivals: dict[str, Rival] = {}
    contested: set[Path] = set()
    for writer in writers:
        owned = [path for path in lacking if writer.owns(path)]
        ours = writer.name == MANAGER
        if ours and writer.name not in claims.accused:
            continue
        if not owned and writer.name not in claims.accused:
            continue
        contested.update(owned)
        known = rivals.get(writer.name)
        rivals[writer.name] = Rival(
            name=writer.name,
            fields=_merged(known, owned),
            time_s=_latest(known, writer),
        )
    if UNTRACKED in claims.accused and UNTRACKED not in rivals:
        rivals[UNTRACKED] = Rival(name=UNTRACKED, fields=())
    if claims.twin_s is not None and lacking:
        shown = tuple(show(path) for path in lacking[:MAX_SHOWN])
        rivals[TWIN] = Rival(name=TWIN, fields=shown, time_s=claims.twin_s)
        contested.update(lacking)
    return tuple(rivals[name] for name in sorted(rivals)), contested


def _merged(known: Rival | None, owned: list[Path]) -> tuple[str, ...]:
    before = known.fields if known is not None else ()
    return tuple(dict.fromkeys([*before, *map(show, owned)]))[:MAX_SHOWN]


def _latest(known: Rival | None, writer: Manager) -> float | None:
    """Return the later of two writes; a writer of which one is not dated is not dated."""
    if known is None:
        return writer.time_s
    if known.time_s is None or writer.time_s is None:
        return None
    return max(known.time_s, writer.time_s)


def patience_s(rival: Rival, takeover_s: float, claims: Claims) -> float:
    """Return how long a writer must be silent to count as gone.

    One whose fields were taken and who wrote again lives, though it may write the same for ever,
    which moves no time: each time it has twelve times as long, in the end a day.
    """
    back = {at_s for name, at_s in claims.taken if name == rival.name and at_s != rival.time_s}
    return min(MOST_PATIENCE_S, takeover_s * PATIENCE ** len(back))


def gone(
    rivals: tuple[Rival, ...], server_s: float | None, takeover_s: float, claims: Claims
) -> bool:
    """Say whether all of them were silent so long, by the server's clock, that they count as gone.

    What was written in our own name by another kind of write is nobody's, and so is what was
    written before the server kept track.
    """

    def silent(rival: Rival) -> bool:
        if rival.name == MANAGER or not takeover_s:
            return rival.name == MANAGER
        if rival.name == UNTRACKED:
            return True
        if server_s is None or rival.time_s is None:
            return False
        return server_s - rival.time_s > patience_s(rival, takeover_s, claims)

    return all(silent(rival) for rival in rivals)


def told(rivals: tuple[Rival, ...]) -> str:
    """Name the writers and their fields, for people."""
    return "; ".join(
        f"{rival.name} has {', '.join(rival.fields) or 'fields of it'}" for rival in rivals
    )
