"""The kinds of objects that the agent reads or writes, and how watched ones are decoded.

The agent watches objects that it writes too, to notice changes by other writers.
"""

from __future__ import annotations

import msgspec

from agent.kube.api import ApiResource
from agent.kube.watch.decoder import WatchedKind
from agent.snapshot.cluster import MetricCollectPolicy, NodeView
from agent.snapshot.pod import PodView
from agent.wire_formats.cluster_objects import (
    NodeMetricObject,
    NodeObject,
    NodeSloObject,
    ObjectMeta,
    metric_policy,
    node_facts,
    slo_json,
)
from agent.wire_formats.pod import PodObject, build_pod_view

NODES = ApiResource(group="", version="v1", plural="nodes", kind="Node")

PODS = ApiResource(group="", version="v1", plural="pods", kind="Pod", namespaced=True)

EVENTS = ApiResource(
    group="events.k8s.io", version="v1", plural="events", kind="Event", namespaced=True
)

DEVICES = ApiResource(
    group="scheduling.koordinator.sh", version="v1alpha1", plural="devices", kind="Device"
)

NODE_METRICS = ApiResource(
    group="slo.koordinator.sh", version="v1alpha1", plural="nodemetrics", kind="NodeMetric"
)

NODE_SLOS = ApiResource(
    group="slo.koordinator.sh", version="v1alpha1", plural="nodeslos", kind="NodeSLO"
)

TOPOLOGIES = ApiResource(
    group="topology.node.k8s.io",
    version="v1alpha1",
    plural="noderesourcetopologies",
    kind="NodeResourceTopology",
)


class VersionedObject(msgspec.Struct):
    """An object without its content: a changed version makes the writer read the whole object."""

    metadata: ObjectMeta


def resource_version(one: VersionedObject) -> str:
    """Return the object's version, an opaque text."""
    return one.metadata.resource_version


OWN_DEVICE: WatchedKind[VersionedObject, str] = WatchedKind(
    resource=DEVICES, body_type=VersionedObject, convert=resource_version
)

OWN_TOPOLOGY: WatchedKind[VersionedObject, str] = WatchedKind(
    resource=TOPOLOGIES, body_type=VersionedObject, convert=resource_version
)

OWN_PODS: WatchedKind[PodObject, PodView] = WatchedKind(
    resource=PODS, body_type=PodObject, convert=build_pod_view, node_field="spec.nodeName"
)


OWN_NODE: WatchedKind[NodeObject, NodeView] = WatchedKind(
    resource=NODES, body_type=NodeObject, convert=node_facts
)


OWN_NODE_METRIC: WatchedKind[NodeMetricObject, MetricCollectPolicy] = WatchedKind(
    resource=NODE_METRICS, body_type=NodeMetricObject, convert=metric_policy
)


OWN_NODE_SLO: WatchedKind[NodeSloObject, object] = WatchedKind(
    resource=NODE_SLOS, body_type=NodeSloObject, convert=slo_json
)
