"""A NodeMetric that appears is told of at once, each time; one that is there is not."""

from __future__ import annotations

from agent.clock import ManualClock
from agent.daemon.cluster.known import Known
from agent.model.cluster.facts import MetricPolicy
from agent.model.snapshot import NodeIdentity, NodeSnapshot
from agent.node.identity import Machine
from agent.node.store import SnapshotStore

NAME = "node-a"


def test_whoever_waits_for_a_node_metric_hears_of_it_when_it_appears() -> None:
    store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name=NAME)))
    known = Known(NAME, Machine(), store, ManualClock(), lambda: None)
    seen: list[MetricPolicy | None] = []
    known.metric_came = lambda: seen.append(store.current.cluster.metric_policy.value)
    there = MetricPolicy(aggregate_s=60.0)
    for view in ({}, {NAME: there}, {NAME: MetricPolicy()}, {}, {NAME: there}, {"other": there}):
        known.metrics(view)
    assert seen == [there, there]
