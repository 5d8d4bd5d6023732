"""Which objects the agent follows, and where what it learns of them goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from agent.clock import Clock
from agent.daemon.cluster.known import Known
from agent.kube.base import Api
from agent.kube.objects.node import OWN_NODE
from agent.kube.objects.node_metric import OWN_NODE_METRIC
from agent.kube.objects.node_slo import OWN_NODE_SLO
from agent.kube.objects.own import OWN_DEVICE, OWN_TOPOLOGY
from agent.kube.objects.pod import OWN_PODS
from agent.kube.watch.runner import Watch
from agent.kube.watch.state import Phase
from agent.kube.watch.wire import Kind


def is_watched(watches: Mapping[str, Watch[Any, Any]], kind: str) -> bool:
    """Return whether a watch reports each change of the node's object of a kind.

    It does so also while the API server is away: what changed then arrives when it is back. Where
    the server lacks the kind, the watch finds it when it is installed.
    """
    states = [watch.state for watch in watches.values() if watch.kind == kind]
    return any(
        state.phase is Phase.ABSENT or (state.synced and state.phase is not Phase.FORBIDDEN)
        for state in states
    )


def watches(
    api: Api,
    node: str,
    known: Known,
    clock: Clock,
    *,
    on_version: Callable[[str, str | None], None],
    topology_version: Callable[[], str],
) -> dict[str, Watch[Any, Any]]:
    """Return the watches of this node's own objects, by what the snapshot calls it.

    `on_version` is called with the kind and the resourceVersion of an object that the agent writes,
    `None` where there is none; `topology_version` is that of the API in which the server has
    NodeResourceTopologies.
    """

    def follow(
        kind: Kind[Any, Any], on_change: Callable[[Mapping[str, Any]], None]
    ) -> Watch[Any, Any]:
        selector = kind.of_node(node)
        return Watch(kind, api, on_change=on_change, clock=clock, field_selector=selector)

    def report(kind: Kind[Any, str]) -> Callable[[Mapping[str, str]], None]:
        return lambda view: on_version(kind.resource.kind, view.get(node))

    return {
        "node": follow(OWN_NODE, known.nodes),
        "slo": follow(OWN_NODE_SLO, known.slos),
        "metric_policy": follow(OWN_NODE_METRIC, known.metrics),
        "pods": follow(OWN_PODS, known.api_pods),
        "device": follow(OWN_DEVICE, report(OWN_DEVICE)),
        "topology": follow(replace(OWN_TOPOLOGY, version=topology_version), report(OWN_TOPOLOGY)),
    }
