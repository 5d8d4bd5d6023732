"""What a resource lets through of a write, and what the server itself writes."""

from __future__ import annotations

from tests.apiserver.store.objects import new_uid
from tests.apiserver.store.target import Object, Target

SYSTEM = ("uid", "creationTimestamp", "generation", "resourceVersion", "managedFields")


def strategy(target: Target, live: Object | None, new: Object) -> Object:
    """Return what this (sub)resource lets through of a write."""
    if target.whole or not (target.kind.status or target.subresource):
        return new
    old = live if live is not None else {}
    if not target.subresource:
        records = {key: value for key, value in new.items() if key != "status"}
        return {**records, "status": old["status"]} if "status" in old else records
    if target.kind.custom:
        records = {key: value for key, value in old.items() if key != "status"}
        return {**records, "status": new["status"]} if "status" in new else records
    records = {key: value for key, value in new.items() if key != "spec"}
    return {**records, "spec": old["spec"]} if "spec" in old else records


def with_system_fields(target: Target, live: Object | None, new: Object, now: str) -> Object:
    """Return an object with the metadata that no client writes; an administrator may give a uid."""
    metadata = {key: value for key, value in new["metadata"].items() if key not in SYSTEM}
    metadata["name"] = target.name
    if target.namespace:
        metadata["namespace"] = target.namespace
    if live is not None:
        records = {key: live["metadata"][key] for key in SYSTEM if key in live["metadata"]}
        metadata |= records
    else:
        inputs = new["metadata"] if target.whole else {}
        metadata["uid"] = inputs.get("uid") or new_uid()
        metadata["creationTimestamp"] = inputs.get("creationTimestamp") or now
        if has_generation(target):
            metadata["generation"] = 1
    for key in ("labels", "annotations", "ownerReferences", "finalizers"):
        if key in metadata and not metadata[key]:
            del metadata[key]
    api_version = target.kind.api_version(target.kind.stored_version)
    return {**new, "apiVersion": api_version, "kind": target.kind.kind, "metadata": metadata}


def has_generation(target: Target) -> bool:
    """Return whether the server counts changes of the spec; of built-in kinds it does of few."""
    return target.kind.custom or target.kind.plural in ("daemonsets", "poddisruptionbudgets")


def same(live: Object, new: Object) -> bool:
    """Return whether nothing would change but the times of managers."""
    return _timeless(live) == _timeless(new)


def _timeless(body: Object) -> tuple[Object, Object, list[Object]]:
    metadata = {k: v for k, v in body["metadata"].items() if k not in SYSTEM}
    entries = [{**entry, "time": ""} for entry in body["metadata"].get("managedFields", ())]
    entries.sort(key=lambda entry: (entry["manager"], entry["operation"], str(entry)))
    rest = {key: value for key, value in body.items() if key != "metadata"}
    return rest, metadata, entries


def spec_changed(target: Target, live: Object, new: Object) -> bool:
    """Return whether the generation goes up: not for metadata, nor for a status that is apart."""
    if not has_generation(target):
        return False
    aside = {"metadata", "apiVersion", "kind"} | ({"status"} if target.kind.status else set())

    def spec(body: Object) -> Object:
        return {key: value for key, value in body.items() if key not in aside}

    return spec(live) != spec(new)
