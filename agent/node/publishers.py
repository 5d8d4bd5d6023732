"""The publishers that there are, by the name a person calls their object."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent.config.sections import Settings
from agent.publish.base import Publisher
from agent.publish.device import DevicePublisher
from agent.publish.topology import TopologyPublisher

REPORT = "nodemetric"  # it tells of usage, and is made on the collector thread


def publishers(settings: Settings) -> dict[str, Publisher]:
    """Return all publishers with their intervals.

    The last two have something to say in a cluster only.
    """
    return {name: make(settings) for name, make in _MAKERS.items()}


def wanted_publishers(settings: Settings) -> dict[str, Publisher]:
    """Return those that settings want; no others are loaded."""
    publish = settings.publish
    switches = {
        "device": publish.device,
        "topology": publish.node_resource_topology,
        REPORT: publish.node_metric,
        "nodelabels": settings.api.node_labels,
        "nodecondition": settings.api.node_condition,
    }
    return {name: make(settings) for name, make in _MAKERS.items() if switches[name]}


def _device(settings: Settings) -> Publisher:
    return DevicePublisher(interval_s=settings.publish.interval_s)


def _topology(settings: Settings) -> Publisher:
    interval_s = settings.publish.interval_s
    return TopologyPublisher(interval_s=interval_s, kubelet=settings.kubelet.enabled)


def _report(settings: Settings) -> Publisher:
    # imported here: a setting may not want it
    from agent.publish.node_metric import NodeMetricPublisher  # noqa: PLC0415 - see above

    return NodeMetricPublisher(interval_s=settings.publish.report_interval_s)


def _labels(settings: Settings) -> Publisher:
    # imported here: off by default, and the first Device does not wait for it
    from agent.publish.node_object.labels import NodeLabelsPublisher  # noqa: PLC0415 - see above

    return NodeLabelsPublisher(interval_s=settings.publish.interval_s)


def _condition(settings: Settings) -> Publisher:
    from agent.publish.node_object.condition import (  # noqa: PLC0415 - as the labels
        NodeConditionPublisher,
    )

    return NodeConditionPublisher(interval_s=settings.publish.interval_s)


_MAKERS: Mapping[str, Callable[[Settings], Publisher]] = {
    "device": _device,
    "topology": _topology,
    REPORT: _report,
    "nodelabels": _labels,
    "nodecondition": _condition,
}
