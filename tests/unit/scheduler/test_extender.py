"""Answers to kube-scheduler's calls, as it sends and reads them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from agent.clock import ManualClock
from agent.errors import ParseError
from plugins.scheduler.cluster_state import AssignedPod, ClusterState
from plugins.scheduler.decisions import DecisionMaker
from plugins.scheduler.pod_object import PodKey
from plugins.scheduler.server.decision_log import (
    MAX_PODS,
    MAX_REASONS,
    DecisionLog,
    DecisionRecord,
    RefusalGroup,
)
from plugins.scheduler.server.extender import Extender
from plugins.scheduler.server.extender_wire import (
    BadExtenderRequest,
    BindRequest,
    decode_bind_request,
    decode_nodes_request,
    decode_preemption_request,
    encode_error,
    encode_priorities,
)
from tests.unit.scheduler.vectors import NODES, holding

Object = dict[str, Any]


def pod(cards: int = 1, name: str = "p", **annotations: str) -> Object:
    requests = {"nvidia.com/gpu": str(cards)} if cards else {}
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"u-{name}",
            "annotations": annotations,
        },
        "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]},
        "status": {"phase": "Pending"},
    }


def body(pod_object: Object, names: list[str] | None, nodes: object = None) -> bytes:
    return json.dumps({"Pod": pod_object, "Nodes": nodes, "NodeNames": names}).encode()


@pytest.fixture
def extender() -> Extender:
    """Three nodes of eight cards: idle, half used, full."""
    state = ClusterState()
    for name, used in (("idle", 0), ("half", 4), ("full", 8)):
        state.set_node(name, {})
        state.set_devices(msgspec.structs.replace(NODES["A"], node=name))
        for minor in range(used):
            state.set_pod(
                AssignedPod(
                    key=PodKey(f"{name}-{minor}", "ns", f"{name}-{minor}"),
                    node=name,
                    allocation=holding(NODES["A"], gpus=[minor]),
                )
            )
    return Extender(DecisionMaker(state), ManualClock())


ALL = ["full", "idle", "half"]


def filtered(extender: Extender, pod_object: Object, names: list[str] = ALL) -> Object:
    answer: Object = json.loads(extender.filter(decode_nodes_request(body(pod_object, names))))
    return answer


def test_nodes_that_fit_stay_in_the_order_of_the_request(extender: Extender) -> None:
    answer = filtered(extender, pod(2))
    assert answer == {
        "Nodes": None,
        "NodeNames": ["idle", "half"],
        "FailedNodes": {"full": "Insufficient GPU Devices"},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


def test_a_pod_without_devices_keeps_all_nodes(extender: Extender) -> None:
    assert filtered(extender, pod(0))["NodeNames"] == ALL
    assert filtered(extender, pod(0), [])["NodeNames"] == []


def test_a_request_that_no_node_can_meet_is_unresolvable_everywhere(extender: Extender) -> None:
    bad = pod(1)
    bad["spec"]["containers"][0]["resources"]["requests"] = {"koordinator.sh/gpu": "150"}
    answer = filtered(extender, bad)
    reason = "invalid resource unit koordinator.sh/gpu: 150"
    assert answer["FailedAndUnresolvableNodes"] == dict.fromkeys(ALL, reason)
    assert answer["NodeNames"] == []


@pytest.mark.parametrize("text", ["-1", "", "one", "1e", "0x1", "--2"])
def test_a_request_that_is_no_amount_is_refused_everywhere(extender: Extender, text: str) -> None:
    desired = pod(0)
    desired["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpu": text}
    answer = filtered(extender, desired)
    assert set(answer["FailedAndUnresolvableNodes"]) == {"idle", "half", "full"}
    reason = answer["FailedAndUnresolvableNodes"]["idle"]
    assert reason == f"invalid resource unit nvidia.com/gpu: {text}"


@pytest.mark.parametrize(
    ("amounts", "is_like"),
    [
        ({"nvidia.com/gpu": "8000m"}, {"nvidia.com/gpu": 8}),
        ({"nvidia.com/gpu": 8}, {"nvidia.com/gpu": "8"}),
        ({"koordinator.sh/gpu": "0.8k"}, {"koordinator.sh/gpu": "8e2"}),
        (
            {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"},
            {"koordinator.sh/gpu-core": "5e1", "koordinator.sh/gpu-memory": "8589934592"},
        ),
    ],
)
def test_amounts_count_in_whatever_units_they_are(
    extender: Extender, amounts: Object, is_like: Object
) -> None:
    answers = []
    for requests in (amounts, is_like):
        desired = pod(0)
        desired["spec"]["containers"][0]["resources"]["requests"] = requests
        answers.append(filtered(extender, desired))
    assert answers[0] == answers[1]
    assert "idle" in answers[0]["NodeNames"]


def test_whole_nodes_are_answered_with_whole_nodes(extender: Extender) -> None:
    items = [{"metadata": {"name": name, "labels": {"a": "b"}}, "spec": {}} for name in ALL]
    request = decode_nodes_request(body(pod(2), None, {"metadata": {}, "items": items}))
    answer = json.loads(extender.filter(request))
    assert answer["NodeNames"] is None
    assert answer["Nodes"]["items"] == items[1:]


def test_an_unknown_node_is_refused_for_koordinators_resources_only(extender: Extender) -> None:
    assert filtered(extender, pod(1), ["elsewhere"])["NodeNames"] == ["elsewhere"]
    shared = pod(1)
    shared["spec"]["containers"][0]["resources"]["requests"] = {
        "koordinator.sh/gpu-core": "50",
        "koordinator.sh/gpu-memory-ratio": "50",
    }
    answer = filtered(extender, shared, ["elsewhere"])
    assert answer["FailedAndUnresolvableNodes"] == {"elsewhere": "node(s) missing Device"}


def test_scores_are_the_best_nodes_ten_and_those_of_others_in_proportion(
    extender: Extender,
) -> None:
    request = decode_nodes_request(body(pod(2), ["half", "idle"]))
    assert json.loads(extender.prioritize(request)) == [
        {"Host": "half", "Score": 5},
        {"Host": "idle", "Score": 10},
    ]
    request = decode_nodes_request(body(pod(0), ["half"]))
    assert json.loads(extender.prioritize(request)) == [{"Host": "half", "Score": 0}]


def test_the_best_nodes_are_logged_where_that_is_asked_for(
    extender: Extender, caplog: pytest.LogCaptureFixture
) -> None:
    request = decode_nodes_request(body(pod(), ALL))
    with caplog.at_level("INFO"):
        extender.prioritize(request)
        assert not caplog.records
        extender.logged_scores = 1
        extender.prioritize(request)
    (record,) = caplog.records
    assert record.message == "scores"
    assert vars(record)["pod"] == "ns/p"
    assert vars(record)["best"] == [("idle", 100)]


def test_scores_are_rounded_half_up() -> None:
    scores = json.loads(encode_priorities(("a", "b", "c", "d", "e"), (4, 5, 94, 95, 100)))
    assert [score["Host"] for score in scores] == ["a", "b", "c", "d", "e"]
    assert [score["Score"] for score in scores] == [0, 1, 9, 10, 10]


def victims(**by_node: list[str]) -> Object:
    return {
        node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0}
        for node, uids in by_node.items()
    }


def preempted(extender: Extender, cards: int, by_node: Object) -> Object:
    sent = {"Pod": pod(cards), "NodeNameToVictims": None, "NodeNameToMetaVictims": by_node}
    request = decode_preemption_request(json.dumps(sent).encode())
    answer: Object = json.loads(extender.preempt(request))
    return answer["NodeNameToMetaVictims"]  # type: ignore[no-any-return]  # JSON


def test_only_nodes_on_which_the_victims_cards_suffice_remain(extender: Extender) -> None:
    offered = victims(full=["full-0"], half=["half-0", "half-1", "half-2", "half-3"])
    assert set(preempted(extender, 8, offered)) == {"half"}
    assert preempted(extender, 1, offered) == offered


def test_a_node_without_victims_is_left_out(extender: Extender) -> None:
    assert preempted(extender, 1, victims(idle=[])) == {}


def test_whole_victims_are_answered_in_the_short_form(extender: Extender) -> None:
    whole = {"half": {"Pods": [{"metadata": {"name": "half-0", "uid": "half-0"}}]}}
    sent = {"Pod": pod(1), "NodeNameToVictims": whole, "NodeNameToMetaVictims": None}
    request = decode_preemption_request(json.dumps(sent).encode())
    assert json.loads(extender.preempt(request))["NodeNameToMetaVictims"] == victims(
        half=["half-0"]
    )


def test_the_last_decision_says_why_a_pod_waits(extender: Extender) -> None:
    filtered(extender, pod(8, "big"))
    filtered(extender, pod(8, "big"))
    record = extender.log.of_pod("ns", "big")["filter"]
    assert (record.offered, record.fitting, record.attempts) == (3, 1, 2)
    assert record.best == (("idle", 100),)
    (group,) = record.refusals
    assert (group.reason, group.count, set(group.nodes)) == (
        "Insufficient GPU Devices",
        2,
        {"full", "half"},
    )
    assert "too few accelerators" in group.meaning
    assert record.summary() == "1/3 nodes fit: 2 Insufficient GPU Devices"
    assert extender.log.of_pod("ns", "unknown") == {}


def test_what_was_decided_about_an_earlier_pod_of_the_name_is_dropped(extender: Extender) -> None:
    earlier = BindRequest(namespace="ns", name="p", uid="earlier", node="idle")
    extender.record_binding(earlier, "", "bound")
    assert set(extender.log.of_pod("ns", "p")) == {"bind"}
    filtered(extender, pod(1, "p"))
    assert set(extender.log.of_pod("ns", "p")) == {"filter"}


def test_the_log_of_decisions_is_bounded() -> None:
    log = DecisionLog()
    for number in range(MAX_PODS + 5):
        log.record(DecisionRecord(namespace="n", pod=str(number), uid="", wall_s=0, verb="filter"))
    assert log.of_pod("n", "4") == {}
    assert log.of_pod("n", "5")


def test_a_bind_call_is_read() -> None:
    sent = {"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "n"}
    request = decode_bind_request(json.dumps(sent).encode())
    assert (request.namespace, request.name, request.uid, request.node) == ("ns", "p", "u", "n")
    assert json.loads(encode_error("")) == {"Error": ""}


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"Pod": 5}', b"\xff", b'{"Pod": null}'])
def test_bodies_that_are_none_of_kube_schedulers_are_refused(data: bytes) -> None:
    with pytest.raises((BadExtenderRequest, ParseError)):
        decode_nodes_request(data)
    with pytest.raises(BadExtenderRequest):
        decode_bind_request(data)


def test_decisions_are_counted_by_the_reason_of_most_nodes(extender: Extender) -> None:
    filtered(extender, pod(1))
    filtered(extender, pod(8), ["full", "half"])
    filtered(extender, pod(1, "no-nodes"), [])
    bad = pod(1)
    bad["spec"]["containers"][0]["resources"]["requests"] = {"koordinator.sh/gpu": "150"}
    filtered(extender, bad)
    assert extender.log.reasons == {
        "fits": 1,
        "Insufficient GPU Devices": 1,
        "no nodes": 1,
        "invalid request": 1,
    }


def test_reasons_of_decisions_are_bounded() -> None:
    log = DecisionLog()
    for number in range(MAX_REASONS + 5):
        group = RefusalGroup(reason=str(number), count=1, is_final=False, nodes=())
        log.record(
            DecisionRecord(
                namespace="n", pod="p", uid="", wall_s=0, verb="filter", refusals=(group,)
            )
        )
    assert log.reasons["other"] == 5
