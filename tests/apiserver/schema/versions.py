"""One stored object as its versions show it."""

from __future__ import annotations

from typing import Any

from tests.apiserver.schema.kinds import Kind
from tests.apiserver.schema.walk import Findings, walk

Object = dict[str, Any]

# field of events.k8s.io/v1 -> field of core/v1
_CORE_EVENT = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_FROM_CORE = {core: ours for ours, core in _CORE_EVENT.items()}


def shown(kind: Kind, group: str, version: str, body: Object) -> Object:
    """Return a stored object in the version that is asked for."""
    if group != kind.group:
        body = {_CORE_EVENT.get(key, key): value for key, value in body.items()}
        return {**body, "apiVersion": version, "kind": kind.kind}
    if kind.custom and len(kind.shapes) > 1 and version != kind.stored_version:
        records = walk(kind.shapes[version], body, "", Findings())
        body = records if isinstance(records, dict) else body
    return {**body, "apiVersion": kind.api_version(version), "kind": kind.kind}


def stored_form(kind: Kind, group: str, body: Object) -> Object:
    """Return what a client sent in the form in which it is stored, apart from its apiVersion."""
    if group == kind.group:
        return body
    return {_FROM_CORE.get(key, key): value for key, value in body.items()}
