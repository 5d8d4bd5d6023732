"""The publishers that there are, by the name a person calls their object."""

from __future__ import annotations

from agent.config.sections import Settings
from agent.publish.base import Publisher
from agent.publish.device import DevicePublisher
from agent.publish.node_metric import NodeMetricPublisher
from agent.publish.topology import TopologyPublisher


def publishers(settings: Settings) -> dict[str, Publisher]:
    """Return all publishers with their intervals."""
    publish = settings.publish
    return {
        "device": DevicePublisher(interval_s=publish.interval_s),
        "topology": TopologyPublisher(interval_s=publish.interval_s),
        "nodemetric": NodeMetricPublisher(interval_s=publish.report_interval_s),
    }


def wanted_publishers(settings: Settings) -> dict[str, Publisher]:
    """Return those that no setting switches off."""
    publish = settings.publish
    switches = {
        "device": publish.device,
        "topology": publish.node_resource_topology,
        "nodemetric": publish.node_metric,
    }
    return {name: p for name, p in publishers(settings).items() if switches[name]}
