"""Locks of nodes and labels of pods that vendors' own device plug-ins need, at a strict server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest

from agent.clock import ManualClock, SystemClock, rfc3339
from agent.kube.api import ApiClient, ApiRequest, ApiResponse
from agent.kube.endpoint import InClusterTarget
from agent.kube.errors import Unreachable
from agent.kube.session import open_session
from plugins.scheduler.cluster_state import ClusterState
from plugins.scheduler.decisions import DecisionMaker
from plugins.scheduler.devices.device_table import GPU, VENDOR_LABEL
from plugins.scheduler.pod_object import SchedulerPod, decode_scheduler_pod
from plugins.scheduler.server.binding import MAX_TRIES, Binder, BindFailed
from plugins.scheduler.server.extender_wire import BindRequest
from plugins.scheduler.server.vendor_plugins import SETTLED_AFTER_S, VendorPlugins, parse_lock
from tests.apiserver import ApiServer, Fault
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
        self.session: ApiClient
        self.binder: Binder

    def start(self, session: ApiClient) -> None:
        self.binder = Binder(
            session,
            self.state,
            DecisionMaker(self.state),
            self,
            self.clock,
            vendor_plugins=VendorPlugins(session, self.state, self.clock),
            sleep=lambda _: asyncio.sleep(0),
        )

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
        scene.session = session
        scene.start(session)
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
    verbs = [(request.verb, request.resource, request.subresource) for request in server.requests()]
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


BINDING, PATCH_NODE = Fault(subresource="binding"), Fault(verb="patch", resource="nodes")


def struck(fault: Fault, **changes: Any) -> Fault:
    return msgspec.structs.replace(fault, **changes)


def delete_pod(scene: Scene, name: str) -> None:
    scene.api.delete("pod", name, "default")


FINAL_FAILURES: dict[str, Callable[[Scene], object]] = {
    "the server forbids it": lambda scene: scene.api.faults.add(struck(BINDING, status=403)),
    "the server finds it invalid": lambda scene: scene.api.faults.add(struck(BINDING, status=422)),
    "the pod is gone": lambda scene: delete_pod(scene, "p"),
    "all tries conflict": lambda scene: scene.api.faults.add(
        struck(BINDING, status=409, times=MAX_TRIES)
    ),
}


@pytest.mark.parametrize("cause", FINAL_FAILURES)
def test_the_lock_is_removed_as_soon_as_the_binding_has_failed_for_good(
    server: ApiServer, cause: str
) -> None:
    async def scenario(scene: Scene) -> None:
        scene.put("p", SHARE)
        FINAL_FAILURES[cause](scene)
        with pytest.raises(BindFailed):
            await scene.bind("p")
        assert scene.lock_text() == ""
        assert not scene.state.pods_of(NODE)
        scene.put("next", SHARE)
        await scene.bind("next")

    scene = run(server, scenario)
    assert scene.lock_text().endswith(",default,next")


def test_the_lock_of_a_bound_pod_stays_for_the_plugin(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        scene.put("p", SHARE)
        await scene.bind("p")
        scene.clock.advance(SETTLED_AFTER_S)
        await scene.binder.resolve_uncertain()

    scene = run(server, scenario)
    assert scene.lock_text().endswith(",default,p")


def test_a_lock_that_another_pod_took_over_is_not_removed(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        scene.put("p", SHARE)
        scene.put("other", SHARE)
        server.faults.add(struck(BINDING, status=500, times=0))
        with pytest.raises(BindFailed):
            await scene.bind("p")
        scene.lock(1, "other")
        scene.clock.advance(SETTLED_AFTER_S)
        await scene.binder.resolve_uncertain()
        assert not scene.state.pods_of(NODE)

    scene = run(server, scenario)
    assert scene.lock_text().endswith(",default,other")


def test_a_lock_is_held_while_the_outcome_is_not_known_and_removed_with_the_devices(
    server: ApiServer,
) -> None:
    async def scenario(scene: Scene) -> None:
        scene.put("p", SHARE)
        server.faults.add(struck(BINDING, reset=True, times=0))
        with pytest.raises(BindFailed):
            await scene.bind("p")
        await scene.binder.resolve_uncertain()
        assert scene.lock_text().endswith(",default,p")
        assert scene.state.pods_of(NODE)
        scene.clock.advance(SETTLED_AFTER_S)
        await scene.binder.resolve_uncertain()
        assert scene.lock_text() == ""
        assert not scene.state.pods_of(NODE)

    run(server, scenario)


def test_a_lock_that_cannot_be_removed_at_once_is_removed_later(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        scene.put("p", SHARE)
        server.faults.add(struck(BINDING, status=403))
        away = server.faults.add(struck(PATCH_NODE, status=503, skip=1, times=0))
        with pytest.raises(BindFailed, match="403"):
            await scene.bind("p")
        assert scene.lock_text().endswith(",default,p")
        server.faults.remove(away)
        await scene.binder.resolve_uncertain()
        assert scene.lock_text() == ""

    run(server, scenario)


def test_a_lock_whose_own_write_had_no_answer_is_removed(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        scene.put("p", SHARE)
        server.faults.add(struck(PATCH_NODE, lose_answer=True))
        server.faults.add(struck(BINDING, status=403))
        with pytest.raises(BindFailed, match="403"):
            await scene.bind("p")
        assert scene.lock_text() == ""

    run(server, scenario)


def test_ones_own_lock_that_has_expired_is_written_anew(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        scene.put("p", SHARE)
        scene.lock(301, "p")
        await scene.bind("p")

    scene = run(server, scenario)
    assert scene.lock_text() == f"{rfc3339(NOW_S)},default,p"


class LateWrites:
    """A client whose first write of a Node gets no answer and comes into force later."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._late: ApiRequest | None = None
        self.stream = api.stream

    async def call(self, request: ApiRequest) -> ApiResponse:
        if request.method == "PATCH" and request.path.endswith(NODE) and self._late is None:
            self._late = request
            raise Unreachable(str(request), "no answer")
        return await self._api.call(request)

    async def land(self) -> None:
        assert self._late is not None
        await self._api.call(self._late)


def test_a_lock_that_comes_into_force_after_its_pod_was_deleted_is_removed(
    server: ApiServer,
) -> None:
    async def scenario(scene: Scene) -> None:
        late = LateWrites(scene.session)
        scene.start(late)
        scene.put("p", SHARE)
        delete_pod(scene, "p")
        with pytest.raises(BindFailed, match="is gone"):
            await scene.bind("p")
        await late.land()
        assert scene.lock_text().endswith(",default,p")
        await scene.binder.resolve_uncertain()
        assert scene.lock_text() == ""

    run(server, scenario)


def bad_day(rng: random.Random) -> list[Fault]:
    """Return faults of locks, labels, bindings and reads, in any order."""
    targets = (BINDING, PATCH_NODE, Fault(method="GET"), Fault(verb="patch", resource="pods"))
    actions: tuple[dict[str, Any], ...] = (
        {"status": 500},
        {"status": 503},
        {"status": 409},
        {"status": 403},
        {"lose_answer": True},
        {"reset": True},
    )
    return [
        struck(rng.choice(targets), skip=rng.randrange(3), **rng.choice(actions))
        for _ in range(rng.randrange(1, 6))
    ]


async def fail_in_any_order(scene: Scene, rng: random.Random) -> None:
    """Bind a pod on a bad day a few times; in between it may be deleted."""
    labels = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
    scene.put("p", SHARE, rng.choice((None, labels)))
    for fault in bad_day(rng):
        scene.api.faults.add(fault)
    for _ in range(rng.randrange(1, 4)):
        with contextlib.suppress(BindFailed):
            await scene.bind("p")
    if rng.random() < 0.3 and not scene.pod("p")["spec"].get("nodeName"):
        delete_pod(scene, "p")
        if rng.random() < 0.5:
            scene.state.remove_pod(scene.pods["default/p"].key.uid)  # as the watch reports it
        with contextlib.suppress(BindFailed):
            await scene.bind("p")
    scene.api.faults.clear()


@pytest.mark.parametrize("seed", range(40))
def test_after_failures_in_any_order_a_pod_holds_the_lock_if_and_only_if_it_is_bound(
    server: ApiServer, seed: int
) -> None:
    async def scenario(scene: Scene) -> None:
        rng = random.Random(seed)
        owner = rng.choice(("", "alive", "deleted"))
        if owner:
            scene.put(owner, SHARE)
            scene.lock(60, owner)
        if owner == "deleted":
            delete_pod(scene, owner)
        await fail_in_any_order(scene, rng)
        for _ in range(2):
            scene.clock.advance(SETTLED_AFTER_S)
            await scene.binder.resolve_uncertain()
        pod = scene.api.get("pod", "p", "default")
        is_bound = pod is not None and bool(pod["spec"].get("nodeName"))
        assert scene.lock_text().endswith(",default,p") is is_bound
        assert [one.key.name for one in scene.state.pods_of(NODE)] == ["p"] * is_bound
        if owner == "alive":
            assert not is_bound
            assert scene.lock_text().endswith(",default,alive")

    run(server, scenario)
