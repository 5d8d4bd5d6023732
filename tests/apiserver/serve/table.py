"""Tables for people: what kubectl prints of built-in kinds. Others it prints by name and age."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Any

Object = dict[str, Any]
Column = tuple[str, Callable[[Object], object]]


def _name(body: Object) -> object:
    return body["metadata"].get("name", "")


def _age(body: Object) -> object:
    return _since(body["metadata"].get("creationTimestamp"))


def _since(text: object) -> str:
    """Return an age as kubectl tells it: `5s`, `3m`, `2h`, `4d`."""
    try:
        then = datetime.fromisoformat(str(text))
        seconds = int((datetime.now(then.tzinfo) - then).total_seconds())
    except (ValueError, TypeError):
        return "<unknown>"
    for unit_s, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s}{letter}"
    return f"{max(seconds, 0)}s"


def _ready(body: Object) -> object:
    for condition in body.get("status", {}).get("conditions", ()):
        if condition.get("type") == "Ready":
            return "Ready" if condition.get("status") == "True" else "NotReady"
    return "Unknown"


def _last_seen(body: Object) -> object:
    old = body.get("deprecatedLastTimestamp") or body.get("lastTimestamp")
    series = body.get("series") or {}
    return _since(series.get("lastObservedTime") or old or body.get("eventTime"))


def _object(body: Object) -> object:
    regarding = body.get("regarding") or body.get("involvedObject") or {}
    return f"{regarding.get('kind', '').lower()}/{regarding.get('name', '')}"


_COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "nodes": (
        ("Name", _name),
        ("Status", _ready),
        ("Age", _age),
        ("Version", lambda body: body["status"].get("nodeInfo", {}).get("kubeletVersion", "")),
    ),
    "pods": (
        ("Name", _name),
        ("Status", lambda body: body.get("status", {}).get("phase", "")),
        ("Node", lambda body: body.get("spec", {}).get("nodeName", "")),
        ("Age", _age),
    ),
    "events": (
        ("Last Seen", _last_seen),
        ("Type", lambda body: body.get("type", "")),
        ("Reason", lambda body: body.get("reason", "")),
        ("Object", _object),
        ("Message", lambda body: body.get("note") or body.get("message", "")),
    ),
}


def accepts_table(plural: str, accept: str) -> bool:
    """Return whether a client takes a table, and there is one."""
    return plural in _COLUMNS and "as=Table" in accept.partition(",")[0]


def table(plural: str, body: Object) -> Object:
    """Return an object, or a list of objects, as a table."""
    bodies = body.get("items", [body])
    columns = _COLUMNS[plural]
    rows = [
        {
            "cells": [cell(item) for _, cell in columns],
            "object": {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": item["metadata"],
            },
        }
        for item in bodies
    ]
    definitions = [
        {"name": name, "type": "string", "format": "name" if name == "Name" else "", "priority": 0}
        for name, _ in columns
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": body["metadata"] if "items" in body else {},
        "columnDefinitions": definitions,
        "rows": rows,
    }


async def tables(plural: str, events: AsyncIterator[Object]) -> AsyncIterator[Object]:
    """Yield the events of a watch with tables of one row."""
    async for event in events:
        plain = event["type"] in ("ERROR", "BOOKMARK")
        yield event if plain else {**event, "object": table(plural, event["object"])}
