"""The kinds of objects that the agent reads or writes."""

from __future__ import annotations

from agent.kube.base import Resource

NODES = Resource(group="", version="v1", plural="nodes", kind="Node")
PODS = Resource(group="", version="v1", plural="pods", kind="Pod", namespaced=True)
EVENTS = Resource(
    group="events.k8s.io", version="v1", plural="events", kind="Event", namespaced=True
)
DEVICES = Resource(
    group="scheduling.koordinator.sh", version="v1alpha1", plural="devices", kind="Device"
)
NODE_METRICS = Resource(
    group="slo.koordinator.sh", version="v1alpha1", plural="nodemetrics", kind="NodeMetric"
)
NODE_SLOS = Resource(
    group="slo.koordinator.sh", version="v1alpha1", plural="nodeslos", kind="NodeSLO"
)
TOPOLOGIES = Resource(
    group="topology.node.k8s.io",
    version="v1alpha1",
    plural="noderesourcetopologies",
    kind="NodeResourceTopology",
)
