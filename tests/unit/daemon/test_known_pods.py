"""Pods on their way from a watch and the kubelet into the snapshot."""

from __future__ import annotations

import asyncio

from agent.clock import ManualClock
from agent.daemon.cluster.known import Known
from agent.model.part import Part
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


def test_who_lists_devices_hears_of_pods_when_the_snapshot_has_them_and_of_those_deleted() -> None:
    async def scenario() -> None:
        store = CountingStore(snapshot())
        known = Known(NAME, Machine(), store, ManualClock(), lambda: None)
        heard: list[tuple[int, frozenset[str]]] = []
        known.pods_changed = lambda: heard.append(
            (len(store.current.cluster.pods), store.current.cluster.deleted)
        )
        one = PodView(uid="u", qos=KubeQos.BURSTABLE, name="p")
        known.api_pods({"p": one})
        await asyncio.sleep(0)
        known.kubelet_pods(Part((one,), 1.0))
        known.api_pods({})
        await asyncio.sleep(0)
        assert heard == [(1, frozenset()), (0, frozenset({"u"}))]

    asyncio.run(scenario())
