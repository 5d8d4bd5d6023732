"""Pods on their way from a watch and the kubelet into the snapshot."""

from __future__ import annotations

import asyncio

from agent.app.cluster_facts import ClusterFactsUpdater
from agent.app.identity import MachineIdentity
from agent.clock import ManualClock
from agent.messages import MessageQueue
from agent.snapshot.node import NodeSnapshot, SnapshotChange, SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import KubeQos, PodView
from tests.clustered import NAME, snapshot


class CountingStore(SnapshotStore):
    """Counts how often the snapshot was replaced."""

    changes = 0

    def change(self, make: SnapshotChange) -> NodeSnapshot:
        self.changes += 1
        return super().change(make)


def test_pods_that_change_in_one_go_are_joined_with_the_kubelet_s_once() -> None:
    async def scenario() -> None:
        store = CountingStore(snapshot())
        facts_updater = ClusterFactsUpdater(
            NAME, MachineIdentity(), store, ManualClock(), MessageQueue()
        )
        before = store.changes
        for number in range(20):
            pods = [
                PodView(uid=f"u-{index}", qos=KubeQos.BURSTABLE, name=f"p-{index}")
                for index in range(number)
            ]
            facts_updater.update_api_pods({pod.name: pod for pod in pods})
        await asyncio.sleep(0)
        assert store.changes == before + 1
        assert len(store.current.cluster.pods) == 19

    asyncio.run(scenario())


def test_the_device_list_is_updated_after_the_snapshot_has_new_or_deleted_pods() -> None:
    async def scenario() -> None:
        store = CountingStore(snapshot())
        facts_updater = ClusterFactsUpdater(
            NAME, MachineIdentity(), store, ManualClock(), MessageQueue()
        )
        events: list[tuple[int, frozenset[str]]] = []
        one = PodView(uid="u", qos=KubeQos.BURSTABLE, name="p")
        with store.subscribe("cluster.pods", "cluster.deleted_pods") as changes:

            async def hear() -> None:
                await changes.wait()
                cluster = store.current.cluster
                events.append((len(cluster.pods), cluster.deleted_pods))

            facts_updater.update_api_pods({"p": one})
            await hear()
            facts_updater.update_kubelet_pods(SnapshotPart((one,), 1.0))
            facts_updater.update_api_pods({})
            await hear()
        assert events == [(1, frozenset()), (0, frozenset({"u"}))]

    asyncio.run(scenario())
