"""Gangs: read from pods and PodGroups, said in reasons, and placed together in replays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.clock import ManualClock
from agent.errors import ParseError
from plugins.scheduler.cli import main
from plugins.scheduler.cluster_state import AssignedPod, ClusterState
from plugins.scheduler.decisions import DecisionMaker
from plugins.scheduler.gangs import Gang, decode_pod_group, gang_of
from plugins.scheduler.pod_object import PodKey, decode_scheduler_pod
from plugins.scheduler.server.extender import Extender
from plugins.scheduler.server.extender_wire import decode_nodes_request
from tests.unit.scheduler.vectors import NODES, holding

CLUSTER = Path(__file__).parents[3] / "fixtures" / "cluster"
GROUP = "pod-group.scheduling.sigs.k8s.io"
GANG = "gang.scheduling.koordinator.sh"
NOTE = "gang ml/job: its pods are placed one by one"
Object = dict[str, Any]


def member(name: str = "p", cards: int = 8, **metadata: Object) -> Object:
    resources = {"requests": {"nvidia.com/gpu": str(cards)}}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "uid": f"u-{name}", **metadata},
        "spec": {"containers": [{"name": "c", "resources": resources}]},
    }


@pytest.mark.parametrize(
    ("labels", "annotations", "expected"),
    [
        ({}, {}, None),
        ({GROUP: ""}, {}, None),
        ({GROUP: "job"}, {}, ("job", None)),
        ({f"{GROUP}/name": "job", f"{GROUP}/min-available": "3"}, {}, ("job", 3)),
        ({}, {f"{GANG}/name": "job", f"{GANG}/min-available": "8"}, ("job", 8)),
        ({GROUP: "a"}, {f"{GANG}/name": "b"}, ("a", None)),
        ({}, {f"{GANG}/name": "job", f"{GANG}/min-available": "many"}, ("job", None)),
        ({}, {f"{GANG}/name": "job", f"{GANG}/min-available": "9" * 5000}, ("job", None)),
    ],
)
def test_the_gang_of_a_pod(
    labels: Object, annotations: Object, expected: tuple[str, int | None] | None
) -> None:
    body = member(labels=labels, annotations=annotations)
    gang = gang_of(decode_scheduler_pod(json.dumps(body).encode()))
    assert (None if gang is None else (gang.name, gang.least)) == expected


@pytest.mark.parametrize(
    ("spec", "least"), [({"minMember": 4, "scheduleTimeoutSeconds": 9}, 4), (None, None)]
)
def test_a_pod_group_says_how_many_pods_it_needs(spec: object, least: int | None) -> None:
    body = {"kind": "PodGroup", "metadata": {"name": "job", "namespace": "ml"}, "spec": spec}
    expected = Gang(namespace="ml", name="job", least=least)
    assert decode_pod_group(json.dumps(body).encode()) == expected


@pytest.mark.parametrize("data", [b"{}", b"[", b'{"metadata":{"name":1}}'])
def test_an_object_that_is_no_pod_group_is_refused(data: bytes) -> None:
    with pytest.raises(ParseError, match="PodGroup"):
        decode_pod_group(data)


def extender(*used: int) -> Extender:
    state = ClusterState()
    state.set_node("a", {})
    state.set_devices(msgspec.structs.replace(NODES["A"], node="a"))
    allocation = holding(NODES["A"], gpus=used)
    state.set_pod(AssignedPod(key=PodKey("x", "ns", "x"), node="a", allocation=allocation))
    return Extender(DecisionMaker(state), ManualClock())


def filtered(one: Extender, pod: Object) -> Object:
    body = {"Pod": pod, "Nodes": None, "NodeNames": ["a"]}
    answer: Object = json.loads(one.filter(decode_nodes_request(json.dumps(body).encode())))
    return answer


def test_the_reason_of_a_refused_member_says_that_it_is_placed_alone() -> None:
    one = extender(0)
    pod = member(labels={GROUP: "job"})
    assert filtered(one, pod)["FailedNodes"] == {"a": f"Insufficient GPU Devices ({NOTE})"}
    record = one.log.of_pod("ml", "p")["filter"]
    assert (record.note, record.refusals[0].reason) == (NOTE, "Insufficient GPU Devices")
    assert one.log.reasons == {"Insufficient GPU Devices": 1}  # without names of gangs
    invalid = member(cards=0, labels={GROUP: "job"})
    requests = {"koordinator.sh/gpu": "150"}
    invalid["spec"]["containers"][0]["resources"]["requests"] = requests
    reason = f"invalid resource unit koordinator.sh/gpu: 150 ({NOTE})"
    assert filtered(one, invalid)["FailedAndUnresolvableNodes"] == {"a": reason}


def test_a_member_that_fits_is_placed_like_any_pod() -> None:
    assert filtered(extender(), member(labels={GROUP: "job"}))["NodeNames"] == ["a"]


def test_simulate_says_that_one_pod_of_a_gang_is_not_the_gang(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = tmp_path / "pod.json"
    pod.write_text(json.dumps(member(labels={GROUP: "job"})))
    folder = tmp_path / "cluster"
    folder.mkdir()
    for file in CLUSTER.glob("*.yaml"):
        (folder / file.name).write_text(file.read_text())
    group = {"metadata": {"name": "job", "namespace": "ml"}, "spec": {"minMember": 3}}
    (folder / "group.json").write_text(json.dumps({"kind": "PodGroup", **group}))
    assert main(["simulate", "--cluster", str(folder), "--pod", str(pod), "-o", "json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert notes[-1] == "gang ml/job needs 3 pods; this is the decision for one"


def replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *pods: Object
) -> tuple[list[str | None], Object, int]:
    """Return the nodes, the refusals, and the free cards after a replay."""
    stream = tmp_path / "pods.json"
    stream.write_text(json.dumps({"kind": "PodList", "items": list(pods)}))
    main(["replay", "--cluster", str(CLUSTER), "--pods", str(stream), "-o", "json"])
    report = json.loads(capsys.readouterr().out)
    free = report["fragmentation"]["after"]["freeGPUs"]
    assert report["refused"] == sum(placement["node"] is None for placement in report["placements"])
    return [placement["node"] for placement in report["placements"]], report["refusals"], free


def members(count: int, cards: int, least: int) -> list[Object]:
    annotations = {f"{GANG}/name": "job", f"{GANG}/min-available": str(least)}
    return [member(f"m{i}", cards, annotations=annotations) for i in range(count)]


def test_a_gang_is_placed_when_its_last_pod_has_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = members(2, 4, 2)
    alone = member("alone", 8)
    nodes, _, _ = replayed(tmp_path, capsys, first, alone, second)
    assert nodes[1] == "h100-0"  # the pod in between came before the gang was complete
    assert None not in nodes
    assert "h100-0" not in (nodes[0], nodes[2])


def test_of_a_gang_that_does_not_fit_no_pod_is_placed_and_nothing_stays_held(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, free = replayed(tmp_path, capsys)
    nodes, refusals, after = replayed(tmp_path, capsys, *members(9, 8, 9))
    assert (nodes, after) == ([None] * 9, free)
    assert refusals["gang ml/job: 1 of 9 pods fit"] == 1
    alone, _, _ = replayed(tmp_path, capsys, *members(9, 8, 9), member("late", 8))
    assert alone[-1] == "h100-0"


def test_a_gang_with_too_few_pods_is_refused_before_it_is_placed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, refusals, _ = replayed(tmp_path, capsys, *members(2, 1, 3))
    assert nodes == [None, None]
    assert refusals == {"gang ml/job: 2 of 3 pods exist": 1}


def test_pods_beyond_the_needed_number_are_placed_as_far_as_they_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, refusals, _ = replayed(tmp_path, capsys, *members(9, 8, 1))
    assert sum(node is not None for node in nodes) == 1
    assert not any(reason.startswith("gang") for reason in refusals)
