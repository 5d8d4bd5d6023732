"""Bindings at a strict API server that loses answers, refuses and changes pods."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest

from agent.clock import ManualClock, SystemClock
from agent.kube.api import ApiClient, ApiRequest, ApiResponse
from agent.kube.endpoint import InClusterTarget
from agent.kube.session import open_session
from agent.wire_formats.device_allocated import ANNOTATION
from agent.wire_formats.resource_status import RESOURCE_STATUS
from plugins.scheduler.cluster_state import AssignedPod, ClusterState, Plan
from plugins.scheduler.decisions import DecisionMaker
from plugins.scheduler.devices.device_table import GPU, DeviceTable
from plugins.scheduler.numa.cpu_request import RESOURCE_SPEC
from plugins.scheduler.pod_object import SchedulerPod, decode_scheduler_pod
from plugins.scheduler.server.binding import Binder, BindFailed, assigned_pod
from plugins.scheduler.server.extender_wire import BindRequest
from plugins.scheduler.server.vendor_plugins import SETTLED_AFTER_S
from tests.apiserver import ApiServer, Fault
from tests.patience import PATIENCE_S
from tests.unit.scheduler.test_numa_cluster import topology
from tests.unit.scheduler.vectors import NODES, holding

POST = "binding"


class Scene:
    """Two nodes of eight cards, a binder, and what the watch has reported."""

    def __init__(self, api: ApiServer, binder_of: Callable[[Scene], Binder]) -> None:
        self.api = api
        self.clock = ManualClock()
        self.state = ClusterState()
        for name in ("node-a", "node-b"):
            self.state.set_node(name, {})
            self.state.set_devices(msgspec.structs.replace(NODES["A"], node=name))
        self.decisions = DecisionMaker(self.state)
        self.reported: dict[str, SchedulerPod] = {}
        self.at_pause: Callable[[], object] = lambda: None  # before a pod is read again
        self.at_answer: Callable[[], object] = lambda: None  # after a binding, before its answer
        self.binder = binder_of(self)

    def pending_pod(self, namespace: str, name: str) -> SchedulerPod | None:
        return self.reported.get(f"{namespace}/{name}")

    def put(
        self, name: str, cards: int = 1, cpus: str = "", qos: str = "LS", **annotations: str
    ) -> SchedulerPod:
        """Create a pod, and report it as the watch does."""
        request = {"nvidia.com/gpu": str(cards)} if cards else {"cpu": "1"}
        request |= {"cpu": cpus} if cpus else {}
        resources = {"requests": request, "limits": request}
        container = {"name": "c", "image": "i", "resources": resources}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "default",
                "labels": {"koordinator.sh/qosClass": qos},
                "annotations": annotations,
            },
            "spec": {"containers": [container]},
        }
        pod = decode_scheduler_pod(json.dumps(self.api.put(body)).encode())
        self.reported[f"default/{name}"] = pod
        return pod

    async def bind(self, pod: SchedulerPod, node: str = "node-a") -> None:
        key = pod.key
        await self.binder.bind(
            BindRequest(namespace=key.namespace, name=key.name, uid=key.uid, node=node)
        )

    def server_pod(self, name: str) -> dict[str, Any]:
        pod = self.api.get("pod", name, "default")
        assert pod is not None
        return pod

    def server_minors(self, name: str) -> list[int]:
        """Return the cards in the pod's annotation at the server."""
        text = self.server_pod(name)["metadata"]["annotations"][ANNOTATION]
        return [one["minor"] for one in json.loads(text)["gpu"]]

    def used(self, node: str = "node-a") -> set[int]:
        return {minor for kind, minor in self.state.state(node).usage.amounts if kind == GPU}


class ObservedApi:
    """The API server; the scene acts between a binding and its answer."""

    def __init__(self, api: ApiClient, scene: Scene) -> None:
        self.api = api
        self.scene = scene
        self.stream = api.stream

    async def call(self, request: ApiRequest) -> ApiResponse:
        response = await self.api.call(request)
        if request.path.endswith(POST):
            self.scene.at_answer()
        return response


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(nodes=("node-a", "node-b")) as api:
        yield api


Scenario = Callable[[Scene], Awaitable[None]]


def run(api: ApiServer, scenario: Scenario) -> None:
    async def play() -> None:
        target = InClusterTarget(url=api.url, folder=str(api.serviceaccount_dir))
        session = await open_session(target, SystemClock(), {})

        def build(scene: Scene) -> Binder:
            async def no_sleep(_: float) -> None:
                scene.at_pause()
                await asyncio.sleep(0)

            return Binder(
                ObservedApi(session, scene),
                scene.state,
                scene.decisions,
                scene,
                scene.clock,
                sleep=no_sleep,
            )

        try:
            await scenario(Scene(api, build))
        finally:
            await session.close()

    asyncio.run(asyncio.wait_for(play(), PATIENCE_S))


def test_a_cpu_set_is_written_beside_the_devices_and_counts_at_once(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        scene.state.set_cpus(topology("node-a"))
        for name, cpus in (("p", "0-3"), ("q", "8-11")):
            await scene.bind(scene.put(name, 1, cpus="4", qos="LSR"))
            annotations = scene.server_pod(name)["metadata"]["annotations"]
            assert json.loads(annotations[RESOURCE_STATUS]) == {"cpuset": cpus}
            assert json.loads(annotations[RESOURCE_SPEC]) == {"preferredCPUBindPolicy": "FullPCPUs"}
            assert ANNOTATION in annotations
            stored = assigned_pod(decode_scheduler_pod(json.dumps(scene.server_pod(name)).encode()))
            entries = scene.state.pod(scene.reported[f"default/{name}"].key.uid)
            assert stored is not None
            assert entries is not None
            assert (stored.numa, stored.amounts) == (entries.numa, entries.amounts)

    run(server, scenario)


def test_a_cpu_set_alone_is_held_and_written(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        scene.state.set_cpus(topology("node-a"))
        pod = scene.put("p", 0, cpus="16", qos="LSR")
        await scene.bind(pod)
        assert RESOURCE_STATUS in scene.server_pod("p")["metadata"]["annotations"]
        with pytest.raises(BindFailed, match="not enough cpus available"):
            await scene.bind(scene.put("q", 0, cpus="2", qos="LSR"))

    run(server, scenario)


def test_a_pod_is_bound_with_its_devices_in_one_request(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        pod = scene.put("p", 2, kept="1")
        await scene.bind(pod)
        bound = scene.server_pod("p")
        assert bound["spec"]["nodeName"] == "node-a"
        assert bound["metadata"]["annotations"]["kept"] == "1"
        assert scene.server_minors("p") == [0, 1]
        assert scene.used() == {0, 1}
        assert not scene.binder.uncertain

    run(server, scenario)


def test_a_pod_without_devices_is_bound_without_an_annotation(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.bind(scene.put("p", 0))
        bound = scene.server_pod("p")
        assert bound["spec"]["nodeName"] == "node-a"
        assert ANNOTATION not in bound["metadata"].get("annotations", {})

    run(server, scenario)


def test_made_up_grants_of_a_pod_that_gets_none_are_emptied(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        forged = {
            ANNOTATION: '{"gpu":[{"minor":7,"resources":{"koordinator.sh/gpu-core":"100"}}]}',
            RESOURCE_STATUS: '{"cpuset":"0-7"}',
        }
        await scene.bind(scene.put("p", 0, **forged))
        bound = decode_scheduler_pod(json.dumps(scene.server_pod("p")).encode())
        assert {bound.annotations[name] for name in forged} == {"{}"}
        assigned = assigned_pod(bound)
        assert assigned is not None
        assert not assigned.allocation
        assert not assigned.has_record

    run(server, scenario)


def test_an_annotation_that_a_user_made_up_is_overwritten(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        forged = '{"gpu":[{"minor":7,"resources":{"koordinator.sh/gpu-core":"100"}}]}'
        pod = scene.put("p", 1, **{ANNOTATION: forged})
        assert assigned_pod(pod) is None
        await scene.bind(pod)
        assert scene.server_minors("p") == [0]

    run(server, scenario)


def test_the_second_of_two_pods_for_the_last_cards_is_refused_and_has_no_annotation(
    server: ApiServer,
) -> None:
    async def scenario(scene: Scene) -> None:
        first, second = scene.put("p1", 8), scene.put("p2", 1)
        results = await asyncio.gather(
            scene.bind(first), scene.bind(second), return_exceptions=True
        )
        assert results[0] is None
        assert isinstance(results[1], BindFailed)
        assert "were taken meanwhile: Insufficient GPU Devices" in str(results[1])
        assert "annotations" not in scene.server_pod("p2")["metadata"]
        await scene.bind(second, "node-b")
        assert scene.server_minors("p2") == [0]

    run(server, scenario)


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_refused_binding_is_sent_again_with_the_same_devices(
    server: ApiServer, status: int
) -> None:
    async def scenario(scene: Scene) -> None:
        server.faults.add(Fault(subresource=POST, status=status))
        await scene.bind(scene.put("p"))
        assert scene.server_minors("p") == [0]
        assert scene.used() == {0}

    run(server, scenario)


def test_a_binding_whose_answer_is_lost_is_found_in_force(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        server.faults.add(Fault(subresource=POST, lose_answer=True))
        await scene.bind(scene.put("p"))
        assert scene.server_minors("p") == [0]
        assert not scene.binder.uncertain

    run(server, scenario)


def test_devices_stay_held_while_the_outcome_is_not_known_and_a_repeated_call_succeeds(
    server: ApiServer,
) -> None:
    async def scenario(scene: Scene) -> None:
        server.faults.add(Fault(subresource=POST, lose_answer=True))
        reads = server.faults.add(Fault(method="GET", path="/pods/p$", status=500, times=0))
        pod = scene.put("p", 8)
        with pytest.raises(BindFailed, match="whether it is bound is not known"):
            await scene.bind(pod)
        assert scene.used() == set(range(8))
        with pytest.raises(BindFailed, match="were taken meanwhile"):
            await scene.bind(scene.put("other"))
        with pytest.raises(BindFailed, match="cannot be read now"):
            await scene.bind(pod)
        server.faults.remove(reads)
        await scene.bind(pod)
        assert scene.used() == set(range(8))
        assert not scene.binder.uncertain

    run(server, scenario)


def test_a_pod_with_an_uncertain_binding_is_not_bound_elsewhere_until_that_is_settled(
    server: ApiServer,
) -> None:
    async def scenario(scene: Scene) -> None:
        lost = server.faults.add(Fault(subresource=POST, reset=True, times=0))
        pod = scene.put("p")
        with pytest.raises(BindFailed):
            await scene.bind(pod)
        server.faults.remove(lost)
        with pytest.raises(BindFailed, match="bound to node-a is not known yet"):
            await scene.bind(pod, "node-b")
        await scene.binder.resolve_uncertain()
        assert scene.used() == {0}  # the server may still be working on the request
        scene.clock.advance(SETTLED_AFTER_S)
        await scene.binder.resolve_uncertain()
        assert scene.used() == set()
        await scene.bind(pod, "node-b")
        assert scene.server_pod("p")["spec"]["nodeName"] == "node-b"

    run(server, scenario)


def test_a_label_that_is_edited_meanwhile_does_not_fail_the_binding(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        pod = scene.put("p")
        body = scene.server_pod("p")
        body["metadata"]["labels"] = {"edited": "1"}
        server.put(body)
        await scene.bind(pod)
        assert scene.server_minors("p") == [0]

    run(server, scenario)


def test_a_request_that_changed_meanwhile_is_filtered_again(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        pod = scene.put("p")
        body = scene.server_pod("p")
        hint = '{"gpu":{"requiredTopologyScope":"Node"}}'
        body["metadata"]["annotations"] = {"scheduling.koordinator.sh/device-allocate-hint": hint}
        server.put(body)
        with pytest.raises(BindFailed, match="changed its request for devices"):
            await scene.bind(pod)
        assert not scene.server_pod("p")["spec"].get("nodeName")

    run(server, scenario)


def test_a_pod_that_was_created_anew_does_not_get_the_old_ones_binding(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        pod = scene.put("p")
        server.delete("pod", "p", "default")
        scene.put("p", 2)
        with pytest.raises(BindFailed, match="is gone"):
            await scene.bind(pod)
        assert scene.used() == set()

    run(server, scenario)


def test_a_pod_that_another_scheduler_bound_keeps_its_node(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        pod = scene.put("p")
        body = scene.server_pod("p")
        body["spec"]["nodeName"] = "node-b"
        server.put(body)
        with pytest.raises(BindFailed, match="is on node node-b already"):
            await scene.bind(pod)
        assert scene.used() == scene.used("node-b") == set()

    run(server, scenario)


@pytest.mark.parametrize("status", [403, 422])
def test_a_binding_that_the_server_forbids_releases_the_devices(
    server: ApiServer, status: int
) -> None:
    async def scenario(scene: Scene) -> None:
        server.faults.add(Fault(subresource=POST, status=status, message="no"))
        with pytest.raises(BindFailed, match=str(status)):
            await scene.bind(scene.put("p"))
        assert scene.used() == set()

    run(server, scenario)


def held_minors(scene: Scene, name: str) -> list[int | None]:
    pod = scene.state.pod(scene.reported[f"default/{name}"].key.uid)
    return [] if pod is None else [one.minor for one in pod.allocation]


PLAN = Plan("gang g/j", wait_s=PATIENCE_S)


def hold(scene: Scene, pod: SchedulerPod, *minors: int, plan: Plan = PLAN) -> None:
    """Hold cards of the first node for a pod."""
    allocation = holding(NODES["A"], gpus=minors)
    scene.state.hold(AssignedPod(key=pod.key, node="node-a", allocation=allocation), plan)


def test_a_planned_pod_is_bound_with_the_devices_of_its_plan(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        pod = scene.put("p", 2)
        hold(scene, pod, 3, 6)
        await scene.bind(pod)
        assert scene.server_minors("p") == [3, 6]
        assert scene.used() == {3, 6}
        assert scene.state.plan_of(pod.key.uid) is None
        scene.state.release_plan(PLAN)
        assert scene.used() == {3, 6}

    run(server, scenario)


def test_a_planned_pod_is_bound_to_no_other_node(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        pod = scene.put("p")
        hold(scene, pod, 3)
        with pytest.raises(BindFailed, match="gang g/j: planned on node-a") as failed:
            await scene.bind(pod, "node-b")
        assert failed.value.outcome == "planned"
        assert scene.used() == {3}

    run(server, scenario)


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_binding_that_fails_for_good_leaves_what_the_plan_holds_while_it_lasts(
    server: ApiServer, *, has_ended: bool
) -> None:
    async def scenario(scene: Scene) -> None:
        pod = scene.put("p")
        hold(scene, pod, 3)
        fault = Fault(subresource=POST, status=403, delay_s=0.2 if has_ended else 0.0)
        server.faults.add(fault)
        binding = asyncio.create_task(scene.bind(pod))
        if has_ended:
            await asyncio.to_thread(server.wait_until, lambda: server.faults.hits(fault))
            scene.state.release_plan(PLAN)
            assert scene.used() == {3}  # it is being bound
        with pytest.raises(BindFailed, match="403"):
            await binding
        assert scene.used() == (set() if has_ended else {3})

    run(server, scenario)


def test_pods_of_a_plan_are_bound_once_the_last_one_has_come(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        pods = [scene.put(f"p{i}") for i in range(3)]
        for minor, pod in enumerate(pods):
            hold(scene, pod, minor)
        early = [asyncio.create_task(scene.bind(pod)) for pod in pods[:2]]
        await scene.bind(scene.put("alone"), "node-b")  # is in no plan, and waits for nobody
        assert not any(task.done() for task in early)
        assert not any(scene.server_pod(f"p{i}")["spec"].get("nodeName") for i in range(3))
        await scene.bind(pods[2])
        await asyncio.gather(*early)
        assert [scene.server_minors(f"p{i}") for i in range(3)] == [[0], [1], [2]]
        assert not scene.binder.hold_count

    run(server, scenario)


def test_of_a_plan_whose_pods_do_not_all_come_none_is_bound(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        pods = [scene.put(f"p{i}") for i in range(3)]
        for minor, pod in enumerate(pods):
            hold(scene, pod, minor, plan=Plan("gang g/j", wait_s=0))
        results = await asyncio.gather(*map(scene.bind, pods[:2]), return_exceptions=True)
        message = "gang g/j: 1 of its pods did not come to be bound within 0 s"
        assert [message in str(result) for result in results] == [True, True]
        assert not server.requests(verb="create", subresource=POST)
        assert scene.used() == {0, 1, 2}  # the plan holds them still
        assert scene.binder.hold_count == 0

    run(server, scenario)


def test_a_pod_of_a_plan_that_was_let_through_is_tried_again_alone(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        pods = [scene.put(f"p{i}") for i in range(2)]
        for minor, pod in enumerate(pods):
            hold(scene, pod, minor)
        server.faults.add(Fault(subresource=POST, status=403, times=2))
        results = await asyncio.gather(*map(scene.bind, pods), return_exceptions=True)
        assert [type(result) for result in results] == [BindFailed] * 2
        await scene.bind(pods[1])
        assert scene.server_minors("p1") == [1]

    run(server, scenario)


def test_devices_that_become_sick_before_a_second_attempt_are_replaced(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        first, *others = NODES["A"].of(GPU)
        sick = DeviceTable(
            node="node-a", devices={GPU: (msgspec.structs.replace(first, total={}), *others)}
        )
        server.faults.add(Fault(subresource=POST, status=409))
        scene.at_pause = lambda: scene.state.set_devices(sick)
        await scene.bind(scene.put("p"))
        assert scene.server_minors("p") == [1]
        assert scene.used() == {1}

    run(server, scenario)


def test_a_binding_that_was_refused_holds_nothing_although_the_pod_cannot_be_read(
    server: ApiServer,
) -> None:
    async def scenario(scene: Scene) -> None:
        server.faults.add(Fault(subresource=POST, status=409))
        server.faults.add(Fault(method="GET", path="/pods/p$", status=500, times=0))
        with pytest.raises(BindFailed, match="whether it is bound is not known"):
            await scene.bind(scene.put("p"))
        assert scene.used() == set()

    run(server, scenario)


def test_a_pod_whose_request_becomes_invalid_meanwhile_holds_nothing(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        pod = scene.put("p")
        body = scene.server_pod("p")
        body["metadata"]["annotations"] = {"scheduling.koordinator.sh/device-allocate-hint": "{"}
        server.put(body)
        with pytest.raises(BindFailed, match="invalid DeviceAllocateHint"):
            await scene.bind(pod)
        assert scene.used() == set()

    run(server, scenario)


def test_a_pod_that_is_bound_and_deleted_before_the_answer_arrives_holds_nothing(
    server: ApiServer,
) -> None:
    async def scenario(scene: Scene) -> None:
        pod = scene.put("p")
        scene.at_answer = lambda: scene.state.remove_pod(pod.key.uid)  # as the watch does
        await scene.bind(pod)
        assert scene.used() == set()

    run(server, scenario)


def test_conflicts_alone_leave_nothing_held(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        server.faults.add(Fault(subresource=POST, status=409, times=0))
        with pytest.raises(BindFailed, match="could not be bound"):
            await scene.bind(scene.put("p"))
        assert scene.used() == set()

    run(server, scenario)


def test_a_refusal_after_an_answer_was_lost_keeps_the_devices(server: ApiServer) -> None:
    async def scenario(scene: Scene) -> None:
        server.faults.add(Fault(subresource=POST, reset=True))
        server.faults.add(Fault(subresource=POST, status=403))
        with pytest.raises(BindFailed, match="403"):
            await scene.bind(scene.put("p"))
        assert scene.used() == {0}  # the first request may come into force still
        scene.clock.advance(SETTLED_AFTER_S)
        await scene.binder.resolve_uncertain()
        assert scene.used() == set()

    run(server, scenario)


def test_fifty_pods_at_once_on_a_bad_day_leave_no_card_given_twice_and_none_lost(
    server: ApiServer,
) -> None:
    async def scenario(scene: Scene) -> None:
        server.faults.add(Fault(subresource=POST, status=500, times=0, probability=0.1, seed=1))
        server.faults.add(
            Fault(subresource=POST, lose_answer=True, times=0, probability=0.1, seed=2)
        )
        server.faults.add(Fault(method="GET", status=503, times=0, probability=0.1, seed=3))
        rng, pods = random.Random(7), [scene.put(f"p{i}") for i in range(50)]
        for _ in range(6):
            nodes = [rng.choice(("node-a", "node-b")) for _ in pods]
            await asyncio.gather(
                *(scene.bind(pod, node) for pod, node in zip(pods, nodes, strict=True)),
                return_exceptions=True,
            )
        server.faults.clear()
        scene.clock.advance(SETTLED_AFTER_S)
        await scene.binder.resolve_uncertain()
        assert not scene.binder.uncertain
        by_card: dict[tuple[str, int], int] = {}
        for pod in pods:
            body = scene.server_pod(pod.key.name)
            node = body["spec"].get("nodeName")
            for minor in scene.server_minors(pod.key.name) if node else ():
                by_card[node, minor] = by_card.get((node, minor), 0) + 1
        assert len(by_card) == 16
        assert set(by_card.values()) == {1}
        assert scene.used() == scene.used("node-b") == set(range(8))

    run(server, scenario)
