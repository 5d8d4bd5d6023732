"""The CRD's schema and specs that a real cluster used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from agent.slo.overlay import overlay_spec
from agent.snapshot.slo import NODE_SLO_DEFAULTS
from tests.captures import SHARED, needs_shared
from tests.schemas import check
from tests.unit.slo.wire import Tree, at, nested, to_wire

CRD = "slo.koordinator.sh_nodeslos.yaml"
CHOSEN = {  # what the schema calls text or any object, and the webhook does not
    "cpuSuppressPolicy": "cfsQuota",
    "cpuEvictPolicy": "evictByAllocatable",
    "cpuPolicy": "coreSched",
    "netQOSPolicy": "terway-qos",
    "policy": "auto",
    "type": "volumegroup",
    "name": "x",
    "base": "Kubepods",
    "parentDir": "a",
    "relativePath": "b",
    "priority": "koord-mid",
    "qos": "LSE",
    "strategy": {},
    "extensions": {"other": {"a": 1}},
    "schedFeatures": {"A": False},
    # one lies within another
    "catRangeStartPercent": 10,
    "catRangeEndPercent": 20,
    "cfsQuotaBurstPercent": 100,
}


def schema() -> Tree:
    crd = yaml.safe_load((SHARED / "crds" / CRD).read_text())
    (version,) = crd["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]["properties"]["spec"]


def example(node: Tree, name: str = "") -> Tree:
    """An object that the schema allows, with every field."""
    if name in CHOSEN and not (name == "priority" and node["type"] == "integer"):
        return CHOSEN[name]
    if "properties" in node:
        return {key: example(below, key) for key, below in node["properties"].items()}
    if node.get("type") == "array":
        return [example(node["items"])]
    if node.get("x-kubernetes-int-or-string"):
        return "1G"
    if node["type"] == "boolean":
        return True
    if "Lower" in name:
        return 20
    return 30 if "Threshold" in name or "Upper" in name else max(1, node.get("minimum", 1))


def limits(node: Tree, path: str = "") -> Iterator[tuple[str, int]]:
    """Yield values just beyond what the schema allows, outside of lists."""
    for key, below in node.get("properties", {}).items():
        here = f"{path}.{key}" if path else key
        yield from limits(below, here)
        if "minimum" in below:
            yield here, below["minimum"] - 1
        if "maximum" in below:
            yield here, below["maximum"] + 1


def node_slo(spec: Tree) -> Tree:
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeSLO",
        "metadata": {"name": "node-0"},
        "spec": spec,
    }


def without_null(tree: Any) -> Tree:
    if isinstance(tree, dict):
        return {key: without_null(below) for key, below in tree.items() if below is not None}
    return [without_null(below) for below in tree] if isinstance(tree, list) else tree


@needs_shared
def test_every_field_of_the_schema_is_known_and_used() -> None:
    spec = example(schema())
    check(CRD, node_slo(spec))
    result = overlay_spec(spec)
    assert (result.refused, result.unknown_fields) == ((), 0)
    assert to_wire(result.slo) == spec


@needs_shared
@pytest.mark.parametrize("given", [{}, None], ids=["defaults", "all"])
def test_what_is_in_force_fits_the_schema_with_unknown_fields_forbidden(given: Tree) -> None:
    slo = overlay_spec(example(schema()) if given is None else given).slo
    check(CRD, node_slo(without_null(to_wire(slo))))


@needs_shared
def test_what_the_schema_refuses_is_refused() -> None:
    beyond = list(limits(schema()))
    assert len(beyond) > 60
    for path, value in beyond:
        result = overlay_spec(nested(path, value))
        assert [refusal.path for refusal in result.refused] == [f"spec.{path}"], path
        assert result.slo == NODE_SLO_DEFAULTS


@needs_shared
def test_specs_that_a_real_cluster_used_are_taken_as_they_are() -> None:
    runs = json.loads((SHARED / "oracle" / "koordlet-cgroup-files.json").read_text())["runs"]
    assert len(runs) == 7
    for run in runs:
        result = overlay_spec(run["nodeslo"])
        assert (result.refused, result.unknown_fields) == ((), 0), run["name"]
        for path, value in leaves(run["nodeslo"]):
            assert at(to_wire(result.slo), path) == value, run["name"]


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    for key, below in tree.items():
        here = f"{path}.{key}" if path else key
        if isinstance(below, dict):
            yield from leaves(below, here)
        else:
            yield here, below
