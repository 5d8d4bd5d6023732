"""What to do about one object next: a pure function of what is wanted and what the server has."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from agent.kube.apply.compare import ANNOTATIONS, LABELS, Path, differences
from agent.kube.apply.managed import APPLY, Manager, managers, metadata_of, surplus
from agent.kube.apply.merging import merge_patch, nulls, unwanted
from agent.kube.apply.pruned import Place
from agent.kube.apply.requests import MANAGER
from agent.publish.base import Desired
from agent.publish.cluster.intent import (
    Dict,
    intended,
    living_owners,
    may_create,
    needs_owner,
    own_part,
    owner_uid,
    vanished,
    whole_sections,
)
from agent.publish.cluster.rivals import Claims, contested_by, gone
from agent.publish.cluster.state import Rival

MAX_PLACES = 64  # of differences that are looked into


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """What the server was last seen to have. `stored` is `None` where there is no object."""

    stored: Dict | None
    server_s: float | None = None  # the server's clock at this moment; None: it did not tell


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What else a decision depends on."""

    node_uid: str
    now_s: float  # wall clock
    takeover_s: float
    claims: Claims = Claims()
    dropped: frozenset[Place] = frozenset()  # fields that the server does not know
    lacks_apply: bool = False
    cleaned: object = None  # what was removed before, and by whose absence


class Done(msgspec.Struct, frozen=True):
    """The server has what is wanted."""


class Wait(msgspec.Struct, frozen=True):
    """Nothing can be written yet."""

    why: str


class Hold(msgspec.Struct, frozen=True):
    """All that differs belongs to somebody else."""

    rivals: tuple[Rival, ...]


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `residue` tells two decisions apart: equal ones want the same again."""

    how: str  # apply, merge, create
    body: Dict
    force: bool = False
    taken: tuple[Rival, ...] = ()  # silent writers whose fields become ours
    residue: object = None


class Reown(msgspec.Struct, frozen=True):
    """Take Nodes that are no more off the owners; then decide again."""

    patch: Dict


class Clean(msgspec.Struct, frozen=True):
    """Remove what writers that are gone left where all is ours; then decide again."""

    patch: Dict
    taken: tuple[Rival, ...]
    residue: object


class Remove(msgspec.Struct, frozen=True):
    """Delete the object as it was seen."""

    uid: str
    version: str


Step = Done | Wait | Hold | Write | Reown | Clean | Remove


def decide(desired: Desired, sight: Sight, now: Circumstances) -> Step:
    """Return the next step; after each request it is asked again with what the server answered."""
    stored = sight.stored
    if desired.absent:
        return _removal(stored)
    if (wait := ownerless(desired, now.node_uid)) is not None:
        return wait
    if stored is not None and (reown := _reowning(desired, stored, now.node_uid)) is not None:
        return reown
    if stored is None and not may_create(desired):
        return Wait(f"there is no {desired.kind} {desired.name}, and it is not ours to make")
    body = intended(desired, stored, now.now_s, now.dropped)
    if stored is None:
        return Write(how="create" if now.lacks_apply else "apply", body=body)
    if now.lacks_apply:
        return _merging(desired, body, sight, now)
    return _applying(desired, body, sight, now)


def ownerless(desired: Desired, node_uid: str) -> Wait | None:
    """Say why an object cannot go with its Node yet; `None` if it can, or need not."""
    if not needs_owner(desired) or (node_uid and owner_uid(desired.body) == node_uid):
        return None
    return Wait("the Node is not known yet, and an object must not outlive it")


def _removal(stored: Dict | None) -> Step:
    """Delete what only we wrote; what anybody else has a part in stays."""
    owners = [m for m in managers(stored) if m.owns(("f:spec",))]
    # of what was taken from a writer the empty section stays in its name
    writers = {m.name for m in owners if m.fields["f:spec"]} or {m.name for m in owners}
    metadata = metadata_of(stored)
    if stored is None or writers != {MANAGER} or metadata.get("deletionTimestamp"):
        return Done()
    return Remove(str(metadata.get("uid", "")), str(metadata.get("resourceVersion", "")))


def _reowning(desired: Desired, stored: Dict, uid: str) -> Reown | None:
    living = living_owners(stored, desired.name, uid) if needs_owner(desired) else None
    if living is None:
        return None
    version = metadata_of(stored).get("resourceVersion")
    return Reown({"metadata": {"resourceVersion": version, "ownerReferences": living}})


def _merging(desired: Desired, body: Dict, sight: Sight, now: Circumstances) -> Step:
    """Decide as for an apply: a merge patch takes fields from others without a word."""
    assert sight.stored is not None  # noqa: S101 - decided by the caller
    part = own_part(desired, body)
    writers = managers(sight.stored)
    lacking = tuple(islice(differences(part, sight.stored), MAX_PLACES))
    rivals, _ = contested_by(_disputable(desired, lacking), writers, now.claims)
    if rivals and not gone(rivals, sight.server_s, now.takeover_s, now.claims):
        return Hold(rivals)
    if not desired.status_only:
        part = {**part, "metadata": _with_nulls(desired, part, writers)}
    patch = merge_patch(part, sight.stored, whole_sections(desired))
    if not patch:
        return Done()
    # a list is replaced whole: what others put into it since we looked must not be lost
    body = _locked(patch, sight.stored, "resourceVersion")
    return Write(how="merge", body=body, taken=rivals, residue=patch)


def _with_nulls(desired: Desired, part: Dict, writers: tuple[Manager, ...]) -> Dict:
    """Return our metadata with `null` for what is ours, no longer wanted, and nobody else's."""
    metadata = dict(metadata_of(part))
    others = [writer for writer in writers if writer.name != MANAGER]
    for section, keys in vanished(desired, part).items():
        nulls: Dict = {
            key: None
            for key in keys
            if not any(w.owns(("f:metadata", f"f:{section}", f"f:{key}")) for w in others)
        }
        metadata[section] = {**nulls, **_mapping(metadata.get(section))}
    return metadata


def _applying(desired: Desired, body: Dict, sight: Sight, now: Circumstances) -> Step:
    assert sight.stored is not None  # noqa: S101 - decided by the caller
    part = own_part(desired, body)
    lacking = tuple(islice(differences(part, sight.stored), MAX_PLACES))
    writers = managers(sight.stored)
    given_up = _given_up(desired, part, writers)
    rivals, contested = contested_by(_disputable(desired, lacking), writers, now.claims)
    taken: tuple[Rival, ...] = ()
    if gone(rivals, sight.server_s, now.takeover_s, now.claims):
        if (clean := _cleaning(desired, part, sight, now)) is not None:
            return clean
        taken = rivals
    elif not _can_yield(desired, contested) or (set(lacking) <= contested and not given_up):
        return Hold(rivals)
    else:
        body = _yielding(body, contested)
    if not lacking and not given_up:
        return Done()
    return Write(
        how="apply",
        body=_locked(body, sight.stored, *_locks(desired, taken)),
        force=bool(taken) or desired.merge is not None,
        taken=taken,
        residue=(lacking, given_up),
    )


def _locks(desired: Desired, taken: tuple[Rival, ...]) -> Iterator[str]:
    """Yield what the server must find as it was seen.

    Not the version of a Node's status, which its kubelet writes all the time: its list of
    conditions is merged by the server.
    """
    if not may_create(desired) and not desired.status_only:
        yield "uid"  # else an apply makes what is not there
    if taken or (desired.merge is not None and may_create(desired)):
        yield "resourceVersion"


def _cleaning(desired: Desired, part: Dict, sight: Sight, now: Circumstances) -> Clean | None:
    """Return how to remove what nobody keeps up any more where all is ours.

    Beside figures of ours, which are new, those of a writer that is gone would look new as well.
    """
    writers, paths, taken = managers(sight.stored), [], dict[str, Rival]()
    sections = whole_sections(desired)
    stored = {name: value for name, value in (sight.stored or {}).items() if name in sections}
    for path in islice(unwanted(part, stored), MAX_PLACES):
        rivals, _ = contested_by((path,), writers, now.claims)
        ours = any(w.name == MANAGER and w.operation == APPLY and w.owns(path) for w in writers)
        if gone(rivals, sight.server_s, now.takeover_s, now.claims) and (rivals or not ours):
            paths.append(path)
            taken |= {rival.name: rival for rival in rivals}
    residue = paths, [(rival.name, rival.time_s) for rival in taken.values()]
    if not paths or residue == now.cleaned:
        return None
    patch = _locked(nulls(paths), sight.stored or {}, "resourceVersion")
    return Clean(patch, tuple(taken.values()), residue)


def _given_up(desired: Desired, part: Dict, writers: tuple[Manager, ...]) -> tuple[Path, ...]:
    """Return what we applied and no longer want."""
    subresource = "status" if desired.status_only else ""
    mine = [
        writer
        for writer in writers
        if writer.name == MANAGER
        and writer.operation == APPLY
        and writer.subresource == subresource
    ]
    return tuple(
        islice((path for writer in mine for path in surplus(writer.fields, part)), MAX_PLACES)
    )


def _disputable(desired: Desired, lacking: tuple[Path, ...]) -> tuple[Path, ...]:
    """Leave out the lists that are shared by design: their foreign parts are kept."""
    if desired.merge is None:
        return lacking
    return tuple(path for path in lacking if path[0] == "f:metadata")


def _can_yield(desired: Desired, contested: set[Path]) -> bool:
    """Say whether the rest is worth writing: a person's label must not hold up a card's health.

    Whoever has content, or a part in shared lists, writes the object whole as we do.
    """
    return (
        desired.merge is None
        and bool(contested)
        and all(path[:-1] in (ANNOTATIONS, LABELS) for path in contested)
    )


def _yielding(body: Dict, contested: set[Path]) -> Dict:
    """Return the body without labels and annotations that somebody else changed."""
    metadata = dict(metadata_of(body))
    for section in ("labels", "annotations"):
        if section not in metadata:
            continue
        metadata[section] = {
            key: value
            for key, value in _mapping(metadata[section]).items()
            if ("f:metadata", f"f:{section}", f"f:{key}") not in contested
        }
    return {**body, "metadata": metadata}


def _locked(body: Dict, stored: Dict, *by: str) -> Dict:
    """Return the body with what makes the server refuse it for another (state of the) object."""
    seen = metadata_of(stored)
    return {**body, "metadata": {**metadata_of(body), **{name: seen.get(name) for name in by}}}


def _mapping(value: object) -> Dict:
    return dict(value) if isinstance(value, dict) else {}
