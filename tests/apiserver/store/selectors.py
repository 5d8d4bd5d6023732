"""Field and label selectors of lists and watches."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.apiserver.refusal import bad_request

Object = dict[str, Any]
Matches = Callable[[Object], bool]

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "pods": ("spec.nodeName", "status.phase", "spec.restartPolicy", "spec.schedulerName"),
    "nodes": ("spec.unschedulable",),
    "events": (
        "regarding.kind",
        "regarding.name",
        "regarding.namespace",
        "regarding.uid",
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.uid",
        "reason",
        "reportingController",
        "type",
    ),
}
_SET = re.compile(r"\s*(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)\s*")


def field_selector(plural: str, text: str) -> Matches:
    """Return the test that a field selector makes; a field that cannot be selected by is a 400."""
    terms = []
    for term in filter(None, text.split(",")):
        name, op, value = _split(term)
        if not op or name not in ("metadata.name", "metadata.namespace", *_FIELDS.get(plural, ())):
            raise bad_request(
                f'Unable to find "{plural}" that match label selector "", field selector '
                f'"{text}": field label not supported: {name}'
            )
        path = name.replace("involvedObject.", "regarding.").split(".")
        terms.append((path, op != "!=", value))
    return lambda body: all(
        (_value(body, path) == value) is wanted for path, wanted, value in terms
    )


def label_selector(text: str) -> Matches:
    """Return the test that a label selector makes: `a=b,c!=d,e,!f,g in (h,i)`."""
    terms = [_term(term) for term in _terms(text)]

    def matches(body: Object) -> bool:
        labels = body.get("metadata", {}).get("labels") or {}
        return all(term(labels) for term in terms)

    return matches


def _terms(text: str) -> list[str]:
    return [term.strip() for term in re.split(r",(?![^(]*\))", text) if term.strip()]


def _term(term: str) -> Callable[[Mapping[str, str]], bool]:
    if result := _SET.fullmatch(term):
        key = result["key"]
        values = {value.strip() for value in result["values"].split(",")}
        if result["op"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    name, op, value = _split(term)
    if op == "!=":
        return lambda labels: labels.get(name) != value
    if op:
        return lambda labels: labels.get(name) == value
    if name.startswith("!"):
        return lambda labels: name[1:].strip() not in labels
    return lambda labels: name in labels


def _split(term: str) -> tuple[str, str, str]:
    for op in ("!=", "==", "="):
        name, result, value = term.partition(op)
        if result:
            return name.strip(), op, value.strip()
    return term.strip(), "", ""


def _value(body: Any, path: list[str]) -> str:
    for name in path:
        body = body.get(name) if isinstance(body, dict) else None
    return body if isinstance(body, str) else str(body).lower() if body is not None else ""
