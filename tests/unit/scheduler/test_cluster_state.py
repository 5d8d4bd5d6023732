"""The cluster's state: what pods use, what changes an answer, and what one answer serves."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.snapshot.allocation import AllocatedDevice
from plugins.scheduler import decisions
from plugins.scheduler.cluster_state import AssignedPod, ClusterState
from plugins.scheduler.decisions import DecisionMaker, NodeAnswer, PodAnswer
from plugins.scheduler.devices.allocator import NodeRefused, NodeState, Rules, allocate, filter_node
from plugins.scheduler.devices.device_table import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from plugins.scheduler.devices.requests import DeviceRequest, device_request
from plugins.scheduler.numa.cpu_request import PodRequest
from plugins.scheduler.pod_object import PodKey
from tests.unit.scheduler.vectors import NODES, RDMA_NAME, WHOLE, holding


def state_of(*names: str) -> ClusterState:
    state = ClusterState()
    for name in names:
        state.set_node(name, {})
        state.set_devices(msgspec.structs.replace(NODES["A"], node=name))
    return state


def pod(uid: str, node: str, *minors: int, percent: int = 100) -> AssignedPod:
    amounts = tuple((name, amount * percent // 100) for name, amount in WHOLE.items())
    return AssignedPod(
        key=PodKey(uid, "default", uid),
        node=node,
        allocation=tuple(
            AllocatedDevice(type=GPU, minor=minor, id=f"GPU-{minor}", resources=amounts)
            for minor in minors
        ),
    )


def cards(count: int) -> DeviceRequest:
    request = device_request({"nvidia.com/gpu": count})
    assert request is not None
    return request


def request_for(count: int) -> PodRequest:
    return PodRequest(devices=cards(count))


def test_joint_pods_prefer_a_node_with_cards_and_nics_on_one_root_to_a_better_score() -> None:
    joint = {"scheduling.koordinator.sh/device-joint-allocate": '{"deviceTypes": ["gpu", "rdma"]}'}
    request = device_request({"nvidia.com/gpu": 1, RDMA_NAME: 100}, joint)
    assert request is not None
    state = state_of("no-nic", "full")
    table = NODES["A"]
    for node, cards_in_use, nics_in_use in (
        ("no-nic", range(2, 8), [1]),
        ("full", range(7), [1, 2, 3]),
    ):
        entries = holding(table, gpus=cards_in_use, nics=nics_in_use)
        state.set_pod(AssignedPod(key=PodKey(node, "default", node), node=node, allocation=entries))
    answer = DecisionMaker(state).decide(PodRequest(devices=request), ["no-nic", "full"])
    assert answer.best(1)[0][0] == "full"
    compatible = DecisionMaker(state, Rules(upstream_compatible=True))
    answer = compatible.decide(PodRequest(devices=request), ["no-nic", "full"])
    assert answer.best(1)[0][0] == "no-nic"


def test_equal_nodes_have_one_signature_until_a_pod_makes_them_differ() -> None:
    state = state_of("a", "b")
    first, second = state.signatures(["a", "b"])
    assert first == second
    state.set_pod(pod("1", "a", 0))
    changed, other = state.signatures(["a", "b"])
    assert changed != other == first
    state.remove_pod("1")
    assert state.signatures(["a", "unknown"]) == [first, None]


def test_a_pod_that_is_reported_twice_counts_once_and_one_that_moves_leaves_its_node() -> None:
    state = state_of("a", "b")
    state.set_pod(pod("1", "a", 0))
    state.set_pod(pod("1", "a", 0))
    assert state.state("a").usage.amounts[GPU, 0][GPU_CORE] == 100
    state.set_pod(pod("1", "b", 0))
    assert not state.state("a").usage.amounts
    assert state.state("b").usage.amounts[GPU, 0][GPU_CORE] == 100


def test_a_new_pod_of_the_same_name_does_not_inherit_devices() -> None:
    state = state_of("a")
    state.set_pod(pod("1", "a", 0))
    later = msgspec.structs.replace(pod("2", "a", 1), key=PodKey("2", "default", "1"))
    state.set_pod(later)
    state.remove_pod("1")
    assert set(state.state("a").usage.amounts) == {(GPU, 1)}


def test_usage_follows_the_id_of_a_card_when_minors_change_at_a_boot() -> None:
    state = state_of("a")
    state.set_pod(pod("1", "a", 3))
    table = NODES["A"]
    first, *others = table.of(GPU)
    swapped = (
        msgspec.structs.replace(first, minor=3),
        *(other for other in others if other.minor != 3),
        msgspec.structs.replace(table.of(GPU)[3], minor=0),
    )
    devices = {**table.devices, GPU: tuple(sorted(swapped, key=lambda one: one.minor))}
    state.set_devices(msgspec.structs.replace(table, node="a", devices=devices))
    assert set(state.state("a").usage.amounts) == {(GPU, 0)}


def test_a_deleted_device_object_takes_its_devices_out_of_service_and_keeps_what_is_used() -> None:
    state = state_of("a")
    state.set_pod(pod("1", "a", 0))
    maker = DecisionMaker(state)
    state.remove_devices("a")
    assert not maker.decide(request_for(1), ["a"]).of("a").fits
    state.set_devices(msgspec.structs.replace(NODES["A"], node="a"))
    assert [device.device.minor for device in maker.allocate(request_for(1), "a").devices] == [1]


def test_a_forgotten_node_is_gone_once_its_pods_are() -> None:
    state = ClusterState()
    state.set_node("a", {})
    state.set_pod(pod("1", "a", 0))
    state.remove_node("a")
    assert not list(state.node_names())
    assert state.pods_of("a")
    state.remove_pod("1")
    assert not state.pods_of("a")
    state.remove_node("a")


@pytest.mark.parametrize("order", [("node", "devices", "pod"), ("pod", "devices", "node")])
def test_of_a_node_that_is_removed_nothing_is_left(order: tuple[str, ...]) -> None:
    """One that is made again under its name, without devices, is as any other new one."""
    state = state_of("a")
    state.set_pod(pod("1", "a", 0))
    removals: dict[str, Callable[[], object]] = {
        "node": lambda: state.remove_node("a"),
        "devices": lambda: state.remove_devices("a"),
        "pod": lambda: state.remove_pod("1"),
    }
    for part in order:
        removals[part]()
    state.set_node("a", {})
    assert state.state("a") == NodeState(name="a")


def test_answers_name_how_many_nodes_were_refused_for_each_reason() -> None:
    state = state_of("a", "b", "c")
    state.set_pod(pod("1", "a", *range(8)))
    state.set_pod(pod("2", "b", *range(5)))
    answer = DecisionMaker(state).decide(request_for(4), ["a", "b", "c", "unknown"])
    assert answer.reasons() == (("Insufficient GPU Devices", 2),)
    assert set(answer.scores()) == {"c", "unknown"}
    assert answer.scores()["c"] == 100


@pytest.mark.parametrize(
    ("amounts", "fits"),
    [
        ({"nvidia.com/gpu": 1}, False),
        ({GPU_CORE: 100, GPU_MEMORY_RATIO: 100}, False),
        ({GPU_CORE: 50, GPU_MEMORY_RATIO: 99}, True),
    ],
)
def test_memory_of_less_than_a_percent_is_not_given_again_as_a_share(
    amounts: dict[str, int], *, fits: bool
) -> None:
    """Its share is rounded down to 0 percent."""
    table = NODES["A"]
    card = {**table.devices, GPU: table.of(GPU)[:1]}
    state = ClusterState()
    state.set_node("a", {})
    state.set_devices(msgspec.structs.replace(table, node="a", devices=card))
    maker = DecisionMaker(state)
    small = PodRequest(devices=device_request({GPU_MEMORY: 100 << 20}))
    allocation = tuple(one.as_allocated() for one in maker.allocate(small, "a").devices)
    assert allocation[0].amount(GPU_MEMORY_RATIO) == 0
    state.set_pod(AssignedPod(key=PodKey("1", "ns", "p"), node="a", allocation=allocation))
    request = PodRequest(devices=device_request(amounts))
    assert maker.decide(request, ["a"]).of("a").fits is fits
    compatible = DecisionMaker(state, Rules(upstream_compatible=True))
    assert compatible.decide(request, ["a"]).of("a").fits


def test_a_node_fits_without_the_pods_that_would_be_preempted() -> None:
    state = state_of("a")
    state.set_pod(pod("1", "a", 0, 1, 2, 3))
    state.set_pod(pod("2", "a", 4, 5, 6, 7))
    maker = DecisionMaker(state)
    assert not maker.decide(request_for(8), ["a"]).of("a").fits
    assert not maker.fits_without(request_for(8), "a", ["1"])
    assert maker.fits_without(request_for(8), "a", ["1", "2"])


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("bind"), st.integers(0, 9), st.sampled_from([1, 2, 4]), st.booleans()),
        st.tuples(st.just("delete"), st.integers(0, 9)),
        st.tuples(st.just("rebuild")),
        st.tuples(st.just("device")),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(EVENTS)
def test_no_card_is_given_above_its_whole_and_none_is_lost(
    events: list[tuple[object, ...]],
) -> None:
    """Through any order of bindings, deletions, restarts of the plug-in and Device updates."""
    state = state_of("a")
    bound: dict[str, AssignedPod] = {}
    for event in events:
        if event[0] == "bind":
            uid = str(event[1])
            if uid in bound:
                continue
            count = event[2] if isinstance(event[2], int) else 1
            amounts = (
                {GPU_CORE: 30, GPU_MEMORY_RATIO: 30} if event[3] else {"nvidia.com/gpu": count}
            )
            request = device_request(amounts)
            assert request is not None
            try:
                grant = allocate(state.state("a"), request)
            except NodeRefused:
                continue
            allocation = tuple(one.as_allocated() for one in grant)
            bound[uid] = AssignedPod(
                key=PodKey(uid, "default", uid), node="a", allocation=allocation
            )
            state.set_pod(bound[uid])
        elif event[0] == "delete":
            bound.pop(str(event[1]), None)
            state.remove_pod(str(event[1]))
        elif event[0] == "rebuild":
            state = state_of("a")
            for one in bound.values():
                state.set_pod(one)
        else:
            state.remove_devices("a")
            state.set_devices(msgspec.structs.replace(NODES["A"], node="a"))
        used = state.state("a").usage.amounts
        for amounts_of_card in used.values():
            assert amounts_of_card[GPU_CORE] <= 100
            assert amounts_of_card[GPU_MEMORY_RATIO] <= 100
        total = sum(amounts_of_card[GPU_CORE] for amounts_of_card in used.values())
        assert total == sum(
            one.amount(GPU_CORE) or 0 for pod in bound.values() for one in pod.allocation
        )


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_one_decision_serves_all_nodes_of_one_signature(count: int) -> None:
    state = state_of(*(f"n{i}" for i in range(50)))
    maker = DecisionMaker(state)
    answers = maker.decide(request_for(count), list(state.node_names()))
    assert len(answers.answers) == 1
    assert len(answers.fitting()) == 50


NODE_ANSWERS = st.builds(
    NodeAnswer,
    reason=st.sampled_from(("", "", "full", "unhealthy")),
    is_final=st.booleans(),
    score=st.integers(0, 100),
)


@given(
    st.dictionaries(st.integers(0, 9), NODE_ANSWERS, min_size=1, max_size=10),
    st.lists(st.integers(0, 9), max_size=40),
    st.integers(1, 20),
)
def test_the_answers_of_all_nodes_together_are_those_of_each_node(
    answers: dict[int | None, NodeAnswer], picks: list[int], count: int
) -> None:
    keys = sorted(answers, key=str)
    signatures = [keys[pick % len(keys)] for pick in picks]
    answers = {key: answers[key] for key in set(signatures)}
    names = [f"n{i}" for i in range(len(signatures))]
    answer = PodAnswer(names=names, signatures=signatures, answers=answers)
    of_name = {name: answer.of(name) for name in names}
    top = max((one.score for one in of_name.values() if one.fits), default=0)
    scores = {n: one.score * 100 // top if top else 0 for n, one in of_name.items() if one.fits}
    assert answer.fitting() == [name for name in names if of_name[name].fits]
    for is_final in (False, True):
        refused = {n: one.reason for n, one in of_name.items() if one.reason}
        refused = {n: reason for n, reason in refused.items() if of_name[n].is_final is is_final}
        assert answer.refused(is_final=is_final) == refused
    for reason, nodes in answer.reasons():
        assert nodes == sum(one.reason == reason for one in of_name.values())
    assert sum(nodes for _, nodes in answer.reasons()) == len(names) - len(scores)
    assert answer.scores() == scores
    assert list(answer.scores_in_order()) == [scores.get(name, 0) for name in names]
    ordered = sorted(scores.items(), key=lambda item: -item[1])
    assert answer.best(count) == tuple(ordered[:count])


def test_answers_to_the_request_unused_for_the_longest_time_are_dropped_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decided: list[DeviceRequest] = []

    def count_decisions(state: NodeState, request: DeviceRequest, rules: Rules) -> None:
        decided.append(request)
        filter_node(state, request, rules)

    monkeypatch.setattr(decisions, "MAX_ANSWERS", 4)  # two requests with an answer each
    monkeypatch.setattr(decisions, "filter_node", count_decisions)
    maker = DecisionMaker(state_of("a", "b"))
    for count in (1, 2, 1, 4, 1, 2):
        assert maker.decide(request_for(count), ["a", "b"]).fitting() == ["a", "b"]
    assert decided == [cards(1), cards(2), cards(4), cards(2)]
