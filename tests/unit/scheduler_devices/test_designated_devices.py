"""Devices that were chosen for a pod before: it gets exactly these, or the reason why not."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from agent.clock import ManualClock
from agent.snapshot.allocation import AllocatedDevice
from agent.wire_formats.device_allocated import ANNOTATION
from plugins.scheduler.cli import main
from plugins.scheduler.cluster_state import Allocation, AssignedPod, ClusterState, Plan
from plugins.scheduler.decisions import DecisionMaker
from plugins.scheduler.devices.allocator import (
    NodeRefused,
    NodeState,
    allocate,
    filter_node,
)
from plugins.scheduler.devices.device_table import GPU, RDMA, DeviceTable
from plugins.scheduler.devices.device_usage import sum_usage
from plugins.scheduler.devices.requests import DeviceRequest
from plugins.scheduler.numa.alignment import device_hints
from plugins.scheduler.numa.cpu_request import PodRequest, pod_request
from plugins.scheduler.pod_object import PodKey, decode_scheduler_pod
from plugins.scheduler.server.cluster_feed import PodChanges
from plugins.scheduler.server.extender import Extender
from plugins.scheduler.server.extender_wire import decode_nodes_request, decode_preemption_request
from tests.unit.scheduler.test_allocation_vectors import HONOR, JOINT, PREFER, cards, pod
from tests.unit.scheduler.vectors import NODES, RDMA_NAME, holding

CLUSTER = Path(__file__).parents[3] / "fixtures" / "cluster"
ABSENT = "node(s) do not have the designated devices"
MISMATCH = "designated devices do not match the request"


def card(minor: int, name: str = "") -> AllocatedDevice:
    return AllocatedDevice(type=GPU, id=name, minor=minor)


def function(minor: int, bus: str) -> AllocatedDevice:
    return AllocatedDevice(type=RDMA, minor=minor, vfs=(bus,))


def designated(request: DeviceRequest, *devices: AllocatedDevice) -> DeviceRequest:
    return msgspec.structs.replace(request, designation=devices)


def granted(
    request: DeviceRequest,
    table: DeviceTable = NODES["A"],
    labels: dict[str, str] | None = None,
    allocation: Allocation = (),
) -> list[tuple[str, int, str]]:
    """Return kind, minor and virtual function of each device of the grant."""
    state = NodeState(
        name="n", labels=labels or {}, table=table, usage=sum_usage([allocation], table)
    )
    filter_node(state, request)
    return [
        (one.device.kind, one.device.minor, one.function.bus_id if one.function else "")
        for one in allocate(state, request)
    ]


def whole(count: int) -> DeviceRequest:
    return pod({"nvidia.com/gpu": count})


def test_u07_a_designated_card_leaves_its_numa_node_alone() -> None:
    state = NodeState(name="n", table=NODES["A"])
    (hint,) = device_hints(state, designated(whole(1), card(5)))[GPU]
    assert (hint.nodes, hint.is_preferred, hint.score) == (frozenset({1}), True, 500)


def test_cards_of_two_numa_nodes_need_both() -> None:
    state = NodeState(name="n", table=NODES["A"])
    request = designated(pod(cards(2), JOINT), card(0), card(5))
    hints = device_hints(state, request)
    assert {kind: [one.nodes for one in hints[kind]] for kind in hints} == {
        GPU: [frozenset({0, 1})],
        RDMA: [frozenset({0, 1})],
    }


def test_alignment_needs_the_numa_node_of_each_designated_device() -> None:
    state = NodeState(name="n", table=NODES["A0"])
    with pytest.raises(NodeRefused, match="Designated Allocation Lack NUMA Node ID") as refused:
        device_hints(state, designated(whole(1), card(5)))
    assert not refused.value.is_final
    assert granted(designated(whole(1), card(5)), NODES["A0"]) == [(GPU, 5, "")]


def test_exactly_the_designated_cards_are_given_though_others_lie_nearer() -> None:
    assert granted(designated(whole(2), card(1), card(6))) == [(GPU, 1, ""), (GPU, 6, "")]


def test_an_id_decides_because_minors_may_change() -> None:
    assert granted(designated(whole(1), card(2, "GPU-7"))) == [(GPU, 7, "")]


def test_a_kind_without_designated_devices_is_chosen_as_ever() -> None:
    request = designated(pod(cards(2), JOINT), card(6), card(7))
    assert granted(request) == [(GPU, 6, ""), (GPU, 7, ""), (RDMA, 4, "0000:b9:00.2")]


def test_a_designated_virtual_function_is_given_though_another_one_comes_first() -> None:
    request = designated(pod({RDMA_NAME: 1}), function(2, "0000:90:01.3"))
    assert granted(request) == [(RDMA, 2, "0000:90:01.3")]


def test_taken_devices_and_functions_are_refused_for_now() -> None:
    one = designated(whole(1), card(5))
    with pytest.raises(NodeRefused, match="Insufficient GPU Devices") as refused:
        granted(one, allocation=holding(NODES["A"], gpus=[5]))
    assert not refused.value.is_final
    other = designated(pod({RDMA_NAME: 1}), function(2, "0000:90:01.3"))
    with pytest.raises(NodeRefused, match="Insufficient rdma devices"):
        granted(other, allocation=holding(NODES["A"], functions=["0000:90:01.3"]))


@pytest.mark.parametrize("device", [card(8), card(0, "GPU-elsewhere")])
def test_a_node_without_the_devices_is_refused_for_good(device: AllocatedDevice) -> None:
    with pytest.raises(NodeRefused) as refused:
        granted(designated(whole(1), device))
    assert (refused.value.reason, refused.value.is_final) == (ABSENT, True)


def test_a_node_without_a_device_object_does_not_have_them() -> None:
    with pytest.raises(NodeRefused, match="do not have the designated devices"):
        filter_node(NodeState(name="n"), designated(whole(1), card(0)))


@pytest.mark.parametrize(
    ("request_", "devices"),
    [
        (whole(1), (card(0), card(1))),
        (whole(1), (card(0), function(1, "0000:1f:00.2"))),
        (pod({RDMA_NAME: 1}), (card(0),)),
    ],
    ids=["too many", "another kind beside", "another kind"],
)
def test_devices_beyond_the_request_are_refused_for_good(
    request_: DeviceRequest, devices: tuple[AllocatedDevice, ...]
) -> None:
    with pytest.raises(NodeRefused) as refused:
        granted(designated(request_, *devices))
    assert (refused.value.reason, refused.value.is_final) == (MISMATCH, True)


def test_too_few_devices_are_refused() -> None:
    with pytest.raises(NodeRefused, match="Insufficient GPU Devices"):
        granted(designated(whole(2), card(0)))


def test_designated_cards_have_to_be_a_partition_where_partitions_are_honoured() -> None:
    request = designated(whole(2), card(1), card(2))
    assert granted(request, NODES["H"], PREFER) == [(GPU, 1, ""), (GPU, 2, "")]
    with pytest.raises(NodeRefused, match="Insufficient Partitioned GPU Devices"):
        granted(request, NODES["H"], HONOR)
    fitting = designated(whole(2), card(2), card(3))
    assert granted(fitting, NODES["H"], HONOR) == [(GPU, 2, ""), (GPU, 3, "")]


def test_nics_that_a_trial_skips_are_no_mismatch() -> None:
    labels = {"node.koordinator.sh/secondary-device-well-planned": "true"}
    table = msgspec.structs.replace(NODES["A"], labels=labels)
    request = designated(pod(cards(1), JOINT), card(6), function(4, "0000:b9:00.5"))
    assert granted(request, table) == [(GPU, 6, ""), (RDMA, 4, "0000:b9:00.5")]


Object = dict[str, Any]


def pod_object(name: str, count: int, node: str = "") -> Object:
    requests = {"nvidia.com/gpu": str(count)}
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": f"u-{name}"},
        "spec": {"containers": [{"resources": {"requests": requests}}], "nodeName": node or None},
        "status": {"phase": "Pending"},
    }


def cluster(*names: str) -> ClusterState:
    state = ClusterState()
    for name in names:
        state.set_node(name, {})
        state.set_devices(msgspec.structs.replace(NODES["A"], node=name))
    return state


def held(name: str, node: str, *minors: int, is_assumed: bool = False) -> AssignedPod:
    return AssignedPod(
        key=PodKey(f"u-{name}", "ns", name),
        node=node,
        allocation=holding(NODES["A"], gpus=minors),
        is_assumed=is_assumed,
    )


def filtered(state: ClusterState, body: Object, *names: str) -> Object:
    extender = Extender(DecisionMaker(state), ManualClock())
    data = json.dumps({"Pod": body, "Nodes": None, "NodeNames": names}).encode()
    answer: Object = json.loads(extender.filter(decode_nodes_request(data)))
    return answer


def test_a_planned_pod_fits_on_its_node_alone_and_others_see_its_devices_as_used() -> None:
    state = cluster("a", "b")
    state.hold(held("p", "b", *range(8)), Plan("gang ns/job"))
    answer = filtered(state, pod_object("p", 8), "a", "b")
    assert answer["NodeNames"] == ["b"]
    assert answer["FailedAndUnresolvableNodes"] == {"a": "gang ns/job: planned on b"}
    assert filtered(state, pod_object("q", 1), "a", "b")["NodeNames"] == ["a"]


def test_what_is_held_for_a_pod_does_not_keep_it_from_evicting_others() -> None:
    state = cluster("a")
    state.hold(held("p", "a", *range(8)), Plan("gang ns/job"))
    extender = Extender(DecisionMaker(state), ManualClock())
    victims = {"a": {"Pods": [{"UID": "v"}], "NumPDBViolations": 0}}
    for name, expected in (("p", victims), ("q", {})):
        sent = {"Pod": pod_object(name, 8), "NodeNameToMetaVictims": victims}
        call = decode_preemption_request(json.dumps(sent).encode())
        assert json.loads(extender.preempt(call)) == {"NodeNameToMetaVictims": expected}


WHY = "an earlier binding of the pod has no answer yet"


def test_a_pod_whose_binding_is_uncertain_fits_on_that_node_alone() -> None:
    state = cluster("a", "b")
    state.set_pod(held("p", "b", *range(8), is_assumed=True))
    answer = filtered(state, pod_object("p", 8), "a", "b")
    assert (answer["NodeNames"], answer["Error"]) == (["b"], "")
    assert answer["FailedAndUnresolvableNodes"] == {"a": WHY}


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_an_uncertain_pod_whose_node_is_not_there_is_tried_again_soon_and_evicts_nobody(
    names: list[str],
) -> None:
    state = cluster("a", "b")
    state.set_pod(held("p", "b", *range(8), is_assumed=True))
    if "b" in names:
        state.remove_devices("b")
    answer = filtered(state, pod_object("p", 8), *names)
    assert answer.pop("Error") == WHY
    assert set(answer.values()) == {None}


def test_a_planned_pod_gets_the_devices_of_the_plan_and_none_if_one_is_sick() -> None:
    state = cluster("a")
    state.hold(held("p", "a", 2, 5), Plan("gang ns/job"))
    maker = DecisionMaker(state)
    request = pod_request(decode_scheduler_pod(json.dumps(pod_object("p", 2)).encode()))
    grant = maker.allocate(request, "a", "u-p")
    assert [device.device.minor for device in grant.devices] == [2, 5]
    sick = tuple(
        msgspec.structs.replace(one, total={}) if one.minor == 5 else one
        for one in NODES["A"].of(GPU)
    )
    state.set_devices(DeviceTable(node="a", devices={GPU: sick}))
    with pytest.raises(NodeRefused, match="Insufficient GPU Devices"):
        maker.allocate(request, "a", "u-p")


def test_the_end_of_a_plan_releases_what_is_not_being_bound() -> None:
    state = cluster("a")
    state.hold(held("p", "a", 0), Plan("one"))
    state.hold(held("q", "a", 1), Plan("one"))
    state.hold(held("r", "a", 2), Plan("other"))
    state.set_pod(held("q", "a", 1, is_assumed=True))
    state.hold(held("s", "a", 3), Plan("one"))
    state.set_pod(held("s", "a", 3))  # bound
    state.release_plan(Plan("one"))
    assert {one.key.name for one in state.pods_of("a")} == {"q", "r", "s"}
    assert (state.plan_of("u-q"), state.plan_of("u-r")) == (None, Plan("other"))


@pytest.mark.parametrize("event", ["deleted", "recreated", "ended", "relisted"])
def test_what_a_plan_holds_for_a_pod_ends_with_the_pod(event: str) -> None:
    state = cluster("a")
    changes = PodChanges(state)
    waiting = decode_scheduler_pod(json.dumps(pod_object("p", 1)).encode())
    changes.set_object("ns/p", waiting)
    state.hold(held("p", "a", 0), Plan("one"))
    changes.set_object("ns/p", msgspec.structs.replace(waiting, labels={"x": "y"}))
    assert state.pods_of("a")
    if event == "deleted":
        changes.remove_object("ns/p", waiting)
    elif event == "recreated":
        key = msgspec.structs.replace(waiting.key, uid=Plan("other"))
        changes.set_object("ns/p", msgspec.structs.replace(waiting, key=key))
    elif event == "ended":
        changes.set_object("ns/p", None)
    else:
        changes.replace_objects({})
    assert not state.pods_of("a")


def command(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *pods: Object, flag: bool = True
) -> tuple[int, Any]:
    path = tmp_path / "pods.json"
    path.write_text(json.dumps({"kind": "PodList", "items": list(pods)}))
    what = ["--pod" if verb == "simulate" else "--pods", str(path), "-o", "json"]
    more = ["--designated"] if flag else []
    status = main([verb, "--cluster", str(CLUSTER), *what, *more])
    return status, json.loads(capsys.readouterr().out)


def annotated(body: Object, *ids: str) -> Object:
    entries = [{"minor": 0, "id": name, "resources": {}} for name in ids]
    metadata = {**body["metadata"], "annotations": {ANNOTATION: json.dumps({"gpu": entries})}}
    return {**body, "metadata": metadata}


def test_simulate_honours_a_designation_where_it_is_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = annotated(pod_object("p", 1), "GPU-a100-0-6")
    status, decision = command("simulate", tmp_path, capsys, one)
    assert (status, decision["chosen"]) == (0, "a100-0")
    assert [card["minor"] for card in decision["nodes"][0]["allocation"]["gpu"]] == [6]
    refused = {node["name"]: node["reasons"] for node in decision["nodes"][1:]}
    assert refused["a100-1"] == [ABSENT]
    _, without = command("simulate", tmp_path, capsys, one, flag=False)
    assert without["chosen"] == "h100-0"


def test_replay_puts_recorded_pods_where_they_were_and_refuses_the_second_of_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = annotated(pod_object("p", 1, "a100-0"), "GPU-a100-0-6")
    second = annotated(pod_object("q", 1, "a100-0"), "GPU-a100-0-6")
    status, report = command("replay", tmp_path, capsys, first, second)
    assert status == 1
    assert [placement["node"] for placement in report["placements"]] == ["a100-0", None]
    assert report["refusals"]["Insufficient GPU Devices"] == 1
    assert report["refusals"]["node(s) didn't match the requested node name"] == 4


def test_a_designation_that_cannot_be_read_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = pod_object("p", 1)
    bad["metadata"]["annotations"] = {ANNOTATION: "{"}
    _, decision = command("simulate", tmp_path, capsys, bad)
    assert decision["chosen"] is None
    reasons = {reason for node in decision["nodes"] for reason in node["reasons"]}
    assert all(
        reason.startswith("invalid device-allocated annotation, err: ") for reason in reasons
    )


class PlannedCluster:
    """Two nodes with plans that come, are bound and end, beside pods of no plan."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.state = cluster("a", "b")
        self.maker = DecisionMaker(self.state)
        self.plans: list[Plan] = []
        self.count = 0

    def step(self) -> None:
        actions = (self.plan, self.bind_alone, self.bind_planned, self.end_plan, self.delete)
        self.random.choice(actions)()
        self.check()

    def plan(self) -> None:
        plan = Plan(f"gang ns/{len(self.plans)}")
        self.plans.append(plan)
        for _ in range(self.random.randint(1, 4)):
            self.place(self.random.randint(1, 3), plan)

    def bind_alone(self) -> None:
        self.place(self.random.randint(1, 3), None)

    def place(self, count: int, plan: Plan | None) -> None:
        self.count += 1
        name = f"p{self.count}"
        request = self.request(name, count)
        nodes = self.maker.decide(request, ["a", "b"], f"u-{name}").fitting()
        if nodes:
            pod = self.assigned(name, nodes[0], count)
            if plan is None:
                self.state.set_pod(pod)
            else:
                self.state.hold(pod, plan)

    def bind_planned(self) -> None:
        """Bind some pod of a plan: it gets what is held for it, first assumed and then for good."""
        uids = sorted(uid for plan in self.plans for uid in self.state.uids_of_plan(plan))
        if uids:
            before = self.state.hold_of(self.random.choice(uids))
            assert before is not None
            pod = self.assigned(before.key.name, before.node, len(before.allocation))
            assert {one.minor for one in pod.allocation} == {one.minor for one in before.allocation}
            self.state.set_pod(msgspec.structs.replace(pod, is_assumed=True))
            if self.random.random() < 0.7:
                self.state.set_pod(pod)

    def end_plan(self) -> None:
        if self.plans:
            self.state.release_plan(self.random.choice(self.plans))

    def delete(self) -> None:
        pods = sorted(pod.key.uid for pod in self.state.pods())
        if pods:
            self.state.remove_pod(self.random.choice(pods))

    def request(self, name: str, count: int) -> PodRequest:
        return pod_request(decode_scheduler_pod(json.dumps(pod_object(name, count)).encode()))

    def assigned(self, name: str, node: str, count: int) -> AssignedPod:
        grant = self.maker.allocate(self.request(name, count), node, f"u-{name}")
        allocation = tuple(device.as_allocated() for device in grant.devices)
        key = PodKey(f"u-{name}", "ns", name)
        return AssignedPod(key=key, node=node, allocation=allocation)

    def check(self) -> None:
        used: set[tuple[str, int | None]] = set()
        for each in self.state.pods():
            for one in each.allocation:
                assert (each.node, one.minor) not in used, "a card twice"
                used.add((each.node, one.minor))
        for node in ("a", "b"):
            usage = self.state.state(node).usage.amounts
            assert {(node, minor) for _, minor in usage} == {one for one in used if one[0] == node}
        uids = {pod.key.uid for pod in self.state.pods()}
        assert all(self.state.uids_of_plan(plan) <= uids for plan in self.plans)


@pytest.mark.parametrize("seed", range(20))
def test_over_any_sequence_of_plans_and_bindings_no_card_is_given_twice_and_none_is_lost(
    seed: int,
) -> None:
    scene = PlannedCluster(seed)
    for _ in range(60):
        scene.step()
    for plan in scene.plans:
        scene.state.release_plan(plan)
    for each in tuple(scene.state.pods()):
        scene.state.remove_pod(each.key.uid)
    scene.check()
    assert scene.state.planned_count == 0
