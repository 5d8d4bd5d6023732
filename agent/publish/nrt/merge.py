"""How our part of a NodeResourceTopology lives with what other writers keep in the same lists.

The lists of this kind have no keys that a server would merge by: who writes one writes it whole.
So what others put there is written again as it stood. Each function gives the same when it is
given its own result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from agent.publish.base import Json
from agent.publish.nrt.annotations import ANNOTATIONS
from agent.publish.nrt.zones import CPU, MEMORY, TYPE
from agent.publish.topology import V1ALPHA1

POLICY = "topologyManagerPolicy"  # attributes of v1alpha2, named as NFD names them
SCOPE = "topologyManagerScope"
MAX_FOREIGN = 256  # entries of others that are kept of one list
_ZONE = re.compile(r"node-[0-9]{1,5}")
_HUGE = "hugepages-"
_LISTS = ("resources", "costs", "attributes")  # of a zone
_AMOUNTS = ("capacity", "allocatable", "available")
_NEEDED: Mapping[str, Mapping[str, tuple[type, ...]]] = {  # members of an entry, beside its name
    "zones": {"type": (str,)},
    "resources": dict.fromkeys(_AMOUNTS, (str, int)),
    "costs": {"value": (int,)},
    "attributes": {"value": (str,)},
}


def merge(live: Json, wanted: Json) -> Json:
    """Return what to write: all that is wanted, and what others keep in the same lists.

    A managed annotation that is not wanted because it cannot be told stays as it is.
    """
    found: dict[str, object] = {**wanted, "zones": _zones(live, wanted)}
    metadata = wanted.get("metadata")
    if isinstance(metadata, Mapping):
        found["metadata"] = {**metadata, "annotations": _annotations(live, metadata)}
    if "attributes" in wanted:
        found["attributes"] = _by_name(live, wanted, "attributes")
    return found


def merge_without_policies(live: Json, wanted: Json) -> Json:
    """Return the same while the kubelet's policies cannot be told: those that stand stay."""
    found = dict(merge(live, wanted))
    policies = live.get("topologyPolicies")
    if isinstance(policies, list) and policies and all(isinstance(p, str) for p in policies):
        found["topologyPolicies"] = policies[:1]
    attributes = _by_name(live, {}, "attributes")
    if attributes and not str(wanted.get("apiVersion")).endswith(V1ALPHA1):
        found["attributes"] = attributes
    return found


def _annotations(live: Json, metadata: Json) -> Json:
    wanted = metadata.get("annotations")
    wanted = wanted if isinstance(wanted, Mapping) else {}
    theirs = live.get("metadata")
    stood = theirs.get("annotations") if isinstance(theirs, Mapping) else None
    if not isinstance(stood, Mapping):
        return wanted
    kept = {
        key: stood[key]
        for key in ANNOTATIONS
        if key not in wanted and isinstance(stood.get(key), str)
    }
    return {**kept, **wanted}


def _zones(live: Json, wanted: Json) -> list[Json]:
    """Return our zones, then those that are no memory node's; a node that is gone has none."""
    stood = {str(zone.get("name")): zone for zone in _entries(live, "zones")}
    ours = [_zone(stood.get(str(zone["name"]), {}), zone) for zone in _entries(wanted, "zones")]
    names = {zone["name"] for zone in ours}
    foreign = [
        {**_plain(zone), **{name: list(_entries(zone, name)) for name in _LISTS if name in zone}}
        for name, zone in stood.items()
        if name not in names and not (zone.get("type") == TYPE and _ZONE.fullmatch(name))
    ]
    return [*ours, *foreign[:MAX_FOREIGN]]


def _zone(live: Json, wanted: Json) -> Json:
    found = {**_plain(live), **wanted, "resources": _resources(live, wanted)}
    for name in ("costs", "attributes"):
        if entries := _by_name(live, wanted, name):
            found[name] = entries
    return found


def _plain(zone: Json) -> Json:
    """Return what a zone says beside its lists; a parent that is no name is none."""
    return {
        key: value
        for key, value in zone.items()
        if key not in _LISTS and (key != "parent" or isinstance(value, str))
    }


def _resources(live: Json, wanted: Json) -> list[Json]:
    """Return ours and those that others count in this zone, sorted by name."""
    theirs = [entry for entry in _entries(live, "resources") if not _is_ours(str(entry["name"]))]
    found = [*_entries(wanted, "resources"), *theirs[:MAX_FOREIGN]]
    return sorted(found, key=lambda entry: str(entry["name"]))


def _is_ours(resource: str) -> bool:
    return resource in (CPU, MEMORY) or resource.startswith(_HUGE)


def _by_name(live: Json, wanted: Json, member: str) -> list[Json]:
    """Return the entries of a list of named ones, ours in the place of those that stand.

    The order that stands is kept: it says nothing, but two writers could fight over it.
    """
    own = {str(entry["name"]): entry for entry in _entries(wanted, member)}
    stood = list(_entries(live, member))[:MAX_FOREIGN]
    found = [own.pop(str(entry["name"]), entry) for entry in stood]
    return [*found, *own.values()]


def _entries(holder: Json, member: str) -> Iterator[Mapping[str, object]]:
    """Yield the entries that a schema takes; what stands at a server may be anything.

    An entry of somebody else's that is refused would hold up ours for good.
    """
    listed = holder.get(member)
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, Mapping) and all(
            isinstance(entry.get(name), kinds) and not isinstance(entry.get(name), bool)
            for name, kinds in {"name": (str,), **_NEEDED[member]}.items()
        ):
            yield entry
