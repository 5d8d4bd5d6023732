"""Decisions on the cluster of the fixtures, as the commands print them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plugins.scheduler.cli import fragmentation, main
from plugins.scheduler.decision_text import decision_lines
from plugins.scheduler.reasons import explain_reason
from plugins.scheduler.simulation import NodeDecision, PodDecision

FIXTURES = Path(__file__).parents[3] / "fixtures"
CLUSTER, PODS = FIXTURES / "cluster", FIXTURES / "cluster-pods"
TYPICAL, SETTINGS = PODS / "ten-typical-pods.yaml", FIXTURES / "scheduler-settings.yaml"


def simulate(pod: Path, capsys: pytest.CaptureFixture[str], cluster: Path = CLUSTER) -> Any:
    status = main(["simulate", "--cluster", str(cluster), "--pod", str(pod), "-o", "json"])
    decision = json.loads(capsys.readouterr().out)
    assert status == (0 if decision["chosen"] else 1)
    return decision


def simulate_all(pods: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    main(["simulate", "--cluster", str(CLUSTER), "--pod", str(pods), "-o", "json"])
    return json.loads(capsys.readouterr().out)


EXPECTED = {
    "01-one-card": "h100-0",
    "02-half-card": "a100-1",
    "03-two-cards-near": "h100-0",
    "04-four-cards-one-numa-node": "h100-0",
    "05-eight-cards-with-nics": "h100-0",
    "06-two-cards-with-functions": "h100-0",
    "07-partition-of-four": "h100-0",
    "08-npus-of-one-group": "ascend-0",
    "09-mlu-share": "mlu-0",
    "10-too-many": None,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_node_that_is_chosen(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    decision = simulate(PODS / f"{name}.yaml", capsys)
    assert decision["chosen"] == EXPECTED[name]
    assert len(decision["nodes"]) == 5
    for node in decision["nodes"]:
        assert node["fits"] is not bool(node["reasons"])


def test_every_pod_of_the_examples_has_an_expectation() -> None:
    assert {path.stem for path in PODS.glob("[0-9]*.yaml")} == set(EXPECTED)


def test_ten_typical_pods_are_answered_as_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--cluster", str(CLUSTER), "--pod", str(TYPICAL), "--config", str(SETTINGS)]
    assert main(["simulate", *arguments]) == 1
    assert capsys.readouterr().out == TYPICAL.with_suffix(".txt").read_text()


def test_several_pods_are_decided_one_by_one_and_nothing_is_bound(
    capsys: pytest.CaptureFixture[str],
) -> None:
    decisions = simulate_all(TYPICAL, capsys)
    assert len(decisions) == 10
    for decision in decisions:
        assert all(node["fits"] or explain_reason(node["reasons"][0]) for node in decision["nodes"])
    (first,) = (one for one in decisions if one["pod"] == "team-a/whole-gpu")
    again = simulate_all(TYPICAL, capsys)[0]
    assert again == first


def test_the_annotation_that_bind_would_write(capsys: pytest.CaptureFixture[str]) -> None:
    decision = simulate(PODS / "06-two-cards-with-functions.yaml", capsys)
    best = decision["nodes"][0]
    text = best["annotations"]["scheduling.koordinator.sh/device-allocated"]
    assert json.loads(text) == best["allocation"]
    assert [one["minor"] for one in best["allocation"]["gpu"]] == [0, 1]
    assert [one["extension"]["vfs"][0]["busID"] for one in best["allocation"]["rdma"]] == [
        "0000:18:00.1",
        "0000:28:00.1",
    ]


def test_with_settings_for_vendors_plugins_their_annotations_are_there_and_their_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "settings.txt"
    settings.write_text("vendor_annotations: true")
    share = PODS / "09-mlu-share.yaml"
    two = tmp_path / "two.yaml"
    selector = "nodeSelector: {node.koordinator.sh/gpu-vendor: cambricon}"
    two.write_text(POD % (selector, "koordinator.sh/gpu: 200"))

    def decide(pod: Path) -> Any:
        more = ["--config", str(settings), "-o", "json"]
        main(["simulate", "--cluster", str(CLUSTER), "--pod", str(pod), *more])
        return json.loads(capsys.readouterr().out)

    (best, *_) = decide(share)["nodes"]
    assert best["annotations"]["CAMBRICON_DSMLU_PROFILE"] == "0_25_24"
    reasons = {node["name"]: node["reasons"] for node in decide(two)["nodes"]}
    assert reasons["mlu-0"] == ["multiple gpu share is not supported on device side"]
    (plain, *_) = simulate(share, capsys)["nodes"]
    assert "CAMBRICON_DSMLU_PROFILE" not in plain["annotations"]


def test_cards_of_one_vendor_are_not_given_to_requests_for_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    decision = simulate(PODS / "01-one-card.yaml", capsys)
    refused = {node["name"]: node["reasons"] for node in decision["nodes"] if not node["fits"]}
    other = ["node(s) have devices of another vendor"]
    assert refused == {"ascend-0": other, "mlu-0": other}


POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  %s
  containers:
  - name: main
    resources: {requests: {%s}}
"""


@pytest.mark.parametrize(
    ("spec", "requests", "reason"),
    [
        ("nodeSelector: {kubernetes.io/hostname: elsewhere}", "cpu: 1", "node affinity/selector"),
        ("priority: 0", "cpu: 121", "Insufficient cpu"),
        ("priority: 0", "memory: 961Gi", "Insufficient memory"),
        ("priority: 0", "koordinator.sh/gpu: 150", "invalid resource unit koordinator.sh/gpu: 150"),
    ],
)
def test_what_kube_scheduler_checks_is_checked_too(
    spec: str,
    requests: str,
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pod = tmp_path / "pod.yaml"
    pod.write_text(POD % (spec, requests))
    decision = simulate(pod, capsys)
    assert decision["chosen"] is None
    assert all(reason in node["reasons"][0] for node in decision["nodes"])


def test_taints_and_cordoned_nodes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nodes.yaml").write_text(
        "kind: NodeList\nitems:\n"
        "- {metadata: {name: a}, spec: {unschedulable: true}, status: {allocatable: {pods: 9}}}\n"
        "- {metadata: {name: b}, spec: {taints: [{key: k, value: v, effect: NoSchedule}]},"
        " status: {allocatable: {pods: 9}}}\n"
        "- {metadata: {name: c}, spec: {taints: [{key: k, value: w, effect: NoSchedule}]},"
        " status: {allocatable: {pods: 9}}}\n"
    )
    pod = tmp_path / "pod.txt"
    pod.write_text(POD % ("tolerations: [{key: k, operator: Equal, value: w}]", ""))
    decision = simulate(pod, capsys, tmp_path)
    assert decision["chosen"] == "c"
    reasons = {node["name"]: node["reasons"] for node in decision["nodes"]}
    assert reasons["a"] == ["node(s) were unschedulable"]
    assert reasons["b"] == ["node(s) had untolerated taint {k: v}"]


def test_rules_that_are_not_simulated_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = tmp_path / "pod.yaml"
    pod.write_text(POD % ("affinity: {}", "cpu: 1"))
    assert "affinity" in simulate(pod, capsys)["notes"][-1]


def test_a_stream_of_pods_is_bound_one_after_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = tmp_path / "stream.yaml"
    one = POD % ("nodeSelector: {kubernetes.io/hostname: h100-0}", "nvidia.com/gpu: 4")
    stream.write_text("---".join([one.replace("name: p", f"name: p{i}") for i in range(3)]))
    status = main(["replay", "--cluster", str(CLUSTER), "--pods", str(stream), "-o", "json"])
    report = json.loads(capsys.readouterr().out)
    assert status == 1
    assert [placement["node"] for placement in report["placements"]] == ["h100-0", "h100-0", None]
    assert report["refused"] == 1
    assert report["refusals"]["Insufficient Partitioned GPU Devices"] == 1
    before, after = report["fragmentation"]["before"], report["fragmentation"]["after"]
    assert before["freeGPUs"] - after["freeGPUs"] == 8


def test_fragmentation_is_the_part_of_free_gpus_that_pods_of_a_size_cannot_use() -> None:
    report = fragmentation([3, 3, 2])
    assert report["freeGPUs"] == 8
    assert report["unusableBySize"] == {"1": 0.0, "2": 0.25, "4": 1.0, "8": 1.0}
    assert fragmentation([])["unusableBySize"] == dict.fromkeys(("1", "2", "4", "8"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [", "not YAML"),
        (b"[1]", "no Kubernetes object"),
        (b"kind: Node\nmetadata: 5\n", "Node"),
        (b"kind: Pod\nmetadata: {name: 5}\n", "pod: ValidationError"),
        (b"\xff\xfe\x00", ""),
        (b"[" * 100_000, "too deep"),
    ],
)
def test_files_that_are_no_cluster_are_refused_in_one_line(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.yaml").write_bytes(content)
    pod = PODS / "01-one-card.yaml"
    assert main(["simulate", "--cluster", str(tmp_path), "--pod", str(pod)]) == 3
    error = capsys.readouterr().err
    assert error.startswith("xpu-scheduler: ")
    assert "bad.yaml" in error
    assert message in error


def test_a_missing_folder_and_wrong_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = str(PODS / "01-one-card.yaml")
    assert main(["simulate", "--cluster", str(tmp_path / "none"), "--pod", pod]) == 3
    assert "no such folder" in capsys.readouterr().err
    assert main(["simulate", "--cluster", str(CLUSTER), "--pod", str(CLUSTER / "nodes.yaml")]) == 3
    assert "0 pods in it instead of one" in capsys.readouterr().err
    assert main(["simulate"]) == 2
    assert main(["version"]) == 0


def test_cpus_and_numa_nodes_are_printed_and_count_for_the_next_pod(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    detail = [{"id": cpu, "core": cpu // 2, "socket": 0, "node": cpu // 4} for cpu in range(8)]
    amounts = {"cpu": "8", "memory": "64Gi", "pods": "110"}
    zone = [{"name": name, "allocatable": amount} for name, amount in (("cpu", "4"),)]
    objects = [
        {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": amounts}},
        {
            "kind": "NodeResourceTopology",
            "metadata": {
                "name": "n",
                "annotations": {
                    "node.koordinator.sh/cpu-topology": json.dumps({"detail": detail}),
                },
            },
            "zones": [{"name": f"node-{i}", "type": "Node", "resources": zone} for i in (0, 1)],
        },
    ]
    policy = '{"numaTopologyPolicy": "SingleNUMANode"}'
    pod = {
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "namespace": "default",
            "labels": {"koordinator.sh/qosClass": "LSR"},
            "annotations": {"scheduling.koordinator.sh/numa-topology-spec": policy},
        },
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "4"}}}]},
    }
    folder = tmp_path / "cluster"
    folder.mkdir()
    (folder / "objects.json").write_text(json.dumps({"kind": "List", "items": objects}))
    path = tmp_path / "pod.json"
    path.write_text(json.dumps(pod))
    first = simulate(path, capsys, folder)["nodes"][0]
    status = json.loads(first["annotations"]["scheduling.koordinator.sh/resource-status"])
    assert status == first["cpus"]
    assert status == {
        "cpuset": "0-3",
        "numaNodeResources": [{"node": 0, "resources": {"cpu": "4"}}],
    }
    pod["spec"] = {**pod["spec"], "nodeName": "n"}  # type: ignore[dict-item]
    pod["metadata"] = {**pod["metadata"], "name": "q", "annotations": first["annotations"]}  # type: ignore[dict-item]
    (folder / "bound.json").write_text(json.dumps(pod))
    second = simulate(path, capsys, folder)["nodes"][0]
    assert second["cpus"]["cpuset"] == "4-7"
    assert main(["simulate", "--cluster", str(folder), "--pod", str(path)]) == 0
    assert "CPUs 4-7; NUMA node 1 (cpu 4)" in capsys.readouterr().out


BUSY = "node(s) cpu usage exceed threshold"


def put_load(folder: Path, cpu: dict[str, str], *, old: str = "") -> None:
    """Write nodes of 10 CPUs and a card with their reported usage; `old` reported earlier."""
    objects: list[Any] = []
    for name, amount in cpu.items():
        amounts = {"cpu": "10", "memory": "64Gi", "pods": "9"}
        card = {"type": "gpu", "minor": 0, "health": True}
        resources = {f"koordinator.sh/{one}": "100" for one in ("gpu-core", "gpu-memory-ratio")}
        usage = {"resources": {"cpu": amount, "memory": "1Gi"}}
        minute = "06" if name == old else "10"
        status = {"updateTime": f"2026-01-05T10:{minute}:00Z", "nodeMetric": {"nodeUsage": usage}}
        objects += [
            {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": amounts}},
            {
                "kind": "Device",
                "metadata": {"name": name},
                "spec": {"devices": [{**card, "resources": resources}]},
            },
            {"kind": "NodeMetric", "metadata": {"name": name}, "status": status},
        ]
    (folder / "cluster").mkdir(exist_ok=True)
    (folder / "cluster" / "all.json").write_text(json.dumps({"kind": "List", "items": objects}))


def run_with_load(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, pods: str, config: str
) -> Any:
    settings, path = folder / "settings.yaml", folder / "pods.yaml"
    settings.write_text(config)
    path.write_text(pods)
    flag = "--pod" if command == "simulate" else "--pods"
    files = ["--cluster", str(folder / "cluster"), flag, str(path), "--config", str(settings)]
    main([command, *files, "-o", "json"])
    return json.loads(capsys.readouterr().out)


CARD = POD % ("priority: 0", "koordinator.sh/gpu: 50, cpu: 1")
LOAD_SCORE = "load_score: {enabled: true, dominant_resource_weight: 1}"


def test_the_idle_node_is_chosen_and_a_busy_one_refused_by_their_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_load(tmp_path, {"a": "5", "b": "1", "c": "9"})
    with_load = run_with_load(tmp_path, capsys, "simulate", CARD, LOAD_SCORE)
    assert [node["name"] for node in with_load["nodes"]] == ["b", "a", "c"]
    assert with_load["nodes"][2]["reasons"] == [BUSY]
    assert with_load["notes"] == []
    without = run_with_load(tmp_path, capsys, "simulate", CARD, "")
    assert [node["name"] for node in without["nodes"]] == ["a", "b", "c"]
    assert "load_score is off" in without["notes"][0]


def test_the_time_of_the_files_is_that_of_the_newest_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_load(tmp_path, {"a": "1", "b": "1"}, old="b")
    answer = run_with_load(tmp_path, capsys, "simulate", CARD, LOAD_SCORE)
    reasons = {node["name"]: node["reasons"] for node in answer["nodes"]}
    assert reasons == {"a": [], "b": ["node(s) nodeMetric expired"]}


def test_pods_of_a_replay_count_for_the_load_of_their_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_load(tmp_path, {"a": "2", "b": "3"})
    pods = [
        (POD % ("priority: 0", "koordinator.sh/gpu: 10, cpu: 2")).replace("name: p", f"name: p{i}")
        for i in range(4)
    ]
    settings = "device_score_weight: 0\n" + LOAD_SCORE
    report = run_with_load(tmp_path, capsys, "replay", "---".join(pods), settings)
    # each pod is estimated with 1.7 CPUs: 3.7 and 3, then 3.7 and 4.7
    assert [placement["node"] for placement in report["placements"]] == ["a", "b", "a", "b"]


def test_requests_that_are_not_for_devices_are_not_decided_by_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_load(tmp_path, {"a": "9"})
    plain = POD % ("priority: 0", "cpu: 1")
    assert run_with_load(tmp_path, capsys, "simulate", plain, LOAD_SCORE)["chosen"] == "a"


def test_reserved_devices_are_not_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_load(tmp_path, {"a": "1", "b": "1"})
    card = {"minor": 0, "resources": {"koordinator.sh/gpu-core": "100"}}
    annotations = {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [card]})}
    reservation = {
        "kind": "Reservation",
        "metadata": {"name": "r", "uid": "u-r", "annotations": annotations},
        "status": {"phase": "Available", "nodeName": "a"},
    }
    (tmp_path / "cluster" / "reservation.json").write_text(json.dumps(reservation))
    answer = run_with_load(tmp_path, capsys, "simulate", CARD, "")
    assert {node["name"]: node["fits"] for node in answer["nodes"]} == {"a": False, "b": True}


def test_of_many_nodes_the_best_and_some_names_are_printed() -> None:
    nodes = [NodeDecision(name=f"f{i}", fits=True, score=100 - i) for i in range(20)]
    nodes += [NodeDecision(name=f"r{i}", fits=False, reasons=("Too many pods",)) for i in range(9)]
    lines = decision_lines(PodDecision(pod="ns/p", chosen="f0", nodes=tuple(nodes)))
    assert lines[0] == "ns/p: f0 (20 of 29 nodes fit)"
    assert "  and 12 more nodes" in lines
    assert "  not r0, r1, r2, r3, r4, r5, r6, r7 and 1 more: Too many pods" in lines
