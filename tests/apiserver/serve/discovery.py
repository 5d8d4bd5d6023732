"""What clients ask before they ask for objects: versions, groups, resources."""

from __future__ import annotations

from typing import Any

from tests.apiserver.refusal import no_resource
from tests.apiserver.schema.kinds import Kind
from tests.apiserver.serve import openapi, own_access
from tests.apiserver.serve.answer import Answer
from tests.apiserver.store.objects import Store

VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
STATUS_VERBS = ["get", "patch", "update"]
EVICTION = {
    "name": "pods/eviction",
    "singularName": "",
    "namespaced": True,
    "group": "policy",
    "version": "v1",
    "kind": "Eviction",
    "verbs": ["create"],
}
BINDING = {
    "name": "pods/binding",
    "singularName": "",
    "namespaced": True,
    "kind": "Binding",
    "verbs": ["create"],
}
VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0+test",
    "gitCommit": "0" * 40,
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "go1.26",
    "compiler": "gc",
    "platform": "linux/amd64",
}


def answer(store: Store, path: str) -> Answer:
    """Answer a path that is no resource."""
    parts = [part for part in path.split("/") if part]
    if path in ("/healthz", "/livez", "/readyz"):
        return Answer(raw=b"ok", content_type="text/plain")
    if path.startswith(openapi.PREFIX):
        return openapi.answer(_served(store), path)
    if parts == ["version"]:
        return Answer(body=VERSION)
    if parts == ["api"]:
        return Answer(body={"kind": "APIVersions", "versions": ["v1"]})
    if parts == ["apis"]:
        return Answer(body={"kind": "APIGroupList", "apiVersion": "v1", "groups": _groups(store)})
    if len(parts) == 2 and parts[0] == "apis":
        return _group(store, parts[1])
    if len(parts) == 2 and parts[0] == "api":
        return _resources(store, "", parts[1])
    if len(parts) == 3 and parts[0] == "apis":
        return _resources(store, parts[1], parts[2])
    raise no_resource()


def _served(store: Store) -> list[tuple[str, str, Kind]]:
    """Return (group, version, kind) of all that is served."""
    with store.lock:
        kinds = list(store.kinds.values())
    result = [(kind.group, version, kind) for kind in kinds for version in kind.shapes]
    return result + [(*kind.also_in, kind) for kind in kinds if kind.also_in != ("", "")]


def _groups(store: Store) -> list[dict[str, Any]]:
    versions: dict[str, list[str]] = {own_access.GROUP: [own_access.VERSION]}
    for group, version, _ in _served(store):
        if group and version not in versions.setdefault(group, []):
            versions[group].append(version)
    groups = []
    for name, served in versions.items():
        listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in served]
        groups.append({"name": name, "versions": listed, "preferredVersion": listed[-1]})
    return groups


def _group(store: Store, name: str) -> Answer:
    for group in _groups(store):
        if group["name"] == name:
            return Answer(body={"kind": "APIGroup", "apiVersion": "v1", **group})
    raise no_resource()


def _resources(store: Store, group: str, version: str) -> Answer:
    if (group, version) == (own_access.GROUP, own_access.VERSION):
        return Answer(body=own_access.RESOURCES)
    resources = []
    for served_group, served_version, kind in _served(store):
        if (served_group, served_version) != (group, version):
            continue
        entry: dict[str, Any] = {
            "name": kind.plural,
            "singularName": kind.singular,
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": VERBS,
        }
        if kind.short_names:
            entry["shortNames"] = list(kind.short_names)
        resources.append(entry)
        if kind.status:
            status = {"name": f"{kind.plural}/status", "singularName": "", "verbs": STATUS_VERBS}
            resources.append({**status, "namespaced": kind.namespaced, "kind": kind.kind})
        if kind.plural == "pods":
            resources += [EVICTION, BINDING]
    if not resources:
        raise no_resource()
    body = {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}".lstrip("/"),
        "resources": resources,
    }
    return Answer(body=body)
