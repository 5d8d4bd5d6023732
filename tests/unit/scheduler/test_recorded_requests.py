"""The extender's answers to whole requests that kube-scheduler sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.clock import ManualClock
from plugins.scheduler.cluster_state import AssignedPod, ClusterState
from plugins.scheduler.decisions import DecisionMaker
from plugins.scheduler.pod_object import PodKey
from plugins.scheduler.server.extender import Extender
from plugins.scheduler.server.extender_wire import (
    decode_bind_request,
    decode_nodes_request,
    decode_preemption_request,
)
from tests.unit.scheduler.vectors import NODES, holding

RECORDED = Path(__file__).parents[4] / "shared" / "oracle" / "kube-scheduler-extender.json"
Object = dict[str, Any]

pytestmark = pytest.mark.skipif(
    not RECORDED.exists(), reason=f"no recorded calls: {RECORDED.name} is not here"
)
MODES = ("nodeCacheCapable true", "nodeCacheCapable false", "https")


def recorded(mode: str) -> Object:
    return json.loads(RECORDED.read_text())["whole_requests"][mode]  # type: ignore[no-any-return]


def with_card(body: Object) -> bytes:
    """Return the request with a pod that asks for one whole card."""
    changed = json.loads(json.dumps(body))
    for container in changed["Pod"]["spec"]["containers"]:
        amounts = {"koordinator.sh/gpu": "100"}
        container["resources"] = {"requests": amounts, "limits": amounts}
    return json.dumps(changed).encode()


def names_of(body: Object) -> list[str]:
    items = (body["Nodes"] or {}).get("items", [])
    return list(body["NodeNames"] or [item["metadata"]["name"] for item in items])


def cluster(names: list[str], pods: dict[str, list[str]] | None = None) -> Extender:
    """Return nodes of eight cards; each of the pods of a node has four of them."""
    state = ClusterState()
    for name in names:
        state.set_node(name, {})
        state.set_devices(msgspec.structs.replace(NODES["A"], node=name))
        for index, uid in enumerate((pods or {}).get(name, ())):
            cards = list(range(index * 4, index * 4 + 4))
            allocation = holding(NODES["A"], gpus=cards)
            state.set_pod(
                AssignedPod(key=PodKey(uid, "default", uid), node=name, allocation=allocation)
            )
    return Extender(DecisionMaker(state), ManualClock())


@pytest.mark.parametrize("mode", MODES)
def test_filter_keeps_the_nodes_in_the_form_in_which_they_were_sent(mode: str) -> None:
    body = recorded(mode)["filter"]["body"]
    names = names_of(body)
    extender = cluster(names)
    answer = json.loads(extender.filter(decode_nodes_request(with_card(body))))
    if body["NodeNames"] is None:
        assert answer["NodeNames"] is None
        assert answer["Nodes"]["items"] == body["Nodes"]["items"]
    else:
        assert answer["Nodes"] is None
        assert answer["NodeNames"] == names
    assert (answer["FailedNodes"], answer["Error"]) == ({}, "")


@pytest.mark.parametrize("mode", MODES)
def test_a_recorded_pod_fits_or_is_refused_with_a_reason_for_each_node(mode: str) -> None:
    """The recorded pods ask for nothing of ours, or for a core share without memory."""
    body = recorded(mode)["filter"]["body"]
    names = names_of(body)
    answer = json.loads(cluster(names).filter(decode_nodes_request(json.dumps(body).encode())))
    records = answer["NodeNames"] or [
        one["metadata"]["name"] for one in (answer["Nodes"] or {}).get("items", ())
    ]
    refused = answer["FailedAndUnresolvableNodes"] | answer["FailedNodes"]
    assert sorted([*records, *refused]) == sorted(names)
    assert all(refused.values())


@pytest.mark.parametrize("mode", MODES)
def test_prioritize_has_a_whole_number_up_to_ten_for_each_node(mode: str) -> None:
    body = recorded(mode)["prioritize"]["body"]
    names = names_of(body)
    answer = json.loads(cluster(names).prioritize(decode_nodes_request(with_card(body))))
    assert [one["Host"] for one in answer] == names
    assert all(type(one["Score"]) is int and 0 <= one["Score"] <= 10 for one in answer)


@pytest.mark.parametrize("mode", MODES)
def test_a_bind_call_is_read_whole(mode: str) -> None:
    body = recorded(mode)["bind"]["body"]
    request = decode_bind_request(json.dumps(body).encode())
    assert (request.name, request.uid, request.node) == (
        body["PodName"],
        body["PodUID"],
        body["Node"],
    )


@pytest.mark.parametrize("mode", MODES[:2])
def test_preempt_answers_a_subset_with_uids_in_the_short_form(mode: str) -> None:
    body = recorded(mode)["preempt"]["body"]
    victims = {
        node: [pod.get("UID") or pod["metadata"]["uid"] for pod in one["Pods"]]
        for node, one in (body["NodeNameToMetaVictims"] or body["NodeNameToVictims"]).items()
    }
    extender = cluster(list(victims), victims)
    answer = json.loads(extender.preempt(decode_preemption_request(with_card(body))))
    assert set(answer) == {"NodeNameToMetaVictims"}
    remaining = answer["NodeNameToMetaVictims"]
    assert remaining.keys() == victims.keys()
    for node, one in remaining.items():
        assert [pod["UID"] for pod in one["Pods"]] == victims[node]
