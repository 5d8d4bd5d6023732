"""All publishers by the name of their object."""

from __future__ import annotations

from typing import Protocol

from agent.config.settings import Settings
from agent.objects.device import DevicePublisher
from agent.objects.node import NodeConditionPublisher, NodeLabelsPublisher
from agent.objects.node_metric import NodeMetricPublisher
from agent.objects.node_resource_topology import TopologyPublisher
from agent.runbook.runbook import OWN_RUNBOOK, Runbook
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.publications import DesiredObject

USAGE_REPORT = "nodemetric"  # the usage report, rendered on the collector thread


def publishers(settings: Settings, runbook: Runbook = OWN_RUNBOOK) -> dict[str, Publisher]:
    """Return all publishers with their intervals.

    The last two render objects in a cluster only.
    """
    interval_s = settings.publish.interval_s
    return {
        "device": DevicePublisher(interval_s=interval_s),
        "topology": TopologyPublisher(
            interval_s=interval_s, is_kubelet_enabled=settings.kubelet.enabled
        ),
        USAGE_REPORT: NodeMetricPublisher(interval_s=settings.publish.report_interval_s),
        "nodelabels": NodeLabelsPublisher(interval_s=interval_s),
        "nodecondition": NodeConditionPublisher(interval_s=interval_s, runbook=runbook),
    }


def enabled_publishers(settings: Settings, runbook: Runbook = OWN_RUNBOOK) -> dict[str, Publisher]:
    """Return the publishers that are enabled in the settings."""
    publish = settings.publish
    switches = {
        "device": publish.device,
        "topology": publish.node_resource_topology,
        USAGE_REPORT: publish.node_metric,
        "nodelabels": settings.api.node_labels,
        "nodecondition": settings.api.node_condition,
    }
    return {name: one for name, one in publishers(settings, runbook).items() if switches[name]}


class Publisher(Protocol):
    """A pure function of the snapshot: equal snapshots give equal objects."""

    @property
    def name(self) -> str:
        """Return the publisher's name for metrics, checks and logs."""
        ...

    @property
    def interval_s(self) -> float:
        """Return the seconds between two comparisons of the snapshot."""
        ...

    def render(self, snapshot: NodeSnapshot, now_s: float) -> tuple[DesiredObject, ...]:
        """Return the objects. `now_s` is the wall clock, for time stamps."""
        ...
