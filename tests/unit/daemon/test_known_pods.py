"""Pods on their way from a watch and the kubelet into the snapshot."""

from __future__ import annotations

import asyncio

from agent.clock import ManualClock
from agent.daemon.cluster.known import Known
from agent.model.pod import KubeQos, PodView
from agent.model.snapshot import NodeSnapshot
from agent.node.identity import Machine
from agent.node.store import Change, SnapshotStore
from tests.clustered import NAME, snapshot


class CountingStore(SnapshotStore):
    """Counts how often the snapshot was replaced."""

    changes = 0

    def change(self, make: Change) -> NodeSnapshot:
        self.changes += 1
        return super().change(make)


def test_pods_that_change_in_one_go_are_joined_with_the_kubelet_s_once() -> None:
    async def scenario() -> None:
        store = CountingStore(snapshot())
        known = Known(NAME, Machine(), store, ManualClock(), lambda: None)
        before = store.changes
        for number in range(20):
            pods = [
                PodView(uid=f"u-{index}", qos=KubeQos.BURSTABLE, name=f"p-{index}")
                for index in range(number)
            ]
            known.api_pods({pod.name: pod for pod in pods})
        await asyncio.sleep(0)
        assert store.changes == before + 1
        assert len(store.current.cluster.pods) == 19

    asyncio.run(scenario())
