from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.deviceplugin.resources import AllocationError, UnknownPodError
from agent.snapshot.device import DevicePartition
from agent.snapshot.device_plugin import KubeletAllocation
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import ResourceRequest
from tests import factory
from tests.unit.deviceplugin.made import (
    GPU,
    HCA,
    allocation_of,
    card,
    deciding,
    device,
    node,
    npu,
    waiting,
)

ALL = tuple(map(card, range(8)))


def chosen(snapshot: NodeSnapshot, free: str, size: int, required: str = "") -> list[int]:
    """Minors of the cards that are preferred of these free ones."""
    available = tuple(card(int(i)) for i in free)
    must = tuple(card(int(i)) for i in required)
    result = deciding().select_preferred(GPU, available, must, size, snapshot, last=True)
    return [ALL.index(name) for name in result]


def test_without_anybody_to_steer_cards_that_work_together_are_preferred() -> None:
    assert chosen(node(), "76543210", 2) == [0, 1]  # joined by NVLink
    assert chosen(node(), "7654321", 2, required="5") == [4, 5]  # the same memory node
    assert chosen(node(), "7654321", 7) == [1, 2, 3, 4, 5, 6, 7]


def test_what_was_granted_to_the_pod_that_waits_comes_first() -> None:
    snapshot = node(waiting(1, 2), grants={0: allocation_of(card(6), card(3))})
    assert chosen(snapshot, "01234567", 2) == [3, 6]
    # one of them is not free: the other one and what goes well with it
    assert chosen(snapshot, "0124567", 2) == [4, 6]
    assert chosen(snapshot, "01234567", 2, required="0") == [0, 3]


def test_several_pods_that_wait_steer_to_what_all_of_them_were_granted() -> None:
    alike = {0: allocation_of(card(6), card(3)), 1: allocation_of(card(3), card(6))}
    assert chosen(node(waiting(1, 2), waiting(2, 2), grants=alike), "01234567", 2) == [3, 6]
    apart = {0: allocation_of(card(6), card(3)), 1: allocation_of(card(4), card(5))}
    # what one of them has: whosever turn it is, the account of free cards stays true
    assert chosen(node(waiting(1, 2), waiting(2, 2), grants=apart), "01234567", 2) == [4, 5]


def test_a_granted_card_that_the_kubelet_does_not_offer_is_replaced_by_one_that_others_have() -> (
    None
):
    kubelet_allocations = (
        KubeletAllocation(
            pod_uid=factory.pod(9).uid, resource=GPU, ids=(card(6),), container="main"
        ),
    )
    grants = {0: allocation_of(card(3)), 1: allocation_of(card(6))}
    snapshot = node(
        factory.pod(9), waiting(1), grants=grants, kubelet_allocations=kubelet_allocations
    )
    # the kubelet accounts card 6 for the owner of card 3: so it may account card 3 for this pod
    assert chosen(snapshot, "0123457", 1) == [3]


def test_a_pod_without_a_grant_is_kept_off_cards_granted_to_others() -> None:
    holder = factory.pod(9)
    snapshot = node(holder, waiting(1, 2), grants={0: allocation_of(card(0), card(2))})
    assert 0 not in chosen(snapshot, "01234567", 2)
    assert chosen(snapshot, "012", 2) == [0, 1]  # what is free of grants first, then the best
    assert chosen(snapshot, "01234567", 8) == list(range(8))


def test_nics_are_near_to_the_cards_that_the_pod_has_and_cards_to_its_nics() -> None:
    asks = (
        ResourceRequest(container="main", resource=GPU, count=1),
        ResourceRequest(container="main", resource=HCA, count=1),
    )
    pod = waiting(1, asks=asks)
    nics = tuple(factory.nic(i).info.bus_id or "" for i in range(4))
    kubelet_allocations = (KubeletAllocation(pod_uid=pod.uid, resource=GPU, ids=(card(4),)),)
    snapshot = node(pod, kubelet_allocations=kubelet_allocations)
    assert deciding().select_preferred(HCA, nics, (), 1, snapshot, last=True) == (
        nics[2],
    )  # below 0000:97
    # the first one is cut into functions
    assert deciding().select_preferred(HCA, nics, (), 1, node(pod), last=True) == (nics[1],)
    kubelet_allocations = (KubeletAllocation(pod_uid=pod.uid, resource=HCA, ids=(nics[3],)),)
    assert chosen(node(pod, kubelet_allocations=kubelet_allocations), "01234567", 1)[0] // 4 == 1
    two = node(
        pod, waiting(2, asks=asks), kubelet_allocations=kubelet_allocations
    )  # whose the NIC is nobody can tell
    assert chosen(two, "01234567", 1) == [2]  # no NVLink is spoilt


def test_functions_are_of_the_nic_that_is_near_to_the_pods_cards() -> None:
    pod = waiting(1, resource=HCA)
    devices = (*map(factory.gpu, range(8)), *(factory.nic(i, vfs=2) for i in range(4)))
    kubelet_allocations = (KubeletAllocation(pod_uid=pod.uid, resource=GPU, ids=(card(0),)),)
    free = tuple(f"0000:{bus}:00.{i}" for _, _, bus in factory.NICS[::-1] for i in (1, 2))
    near = node(pod, devices=devices, kubelet_allocations=kubelet_allocations)
    assert deciding().select_preferred(HCA, free, (), 1, near, last=True) == ("0000:18:00.1",)
    two = node(
        waiting(1, 2, resource=HCA), devices=devices, kubelet_allocations=kubelet_allocations
    )
    assert deciding().select_preferred(HCA, free, ("0000:ce:00.2",), 2, two, last=True) == (
        "0000:ce:00.2",
        "0000:18:00.1",
    )
    # packed on few cards where nobody knows better
    other = node(pod, devices=devices)
    assert deciding().select_preferred(HCA, free[:4], (), 2, other, last=True) == (
        "0000:9a:00.1",
        "0000:9a:00.2",
    )
    # and on those of which something is taken already
    assert deciding().select_preferred(HCA, free[:3], (), 1, other, last=True) == ("0000:9a:00.1",)


@pytest.mark.parametrize(
    ("policy", "expected"), [("distributed", ("1::1", "0::3")), ("packed", ("0::3", "1::1"))]
)
def test_replicas_are_spread_and_taken_from_free_or_from_used_cards(
    policy: str, expected: tuple[str, ...]
) -> None:
    """V66 and V67."""
    rows = ({"resource": GPU, "replicas": 5},)
    decide = deciding(sharing=rows, replicas_policy=policy)
    free = tuple(f"{card(i)}::{n}" for i, n in ((0, 3), (0, 4), (1, 1), (1, 2), (1, 3), (1, 4)))
    snapshot = node(devices=tuple(map(factory.gpu, range(2))))
    result = decide.select_preferred(GPU, free, (), 2, snapshot, last=True)
    assert tuple(name.replace(card(0), "0").replace(card(1), "1") for name in result) == expected


def test_slices_are_packed_so_that_whole_cards_stay_empty() -> None:
    def cut(index: int) -> object:
        parts = tuple(
            DevicePartition(uuid=f"MIG-{index}-{i}", profile="1g.10gb", instance=i)
            for i in range(3)
        )
        labels = (("xpu-agent.io/mig", "true"),)
        return replace(factory.gpu(index).info, labels=labels, resources=(), partitions=parts)

    snapshot = node(devices=tuple(device(cut(i)) for i in range(2)))  # type: ignore[arg-type]  # cards
    free = ("MIG-0-0", "MIG-0-1", "MIG-0-2", "MIG-1-2", "MIG-1-1")  # one of the second is taken
    result = deciding().select_preferred("nvidia.com/mig-1g.10gb", free, (), 3, snapshot, last=True)
    assert result == ("MIG-1-1", "MIG-1-2", "MIG-0-0")


def test_chips_are_chosen_under_the_names_of_the_kubelet() -> None:
    snapshot = node(devices=tuple(device(npu(i)) for i in range(4)))
    free = ("Ascend910-3", "Ascend910-1", "Ascend910-2")
    assert deciding().select_preferred(
        "huawei.com/Ascend910", free, ("Ascend910-2",), 2, snapshot, last=True
    ) == (
        "Ascend910-1",
        "Ascend910-2",
    )


def test_an_id_that_is_gone_is_taken_last_and_never_a_failure() -> None:
    result = deciding().select_preferred(GPU, ("GPU-gone", card(7)), (), 2, node(), last=True)
    assert result == (card(7), "GPU-gone")
    result = deciding(sharing=({"resource": GPU, "replicas": 2},)).select_preferred(
        GPU, ("GPU-gone::0", f"{card(7)}::1"), (), 1, node(), last=True
    )
    assert result == (f"{card(7)}::1",)


def test_advice_waits_for_news_of_the_pod_where_there_is_a_cluster() -> None:
    available = tuple(map(card, (0, 1)))
    with pytest.raises(UnknownPodError, match="PodUnknown"):
        deciding().select_preferred(GPU, available, (), 1, node(waiting(1, 2)))
    assert deciding().select_preferred(GPU, available, (), 1, node(clustered=False)) == (card(0),)


def test_too_few_ids_are_the_only_refusal() -> None:
    with pytest.raises(AllocationError, match="not enough available devices to satisfy allocation"):
        deciding().select_preferred(GPU, (card(0), card(0)), (), 2, node(), last=True)


@given(
    st.lists(st.sampled_from([*ALL, "GPU-gone", ""]), max_size=12),
    st.lists(st.sampled_from([*ALL, "GPU-other"]), max_size=4),
    st.integers(0, 10),
)
def test_any_request_of_the_kubelet_is_answered_with_free_ids(
    free: list[str], required: list[str], size: int
) -> None:
    snapshot = node(factory.pod(9), waiting(1, 2), grants={0: allocation_of(card(3))})
    if size > len(set(free)):
        return
    result = deciding().select_preferred(
        GPU, tuple(free), tuple(required), size, snapshot, last=True
    )
    assert len(set(result)) == len(result) == size
    assert set(result) <= set(free)
    must = set(required) & set(free)
    assert must <= set(result) or len(must) > size
