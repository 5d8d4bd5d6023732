"""When the kubelet is asked out of turn."""

from __future__ import annotations

import asyncio

import pytest

from agent.app.cluster import build_kubelet_service
from agent.app.cluster_facts import ClusterFactsUpdater
from agent.app.composition import create_inputs
from agent.app.identity import MachineIdentity
from agent.clock import ManualClock
from agent.config.settings import Settings
from agent.messages import MessageQueue
from agent.recording.host_source import HostSource
from agent.recording.tree import TreeFiles
from agent.snapshot.cluster import ClusterView
from agent.snapshot.container import PodSandbox, RuntimeView
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView
from tests import factory
from tests.clustered import NAME
from tests.fault.anonymous import Anonymous


def box(uid: str, *, stopped: bool = False) -> PodSandbox:
    return PodSandbox(id=f"box-{uid}", uid=uid, name="p", namespace="n", stopped=stopped)


ONE = factory.pod(1)


@pytest.mark.parametrize(
    ("boxes", "listed", "pokes"),
    [
        ((), (), 0),
        ((box(ONE.uid),), (ONE,), 0),
        ((box("stranger", stopped=True),), (), 0),
        ((box("stranger"),), (ONE,), 1),
        ((box("stranger"), box(ONE.uid)), (ONE,), 1),
    ],
)
def test_the_kubelet_is_polled_at_once_for_a_sandbox_whose_pod_is_not_listed(
    boxes: tuple[PodSandbox, ...], listed: tuple[PodView, ...], pokes: int
) -> None:
    async def scenario() -> int:
        clock = ManualClock()
        inputs = create_inputs(
            Settings(), HostSource(files=TreeFiles.from_entries({})), clock, vendors={}
        )
        facts_updater = ClusterFactsUpdater(
            NAME, MachineIdentity(), inputs.store, clock, MessageQueue()
        )
        side = build_kubelet_service(
            Settings().kubelet,
            inputs.host_source.files,
            inputs.store,
            clock,
            Anonymous(),
            facts_updater,
        )
        view = RuntimeView(sandboxes={one.id: one for one in boxes})
        cluster = ClusterView(is_clustered=True, pods=listed)
        inputs.store.put(runtime=SnapshotPart(view, 1.0), cluster=cluster)
        side.poll_for_unlisted_pods()
        side.poll_for_unlisted_pods()
        await side.close()
        return side.poller.state.early_polls

    assert asyncio.run(scenario()) == pokes
