"""The snapshot as JSON data with stable keys; each part has its age."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import TypeVar

import msgspec

from agent.errors import ParseError
from agent.snapshot.node import HotplugView, NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.slo import NodeSlo
from agent.wire_formats.kernel_text import format_cpu_list

T = TypeVar("T")
SNAPSHOT_PARTS = ("cpus", "numa", "pci", "devices", "pods", "usage", "report", "sharing")
CONTAINER_PARTS: Mapping[str, str] = MappingProxyType(  # name in JSON to name in the snapshot
    {
        "means": "host_devices",
        "grants": "allocations",
        "runtime": "runtime",
        "served": "served",
        "proof": "verification",
        "enforcement": "enforcement",
    }
)
CLUSTER_PARTS = ("node", "slo", "metric_policy", "kubelet", "topology_versions")


def to_json_data(value: object) -> object:
    """Turn frozen data into JSON data: CPU sets as lists of ranges, enums as their values."""
    if isinstance(value, (str, int, float)) or value is None:
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, msgspec.Struct):
        return {name: to_json_data(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {str(key): to_json_data(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        if all(isinstance(item, int) for item in value):
            return format_cpu_list(value)
        return sorted((to_json_data(item) for item in value), key=str)
    if isinstance(value, (tuple, list)):
        return [to_json_data(item) for item in value]
    raise TypeError(f"no JSON for {type(value).__name__}")


def _part_json(part: SnapshotPart[T], now_s: float) -> dict[str, object]:
    age_s = part.age_s(now_s)
    return {
        "age_s": None if age_s is None else round(age_s, 3),
        "error": part.error or None,
        "value": to_json_data(part.value),
    }


def _vendor_json(state: VendorState, now_s: float) -> dict[str, object]:
    members = {
        name: getattr(state, name)
        for name in state.__struct_fields__
        if name not in ("inventory", "samples")
    }
    return {
        **members,
        "inventory": _part_json(state.inventory, now_s),
        "samples": _part_json(state.samples, now_s),
    }


def _hotplug_json(view: HotplugView) -> dict[str, object]:
    return {
        "state": view.state,
        "problem": view.problem or None,
        "seen": dict(view.seen),
        "dropped": dict(view.dropped),
        "scans": dict(view.scans),
    }


def snapshot_json(snapshot: NodeSnapshot, now_s: float) -> dict[str, object]:
    """Return `{"node", "refused", "hotplug", "vendors", "parts"}`, and `"cluster"` in a cluster.

    Each part is `{"age_s", "error", "value"}`, by name; so is each part of the cluster.
    """
    cluster = snapshot.cluster
    reached = {
        name: _part_json(part, now_s)
        for name, attribute in CONTAINER_PARTS.items()
        if (part := getattr(snapshot, attribute)).taken_s is not None
    }
    parts_json = {name: _part_json(getattr(cluster, name), now_s) for name in CLUSTER_PARTS}
    return {
        "node": to_json_data(snapshot.node),
        "refused": dict(snapshot.refused),
        "hotplug": _hotplug_json(snapshot.hotplug),
        "vendors": [_vendor_json(state, now_s) for state in snapshot.vendors],
        "parts": {name: _part_json(getattr(snapshot, name), now_s) for name in SNAPSHOT_PARTS},
        **({"containers": reached} if reached else {}),
        **({"cluster": parts_json} if cluster.is_clustered else {}),
    }


def slo_from_json(data: object) -> NodeSlo:
    """Return the NodeSLO of a snapshot's JSON, whose field names are those of the attributes.

    Raises `ParseError` if it has another form.
    """
    try:
        return msgspec.convert(_as_attributes(data), NodeSlo, from_attributes=True)
    except msgspec.ValidationError as error:
        raise ParseError("NodeSLO of a snapshot", str(error)) from error


def _as_attributes(data: object) -> object:
    if isinstance(data, Mapping):
        return SimpleNamespace(**{str(key): _as_attributes(item) for key, item in data.items()})
    return [_as_attributes(item) for item in data] if isinstance(data, list) else data


def encode_json(data: object) -> bytes:
    """Return indented JSON with a final newline; names that are not UTF-8 are made readable."""
    try:
        text = msgspec.json.encode(data)
    except UnicodeEncodeError:
        text = msgspec.json.encode(_replace_surrogates(data))
    return msgspec.json.format(text, indent=2) + b"\n"


def _replace_surrogates(data: object) -> object:
    """Replace characters that stand for bytes outside of UTF-8, as in names of folders."""
    if isinstance(data, str):
        return data.encode("utf-8", "replace").decode()
    if isinstance(data, Mapping):
        return {_replace_surrogates(key): _replace_surrogates(value) for key, value in data.items()}
    if isinstance(data, (tuple, list)):
        return [_replace_surrogates(item) for item in data]
    return data
