"""Grants beside what the kubelet gave to pods by itself."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.allocation.check import check_allocations, pod_allocation
from agent.snapshot.device_plugin import DevicePluginView, KubeletAllocation
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView
from tests.unit.allocation.made import (
    GPUS,
    HALF,
    NICS,
    WHOLE,
    box,
    entry,
    pod,
    snapshot,
    text,
    verdict,
)
from tests.unit.allocation.test_overlap import NPU as FIRST
from tests.unit.allocation.test_overlap import PIECES

NPU = replace(FIRST, info=replace(FIRST.info, minor=7, vendor_minor=7))
KUBELETS, ASKS = pod(8), pod(9)
VF = "0000:18:00.1"
CARD = str(GPUS[0].info.uuid)


def beside(
    annotation: str, *ids: str, other: PodView = KUBELETS, own_pod_view: PodView = ASKS
) -> NodeSnapshot:
    """A pod that the kubelet gave ids to, and one with a grant that came later."""
    allocations = pod(9, annotation)
    asks = replace(own_pod_view, annotations=allocations.annotations, wants=allocations.wants)
    there = (PIECES, *GPUS[1:], *NICS, NPU)
    assignment = KubeletAllocation(pod_uid=other.uid, resource="vendor.example/thing", ids=ids)
    return replace(
        snapshot([other, asks], devices=there),
        served=SnapshotPart(DevicePluginView(held=(assignment,)), 1.0),
    )


@pytest.mark.parametrize(
    ("annotation", "id_", "free"),
    [
        (text(entry(GPUS[0], WHOLE)), CARD, False),
        (text(entry(GPUS[0], HALF)), CARD, False),
        (text(entry(GPUS[1], WHOLE)), CARD, True),
        (text(entry(GPUS[0], WHOLE)), f"{CARD}::3", False),
        (text(entry(GPUS[0], WHOLE)), "MIG-1", False),
        (text(entry("MIG-0")), "MIG-1", True),
        (text(entry("MIG-1")), "MIG-1", False),
        (text(entry(NPU, {"ratio": 100})), "Ascend310P-7", False),
        (text(entry(NPU, {"ratio": 100})), "Ascend310P-2c-100-7", True),
        (text(entry(GPUS[1], WHOLE)), "npu-1", True),
        (text(entry(NICS[0], {"rdma": 100}), kind="rdma"), "0000:18:00.0", False),
        (text(entry(NICS[0], {"rdma": 100}), kind="rdma"), "0000:18:00.0::7", True),
        (text(entry(NICS[0], {"rdma": 100}), kind="rdma"), VF, False),
        (text(entry(NICS[0], {"rdma": 1}, vfs=[VF]), kind="rdma"), VF, False),
        (text(entry(NICS[0], {"rdma": 1}, vfs=["0000:18:00.2"]), kind="rdma"), VF, True),
        (text(entry(GPUS[0], WHOLE)), "of another node", True),
    ],
)
def test_what_the_kubelet_gave_away_is_not_granted_again(
    annotation: str, id_: str, free: bool
) -> None:
    now = beside(annotation, id_)
    view = check_allocations(now)
    assert verdict(view.pods[ASKS.uid]) == ("held" if free else "DeviceTaken")
    if not free:
        assert "team-a/train-8, by vendor.example/thing" in view.pods[ASKS.uid].message
    assert KUBELETS.uid not in view.pods
    sandbox = box(replace(ASKS, annotations=pod(9, annotation).annotations))
    assert pod_allocation(now, sandbox) == view.pods[ASKS.uid]


ALLOCATED = text(entry(GPUS[0], WHOLE))


@pytest.mark.parametrize(
    ("other", "ours"),
    [
        (KUBELETS, pod(9, phase="Running")),
        (pod(8, phase="Succeeded"), ASKS),
        (pod(8, text(entry(GPUS[1], WHOLE))), ASKS),
        (pod(8, text(entry(GPUS[1], WHOLE)), phase="Running"), ASKS),
    ],
    ids=["who runs by a grant", "an ended pod", "granted another card", "runs with another card"],
)
def test_but_the_pod_that_runs_keeps_a_card_and_some_ids_count_for_nothing(
    other: PodView, ours: PodView
) -> None:
    view = check_allocations(beside(ALLOCATED, CARD, other=other, own_pod_view=ours))
    assert verdict(view.pods[ours.uid]) == "held"


def test_a_pod_that_is_gone_holds_nothing_by_the_kubelets_account() -> None:
    now = beside(ALLOCATED, CARD)
    without_pod = replace(now, cluster=replace(now.cluster, pods=now.cluster.pods[1:]))
    assert verdict(check_allocations(without_pod).pods[ASKS.uid]) == "held"
    unknown = replace(without_pod, cluster=replace(without_pod.cluster, has_pod_list=False))
    assert verdict(check_allocations(unknown).pods[ASKS.uid]) == "DeviceTaken"


ONLY_NIC = text(entry(NICS[1], {"rdma": 100}), kind="rdma")


@pytest.mark.parametrize("annotation", ["{}", '{"gpu": []}', "no JSON", ONLY_NIC])
@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_a_grant_without_cards_does_not_hide_the_card_that_the_kubelet_gave(
    annotation: str, phase: str
) -> None:
    """Else a pod would write an annotation, and its card would be given to another."""
    now = beside(ALLOCATED, CARD, other=pod(8, annotation, phase=phase))
    for before in (now, replace(now, allocations=SnapshotPart(check_allocations(now), 1.0))):
        assert verdict(check_allocations(before).pods[ASKS.uid]) == "DeviceTaken"
        assert verdict(pod_allocation(before, box(pod(9, ALLOCATED)))) == "DeviceTaken"


@pytest.mark.parametrize(("phase", "expected"), [("Pending", "held"), ("Running", "DeviceTaken")])
def test_a_pod_whose_grant_is_refused_has_the_kubelets_card_only_if_it_runs(
    phase: str, expected: str
) -> None:
    now = beside(ALLOCATED, CARD, other=pod(8, text(entry("GPU-of-no-node")), phase=phase))
    for before in (now, replace(now, allocations=SnapshotPart(check_allocations(now), 1.0))):
        assert verdict(check_allocations(before).pods[ASKS.uid]) == expected
        assert verdict(pod_allocation(before, box(pod(9, ALLOCATED)))) == expected
