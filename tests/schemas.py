"""Check objects against CRD manifests as an API server does, with unknown fields refused."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import jsonschema

from tests.apiserver.schema.kinds import CRDS as STRUCTURES
from tests.captures import SHARED

CRDS = SHARED / "crds"  # the manifests themselves
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")

Schema = dict[str, object]


class Refused(AssertionError):
    """The object does not fit its CRD; the message lists every place and why."""


def check(crd_file: str, body: object) -> None:
    """Raise `Refused` unless `body` fits the only version of the manifest `crd_file`.

    Unknown fields are errors, except in `metadata` and where the schema preserves them: an API
    server would prune them without a word.
    """
    validator = _validator(crd_file)
    errors = sorted(validator.iter_errors(body), key=lambda error: error.json_path)
    if errors:
        raise Refused("\n".join(f"{error.json_path}: {error.message}" for error in errors))


def structure_of(crd_file: str) -> Path:
    """Return where the structure of a manifest lies in this repository."""
    plural = crd_file.removesuffix(".yaml").rpartition("_")[2]
    return STRUCTURES / f"{plural}.json"


@functools.cache
def _validator(crd_file: str) -> jsonschema.Draft7Validator:
    manifest = json.loads(structure_of(crd_file).read_text())
    (version,) = manifest["spec"]["versions"]
    schema = cast(Schema, _strict(version["schema"]["openAPIV3Schema"]))
    names = manifest["spec"]["names"], manifest["spec"]["group"]
    properties = cast(dict[str, object], schema["properties"])
    properties["kind"] = {"const": names[0]["kind"]}
    properties["apiVersion"] = {"const": f"{names[1]}/{version['name']}"}
    properties["metadata"] = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string", "minLength": 1}},
    }
    schema["required"] = ["apiVersion", "kind", "metadata"]
    return jsonschema.Draft7Validator(schema, format_checker=_formats())


def _strict(schema: object) -> object:
    """Forbid unknown fields, and let `anyOf` alone decide what an int-or-string is."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    strict: Schema = {key: _strict(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        strict.pop("type", None)
    fields_are_known = isinstance(schema.get("properties"), Mapping) and "type" in schema
    if fields_are_known and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict.setdefault("additionalProperties", False)
    return strict


def _formats() -> jsonschema.FormatChecker:
    checker = jsonschema.FormatChecker(formats=())

    def fits(bits: int, value: object) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return True
        return -(1 << (bits - 1)) <= value < 1 << (bits - 1)

    checker.checks("int32")(lambda value: fits(32, value))
    checker.checks("int64")(lambda value: fits(64, value))
    checker.checks("date-time")(
        lambda value: not isinstance(value, str) or bool(_DATE_TIME.fullmatch(value))
    )
    return checker
