"""What the server says of its versions reaches the publisher through the snapshot."""

from __future__ import annotations

from agent.app.cluster_facts import ClusterFactsUpdater
from agent.app.identity import MachineIdentity
from agent.clock import ManualClock
from agent.messages import MessageQueue
from agent.objects.node_resource_topology import TopologyPublisher
from agent.snapshot.node import SnapshotStore
from tests.clustered import NAME, snapshot


def test_the_topology_waits_for_the_versions_and_follows_a_change_of_them() -> None:
    store = SnapshotStore(snapshot(versions=None))
    messages = MessageQueue()
    changes: list[str | None] = []

    def written() -> str | None:
        desired = TopologyPublisher().render(store.current, 0.0)
        return desired[0].api_version if desired else None

    facts_updater = ClusterFactsUpdater(NAME, MachineIdentity(), store, ManualClock(), messages)
    assert written() is None
    for versions in ((), (), ("v1alpha1",), ("v1alpha1", "v1alpha2")):
        facts_updater.update_topology_versions(versions)
        changes += [written() for _ in messages.drain()]
    group = "topology.node.k8s.io"
    assert changes == [f"{group}/v1alpha1", f"{group}/v1alpha1", f"{group}/v1alpha2"]
