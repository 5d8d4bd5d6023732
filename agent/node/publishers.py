"""The publishers that there are, by the name a person calls their object."""

from __future__ import annotations

from agent.config.sections import Settings
from agent.publish.base import Publisher
from agent.publish.device import DevicePublisher
from agent.publish.node_metric import NodeMetricPublisher
from agent.publish.node_object.condition import NodeConditionPublisher
from agent.publish.node_object.labels import NodeLabelsPublisher
from agent.publish.topology import TopologyPublisher

REPORT = "nodemetric"  # it tells of usage, and is made on the collector thread


def publishers(settings: Settings) -> dict[str, Publisher]:
    """Return all publishers with their intervals.

    The last two have something to say in a cluster only.
    """
    publish = settings.publish
    interval_s = publish.interval_s
    return {
        "device": DevicePublisher(interval_s=interval_s),
        "topology": TopologyPublisher(interval_s=interval_s, kubelet=settings.kubelet.enabled),
        REPORT: NodeMetricPublisher(interval_s=publish.report_interval_s),
        "nodelabels": NodeLabelsPublisher(interval_s=interval_s),
        "nodecondition": NodeConditionPublisher(interval_s=interval_s),
    }


def wanted_publishers(settings: Settings) -> dict[str, Publisher]:
    """Return those that settings want."""
    publish = settings.publish
    switches = {
        "device": publish.device,
        "topology": publish.node_resource_topology,
        REPORT: publish.node_metric,
        "nodelabels": settings.api.node_labels,
        "nodecondition": settings.api.node_condition,
    }
    return {name: p for name, p in publishers(settings).items() if switches[name]}
