from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.captures import SHARED, needs_shared
from tests.schemas import CRDS, Refused, check, structure_of

CRD = "slo.koordinator.sh_nodemetrics.yaml"

pytestmark = needs_shared


def oracle(name: str) -> Any:
    return json.loads((SHARED / "oracle" / "koordlet-objects.json").read_text())[name]


def test_the_objects_of_a_real_koordlet_fit() -> None:
    check(CRD, oracle("nodemetric"))
    check("scheduling.koordinator.sh_devices.yaml", oracle("device"))


@pytest.mark.parametrize(
    ("where", "change"),
    [
        pytest.param("status", lambda s: s.update(x=1), id="unknown field"),
        pytest.param("status", lambda s: s.update(updateTime="2026-01-02"), id="date-time"),
        pytest.param(
            "status",
            lambda s: s["nodeMetric"]["nodeUsage"]["resources"].update(cpu="1x"),
            id="quantity",
        ),
        pytest.param(
            "status",
            lambda s: s["nodeMetric"]["numaUsages"][0].update(numaNodeID=1 << 31),
            id="int32",
        ),
        pytest.param(
            "status", lambda s: s["nodeMetric"]["numaUsages"][0].pop("numaNodeID"), id="required"
        ),
        pytest.param("metadata", lambda m: m.pop("name"), id="nameless"),
    ],
)
def test_what_an_api_server_refuses_or_prunes_is_refused(
    where: str, change: Callable[[Any], object]
) -> None:
    body = copy.deepcopy(oracle("nodemetric"))
    change(body[where])
    with pytest.raises(Refused):
        check(CRD, body)


def test_another_kind_or_version_is_refused() -> None:
    for key, value in (("kind", "Device"), ("apiVersion", "slo.koordinator.sh/v1")):
        with pytest.raises(Refused):
            check(CRD, {**oracle("nodemetric"), key: value})


def structure(schema: Any) -> Any:
    """Return a schema without its prose."""
    if isinstance(schema, list):
        return [structure(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: structure(value)
        for key, value in schema.items()
        if key != "description" or not isinstance(value, str)
    }


def test_the_structures_here_are_those_of_the_manifests() -> None:
    manifests = sorted(CRDS.glob("*.yaml"))
    assert manifests
    for path in manifests:
        loads = json.loads(structure_of(path.name).read_text())
        manifest = yaml.load(path.read_text(), yaml.CSafeLoader)
        assert loads["spec"] == structure(manifest["spec"]), path.name
