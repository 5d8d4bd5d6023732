"""Rules that hold for the metadata of every object."""

from __future__ import annotations

import re
from typing import Any

from tests.apiserver.refusal import Cause

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
MAX_ANNOTATIONS_BYTES = 256 << 10
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character"
)


def check_metadata(metadata: dict[str, Any]) -> list[Cause]:
    """Return what is wrong with names, labels, annotations and owners."""
    causes: list[Cause] = []
    name = metadata.get("name", "")
    if not name:
        message = "Required value: name or generateName is required"
        causes.append(Cause("FieldValueRequired", message, "metadata.name"))
    elif len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        causes.append(_invalid("metadata.name", name, _SUBDOMAIN_RULE))
    namespace = metadata.get("namespace", "")
    if namespace and (len(namespace) > 63 or not _DNS_LABEL.fullmatch(namespace)):
        causes.append(_invalid("metadata.namespace", namespace, "not a lowercase RFC 1123 label"))
    for key, value in (metadata.get("labels") or {}).items():
        causes += _key(key, "metadata.labels")
        if len(value) > 63:
            causes.append(_invalid("metadata.labels", value, "must be no more than 63 bytes"))
        elif value and not _QUALIFIED.fullmatch(value):
            causes.append(_invalid("metadata.labels", value, _VALUE_RULE))
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        causes += _key(key.lower(), "metadata.annotations")
    size = sum(len(key.encode()) + len(text.encode()) for key, text in annotations.items())
    if size > MAX_ANNOTATIONS_BYTES:
        message = f"Too long: may not be more than {MAX_ANNOTATIONS_BYTES} bytes"
        causes.append(Cause("FieldValueTooLong", message, "metadata.annotations"))
    return causes + _owners(metadata.get("ownerReferences") or [])


def check_key(key: str) -> bool:
    """Return whether this may be the key of a label."""
    return not _key(key, "")


def _key(key: str, path: str) -> list[Cause]:
    prefix, slash, name = key.rpartition("/")
    if slash and (not prefix or len(prefix) > 253 or not _SUBDOMAIN.fullmatch(prefix)):
        return [_invalid(path, key, f"prefix part {_SUBDOMAIN_RULE}")]
    if not name or len(name) > 63 or not _QUALIFIED.fullmatch(name):
        return [
            _invalid(
                path,
                key,
                "name part must consist of alphanumeric characters, '-', '_' or '.', and must "
                "start and end with an alphanumeric character",
            )
        ]
    return []


def _owners(owners: list[dict[str, Any]]) -> list[Cause]:
    causes = []
    for index, owner in enumerate(owners):
        for key in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(key):
                path = f"metadata.ownerReferences[{index}].{key}"
                causes.append(_invalid(path, "", f"{key} must not be empty"))
    if sum(bool(owner.get("controller")) for owner in owners) > 1:
        message = "Only one reference can have Controller set to true"
        causes.append(_invalid("metadata.ownerReferences", "object", message))
    return causes


def _invalid(path: str, value: str, message: str) -> Cause:
    return Cause("FieldValueInvalid", f'Invalid value: "{value}": {message}', path)
