"""The next step for one object: a pure function of the desired and the stored object.

What of an object is ours to write, given what the server has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec

from agent.kube.api import FIELD_MANAGER, ApiResource
from agent.kube.resources import DEVICES, EVENTS, NODE_METRICS, NODE_SLOS, NODES, PODS, TOPOLOGIES
from agent.kube.server_side_apply import (
    ANNOTATIONS,
    APPLY_OPERATION,
    LABELS,
    FieldManager,
    FieldPath,
    SchemaPath,
    differences,
    drop_fields,
    field_managers,
    metadata_of,
    removal_patch,
    surplus_fields,
    surplus_members,
)
from agent.kube.writer.conflicts import ConflictHistory, are_silent, find_conflicts
from agent.snapshot.publications import DesiredObject, FieldConflict
from agent.wire_formats.device_object import keep_health_times, keep_transition_times
from agent.wire_formats.json_values import JsonDict

MAX_PLACES = 64  # of differences that are looked into


class LiveObject(msgspec.Struct, frozen=True, kw_only=True):
    """What the server was last seen to have. `stored` is `None` where there is no object."""

    stored: JsonDict | None
    server_s: float | None = None  # the server's clock at this moment; None: it did not tell


class DecisionInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What else a decision depends on."""

    node_uid: str
    now_s: float  # wall clock
    takeover_s: float
    conflict_history: ConflictHistory = ConflictHistory()
    unknown_fields: frozenset[SchemaPath] = frozenset()  # fields that the server does not know
    last_cleanup: object = None  # what was removed before, and by whose absence


class InSyncStep(msgspec.Struct, frozen=True):
    """The server has what is wanted."""


class WaitStep(msgspec.Struct, frozen=True):
    """Nothing can be written yet."""

    why: str


class ConflictStep(msgspec.Struct, frozen=True):
    """All that differs belongs to somebody else."""

    conflicts: tuple[FieldConflict, ...]


class ApplyStep(msgspec.Struct, frozen=True, kw_only=True):
    """One server-side apply. Two steps with equal residues want the same change."""

    body: JsonDict
    force: bool = False
    takeovers: tuple[FieldConflict, ...] = ()  # silent writers whose fields become ours
    residue: object = None


class OwnerRepairStep(msgspec.Struct, frozen=True):
    """Take Nodes that are no more off the owners; then decide again."""

    patch: JsonDict


class CleanupStep(msgspec.Struct, frozen=True):
    """Remove what writers that are gone left where all is ours; then decide again."""

    patch: JsonDict
    takeovers: tuple[FieldConflict, ...]
    residue: object


class DeleteStep(msgspec.Struct, frozen=True):
    """Delete the object as it was seen."""

    uid: str
    version: str


WriterStep = (
    InSyncStep | WaitStep | ConflictStep | ApplyStep | OwnerRepairStep | CleanupStep | DeleteStep
)


def decide(desired: DesiredObject, sight: LiveObject, now: DecisionInputs) -> WriterStep:
    """Return the next step; after each request it is asked again with what the server answered."""
    stored = sight.stored
    if desired.is_absent:
        return _decide_deletion(stored)
    if (wait := owner_wait(desired, now.node_uid)) is not None:
        return wait
    if (
        stored is not None
        and (reown := _decide_owner_repair(desired, stored, now.node_uid)) is not None
    ):
        return reown
    if stored is None and not may_create(desired):
        return WaitStep(f"there is no {desired.kind} {desired.name}, and it is not ours to make")
    body = build_body(desired, stored, now.now_s, now.unknown_fields)
    if stored is None:
        return ApplyStep(body=body)
    return _decide_apply(desired, body, sight, now)


def owner_wait(desired: DesiredObject, node_uid: str) -> WaitStep | None:
    """Say why an object cannot go with its Node yet; `None` if it can, or need not."""
    if not needs_owner(desired) or (node_uid and owner_uid(desired.body) == node_uid):
        return None
    return WaitStep("the Node is not known yet, and an object must not outlive it")


def _decide_deletion(stored: JsonDict | None) -> WriterStep:
    """Delete what only we wrote; what anybody else has a part in stays."""
    owners = [m for m in field_managers(stored) if m.owns(("f:spec",))]
    # of what was taken from a writer the empty section stays in its name
    writers = {m.name for m in owners if m.fields["f:spec"]} or {m.name for m in owners}
    metadata = metadata_of(stored)
    if stored is None or writers != {FIELD_MANAGER} or metadata.get("deletionTimestamp"):
        return InSyncStep()
    return DeleteStep(str(metadata.get("uid", "")), str(metadata.get("resourceVersion", "")))


def _decide_owner_repair(
    desired: DesiredObject, stored: JsonDict, uid: str
) -> OwnerRepairStep | None:
    living = owners_without_dead_nodes(stored, desired.name, uid) if needs_owner(desired) else None
    if living is None:
        return None
    version = metadata_of(stored).get("resourceVersion")
    return OwnerRepairStep({"metadata": {"resourceVersion": version, "ownerReferences": living}})


def _decide_apply(
    desired: DesiredObject, body: JsonDict, sight: LiveObject, now: DecisionInputs
) -> WriterStep:
    assert sight.stored is not None  # noqa: S101 - decided by the caller
    part = comparable_part(desired, body)
    lacking = tuple(islice(differences(part, sight.stored), MAX_PLACES))
    writers = field_managers(sight.stored)
    given_up = _unwanted_paths(desired, part, writers)
    rivals, contested = find_conflicts(
        _contestable_paths(desired, lacking), writers, now.conflict_history
    )
    taken: tuple[FieldConflict, ...] = ()
    if are_silent(rivals, sight.server_s, now.takeover_s, now.conflict_history):
        if (clean := _decide_cleanup(desired, part, sight, now)) is not None:
            return clean
        taken = rivals
    elif not _can_yield(desired, contested) or (set(lacking) <= contested and not given_up):
        return ConflictStep(rivals)
    else:
        body = _without_contested(body, contested)
    if not lacking and not given_up:
        return InSyncStep()
    return ApplyStep(
        body=_with_preconditions(body, sight.stored, *_preconditions(desired, taken)),
        force=bool(taken) or desired.merge is not None,
        takeovers=taken,
        residue=(lacking, given_up),
    )


def _preconditions(desired: DesiredObject, taken: tuple[FieldConflict, ...]) -> Iterator[str]:
    """Yield what the server must find as it was seen.

    Not the version of a Node's status, which its kubelet writes all the time: its list of
    conditions is merged by the server.
    """
    if not may_create(desired) and not desired.status_only:
        yield "uid"  # else an apply makes what is not there
    if taken or (desired.merge is not None and may_create(desired)):
        yield "resourceVersion"


def _decide_cleanup(
    desired: DesiredObject, part: JsonDict, sight: LiveObject, now: DecisionInputs
) -> CleanupStep | None:
    """Return how to remove what nobody keeps up any more where all is ours.

    Beside figures of ours, which are new, those of a writer that is gone would look new as well.
    """
    writers, paths, taken = field_managers(sight.stored), [], dict[str, FieldConflict]()
    sections = whole_sections(desired)
    stored = {name: value for name, value in (sight.stored or {}).items() if name in sections}
    for path in islice(surplus_members(part, stored), MAX_PLACES):
        rivals, _ = find_conflicts((path,), writers, now.conflict_history)
        ours = any(
            w.name == FIELD_MANAGER and w.operation == APPLY_OPERATION and w.owns(path)
            for w in writers
        )
        if are_silent(rivals, sight.server_s, now.takeover_s, now.conflict_history) and (
            rivals or not ours
        ):
            paths.append(path)
            taken |= {rival.manager: rival for rival in rivals}
    residue = paths, [(rival.manager, rival.time_s) for rival in taken.values()]
    if not paths or residue == now.last_cleanup:
        return None
    patch = _with_preconditions(removal_patch(paths), sight.stored or {}, "resourceVersion")
    return CleanupStep(patch, tuple(taken.values()), residue)


def _unwanted_paths(
    desired: DesiredObject, part: JsonDict, writers: tuple[FieldManager, ...]
) -> tuple[FieldPath, ...]:
    """Return what we applied and no longer want."""
    subresource = "status" if desired.status_only else ""
    mine = [
        writer
        for writer in writers
        if writer.name == FIELD_MANAGER
        and writer.operation == APPLY_OPERATION
        and writer.subresource == subresource
    ]
    return tuple(
        islice(
            (path for writer in mine for path in surplus_fields(writer.fields, part)), MAX_PLACES
        )
    )


def _contestable_paths(
    desired: DesiredObject, lacking: tuple[FieldPath, ...]
) -> tuple[FieldPath, ...]:
    """Leave out the lists that are shared by design: their foreign parts are kept."""
    if desired.merge is None:
        return lacking
    return tuple(path for path in lacking if path[0] == "f:metadata")


def _can_yield(desired: DesiredObject, contested: set[FieldPath]) -> bool:
    """Say whether the rest is worth writing: a person's label must not hold up a card's health.

    Whoever has content, or a part in shared lists, writes the object whole as we do.
    """
    return (
        desired.merge is None
        and bool(contested)
        and all(path[:-1] in (ANNOTATIONS, LABELS) for path in contested)
    )


def _without_contested(body: JsonDict, contested: set[FieldPath]) -> JsonDict:
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


def _with_preconditions(body: JsonDict, stored: JsonDict, *by: str) -> JsonDict:
    """Return the body with what makes the server refuse it for another (state of the) object."""
    seen = metadata_of(stored)
    return {**body, "metadata": {**metadata_of(body), **{name: seen.get(name) for name in by}}}


def _mapping(value: object) -> JsonDict:
    return dict(value) if isinstance(value, dict) else {}


SlotKey = tuple[str, str, str, bool]  # apiVersion, kind, name, whether of the status only

_NODE = "Node"  # made by the kubelet, never by us

_NOT_CONTENT = frozenset({"apiVersion", "kind", "metadata"})

_WRITTEN_METADATA = ("labels", "annotations", "ownerReferences")

_RESOURCES = {
    known.kind: known
    for known in (DEVICES, EVENTS, NODE_METRICS, NODE_SLOS, NODES, PODS, TOPOLOGIES)
}


def slot_of(desired: DesiredObject) -> SlotKey:
    """Name the slot of an object; an object's status is a slot of its own."""
    return desired.api_version, desired.kind, desired.name, desired.status_only


def resource_of(desired: DesiredObject) -> ApiResource:
    """Return where an object lives; a kind that nobody knows is a bug of its publisher."""
    group, _, version = desired.api_version.rpartition("/")
    known = _RESOURCES.get(desired.kind)
    if known is None or known.group != group or known.namespaced:
        raise ValueError(f"{desired.api_version} {desired.kind} is nothing that is published")
    return msgspec.structs.replace(known, version=version)


def may_create(desired: DesiredObject) -> bool:
    """Say whether the object is ours to make: a status needs an object, a Node its kubelet."""
    return not desired.status_only and desired.kind != _NODE


def needs_owner(desired: DesiredObject) -> bool:
    """Say whether the object goes with its Node: an object of ours must not outlive it."""
    return may_create(desired) and not desired.is_absent


def whole_sections(desired: DesiredObject) -> frozenset[str]:
    """Return the sections of which nobody but us writes anything, so that the rest is removed."""
    if desired.kind == _NODE or desired.merge is not None:
        return frozenset()
    return frozenset({"status"} if desired.status_only else {"spec"})


def build_body(
    desired: DesiredObject,
    stored: JsonDict | None,
    now_s: float,
    dropped: frozenset[SchemaPath] = frozenset(),
) -> JsonDict:
    """Return the body to write: others' parts of shared lists kept, known times kept.

    `dropped` are fields that the server does not know. `now_s` (wall clock) dates changes that
    nobody saw.
    """
    body = desired.body
    if stored is not None and desired.merge is not None:
        body = desired.merge(stored, body)
    dated = keep_health_times(stored, keep_transition_times(stored, body, now_s))
    trimmed = drop_fields(dated, dropped) if dropped else dated
    assert isinstance(trimmed, Mapping)  # noqa: S101 - what goes in as a mapping comes out as one
    return dict(trimmed)


def comparable_part(desired: DesiredObject, body: Mapping[str, object]) -> JsonDict:
    """Return what of a body can be compared with what a server has."""
    part = {key: value for key, value in body.items() if key not in _NOT_CONTENT}
    if desired.status_only:
        return part
    metadata = metadata_of(body)
    ours = {key: metadata[key] for key in _WRITTEN_METADATA if key in metadata}
    return {"metadata": ours, **part} if ours else part


def owner_references(stored: object) -> list[object]:
    """Return the owner references of an object."""
    found = metadata_of(stored).get("ownerReferences")
    return found if isinstance(found, list) else []


def owner_uid(body: object) -> str:
    """Return the uid of the Node that a body names as its owner; empty if it names none."""
    for owner in owner_references(body):
        if isinstance(owner, Mapping) and owner.get("kind") == _NODE:
            return str(owner.get("uid") or "")
    return ""


def owners_without_dead_nodes(stored: object, node: str, uid: str) -> list[object] | None:
    """Return the owners without Nodes of that name that are no more; `None` if there are none.

    Two owners that both control an object are refused, and a dead one lets it be collected.
    """
    all_owners = owner_references(stored)
    kept = [
        owner
        for owner in all_owners
        if not isinstance(owner, Mapping)
        or owner.get("kind") != _NODE
        or owner.get("name") != node
        or owner.get("uid") == uid
    ]
    return kept if len(kept) < len(all_owners) else None
