"""Which objects the agent follows, and where what it learns of them goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agent.clock import Clock
from agent.daemon.cluster.known import Known
from agent.kube.base import Api
from agent.kube.objects.node import OWN_NODE
from agent.kube.objects.node_metric import OWN_NODE_METRIC
from agent.kube.objects.node_slo import OWN_NODE_SLO
from agent.kube.objects.pod import OWN_PODS
from agent.kube.watch.runner import Watch
from agent.kube.watch.wire import Kind


def watches(api: Api, node: str, known: Known, clock: Clock) -> dict[str, Watch[Any, Any]]:
    """Return the watches of this node's own objects, by what the snapshot calls it."""

    def follow(
        kind: Kind[Any, Any], on_change: Callable[[Mapping[str, Any]], None]
    ) -> Watch[Any, Any]:
        selector = kind.of_node(node)
        return Watch(kind, api, on_change=on_change, clock=clock, field_selector=selector)

    return {
        "node": follow(OWN_NODE, known.nodes),
        "slo": follow(OWN_NODE_SLO, known.slos),
        "metric_policy": follow(OWN_NODE_METRIC, known.metrics),
        "pods": follow(OWN_PODS, known.api_pods),
    }
