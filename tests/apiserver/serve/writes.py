"""POST, PUT, PATCH and DELETE, from a request's bytes to the registry."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import yaml

from tests.apiserver.apply.patches import json_patch, merge_patch, strategic_patch
from tests.apiserver.log import Logged
from tests.apiserver.refusal import Cause, Refusal, bad_request, invalid, not_found
from tests.apiserver.schema.kinds import Kind
from tests.apiserver.schema.versions import Object, shown
from tests.apiserver.serve.answer import Answer
from tests.apiserver.serve.route import ServedRequest
from tests.apiserver.store.objects import Store
from tests.apiserver.store.registry import Registry
from tests.apiserver.store.target import Target, Way, Written

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
PROTOBUF = "application/vnd.kubernetes.protobuf"
MAX_MANAGER = 128


class _Loader(yaml.CSafeLoader):
    """YAML as the server reads it: times are text."""


_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    for first, pairs in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def decode(payload: bytes, content_type: str) -> Any:
    """Return the content of a body, JSON or YAML; `None` of an empty one."""
    if content_type.startswith(PROTOBUF):
        raise unknown_media(("application/json", "application/yaml"))
    if not payload:
        return None
    try:
        return msgspec.json.decode(payload)
    except msgspec.DecodeError:
        pass
    try:
        return yaml.load(payload, _Loader)
    except yaml.YAMLError as error:
        raise bad_request(f"error decoding YAML: {error}") from error


def unknown_media(entries: Iterable[str]) -> Refusal:
    """Return the 415 that names what is taken."""
    return Refusal(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: "
        + ", ".join(entries),
    )


class Writes:
    """The writing half of the API."""

    def __init__(self, store: Store, registry: Registry, *, server_side_apply: bool) -> None:
        self.store = store
        self.registry = registry
        self.server_side_apply = server_side_apply

    def write(
        self,
        kind: Kind,
        served_request: ServedRequest,
        logged: Logged,
        may_create: Callable[[], None],
    ) -> Answer:
        """Do what is asked; what the log has to know goes to `logged`."""
        query = logged.query
        if served_request.verb == "delete":
            return self._delete(kind, served_request, logged, query)
        if served_request.verb == "deletecollection":
            raise Refusal(405, "MethodNotAllowed", "this server does not delete collections")
        way = self._way(served_request, logged, may_create)
        if served_request.verb == "create":
            target = self._named(kind, served_request, logged.body)
            self._check_namespace(target)
            written = self.registry.create(target, logged.body, way)
        elif served_request.verb == "update":
            written = self.registry.replace(_target(kind, served_request), logged.body, way)
        else:
            written = self._patch(_target(kind, served_request), logged, way)
        logged.dropped, logged.changed = written.dropped, written.changed
        return _answer(kind, served_request, written, way)

    def _patch(self, target: Target, logged: Logged, way: Way) -> Written:
        content_type = logged.content_type.partition(";")[0].strip()
        patch = logged.body
        if content_type == APPLY and self.server_side_apply:
            if not isinstance(patch, dict):
                raise bad_request("error decoding YAML: the body is no object")
            self._check_namespace(target)
            return self.registry.apply(target, patch, way)
        entries = {MERGE, JSON_PATCH} | (set() if target.kind.custom else {STRATEGIC})
        if content_type not in entries:
            raise unknown_media(sorted(entries) + ([APPLY] if self.server_side_apply else []))
        with self.store.lock:
            live = shown(target.kind, target.group, target.version, self.registry.live(target))
            if content_type == JSON_PATCH:
                new = json_patch(live, patch)
            elif not isinstance(patch, dict):
                raise bad_request("cannot unmarshal the patch: it is no object")
            elif content_type == MERGE:
                new = merge_patch(live, patch)
            else:
                new = strategic_patch(target.shape, live, patch)
            return self.registry.replace(target, new, way, patch=True)

    def _way(
        self, served_request: ServedRequest, logged: Logged, may_create: Callable[[], None]
    ) -> Way:
        query = logged.query
        manager = query.get("fieldManager", "")
        applying = logged.content_type.startswith(APPLY) and served_request.verb == "patch"
        causes = []
        if applying and not manager:
            message = "Required value: is required for apply patch"
            causes.append(Cause("FieldValueRequired", message, "fieldManager"))
        if len(manager.encode()) > MAX_MANAGER:
            message = f"Too long: may not be more than {MAX_MANAGER} bytes"
            causes.append(Cause("FieldValueTooLong", message, "fieldManager"))
        if "force" in query and not applying and served_request.verb == "patch":
            message = "Forbidden: may not be specified for non-apply patch"
            causes.append(Cause("FieldValueForbidden", message, "force"))
        if causes:
            refusal = invalid("PatchOptions", "meta.k8s.io", "", causes)
            raise Refusal(422, "Invalid", refusal.message, details=refusal.details, causes=causes)
        return Way(
            manager=manager or logged.user_agent.partition("/")[0] or "unknown",
            force=query.get("force", "") in ("true", "1"),
            dry_run=query.get("dryRun", "") == "All",
            field_validation=query.get("fieldValidation", "") or "Warn",
            may_create=may_create,
        )

    def _named(self, kind: Kind, served_request: ServedRequest, body: Any) -> Target:
        """Return the target of a POST: the body names it, or asks for a name."""
        if not isinstance(body, dict) or not isinstance(body.get("metadata", {}), dict):
            raise bad_request("the object provided is unrecognized")
        metadata = body.setdefault("metadata", {})
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = f"{metadata['generateName']}{secrets.token_hex(3)[:5]}"
        return _target(kind, served_request, str(metadata.get("name", "")))

    def _check_namespace(self, target: Target) -> None:
        namespaces = self.store.objects.get("namespaces", {})
        if target.namespace and ("", target.namespace) not in namespaces:
            raise not_found("namespaces", "", target.namespace)

    def _delete(
        self, kind: Kind, served_request: ServedRequest, logged: Logged, query: Mapping[str, str]
    ) -> Answer:
        options: Object = logged.body if isinstance(logged.body, dict) else {}
        dry_run = query.get("dryRun", "") == "All" or options.get("dryRun") == ["All"]
        target = _target(kind, served_request)
        last = self.registry.delete(target, options.get("preconditions") or {}, dry_run=dry_run)
        logged.changed = not dry_run
        details = {
            "name": served_request.name,
            "group": kind.group,
            "kind": kind.plural,
            "uid": last["metadata"].get("uid"),
        }
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return Answer(body={**status, "details": details})


def _target(kind: Kind, served_request: ServedRequest, name: str = "") -> Target:
    return Target(
        kind=kind,
        group=served_request.group,
        version=served_request.version,
        name=name or served_request.name,
        namespace=served_request.namespace if kind.namespaced else "",
        subresource=served_request.subresource,
    )


def _answer(kind: Kind, served_request: ServedRequest, written: Written, way: Way) -> Answer:
    headers = {}
    if written.dropped and way.field_validation == "Warn":
        reports = "; ".join(f'unknown field "{path}"' for path in written.dropped[:10])
        safe = "".join(letter if letter.isprintable() else "?" for letter in reports)
        headers["Warning"] = '299 - "' + safe.replace("\\", "\\\\").replace('"', '\\"') + '"'
    body = shown(kind, served_request.group, served_request.version, written.body)
    return Answer(status=201 if written.created else 200, body=body, headers=headers)
