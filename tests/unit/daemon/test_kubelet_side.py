"""When the kubelet is asked out of turn."""

from __future__ import annotations

import asyncio

import pytest

from agent.clock import ManualClock
from agent.config.sections import Settings
from agent.daemon.cluster.known import Known
from agent.daemon.cluster.kubelet_side import KubeletSide
from agent.model.cluster.facts import ClusterFacts
from agent.model.part import Part
from agent.model.pod import PodView
from agent.model.runtime.seen import RuntimeView, SandboxSeen
from agent.node.identity import Machine
from agent.node.parts import build_parts
from agent.recording.open import OpenedHost
from agent.recording.tree import TreeFiles
from tests import factory
from tests.clustered import NAME
from tests.fault.anonymous import Anonymous


def box(uid: str, *, stopped: bool = False) -> SandboxSeen:
    return SandboxSeen(id=f"box-{uid}", uid=uid, name="p", namespace="n", stopped=stopped)


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
def test_the_kubelet_is_asked_at_once_about_a_sandbox_whose_pod_nobody_lists(
    boxes: tuple[SandboxSeen, ...], listed: tuple[PodView, ...], pokes: int
) -> None:
    async def scenario() -> int:
        clock = ManualClock()
        parts = build_parts(Settings(), OpenedHost(files=TreeFiles.of({})), clock, vendors={})
        known = Known(NAME, Machine(), parts.store, clock, lambda: None)
        side = KubeletSide(parts, Anonymous(), known)
        view = RuntimeView(sandboxes={one.id: one for one in boxes})
        cluster = ClusterFacts(clustered=True, pods=listed)
        parts.store.put(runtime=Part(view, 1.0), cluster=cluster)
        side.look_at_pods()
        side.look_at_pods()
        await side.close()
        return side.poller.state.pokes

    assert asyncio.run(scenario()) == pokes
