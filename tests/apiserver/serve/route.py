"""What a request asks for, read from its method, path and query as RBAC sees it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_VERBS = {
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
    "GET": "get",
    "HEAD": "get",
}


class ServedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a resource; without `resource` it is for a path that is none."""

    verb: str
    group: str = ""
    version: str = ""
    namespace: str = ""
    resource: str = ""
    name: str = ""
    subresource: str = ""


def read_route(method: str, path: str, query: Mapping[str, str]) -> ServedRequest:
    """Return what is asked for."""
    parts = [part for part in path.split("/") if part]
    verb = _VERBS.get(method, method.lower())
    if len(parts) >= 3 and parts[0] == "api":
        group, version, rest = "", parts[1], parts[2:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return ServedRequest(verb=verb)
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = (*rest, "", "")[:3]
    if not name:
        watching = query.get("watch", "") in ("true", "1")
        verb = {"get": "watch" if watching else "list", "delete": "deletecollection"}.get(
            verb, verb
        )
    return ServedRequest(
        verb=verb,
        group=group,
        version=version,
        namespace=namespace,
        resource=resource,
        name=name,
        subresource=subresource,
    )
