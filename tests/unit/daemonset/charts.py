"""The chart, rendered as `helm template` does; without a cluster and without helm."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml
from jsonschema import Draft7Validator

from tests.unit.daemonset.go_template import Renderer, merge_overwrite
from tests.unit.daemonset.manifests import DAEMONSET, Object

CHART = DAEMONSET / "chart"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
# value of the chart: component of kustomize
SWITCHES = {
    "ascend": "ascend",
    "blockIO": "block-io",
    "evictions": "evictions",
    "hamiCore": "hami-core",
    "kubeletProxy": "kubelet-proxy",
    "metricsAuth": "metrics-auth",
    "networkPolicy": "network-policy",
    "nodeCondition": "node-condition",
    "nodeLabels": "node-labels",
    "nvidiaRuntime": "nvidia-runtime",
    "openshift": "openshift",
    "podMonitor": "pod-monitor",
    "podResourcesProxy": "pod-resources-proxy",
    "priorityQuota": "priority-quota",
}
OFF_WITH_OBSERVE = {
    *("ascend", "blockIO", "evictions", "hamiCore", "nvidiaRuntime", "podResourcesProxy"),
}


@cache
def _renderer() -> Renderer:
    templates = CHART / "templates"
    return Renderer({path.name: path.read_text() for path in sorted(templates.iterdir())})


def value_errors(values: Mapping[str, Any]) -> list[str]:
    """Return what the schema says of values put over the defaults."""
    merged = merge_overwrite(copy.deepcopy(DEFAULTS), values)
    return [error.message for error in Draft7Validator(SCHEMA).iter_errors(merged)]


def render_texts(
    values: Mapping[str, Any] | None = None, namespace: str = "xpu-agent"
) -> dict[str, str]:
    """Return the output of every template for values put over the defaults."""
    assert value_errors(values or {}) == []
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    root = {
        "Values": merge_overwrite(copy.deepcopy(DEFAULTS), values or {}),
        "Release": {"Name": "xpu-agent", "Namespace": namespace, "Service": "Helm"},
        "Chart": {
            "Name": chart["name"],
            "Version": chart["version"],
            "AppVersion": chart["appVersion"],
        },
        "Files": {"Get": lambda name: (CHART / name).read_text()},
    }
    names = [path.name for path in sorted((CHART / "templates").iterdir()) if path.name[0] != "_"]
    return {name: _renderer().render(name, root) for name in names}


def render(
    values: Mapping[str, Any] | None = None, namespace: str = "xpu-agent"
) -> tuple[Object, ...]:
    """Return all objects of the chart, those of hooks too."""
    texts = render_texts(values, namespace)
    texts.pop("NOTES.txt")
    return tuple(
        item for text in texts.values() for item in yaml.safe_load_all(text) if item is not None
    )


def chart_renderings() -> dict[str, tuple[Object, ...]]:
    """Return the chart with each profile and each switch, by name."""
    result = {
        f"chart:{name}": render({"profile": name}) for name in ("observe", "devices", "enforce")
    }
    result["chart:kubernetes-1.28"] = render(
        {"policy": {"enabled": False}, "kubeletProxy": {"enabled": True}}
    )
    result["chart:scheduler"] = render({"scheduler": {"enabled": True, "networkPolicy": True}})
    for switch in SWITCHES:
        result[f"chart:devices+{switch}"] = render({switch: {"enabled": True}})
    return result
