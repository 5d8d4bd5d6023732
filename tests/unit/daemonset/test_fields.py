"""Every field of the manifests is one that Kubernetes knows, by its client's own models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes.client import models

from tests.unit.daemonset.manifests import DAEMONSET, Object, built

FOLDERS = ("base", "policy", "scheduler")
OBJECTS = tuple(item for name in FOLDERS for item in built(DAEMONSET / name))
_OF = re.compile(r"(?i:list\[|dict(?:\(|\[)str, )(\w+)[\])]")


def model_of(kind: str) -> Any:
    """Return the model of a kind, as `DaemonSet`, or of a field, as `V1PodSpec`."""
    return getattr(models, kind, None) or getattr(models, f"V1{kind}", None)


def unknown(model: Any, value: object, where: str) -> Iterator[str]:
    """Yield the fields that the model does not have, and those it must have and has not."""
    if model is None or not isinstance(value, dict):
        return
    attributes = {wire: name for name, wire in model.attribute_map.items()}
    for key, inner in value.items():
        if key not in attributes:
            yield f"{where}.{key}"
            continue
        declared = model.openapi_types[attributes[key]]
        item = _OF.fullmatch(declared)
        below = model_of(item[1] if item else declared)
        for part in inner if isinstance(inner, list) else [inner]:
            yield from unknown(below, part, f"{where}.{key}")


@pytest.mark.parametrize("item", OBJECTS, ids=lambda item: f"{item['kind']} {item['metadata']}")
def test_no_field_is_misspelt(item: Object) -> None:
    model = model_of(item["kind"])
    assert model is not None
    assert list(unknown(model, item, item["kind"])) == []


def test_a_misspelt_field_would_be_found() -> None:
    wrong: Object = {"spec": {"template": {"spec": {"containers": [{"volumemounts": []}]}}}}
    result = list(unknown(model_of("DaemonSet"), wrong, ""))
    assert result == [".spec.template.spec.containers.volumemounts"]
