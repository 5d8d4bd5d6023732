"""As much OpenAPI as kubectl insists on: which kinds there are, and that writes are validated."""

from __future__ import annotations

from typing import Any

from tests.apiserver.refusal import no_resource
from tests.apiserver.schema.kinds import Kind
from tests.apiserver.serve.answer import Answer

PREFIX = "/openapi/v3"
Served = list[tuple[str, str, Kind]]
_VALIDATED = [
    {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}},
    {"name": "dryRun", "in": "query", "schema": {"type": "string"}},
]


def answer(served: Served, path: str) -> Answer:
    """Answer the index, or the document of one group and version."""
    if path.rstrip("/") == PREFIX:
        places = {_place(group, version) for group, version, _ in served}
        index = {place: {"serverRelativeURL": f"{PREFIX}/{place}"} for place in sorted(places)}
        return Answer(body={"paths": index})
    text = path.removeprefix(f"{PREFIX}/").strip("/")
    kinds = [entry for entry in served if _place(entry[0], entry[1]) == text]
    if not kinds:
        raise no_resource()
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for group, version, kind in kinds:
        gvk = {"group": group, "version": version, "kind": kind.kind}
        scope = "namespaces/{namespace}/" if kind.namespaced else ""
        base = f"/{text}/{scope}{kind.plural}"
        paths[base] = {"post": _operation(gvk, "post")}
        paths[f"{base}/{{name}}"] = {
            "get": _operation(gvk, "get"),
            "put": _operation(gvk, "put"),
            "patch": _operation(gvk, "patch"),
        }
        name = f"{group or 'core'}.{version}.{kind.kind}"
        schemas[name] = {"type": "object", "x-kubernetes-group-version-kind": [gvk]}
    info = {"title": "Kubernetes", "version": "v1.36.0"}
    components = {"schemas": schemas}
    document = {"openapi": "3.0.0", "info": info, "paths": paths, "components": components}
    return Answer(body=document)


def _operation(gvk: dict[str, str], action: str) -> dict[str, Any]:
    return {
        "parameters": [] if action == "get" else _VALIDATED,
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": gvk,
    }


def _place(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"
