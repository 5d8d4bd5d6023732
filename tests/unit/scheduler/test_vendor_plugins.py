"""Locks of nodes and labels of pods that vendors' own device plug-ins need, at a strict server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest

from agent.clock import ManualClock, SystemClock, rfc3339
from agent.kube.endpoint import InClusterTarget
from agent.kube.session import open_session
from plugins.scheduler.cluster_state import ClusterState
from plugins.scheduler.decisions import DecisionMaker
from plugins.scheduler.devices.device_table import GPU, VENDOR_LABEL
from plugins.scheduler.pod_object import SchedulerPod, decode_scheduler_pod
from plugins.scheduler.server.binding import Binder, BindFailed
from plugins.scheduler.server.extender_wire import BindRequest
from plugins.scheduler.server.vendor_plugins import VendorPlugins, parse_lock
from tests.apiserver import ApiServer
from tests.patience import PATIENCE_S
from tests.unit.scheduler.vectors import NODES

NODE, LOCK = "node-a", "cambricon.com/dsmlu.lock"
NOW_S = 1_700_000_000.0
SHARE = {
    "koordinator.sh/gpu.shared": "1",
    "koordinator.sh/gpu-core": "5",
    "koordinator.sh/gpu-memory": "1Gi",
}
Object = dict[str, Any]


class Scene:
    """One node of a vendor, and a binder that writes what its plug-in reads."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.clock = ManualClock(wall_s=NOW_S)
        self.state = ClusterState()
        self.state.set_devices(msgspec.structs.replace(NODES["A"], node=NODE))
        self.pods: dict[str, SchedulerPod] = {}
        self.binder: Binder

    def pending_pod(self, namespace: str, name: str) -> SchedulerPod | None:
        return self.pods.get(f"{namespace}/{name}")

    def put(self, name: str, amounts: dict[str, str], labels: Object | None = None) -> None:
        resources = {"requests": amounts, "limits": amounts}
        container = {"name": "c", "image": "i", "resources": resources}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": labels or {}},
            "spec": {"containers": [container]},
        }
        pod = decode_scheduler_pod(json.dumps(self.api.put(body)).encode())
        self.pods[f"default/{name}"] = pod

    async def bind(self, name: str) -> None:
        key = self.pods[f"default/{name}"].key
        await self.binder.bind(BindRequest(namespace="default", name=name, uid=key.uid, node=NODE))

    def lock(self, age_s: float, pod: str) -> None:
        node = self.api.get("node", NODE)
        assert node is not None
        text = f"{rfc3339(NOW_S - age_s)},default,{pod}"
        node["metadata"]["annotations"] = {LOCK: text}
        self.api.put(node)

    def lock_text(self) -> str:
        node = self.api.get("node", NODE)
        assert node is not None
        return str((node["metadata"].get("annotations") or {}).get(LOCK, ""))

    def pod(self, name: str) -> Object:
        pod = self.api.get("pod", name, "default")
        assert pod is not None
        return pod


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(nodes=(NODE,)) as api:
        yield api


def run(
    api: ApiServer, scenario: Callable[[Scene], Awaitable[None]], vendor: str = "cambricon"
) -> Scene:
    scene = Scene(api)
    labels = {VENDOR_LABEL: vendor, "koordinator.sh/gpu-isolation-provider": "HAMi-core"}
    scene.state.set_node(NODE, labels)

    async def play() -> None:
        target = InClusterTarget(url=api.url, folder=str(api.serviceaccount_dir))
        session = await open_session(target, SystemClock(), {})
        scene.binder = Binder(
            session,
            scene.state,
            DecisionMaker(scene.state),
            scene,
            scene.clock,
            vendor_plugins=VendorPlugins(session, scene.state, scene.clock),
        )
        try:
            await scenario(scene)
        finally:
            await session.close()

    asyncio.run(asyncio.wait_for(play(), PATIENCE_S))
    return scene


def test_annotations_come_with_the_binding_and_the_lock_before_it(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        scene.put("p", SHARE)
        await scene.bind("p")

    scene = run(server, scenario)
    annotations = scene.pod("p")["metadata"]["annotations"]
    assert annotations["CAMBRICON_DSMLU_ASSIGHED"] == "false"
    assert annotations["CAMBRICON_DSMLU_PROFILE"] == "0_5_4"
    assert annotations["scheduling.koordinator.sh/bind-timestamp"] == str(int(NOW_S * 1e9))
    assert scene.lock_text() == f"{rfc3339(NOW_S)},default,p"
    verbs = [(one.verb, one.resource, one.subresource) for one in server.requests()]
    assert verbs.index(("patch", "nodes", "")) < verbs.index(("create", "pods", "binding"))


def test_a_young_lock_of_a_living_pod_refuses_and_the_node_is_unchanged(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        scene.put("holder", SHARE)
        scene.put("p", SHARE)
        scene.lock(60, "holder")
        with pytest.raises(BindFailed, match='node "node-a" has been locked'):
            await scene.bind("p")
        used = {minor for kind, minor in scene.state.state(NODE).usage.amounts if kind == GPU}
        assert not used

    scene = run(server, scenario)
    assert scene.lock_text().endswith(",default,holder")
    assert not scene.pod("p")["spec"].get("nodeName")


@pytest.mark.parametrize(("age_s", "holder"), [(301.0, "holder"), (60.0, "gone"), (60.0, "p")])
def test_an_old_lock_or_that_of_a_deleted_pod_or_ones_own_is_taken(
    server: ApiServer, age_s: float, holder: str
) -> None:
    async def scenario(scene: Scene) -> None:
        scene.put("holder", SHARE)
        scene.put("p", SHARE)
        scene.lock(age_s, holder)
        await scene.bind("p")

    scene = run(server, scenario)
    assert scene.lock_text().endswith(",default,p")
    assert scene.pod("p")["spec"]["nodeName"] == NODE


def test_what_the_plugin_could_not_serve_is_refused_and_nothing_is_held(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        scene.put("p", {"koordinator.sh/gpu": "200"})
        with pytest.raises(BindFailed, match="multiple gpu share is not supported"):
            await scene.bind("p")
        assert not scene.state.pods_of(NODE)

    run(server, scenario)


def test_the_label_of_hami_is_written_before_the_binding(server: ApiServer) -> None:
    labels = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}

    async def scenario(scene: Scene) -> None:
        scene.put("p", SHARE, labels)
        await scene.bind("p")

    scene = run(server, scenario, "nvidia")
    metadata = scene.pod("p")["metadata"]
    assert metadata["labels"]["hami.io/vgpu-node"] == NODE
    assert metadata["annotations"]["scheduling.koordinator.sh/gpu-minors"] == "0"
    assert scene.pod("p")["spec"]["nodeName"] == NODE


@pytest.mark.parametrize("text", ["", "a", "x,y,z", "2023-11-14T22:13:20Z,only"])
def test_text_that_is_no_lock_locks_nothing(text: str) -> None:
    assert parse_lock(text) is None
