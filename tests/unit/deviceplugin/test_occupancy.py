from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.deviceplugin.occupancy import MAX_SAMPLE_AGE_S, DeviceOccupiedError
from agent.deviceplugin.registration import find_conflicting_socket
from agent.deviceplugin.resources import AllocationError
from agent.snapshot.allocation import AllocationRefused
from agent.snapshot.device import DeviceNode, Pairs
from agent.snapshot.device_plugin import KubeletAllocation
from agent.snapshot.inventory import ProcessSample
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView
from agent.snapshot.vendor import kubelet_vendors
from tests import factory
from tests.unit.deviceplugin.made import GPU, VENDORS, allocation_of, card, deciding, node, waiting

PID = 4711
MINE, OTHER = waiting(1), factory.pod(2)
ALLOCATIONS = (KubeletAllocation(pod_uid=MINE.uid, resource=GPU, ids=(card(3),)),)

NUMBERED = tuple(
    replace(
        one,
        info=replace(
            one.info, nodes=(DeviceNode(path=f"/dev/nvidia{index}", major=195, minor=index),)
        ),
    )
    for index, one in enumerate(map(factory.gpu, range(8)))
)


def busy(snapshot: NodeSnapshot, index: int, owner: PodView | None) -> NodeSnapshot:
    """Have a process of a pod on one card."""
    (vendor,) = snapshot.vendors
    key = factory.gpu(index).key
    samples = tuple(
        replace(sample, processes=(ProcessSample(pid=PID),)) if sample.key == key else sample
        for sample in vendor.samples.value
    )
    owners = {PID: (owner.uid, "c0ffee")} if owner else {}
    return replace(
        snapshot,
        vendors=(replace(vendor, samples=SnapshotPart(samples, factory.NOW_S)),),
        usage=SnapshotPart(replace(snapshot.usage.value, owners=owners), 1.0),
    )


def check(snapshot: NodeSnapshot, *cards: int, **settings: object) -> None:
    deciding(**settings).check_start(GPU, tuple(map(card, cards)), snapshot)


def test_a_process_of_another_living_pod_keeps_a_container_from_starting() -> None:
    snapshot = busy(node(MINE, kubelet_allocations=ALLOCATIONS, begun=(OTHER,)), 3, OTHER)
    with pytest.raises(DeviceOccupiedError) as raised:
        check(snapshot, 3)
    assert isinstance(raised.value, AllocationError)
    assert raised.value.reason == "DeviceOccupied"
    assert "process 4711 of team-a/train-2" in str(raised.value)
    check(snapshot, 2)
    check(snapshot, 3, check_occupancy=False)


def test_a_process_of_the_pod_itself_of_an_ended_pod_or_of_the_host_does_not() -> None:
    begun = replace(MINE, cgroup="/kubepods/pod1")
    check(busy(node(kubelet_allocations=ALLOCATIONS, begun=(begun,)), 3, begun), 3)
    check(busy(node(MINE, kubelet_allocations=ALLOCATIONS), 3, OTHER), 3)
    check(busy(node(MINE, kubelet_allocations=ALLOCATIONS, begun=(OTHER,)), 3, None), 3)


@pytest.mark.parametrize("end", ["deleted", "Succeeded", "Failed"])
def test_a_process_of_a_pod_whose_devices_are_free_already_keeps_a_container_from_starting(
    end: str,
) -> None:
    """A pod that was deleted by force runs on for seconds; the kubelet's file still has it."""
    old = KubeletAllocation(pod_uid=OTHER.uid, resource=GPU, ids=(card(3),), container="main")
    phase = "Running" if end == "deleted" else end
    snapshot = node(
        MINE, kubelet_allocations=(old, *ALLOCATIONS), begun=(replace(OTHER, phase=phase),)
    )
    check(busy(node(MINE, kubelet_allocations=(old, *ALLOCATIONS), begun=(OTHER,)), 3, OTHER), 3)
    if end == "deleted":
        cluster = replace(snapshot.cluster, pods=(MINE,), deleted_pods=frozenset({OTHER.uid}))
        snapshot = replace(snapshot, cluster=cluster)
    with pytest.raises(DeviceOccupiedError):
        check(busy(snapshot, 3, OTHER), 3)


def test_processes_on_the_exchanged_card_count_and_not_those_on_the_accounted_one() -> None:
    entries = (replace(ALLOCATIONS[0], exchanges=((card(3), card(5)),)),)
    with pytest.raises(DeviceOccupiedError):
        check(busy(node(MINE, kubelet_allocations=entries, begun=(OTHER,)), 5, OTHER), 3)
    check(busy(node(MINE, kubelet_allocations=entries, begun=(OTHER,)), 3, OTHER), 3)


@pytest.mark.parametrize(
    ("nodes", "exchanged", "refused"),
    [
        (("/dev/nvidiactl", "/dev/nvidia3"), (), False),
        (("/dev/nvidiactl", "/dev/nvidia2"), (), True),
        (("/dev/nvidia3", "/dev/nvidia5"), (), True),
        (("/dev/nvidia5",), ((card(3), card(5)),), False),
        (("/dev/nvidia3",), ((card(3), card(5)),), True),
        (("/dev/nvidia99",), (), False),
    ],
)
def test_a_stored_answer_with_the_node_of_another_card_starts_no_container(
    nodes: tuple[str, ...], exchanged: Pairs, *, refused: bool
) -> None:
    """The kubelet repeats its answer after a boot at which the cards got other numbers."""
    entry = replace(ALLOCATIONS[0], nodes=nodes, exchanges=exchanged)
    snapshot = node(MINE, devices=NUMBERED, kubelet_allocations=(entry,))
    for known in (snapshot, replace(snapshot, cluster=replace(snapshot.cluster, pods=()))):
        if refused:
            with pytest.raises(
                AllocationRefused, match=r"NodeMismatch: /dev/nvidia.*delete the pod"
            ):
                check(known, 3)
        else:
            check(known, 3)
        check(known, 4)
        check(known, 3, check_occupancy=False)


def test_the_nodes_of_a_pod_with_an_allocation_are_not_those_of_the_accounted_card() -> None:
    entry = replace(ALLOCATIONS[0], nodes=("/dev/nvidia2",))
    with pytest.raises(AllocationRefused):
        check(node(MINE, devices=NUMBERED, kubelet_allocations=(entry,)), 3)
    granted = {0: allocation_of(card(2))}
    known = node(MINE, devices=NUMBERED, grants=granted, kubelet_allocations=(entry,))
    check(known, 3)
    # neither list has it, as while the API server is down; its sandbox has the annotation
    check(replace(known, cluster=replace(known.cluster, pods=())), 3)
    ended = replace(MINE, phase="Succeeded")
    check(node(ended, devices=NUMBERED, kubelet_allocations=(entry,)), 3)


def test_old_samples_of_a_hanging_vendor_prevent_no_start() -> None:
    snapshot = busy(node(MINE, kubelet_allocations=ALLOCATIONS, begun=(OTHER,)), 3, OTHER)
    late = replace(snapshot, pods=replace(snapshot.pods, taken_s=factory.NOW_S + MAX_SAMPLE_AGE_S))
    with pytest.raises(DeviceOccupiedError):
        check(late, 3)
    check(replace(late, pods=replace(late.pods, taken_s=factory.NOW_S + MAX_SAMPLE_AGE_S + 1)), 3)


def test_without_the_kubelets_account_the_owner_of_a_card_is_unknown() -> None:
    """The container may be one of the very pod whose process is on the card."""
    check(busy(node(MINE, begun=(OTHER,)), 3, OTHER), 3)


def test_pods_that_hold_the_card_by_a_grant_may_be_on_it() -> None:
    snapshot = node(
        MINE,
        OTHER,
        kubelet_allocations=ALLOCATIONS,
        begun=(OTHER,),
        grants={1: allocation_of(card(3))},
    )
    check(busy(snapshot, 3, OTHER), 3)


def test_the_granted_cards_are_checked_and_not_those_the_kubelet_chose() -> None:
    third = factory.pod(3)
    snapshot = node(
        MINE, kubelet_allocations=ALLOCATIONS, begun=(third,), grants={0: allocation_of(card(6))}
    )
    check(busy(snapshot, 3, third), 3)
    with pytest.raises(DeviceOccupiedError):
        check(busy(snapshot, 6, third), 3)


def test_replicas_are_shared_and_not_checked() -> None:
    snapshot = busy(node(begun=(OTHER,)), 3, OTHER)
    decide = deciding(sharing=({"resource": GPU, "replicas": 2},))
    decide.check_start(GPU, (f"{card(3)}::0",), snapshot)
    check(snapshot)
    deciding().check_start(GPU, ("GPU-gone",), snapshot)


@pytest.mark.parametrize(
    ("vendor", "resource", "sockets", "found"),
    [
        ("nvidia", GPU, ("kubelet.sock", "nvidia-gpu.sock"), "nvidia-gpu.sock"),
        ("nvidia", GPU, ("nvidia.sock",), "nvidia.sock"),
        ("ascend", "huawei.com/Ascend910", ("Ascend910.sock",), "Ascend910.sock"),
        ("ascend", "huawei.com/npu", ("npu.sock",), "npu.sock"),
        ("cambricon", "cambricon.com/mlu", ("cambricon.sock",), "cambricon.sock"),
        ("rdma", "rdma/hca", ("hca.sock",), "hca.sock"),
        ("rdma", "rdma/hca", ("nvidia-gpu.sock",), ""),
        ("nvidia", GPU, ("xpu-agent-nvidia.com-gpu.1.sock", "kubelet.sock"), ""),
        ("nvidia", GPU, ("nvidia-notes.txt", "Ascend910.sock"), ""),
        ("nvidia", GPU, ("nvidiaGPU-1700000000.sock",), "nvidiaGPU-1700000000.sock"),
        ("nvidia", GPU, ("nvidia.com_gpu.sock",), "nvidia.com_gpu.sock"),
        ("nvidia", GPU, ("nvidia.com_hostdev.sock", "nvidia_cx6.sock"), ""),  # of NICs
        ("ascend", "huawei.com/Ascend910", ("huawei.com_nic.sock",), ""),
        ("rdma", "rdma/hca", ("rdma_hca.sock",), "rdma_hca.sock"),
    ],
)
def test_the_socket_of_another_vendors_plugin_is_recognised(
    vendor: str, resource: str, sockets: tuple[str, ...], found: str
) -> None:
    prefixes = kubelet_vendors(VENDORS)[vendor].socket_prefixes
    assert find_conflicting_socket(prefixes, resource, sockets) == found
