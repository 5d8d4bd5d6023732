"""Grants that no scheduler can have written for what the pod asks."""

from __future__ import annotations

import json

import pytest

from agent.allocation.check import check_allocations, pod_allocation
from agent.snapshot.pod import PodView, RequestedAmounts
from agent.wire_formats.pod import decode_pod
from tests.unit.allocation.made import (
    GPUS,
    HALF,
    NICS,
    WHOLE,
    box,
    container,
    entry,
    pod,
    snapshot,
    text,
    verdict,
    without_cluster,
)

K = "koordinator.sh/"
TWO = text(entry(GPUS[0], WHOLE), entry(GPUS[1], WHOLE))
NIC = text(entry(NICS[0], {"rdma": 100}), kind="rdma")
NO = "GrantNotAskedFor"


NAMES = {
    "k_gpu": f"{K}gpu",
    "k_gpu_shared": f"{K}gpu.shared",
    "k_gpu_core": f"{K}gpu-core",
    "k_gpu_memory": f"{K}gpu-memory",
    "k_gpu_memory_ratio": f"{K}gpu-memory-ratio",
    "k_rdma": f"{K}rdma",
    "nvidia_gpu": "nvidia.com/gpu",
    "other_thing": "example.com/thing",
}


def wants(**limits: object) -> RequestedAmounts:
    """Return what a pod with these limits wants, as its JSON is read."""
    full = {NAMES[name]: value for name, value in limits.items()}
    meta = {"uid": "a", "name": "p", "namespace": "n"}
    spec = {"containers": [{"name": "c", "resources": {"limits": full}}]}
    return decode_pod(json.dumps({"metadata": meta, "spec": spec}).encode()).wants or ()


@pytest.mark.parametrize(
    ("annotation", "limits", "expected"),
    [
        (text(entry(GPUS[0], WHOLE)), {}, NO),
        (text(entry(GPUS[0], WHOLE)), {"other_thing": 1}, NO),
        (text(entry(GPUS[0], WHOLE)), {"k_rdma": 100}, NO),
        (NIC, {"k_gpu": 100}, NO),
        (NIC, {"k_rdma": 100}, "held"),
        (text(entry(GPUS[0], WHOLE)), {"nvidia_gpu": 1}, "held"),
        (text(entry(GPUS[0], WHOLE)), {"k_gpu": 100}, "held"),
        (TWO, {"nvidia_gpu": 1}, NO),
        (TWO, {"nvidia_gpu": "2"}, "held"),
        (TWO, {"k_gpu_memory_ratio": 200}, "held"),
        (TWO, {"k_gpu_shared": 2, "k_gpu_memory": "163118Mi"}, "held"),
        (TWO, {"k_gpu_memory": "163118Mi"}, NO),
        (text(entry(GPUS[0], WHOLE)), {"k_gpu": 50}, NO),
        (text(entry(GPUS[0])), {"k_gpu": 50}, NO),
        (text(entry(GPUS[0], HALF)), {"k_gpu": 50}, "held"),
        (text(entry(GPUS[0], HALF)), {"k_gpu_core": 10, "k_gpu_memory_ratio": 50}, NO),
        (text(entry(GPUS[0], HALF)), {"k_gpu_core": 50, "k_gpu_memory": "40779Mi"}, "held"),
        (text(entry(GPUS[0], HALF)), {"k_gpu_core": 50, "k_gpu_memory": "8Gi"}, NO),
        (text(entry(GPUS[0], {"memory": "8Gi", "ratio": 10})), {"k_gpu_memory": "8Gi"}, "held"),
        (text(entry(GPUS[0], {"memory": "8Gi", "ratio": 90})), {"k_gpu_memory": "8Gi"}, NO),
        (text(entry(GPUS[0], {"memory": "70Gi", "ratio": 10})), {"k_gpu_memory_ratio": 10}, NO),
    ],
)
def test_nothing_is_granted_that_the_pod_does_not_request(
    annotation: str, limits: dict[str, object], expected: str
) -> None:
    one = pod(1, annotation, wants=wants(**limits))
    assert verdict(check_allocations(snapshot([one])).pods[one.uid]) == expected
    assert verdict(pod_allocation(snapshot([one]), box(one))) == expected


ONE = text(entry(GPUS[0], WHOLE))
UNKNOWN = "PodRequestsUnknown"


@pytest.mark.parametrize("there", [[], [pod(2)], [pod(1, ONE, wants=None)]])
def test_while_the_requests_of_a_pod_are_unknown_it_gets_no_device(there: list[PodView]) -> None:
    asks = box(pod(1, ONE))
    for now in (snapshot(there), snapshot(there, [asks])):
        refused = pod_allocation(now, asks)
        assert verdict(refused) == UNKNOWN
        assert refused is not None
        assert refused.grant.devices == ()
        assert check_allocations(now).held == {}
    assert verdict(pod_allocation(snapshot([pod(1, ONE)]), asks)) == "held"


def test_a_pod_with_unknown_requests_keeps_no_device_from_others() -> None:
    stranger, other = box(pod(1, ONE)), pod(2, ONE)
    now = snapshot([other], [stranger])
    assert verdict(check_allocations(now).pods[other.uid]) == "held"
    assert verdict(pod_allocation(now, box(other))) == "held"
    assert verdict(pod_allocation(now, stranger)) == UNKNOWN


def test_a_container_that_runs_keeps_its_devices_while_the_requests_are_unknown() -> None:
    runs, other = box(pod(1, ONE)), pod(2, ONE)
    now = snapshot([other], [runs], [container(runs)])
    view = check_allocations(now)
    assert view.held == {GPUS[0].key: (runs.uid,)}
    assert verdict(view.pods[other.uid]) == "DeviceTaken"
    assert [view.pods[uid].awaits_requests for uid in (runs.uid, other.uid)] == [True, False]
    assert pod_allocation(now, runs) == view.pods[runs.uid]


def test_without_a_cluster_nobody_can_name_requests_and_the_annotation_counts() -> None:
    asks = box(pod(1, ONE))
    now = snapshot([], [asks])
    alone = without_cluster(now)
    assert verdict(pod_allocation(alone, asks)) == "held"
    assert check_allocations(alone).pods[asks.uid].awaits_requests is False


@pytest.mark.parametrize(("limits", "claim"), [({}, ONE), ({"k_gpu": 100}, TWO), ({}, NIC)])
def test_a_container_that_runs_holds_nothing_once_its_pod_shows_smaller_requests(
    limits: dict[str, object], claim: str
) -> None:
    """It keeps what is inside it, but honest pods get the devices that it was never granted."""
    forger = pod(1, claim, wants=wants(**limits))
    honest = pod(2, claim)
    now = snapshot([forger, honest], [box(forger)], [container(box(forger))])
    view = check_allocations(now)
    assert verdict(view.pods[forger.uid]) == NO
    assert "a container of the pod runs" in view.pods[forger.uid].message
    assert verdict(view.pods[honest.uid]) == "held"
    assert verdict(pod_allocation(now, box(honest))) == "held"
    assert verdict(pod_allocation(now, box(forger))) == NO


def test_amounts_of_a_container_that_runs_are_not_judged_anew() -> None:
    """The total that they are compared with moves with the driver and with ECC."""
    one = pod(1, ONE, wants=wants(k_gpu=50))
    assert verdict(check_allocations(snapshot([one])).pods[one.uid]) == NO
    now = snapshot([one], [box(one)], [container(box(one))])
    assert verdict(check_allocations(now).pods[one.uid]) == "held"


def test_requests_are_those_of_all_containers_together() -> None:
    def of(*value: object) -> dict[str, object]:
        return {"resources": dict(zip(("limits", "requests"), value, strict=False)), "name": "c"}

    spec = {
        "initContainers": [of({f"{K}gpu": 50})],
        "containers": [
            of({f"{K}gpu": "50", "cpu": 1}),
            of({f"{K}gpu-memory": "1Gi"}, {}),
            of({}, {f"{K}rdma": 1}),
        ],
    }
    meta = {"uid": "a", "name": "p", "namespace": "n"}
    pod_view = decode_pod(json.dumps({"metadata": meta, "spec": spec}).encode())
    assert pod_view.wants == ((f"{K}gpu", 100), (f"{K}gpu-memory", 1 << 30), (f"{K}rdma", 1))
