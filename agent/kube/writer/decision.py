"""The next step for one object: a pure function of the desired and the stored object.

Also here: which fields of an object the agent writes, given the object at the server.
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

MAX_PLACES = 64  # differences that are examined


class LiveObject(msgspec.Struct, frozen=True, kw_only=True):
    """The last known object at the server. `stored` is `None` if there is no object."""

    stored: JsonDict | None
    server_s: float | None = None  # the server's clock now; None: unknown


class DecisionInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The other inputs of a decision."""

    node_uid: str
    now_s: float  # wall clock
    takeover_s: float
    conflict_history: ConflictHistory = ConflictHistory()
    unknown_fields: frozenset[SchemaPath] = frozenset()  # fields that the server does not know
    last_cleanup: object = None  # the residue of the last `CleanupStep`


class InSyncStep(msgspec.Struct, frozen=True):
    """The server has the desired content."""


class WaitStep(msgspec.Struct, frozen=True):
    """Nothing can be written yet."""

    reason: str


class ConflictStep(msgspec.Struct, frozen=True):
    """All differing fields belong to other managers."""

    conflicts: tuple[FieldConflict, ...]


class ApplyStep(msgspec.Struct, frozen=True, kw_only=True):
    """One server-side apply. Two steps with equal residues make the same change."""

    body: JsonDict
    force: bool = False
    takeovers: tuple[FieldConflict, ...] = ()  # silent writers whose fields the agent takes over
    residue: object = None


class OwnerRepairStep(msgspec.Struct, frozen=True):
    """Remove owners that are deleted Nodes; then decide again."""

    patch: JsonDict


class CleanupStep(msgspec.Struct, frozen=True):
    """Remove fields of silent writers where only the agent writes; then decide again."""

    patch: JsonDict
    takeovers: tuple[FieldConflict, ...]
    residue: object


class DeleteStep(msgspec.Struct, frozen=True):
    """Delete the known version of the object."""

    uid: str
    version: str


WriterStep = (
    InSyncStep | WaitStep | ConflictStep | ApplyStep | OwnerRepairStep | CleanupStep | DeleteStep
)


def decide(desired: DesiredObject, live: LiveObject, inputs: DecisionInputs) -> WriterStep:
    """Return the next step; it is called again after each request with the server's answer."""
    stored = live.stored
    if desired.is_absent:
        return _decide_deletion(stored)
    if (wait := owner_wait(desired, inputs.node_uid)) is not None:
        return wait
    if (
        stored is not None
        and (owner_repair := _decide_owner_repair(desired, stored, inputs.node_uid)) is not None
    ):
        return owner_repair
    if stored is None and not may_create(desired):
        return WaitStep(f"there is no {desired.kind} {desired.name}, and it is not ours to make")
    body = build_body(desired, stored, inputs.now_s, inputs.unknown_fields)
    if stored is None:
        return ApplyStep(body=body)
    return _decide_apply(desired, body, live, inputs)


def owner_wait(desired: DesiredObject, node_uid: str) -> WaitStep | None:
    """Return why an object cannot have its Node as owner yet; `None` if it can or need not."""
    if not needs_owner(desired) or (node_uid and owner_uid(desired.body) == node_uid):
        return None
    return WaitStep("the Node is not known yet, and an object must not outlive it")


def _decide_deletion(stored: JsonDict | None) -> WriterStep:
    """Delete an object that only the agent wrote; an object with other writers stays."""
    owners = [m for m in field_managers(stored) if m.owns(("f:spec",))]
    # a writer whose fields were taken over keeps an empty section
    writers = {m.name for m in owners if m.fields["f:spec"]} or {m.name for m in owners}
    metadata = metadata_of(stored)
    if stored is None or writers != {FIELD_MANAGER} or metadata.get("deletionTimestamp"):
        return InSyncStep()
    return DeleteStep(str(metadata.get("uid", "")), str(metadata.get("resourceVersion", "")))


def _decide_owner_repair(
    desired: DesiredObject, stored: JsonDict, uid: str
) -> OwnerRepairStep | None:
    living_owners = (
        owners_without_dead_nodes(stored, desired.name, uid) if needs_owner(desired) else None
    )
    if living_owners is None:
        return None
    version = metadata_of(stored).get("resourceVersion")
    return OwnerRepairStep(
        {"metadata": {"resourceVersion": version, "ownerReferences": living_owners}}
    )


def _decide_apply(
    desired: DesiredObject, body: JsonDict, live: LiveObject, inputs: DecisionInputs
) -> WriterStep:
    assert live.stored is not None  # noqa: S101 - checked by the caller
    comparable = comparable_part(desired, body)
    differing = tuple(islice(differences(comparable, live.stored), MAX_PLACES))
    writers = field_managers(live.stored)
    unwanted = _unwanted_paths(desired, comparable, writers)
    conflicts, contested = find_conflicts(
        _contestable_paths(desired, differing), writers, inputs.conflict_history
    )
    takeovers: tuple[FieldConflict, ...] = ()
    if are_silent(conflicts, live.server_s, inputs.takeover_s, inputs.conflict_history):
        if (cleanup := _decide_cleanup(desired, comparable, live, inputs)) is not None:
            return cleanup
        takeovers = conflicts
    elif not _can_yield(desired, contested) or (set(differing) <= contested and not unwanted):
        return ConflictStep(conflicts)
    else:
        body = _without_contested(body, contested)
    if not differing and not unwanted:
        return InSyncStep()
    return ApplyStep(
        body=_with_preconditions(body, live.stored, *_preconditions(desired, takeovers)),
        force=bool(takeovers) or desired.merge is not None,
        takeovers=takeovers,
        residue=(differing, unwanted),
    )


def _preconditions(desired: DesiredObject, takeovers: tuple[FieldConflict, ...]) -> Iterator[str]:
    """Yield the metadata that must be unchanged at the server.

    The version of a Node's status is not among them: its kubelet writes the status all the time,
    and the server merges the list of conditions.
    """
    if not may_create(desired) and not desired.status_only:
        yield "uid"  # without it an apply creates a missing object
    if takeovers or (desired.merge is not None and may_create(desired)):
        yield "resourceVersion"


def _decide_cleanup(
    desired: DesiredObject, comparable: JsonDict, live: LiveObject, inputs: DecisionInputs
) -> CleanupStep | None:
    """Return how to remove stale fields from sections that only the agent writes.

    Beside the agent's new values, old values of a writer that is gone would look new as well.
    """
    writers, paths, takeovers = field_managers(live.stored), [], dict[str, FieldConflict]()
    sections = whole_sections(desired)
    stored = {name: value for name, value in (live.stored or {}).items() if name in sections}
    for path in islice(surplus_members(comparable, stored), MAX_PLACES):
        conflicts, _ = find_conflicts((path,), writers, inputs.conflict_history)
        is_own = any(
            w.name == FIELD_MANAGER and w.operation == APPLY_OPERATION and w.owns(path)
            for w in writers
        )
        if are_silent(conflicts, live.server_s, inputs.takeover_s, inputs.conflict_history) and (
            conflicts or not is_own
        ):
            paths.append(path)
            takeovers |= {conflict.manager: conflict for conflict in conflicts}
    residue = paths, [(conflict.manager, conflict.time_s) for conflict in takeovers.values()]
    if not paths or residue == inputs.last_cleanup:
        return None
    patch = _with_preconditions(removal_patch(paths), live.stored or {}, "resourceVersion")
    return CleanupStep(patch, tuple(takeovers.values()), residue)


def _unwanted_paths(
    desired: DesiredObject, comparable: JsonDict, writers: tuple[FieldManager, ...]
) -> tuple[FieldPath, ...]:
    """Return the fields that the agent applied and no longer wants."""
    subresource = "status" if desired.status_only else ""
    own_entries = [
        writer
        for writer in writers
        if writer.name == FIELD_MANAGER
        and writer.operation == APPLY_OPERATION
        and writer.subresource == subresource
    ]
    return tuple(
        islice(
            (path for writer in own_entries for path in surplus_fields(writer.fields, comparable)),
            MAX_PLACES,
        )
    )


def _contestable_paths(
    desired: DesiredObject, differing: tuple[FieldPath, ...]
) -> tuple[FieldPath, ...]:
    """Leave out lists that several writers share: their other entries are kept."""
    if desired.merge is None:
        return differing
    return tuple(path for path in differing if path[0] == "f:metadata")


def _can_yield(desired: DesiredObject, contested: set[FieldPath]) -> bool:
    """Return whether the other fields should be written without the contested ones.

    A contested label must not block health data. An object with `merge` is always written as a
    whole.
    """
    return (
        desired.merge is None
        and bool(contested)
        and all(path[:-1] in (ANNOTATIONS, LABELS) for path in contested)
    )


def _without_contested(body: JsonDict, contested: set[FieldPath]) -> JsonDict:
    """Return the body without labels and annotations that another manager changed."""
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


def _with_preconditions(body: JsonDict, stored: JsonDict, *names: str) -> JsonDict:
    """Return the body with metadata that make the server refuse it for any other state."""
    metadata = metadata_of(stored)
    return {
        **body,
        "metadata": {**metadata_of(body), **{name: metadata.get(name) for name in names}},
    }


def _mapping(value: object) -> JsonDict:
    return dict(value) if isinstance(value, dict) else {}


SlotKey = tuple[str, str, str, bool]  # apiVersion, kind, name, whether only the status is written

_NODE = "Node"  # created by the kubelet, never by the agent
_NOT_CONTENT = frozenset({"apiVersion", "kind", "metadata"})
_WRITTEN_METADATA = ("labels", "annotations", "ownerReferences")

_RESOURCES = {
    resource.kind: resource
    for resource in (DEVICES, EVENTS, NODE_METRICS, NODE_SLOS, NODES, PODS, TOPOLOGIES)
}


def slot_of(desired: DesiredObject) -> SlotKey:
    """Return the key of an object; the status of an object has a key of its own."""
    return desired.api_version, desired.kind, desired.name, desired.status_only


def resource_of(desired: DesiredObject) -> ApiResource:
    """Return the resource of an object; an unknown kind is a bug of its publisher."""
    group, _, version = desired.api_version.rpartition("/")
    resource = _RESOURCES.get(desired.kind)
    if resource is None or resource.group != group or resource.namespaced:
        raise ValueError(f"{desired.api_version} {desired.kind} is nothing that is published")
    return msgspec.structs.replace(resource, version=version)


def may_create(desired: DesiredObject) -> bool:
    """Return whether the agent may create the object: not a Node, and not a status alone."""
    return not desired.status_only and desired.kind != _NODE


def needs_owner(desired: DesiredObject) -> bool:
    """Return whether the object must have its Node as owner, to be deleted with the Node."""
    return may_create(desired) and not desired.is_absent


def whole_sections(desired: DesiredObject) -> frozenset[str]:
    """Return the sections that only the agent writes, in which other fields are removed."""
    if desired.kind == _NODE or desired.merge is not None:
        return frozenset()
    return frozenset({"status"} if desired.status_only else {"spec"})


def build_body(
    desired: DesiredObject,
    stored: JsonDict | None,
    now_s: float,
    dropped: frozenset[SchemaPath] = frozenset(),
) -> JsonDict:
    """Return the body to write: other writers' list entries and known times are kept.

    `dropped` are fields that the server does not know. `now_s` (wall clock) is the time of changes
    without a known time.
    """
    body = desired.body
    if stored is not None and desired.merge is not None:
        body = desired.merge(stored, body)
    dated = keep_health_times(stored, keep_transition_times(stored, body, now_s))
    trimmed = drop_fields(dated, dropped) if dropped else dated
    assert isinstance(trimmed, Mapping)  # noqa: S101 - `drop_fields` returns a mapping for a mapping
    return dict(trimmed)


def comparable_part(desired: DesiredObject, body: Mapping[str, object]) -> JsonDict:
    """Return the part of a body that can be compared with a stored object."""
    part = {key: value for key, value in body.items() if key not in _NOT_CONTENT}
    if desired.status_only:
        return part
    metadata = metadata_of(body)
    written = {key: metadata[key] for key in _WRITTEN_METADATA if key in metadata}
    return {"metadata": written, **part} if written else part


def owner_references(stored: object) -> list[object]:
    """Return the owner references of an object."""
    owners = metadata_of(stored).get("ownerReferences")
    return owners if isinstance(owners, list) else []


def owner_uid(body: object) -> str:
    """Return the uid of the Node that a body names as its owner; empty if it names none."""
    for owner in owner_references(body):
        if isinstance(owner, Mapping) and owner.get("kind") == _NODE:
            return str(owner.get("uid") or "")
    return ""


def owners_without_dead_nodes(stored: object, node: str, uid: str) -> list[object] | None:
    """Return the owners without deleted Nodes of that name; `None` if there are no such owners.

    The server refuses two owners that both control an object, and a deleted owner lets the object
    be garbage-collected.
    """
    all_owners = owner_references(stored)
    living = [
        owner
        for owner in all_owners
        if not isinstance(owner, Mapping)
        or owner.get("kind") != _NODE
        or owner.get("name") != node
        or owner.get("uid") == uid
    ]
    return living if len(living) < len(all_owners) else None
