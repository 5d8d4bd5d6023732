"""When the kubelet is asked out of turn, and when its pod-resources are served."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import pytest
from grpc import aio

from agent.app.cluster import KubeletService, build_kubelet_service
from agent.app.cluster_facts import ClusterFactsUpdater
from agent.app.composition import AgentInputs, create_inputs
from agent.app.identity import MachineIdentity
from agent.clock import ManualClock
from agent.config.cluster import KubeletSettings
from agent.config.settings import Settings
from agent.messages import MessageQueue
from agent.recording.host_source import HostSource
from agent.recording.tree import TreeFiles
from agent.snapshot.cluster import ClusterView
from agent.snapshot.container import PodSandbox, RuntimeView
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView
from proto.gen import podresources_v1_pb2 as pb
from tests import factory
from tests.clustered import NAME
from tests.fault.anonymous import Anonymous
from tests.fault.kubelet.fake_grpc import FakePodResources
from tests.patience import PATIENCE_S


def box(uid: str, *, stopped: bool = False) -> PodSandbox:
    return PodSandbox(id=f"box-{uid}", uid=uid, name="p", namespace="n", stopped=stopped)


ONE = factory.pod(1)


def node_inputs() -> AgentInputs:
    files = TreeFiles.from_entries({})
    return create_inputs(Settings(), HostSource(files=files), ManualClock(), vendors={})


def kubelet_service(inputs: AgentInputs, settings: KubeletSettings) -> KubeletService:
    facts_updater = ClusterFactsUpdater(
        NAME, MachineIdentity(), inputs.store, inputs.clock, MessageQueue()
    )
    return build_kubelet_service(
        settings, inputs.host_source.files, inputs.store, inputs.clock, Anonymous(), facts_updater
    )


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
        inputs = node_inputs()
        side = kubelet_service(inputs, Settings().kubelet)
        view = RuntimeView(sandboxes={one.id: one for one in boxes})
        cluster = ClusterView(is_clustered=True, pods=listed)
        inputs.store.put(runtime=SnapshotPart(view, 1.0), cluster=cluster)
        side.poll_for_unlisted_pods()
        side.poll_for_unlisted_pods()
        await side.close()
        return side.poller.state.early_polls

    assert asyncio.run(scenario()) == pokes


def test_pod_resources_are_not_served_unless_the_proxy_is_switched_on() -> None:
    service = kubelet_service(node_inputs(), KubeletSettings())
    assert [name for name, _ in service.tasks()] == ["kubelet"]
    assert service.proxy_status() is None


def test_pod_resources_are_served_when_the_proxy_is_switched_on() -> None:
    async def scenario(folder: Path) -> None:
        (folder / "pod-resources").mkdir()
        kubelet = FakePodResources(folder / "pod-resources")
        kubelet.listed.pod_resources.add(name="p", namespace="ns")
        own = folder / "own"
        service = kubelet_service(
            node_inputs(),
            KubeletSettings(
                root_dir=str(folder), pod_resources_proxy=True, pod_resources_proxy_dir=str(own)
            ),
        )
        status = service.proxy_status()
        assert status is not None
        assert not status.is_serving
        async with kubelet.running(), asyncio.timeout(PATIENCE_S):
            task = asyncio.ensure_future(dict(service.tasks())["pod-resources proxy"]())
            while not ((status := service.proxy_status()) and status.is_serving):
                assert not task.done()
                await asyncio.sleep(0.01)
            async with aio.insecure_channel(
                f"unix:{own}/kubelet.sock", (("grpc.use_local_subchannel_pool", 1),)
            ) as channel:
                call: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                    "/v1.PodResourcesLister/List"
                )
                reply = pb.ListPodResourcesResponse.FromString(await call(b""))
            assert reply == kubelet.listed
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await service.close()
        assert os.listdir(own) == []

    # a folder with a short name: a socket's address has 107 bytes
    with tempfile.TemporaryDirectory(prefix="proxy-") as folder:
        asyncio.run(scenario(Path(folder)))
