"""A NodeMetric that appears is told of at once, each time; one that is there is not."""

from __future__ import annotations

from agent.app.cluster_facts import ClusterFactsUpdater
from agent.app.identity import MachineIdentity
from agent.clock import ManualClock
from agent.snapshot.cluster import MetricCollectPolicy
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore

NAME = "node-a"


def test_whoever_waits_for_a_node_metric_hears_of_it_when_it_appears() -> None:
    store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name=NAME)))
    known = ClusterFactsUpdater(NAME, MachineIdentity(), store, ManualClock(), lambda: None)
    seen: list[MetricCollectPolicy | None] = []
    known.on_metric_created = lambda: seen.append(store.current.cluster.metric_policy.value)
    there = MetricCollectPolicy(aggregate_s=60.0)
    for view in (
        {},
        {NAME: there},
        {NAME: MetricCollectPolicy()},
        {},
        {NAME: there},
        {"other": there},
    ):
        known.update_metric_policy(view)
    assert seen == [there, there]
