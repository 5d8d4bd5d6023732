"""The schema of NodeResourceTopology objects as field rules, and objects made of small hosts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

import jsonschema
from msgspec.structs import replace

from agent.host.cpu import read_cpu_numa
from agent.objects.node_resource_topology import TopologyPublisher
from agent.snapshot.cluster import NodeView
from agent.snapshot.cpu import CpuTopology, NumaTopology
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from tests.small_host import Changes, small_host

QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)


def closed(properties: dict[str, object], *optional: str) -> dict[str, object]:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }


AMOUNT = {"type": "string", "pattern": QUANTITY}
TEXT = {"type": "string", "minLength": 1}
ZONE = closed(
    {
        "name": {"type": "string", "pattern": "^node-(0|[1-9][0-9]*)$"},
        "type": {"const": "Node"},
        "costs": {
            "type": "array",
            "items": closed({"name": TEXT, "value": {"type": "integer"}}),
        },
        "resources": {
            "type": "array",
            "items": closed(
                {"name": TEXT, "capacity": AMOUNT, "allocatable": AMOUNT, "available": AMOUNT}
            ),
        },
    },
    "costs",
)
SCHEMA = closed(
    {
        "apiVersion": {"const": "topology.node.k8s.io/v1alpha1"},
        "kind": {"const": "NodeResourceTopology"},
        "metadata": closed(
            {
                "name": TEXT,
                "labels": {"type": "object", "additionalProperties": TEXT},
                "annotations": {"type": "object", "additionalProperties": TEXT},
                "ownerReferences": {"type": "array", "minItems": 1, "maxItems": 1},
            },
            "ownerReferences",
        ),
        "topologyPolicies": {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 1},
        "zones": {"type": "array", "items": ZONE, "minItems": 1},
    }
)

Body = dict[str, dict[str, object]]


def snapshot(cpus: CpuTopology, numa: NumaTopology, **identity: str) -> NodeSnapshot:
    node = replace(NodeIdentity(name="node-0"), **identity)
    return NodeSnapshot(node=node, cpus=SnapshotPart(cpus, 1.0), numa=SnapshotPart(numa, 1.0))


def rendered(
    cpus: CpuTopology, numa: NumaTopology, node: NodeView | None = None, **identity: str
) -> Body:
    picture = snapshot(cpus, numa, **identity)
    cluster = replace(picture.cluster, node=SnapshotPart(node))
    (desired,) = TopologyPublisher().render(replace(picture, cluster=cluster), 0.0)
    jsonschema.validate(desired.body, SCHEMA)
    return cast(Body, desired.body)


def small(changes: Changes | None = None) -> Body:
    return rendered(*read_cpu_numa(small_host(changes or {})))


def annotation(body: Body, name: str) -> object:
    result = cast(Mapping[str, str], body["metadata"]["annotations"])
    (value,) = (json.loads(value) for key, value in result.items() if key.endswith(f"/{name}"))
    return value
