"""What of an object is ours to write, given what the server has."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.kube.apply.managed import metadata_of
from agent.kube.apply.pruned import Place, without
from agent.kube.base import Resource
from agent.kube.resources import DEVICES, EVENTS, NODE_METRICS, NODE_SLOS, NODES, PODS, TOPOLOGIES
from agent.publish.base import Desired
from agent.publish.wire.annotations import keep_since
from agent.publish.wire.conditions import carry_over

Dict = dict[str, object]
Key = tuple[str, str, str, bool]  # apiVersion, kind, name, whether of the status only

_NODE = "Node"  # made by the kubelet, never by us
_NOT_CONTENT = frozenset({"apiVersion", "kind", "metadata"})
_OURS_IN_METADATA = ("labels", "annotations", "ownerReferences")
_RESOURCES = {
    known.kind: known
    for known in (DEVICES, EVENTS, NODE_METRICS, NODE_SLOS, NODES, PODS, TOPOLOGIES)
}


def key_of(desired: Desired) -> Key:
    """Name the slot of an object; an object's status is a slot of its own."""
    return desired.api_version, desired.kind, desired.name, desired.status_only


def resource_of(desired: Desired) -> Resource:
    """Return where an object lives; a kind that nobody knows is a bug of its publisher."""
    group, _, version = desired.api_version.rpartition("/")
    known = _RESOURCES.get(desired.kind)
    if known is None or known.group != group or known.namespaced:
        raise ValueError(f"{desired.api_version} {desired.kind} is nothing that is published")
    return msgspec.structs.replace(known, version=version)


def may_create(desired: Desired) -> bool:
    """Say whether the object is ours to make: a status needs an object, a Node its kubelet."""
    return not desired.status_only and desired.kind != _NODE


def needs_owner(desired: Desired) -> bool:
    """Say whether the object goes with its Node: an object of ours must not outlive it."""
    return may_create(desired) and not desired.absent


def whole_sections(desired: Desired) -> frozenset[str]:
    """Return the sections of which nobody but us writes anything, so that the rest is removed."""
    if desired.kind == _NODE or desired.merge is not None:
        return frozenset()
    return frozenset({"status"} if desired.status_only else {"spec"})


def intended(
    desired: Desired, stored: Dict | None, now_s: float, dropped: frozenset[Place] = frozenset()
) -> Dict:
    """Return the body to write: others' parts of shared lists kept, known times kept.

    `dropped` are fields that the server does not know. `now_s` (wall clock) dates changes that
    nobody saw.
    """
    body = desired.body
    if stored is not None and desired.merge is not None:
        body = desired.merge(stored, body)
    dated = keep_since(stored, carry_over(stored, body, now_s))
    trimmed = without(dated, dropped) if dropped else dated
    assert isinstance(trimmed, Mapping)  # noqa: S101 - what goes in as a mapping comes out as one
    return dict(trimmed)


def own_part(desired: Desired, body: Mapping[str, object]) -> Dict:
    """Return what of a body can be compared with what a server has."""
    part = {key: value for key, value in body.items() if key not in _NOT_CONTENT}
    if desired.status_only:
        return part
    metadata = metadata_of(body)
    ours = {key: metadata[key] for key in _OURS_IN_METADATA if key in metadata}
    return {"metadata": ours, **part} if ours else part


def vanished(desired: Desired, body: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """Return the annotations and labels that are ours to keep and no longer wanted."""
    metadata = metadata_of(body)
    found: dict[str, tuple[str, ...]] = {}
    for section, keys in (
        ("annotations", desired.owned_annotations),
        ("labels", desired.owned_labels),
    ):
        wanted = metadata.get(section)
        present = wanted if isinstance(wanted, Mapping) else {}
        found[section] = tuple(key for key in keys if key not in present)
    return found


def owners(stored: object) -> list[object]:
    """Return the owner references of an object."""
    found = metadata_of(stored).get("ownerReferences")
    return found if isinstance(found, list) else []


def owner_uid(body: object) -> str:
    """Return the uid of the Node that a body names as its owner; empty if it names none."""
    for owner in owners(body):
        if isinstance(owner, Mapping) and owner.get("kind") == _NODE:
            return str(owner.get("uid") or "")
    return ""


def living_owners(stored: object, node: str, uid: str) -> list[object] | None:
    """Return the owners without Nodes of that name that are no more; `None` if there are none.

    Two owners that both control an object are refused, and a dead one lets it be collected.
    """
    all_owners = owners(stored)
    kept = [
        owner
        for owner in all_owners
        if not isinstance(owner, Mapping)
        or owner.get("kind") != _NODE
        or owner.get("name") != node
        or owner.get("uid") == uid
    ]
    return kept if len(kept) < len(all_owners) else None
