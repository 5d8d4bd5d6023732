"""A replica of the extender under a strict kube-scheduler, at a strict API server."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from agent.wire_formats.device_allocated import ANNOTATION
from plugins.scheduler.server.settings import scheduler_configuration
from tests.apiserver import ApiServer, Fault
from tests.kubescheduler import ExtenderConfig, KubeScheduler, read_extenders
from tests.patience import PATIENCE_S
from tests.process.test_scheduler import CLUSTER, Replica, replica

Object = dict[str, Any]
CARDS = 27  # that are healthy: 23 of NVIDIA on three nodes, 4 of Cambricon
NVIDIA_NODES = ("a100-0", "a100-1", "h100-0")
ADVERTISED = {
    "nvidia.com/gpu": "8",
    "koordinator.sh/gpu-core": "800",
    "koordinator.sh/gpu-memory-ratio": "800",
    "koordinator.sh/rdma": "800",
}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """The cluster of the examples; its NVIDIA nodes advertise what their device plug-in does."""
    with ApiServer() as server:
        for file in ("nodes.yaml", "devices.yaml"):
            for document in yaml.safe_load_all((CLUSTER / file).read_text()):
                if document["kind"] == "Node" and document["metadata"]["name"] in NVIDIA_NODES:
                    document["status"]["allocatable"] |= ADVERTISED
                server.put(document)
        yield server


def config_for(one: Replica, **changes: object) -> ExtenderConfig:
    """Return the extender of the configuration that the command prints."""
    (config,) = read_extenders(scheduler_configuration(one.address.geturl()))
    return msgspec.structs.replace(config, **changes)


def put_pod(api: ApiServer, name: str, amounts: dict[str, str], **annotations: str) -> Object:
    resources = {"requests": amounts, "limits": amounts}
    container = {"name": "c", "image": "i", "resources": resources}
    metadata = {"name": name, "namespace": "default", "annotations": annotations}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    return api.put({**body, "spec": {"containers": [container]}})


def mixed_pods(api: ApiServer) -> list[Object]:
    """Create 100 pods that ask for more cards than there are."""
    half = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
    kinds = (
        {"nvidia.com/gpu": "1"},
        {"koordinator.sh/gpu": "200"},
        half,
        {"koordinator.sh/gpu": "100"},
        half,
    )
    return [put_pod(api, f"p{number:03}", kinds[number % 5]) for number in range(100)]


def bound_names(api: ApiServer) -> set[str]:
    return {pod["metadata"]["name"] for pod in api.list("pod") if pod["spec"].get("nodeName")}


def used_percent(api: ApiServer) -> Counter[tuple[str, int]]:
    """Return the percentage in use of each card, from the annotations of bound pods."""
    used = Counter[tuple[str, int]]()
    for pod in api.list("pod"):
        node = pod["spec"].get("nodeName")
        if node:
            for card in json.loads(pod["metadata"]["annotations"][ANNOTATION])["gpu"]:
                core = int(card["resources"]["koordinator.sh/gpu-core"])
                used[node, card["minor"]] += core
    return used


@pytest.mark.parametrize("is_capable", [True, False], ids=["names", "whole nodes"])
def test_of_100_pods_at_once_all_that_fit_are_bound(
    api: ApiServer, tmp_path: Path, *, is_capable: bool
) -> None:
    with replica(api, tmp_path) as one:
        one.wait_ready()
        pods = mixed_pods(api)
        api.faults.add(Fault(subresource="binding", delay_s=0.1, times=0))
        scheduler = KubeScheduler(api, (config_for(one, node_cache_capable=is_capable),))
        scheduler.add(*pods)
        scheduler.run(patience_s=PATIENCE_S)
        used = used_percent(api)
        assert len(used) == CARDS
        assert max(used.values()) == 100
        bound = bound_names(api)
        for pod in pods:
            name = pod["metadata"]["name"]
            if name not in bound:
                arguments = {"Pod": pod, "Nodes": None, "NodeNames": list(NVIDIA_NODES)}
                assert one.call("POST", "/filter", arguments)[1]["NodeNames"] == []
                assert "Insufficient" in scheduler.notes(name)[-1]
        assert scheduler.most_binds > 1


def test_refusals_are_counted_by_reason_in_the_event(api: ApiServer, tmp_path: Path) -> None:
    with replica(api, tmp_path) as one:
        one.wait_ready()
        scheduler = KubeScheduler(api, (config_for(one),))
        gang = {"gang.scheduling.koordinator.sh/name": "job"}
        pods = [put_pod(api, "p0", {"koordinator.sh/gpu": "1600"})]
        pods.append(put_pod(api, "p1", {"koordinator.sh/gpu": "1600"}, **gang))
        scheduler.add(*pods)
        scheduler.run(patience_s=PATIENCE_S)
        note = scheduler.notes("p0")[-1]
        assert note.startswith("0/5 nodes are available: ")
        assert "Insufficient GPU Devices" in note
        assert "gang" not in note
        alone = "gang default/job: its pods are placed one by one"
        assert f"Insufficient GPU Devices ({alone})" in scheduler.notes("p1")[-1]
        assert one.call("GET", "/apis/v1/explain/default/p1")[1]["filter"]["note"] == alone


def test_bindings_that_fail_are_tried_again_and_bound_once(api: ApiServer, tmp_path: Path) -> None:
    with replica(api, tmp_path) as one:
        one.wait_ready()
        api.faults.add(Fault(subresource="binding", status=500, times=20))
        scheduler = KubeScheduler(api, (config_for(one),))
        scheduler.add(*(put_pod(api, f"p{n}", {"nvidia.com/gpu": "1"}) for n in range(12)))
        scheduler.run(patience_s=PATIENCE_S)
        assert sum(used_percent(api).values()) == 1200
        for pod in api.list("pod"):
            assert pod["spec"].get("nodeName"), scheduler.notes(pod["metadata"]["name"])


def test_bindings_that_take_longer_than_the_time_out_are_made_once(
    api: ApiServer, tmp_path: Path
) -> None:
    with replica(api, tmp_path) as one:
        one.wait_ready()
        late = api.faults.add(Fault(subresource="binding", after_s=1.5, times=2))
        slow = api.faults.add(Fault(subresource="binding", delay_s=1.5, times=2))
        scheduler = KubeScheduler(api, (config_for(one, http_timeout="1s"),))
        names = [f"p{number}" for number in range(8)]
        scheduler.add(*(put_pod(api, name, {"nvidia.com/gpu": "2"}) for name in names))
        scheduler.run(patience_s=PATIENCE_S)
        assert (api.faults.hits(late), api.faults.hits(slow)) == (2, 2)
        assert bound_names(api) == set(names)
        used = used_percent(api)
        assert (len(used), max(used.values())) == (16, 100)
        notes = [note for name in names for note in scheduler.notes(name)]
        assert any("Client.Timeout exceeded" in note for note in notes)


def test_pods_without_managed_resources_never_reach_the_extender(
    api: ApiServer, tmp_path: Path
) -> None:
    with replica(api, tmp_path) as one:
        one.wait_ready()
        scheduler = KubeScheduler(api, (config_for(one),))
        scheduler.add(put_pod(api, "plain", {"cpu": "1"}))
        scheduler.run(patience_s=PATIENCE_S)
        bound = api.get("pod", "plain", "default")
        assert bound is not None
        assert bound["spec"]["nodeName"]
        assert "requests_total{" not in one.call("GET", "/metrics")[1]


def test_a_pod_of_higher_priority_takes_cards_from_its_victims(
    api: ApiServer, tmp_path: Path
) -> None:
    with replica(api, tmp_path) as one:
        one.wait_ready()
        scheduler = KubeScheduler(api, (config_for(one),))
        scheduler.add(*(put_pod(api, f"low{n}", {"nvidia.com/gpu": "7"}) for n in range(2)))
        scheduler.add(put_pod(api, "low2", {"nvidia.com/gpu": "8"}))
        scheduler.run(patience_s=PATIENCE_S)
        before = bound_names(api)
        high = put_pod(api, "high", {"nvidia.com/gpu": "4"})
        high["spec"]["priority"] = 1000
        scheduler.add(api.put({**high, "kind": "Pod"}))
        until_s = time.monotonic() + PATIENCE_S
        while "high" not in bound_names(api) and time.monotonic() < until_s:
            # the replica may hear of the deletion after kube-scheduler: a later event wakes the pod
            scheduler.wake()
            scheduler.run(patience_s=PATIENCE_S)
        assert "high" in bound_names(api), scheduler.notes("high")
        assert len(before - bound_names(api)) == 1


def test_while_the_extender_is_away_pods_wait_unless_it_is_ignorable(
    api: ApiServer, tmp_path: Path
) -> None:
    with replica(api, tmp_path) as one:
        one.wait_ready()
        config = config_for(one, http_timeout="1s")
    scheduler = KubeScheduler(api, (config,))
    scheduler.add(put_pod(api, "p", {"nvidia.com/gpu": "1"}))
    with pytest.raises(TimeoutError):
        scheduler.run(patience_s=1.0)
    assert scheduler.notes("p")[-1].endswith("connect: connection refused")
    ignorant = KubeScheduler(api, (msgspec.structs.replace(config, ignorable=True),))
    ignorant.add(put_pod(api, "q", {"nvidia.com/gpu": "1"}))
    ignorant.run(patience_s=PATIENCE_S)
    bound = api.get("pod", "q", "default")
    assert bound is not None
    assert bound["spec"]["nodeName"]  # by the default binder, without devices of ours
    assert ANNOTATION not in (bound["metadata"].get("annotations") or {})


def test_a_pod_that_no_vendors_plugin_can_serve_is_told_why_and_not_tried_again(
    api: ApiServer, tmp_path: Path
) -> None:
    node = api.get("node", "mlu-0")
    assert node is not None
    advertised = {"koordinator.sh/gpu-core": "400", "koordinator.sh/gpu-memory": "192Gi"}
    node["status"]["allocatable"] |= advertised
    api.put(node)
    share = {"koordinator.sh/gpu.shared": "1", "koordinator.sh/gpu-memory": "1Gi"}
    bodies = {
        "several": ({"koordinator.sh/gpu": "200"}, "multiple gpu share is not supported on device"),
        "coreless": (share, "gpu core resource is required"),
        "small": (
            {**share, "koordinator.sh/gpu-core": "5", "koordinator.sh/gpu-memory": "128Mi"},
            "gpu memory must not be less than 268435456 bytes",
        ),
    }
    with replica(api, tmp_path, more="vendor_annotations: true\n") as one:
        one.wait_ready()
        scheduler = KubeScheduler(api, (config_for(one),))
        for name, (amounts, _) in bodies.items():
            pod = put_pod(api, name, amounts)
            spec = {**pod["spec"], "nodeSelector": {"kubernetes.io/hostname": "mlu-0"}}
            scheduler.add(api.put({**pod, "kind": "Pod", "spec": spec}))
        scheduler.run(patience_s=PATIENCE_S)
        for name, (_, reason) in bodies.items():
            note = scheduler.notes(name)[-1]
            assert reason in note
            assert "Preemption is not helpful" in note
        bind_calls = 'xpu_scheduler_requests_total{verb="bind"'
        assert bind_calls not in one.call("GET", "/metrics")[1]


def test_a_pod_that_holds_all_cards_of_its_node_without_an_answer_is_bound_there(
    api: ApiServer, tmp_path: Path
) -> None:
    for name in ("a100-0", "a100-1"):
        api.delete("node", name)
    with replica(api, tmp_path) as one:
        one.wait_ready()
        lost = api.faults.add(Fault(subresource="binding", reset=True, times=4))
        scheduler = KubeScheduler(api, (config_for(one),))
        scheduler.add(put_pod(api, "p", {"nvidia.com/gpu": "8"}))
        scheduler.run(patience_s=PATIENCE_S)
        assert api.faults.hits(lost) == 4
        assert scheduler.notes("p") == [
            "default/p could not be bound in 4 tries",
            "Successfully assigned default/p to h100-0",
        ]
