from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.deviceplugin.resources import AllocationError, UnknownPodError
from agent.snapshot.allocation import (
    AllocatedDevice,
    AllocationRefused,
    AllocationView,
    DeviceAllocation,
    PodAllocation,
)
from agent.snapshot.device_plugin import KubeletAllocation
from agent.snapshot.host_devices import HostDevices, HostDevicesView
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import ResourceRequest
from agent.wire_formats.device_allocated import ANNOTATION
from plugins.vendors.cambricon.kubelet import RESOURCE
from tests import factory
from tests.unit.allocation.made import WHOLE, entry, text
from tests.unit.deviceplugin.made import (
    GPU,
    allocation_of,
    card,
    deciding,
    device,
    means,
    mlu,
    node,
    waiting,
)
from tests.unit.deviceplugin.requests import names, refusal, visible

NODE = factory.snapshot().node.name

# without a grant


def test_without_a_cluster_the_kubelets_choice_is_given() -> None:
    assert visible(node(clustered=False), 3, 1, last=False) == names(1, 3)


def test_a_pod_without_a_grant_gets_what_the_kubelet_chose() -> None:
    snapshot = node(waiting(1, 2))
    assert visible(snapshot, 3, 1) == names(1, 3)
    result = deciding().allocate(GPU, (card(3), card(1)), snapshot)
    assert result.pod_uid == waiting(1).uid


def test_an_id_that_is_not_known_is_refused() -> None:
    with pytest.raises(AllocationError, match=r"UnknownDevice: .* has no device 'GPU-x'"):
        deciding().allocate(GPU, ("GPU-x",), node(clustered=False))
    with pytest.raises(AllocationError, match="UnknownResource"):
        deciding().allocate("example.com/x", ("a",), node(clustered=False))


def test_a_card_that_another_pod_was_granted_is_not_given_away() -> None:
    running = factory.pod(9)
    snapshot = node(running, waiting(1), grants={0: allocation_of(card(3))})
    assert refusal(snapshot, 3).reason == "DeviceTaken"
    assert visible(snapshot, 2) == names(2)


def test_a_virtual_function_is_taken_by_itself_alone() -> None:
    cut = factory.nic(0, vfs=4)
    function = "0000:18:00.2"
    pods = (factory.pod(9), waiting(1, resource="rdma/hca"))
    grants = {0: allocation_of("0000:18:00.0", kind="rdma", vfs=(function,))}
    snapshot = node(*pods, devices=(cut,), grants=grants)
    snapshot = replace(
        snapshot,
        host_devices=SnapshotPart(HostDevicesView(vendors={"rdma": means()["nvidia"]}), 1.0),
    )
    decide = deciding()
    with pytest.raises(AllocationError, match="DeviceTaken"):
        decide.allocate("rdma/hca", (function,), snapshot)
    with pytest.raises(AllocationRefused, match="VerbsMissing"):  # it is asked for at the vendor's
        decide.allocate("rdma/hca", ("0000:18:00.3",), snapshot)


# whose is it


def test_the_grant_of_the_only_pod_that_waits_wins_over_the_kubelets_choice() -> None:
    snapshot = node(waiting(1, 2), grants={0: allocation_of(card(6), card(5))})
    assert visible(snapshot, 0, 1) == names(5, 6)
    assert deciding().allocate(GPU, (card(0), card(1)), snapshot).pod_uid == waiting(1).uid


@pytest.mark.parametrize(
    "other",
    [
        waiting(2, 1),
        waiting(2, 2, resource="example.com/gpu"),
        waiting(2, 2, phase="Succeeded"),
        waiting(2, 2, terminating=True),
        factory.pod(2),
    ],
    ids=["another count", "another resource", "ended", "ending", "asks for nothing"],
)
def test_pods_that_cannot_be_meant_do_not_count(other: object) -> None:
    snapshot = node(waiting(1, 2), other, grants={0: allocation_of(card(6), card(5))})  # type: ignore[arg-type]  # a pod
    assert visible(snapshot, 0, 1) == names(5, 6)


def test_a_pod_has_begun_once_it_has_a_cgroup_a_sandbox_or_devices() -> None:
    mine, other = waiting(1), waiting(2)
    grants = {0: allocation_of(card(6)), 1: allocation_of(card(5))}
    assert refusal(node(mine, other, grants=grants), 0).reason == "AmbiguousPod"
    begun = replace(other, cgroup="/kubepods/pod2")
    snapshot = node(mine, other, grants=grants)
    observations = replace(snapshot, pods=SnapshotPart((begun,), 1.0))
    assert visible(observations, 0) == names(6)
    kubelet_allocations = (
        KubeletAllocation(pod_uid=other.uid, resource=GPU, ids=(card(0),), container="main"),
    )
    assert visible(
        node(mine, other, grants=grants, kubelet_allocations=kubelet_allocations), 1
    ) == names(6)


def test_without_cgroups_and_runtime_the_pods_status_is_used() -> None:
    blind = SnapshotPart((), None)
    running = waiting(2, phase="Running")
    snapshot = node(
        waiting(1), running, grants={0: allocation_of(card(6)), 1: allocation_of(card(5))}
    )
    assert visible(replace(snapshot, pods=blind), 0) == names(6)


def test_after_a_reboot_a_pod_that_ran_before_is_requested_again() -> None:
    ran = waiting(1, phase="Running", containers=factory.pod(1).containers)
    assert visible(node(ran, grants={0: allocation_of(card(6))}), 0) == names(6)


def test_each_container_of_a_pod_is_requested_once() -> None:
    asks = tuple(
        ResourceRequest(container=name, resource=GPU, count=1, init=name == "init")
        for name in ("init", "a", "b")
    )
    first, second = waiting(1, asks=asks), waiting(2)
    grants = {0: allocation_of(card(6)), 1: allocation_of(card(5))}

    def after(answers: int) -> NodeSnapshot:
        entries = tuple(
            KubeletAllocation(pod_uid=first.uid, resource=GPU, ids=(card(i),))
            for i in range(answers)
        )
        return node(first, second, grants=grants, kubelet_allocations=entries)

    for answers in range(3):
        assert refusal(after(answers), 0).reason == "AmbiguousPod"
    assert visible(after(3), 0) == names(5)


def test_several_pods_without_a_grant_need_not_be_distinguished() -> None:
    snapshot = node(waiting(1), waiting(2))
    assert visible(snapshot, 4) == names(4)
    assert deciding().allocate(GPU, (card(4),), snapshot).pod_uid == ""


def test_several_pods_with_the_same_effect_need_not_be_distinguished() -> None:
    grant = allocation_of(card(6))
    assert visible(node(waiting(1), waiting(2), grants={0: grant, 1: grant}), 0) == names(6)


def test_of_several_pods_only_what_they_have_in_common_is_given_while_nri_gives_the_rest() -> None:
    grants = {0: allocation_of(card(6)), 1: allocation_of(card(5))}
    snapshot = node(waiting(1), waiting(2), grants=grants, in_force=True, handler="")
    result = deciding().allocate(GPU, (card(0),), snapshot)
    assert [one.path for one in result.edits.nodes] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
    ]
    assert result.pod_uid == ""


def test_without_nri_of_several_pods_none_is_guessed_and_the_message_says_what_to_do() -> None:
    grants = {0: allocation_of(card(6)), 1: allocation_of(card(5))}
    error = refusal(node(waiting(1), waiting(2), grants=grants), 0)
    assert error.reason == "AmbiguousPod"
    assert "team-a/train-1, team-a/train-2" in str(error)
    assert "turn NRI on" in str(error)


@pytest.mark.parametrize("in_force", [True, False])
def test_a_pod_with_and_one_without_a_grant_are_never_mixed_up(in_force: bool) -> None:
    # what is common to both is nothing, and nobody would give the rest to the one without
    snapshot = node(waiting(1), waiting(2), grants={0: allocation_of(card(6))}, in_force=in_force)
    assert refusal(snapshot, 0).reason == "AmbiguousPod"


def test_a_grant_that_was_refused_is_not_replaced_by_the_kubelets_choice() -> None:
    assert refusal(node(waiting(1), refused=(0,)), 0).reason == "DeviceUnknown"
    both = node(
        waiting(1), waiting(2), grants={1: allocation_of(card(5))}, refused=(0,), in_force=True
    )
    assert refusal(both, 0).reason == "AmbiguousPod"


def test_a_grant_of_other_devices_leaves_this_resource_to_the_kubelet() -> None:
    snapshot = node(waiting(1), grants={0: allocation_of("0000:18:00.0", kind="rdma")})
    assert visible(snapshot, 2) == names(2)


# what is not known yet


def test_a_card_of_which_a_granted_slice_is_gone_is_given_to_nobody_else() -> None:
    info = mlu(0)
    entry = AllocatedDevice(type="gpu", id=info.uuid or "", partition="smlu-1")
    snapshot = node(
        waiting(1),
        waiting(2, resource=RESOURCE),
        devices=(device(info), device(mlu(1))),
        grants={0: DeviceAllocation(devices=(entry,))},
    )
    snapshot = replace(
        snapshot,
        host_devices=SnapshotPart(HostDevicesView(vendors={"cambricon": HostDevices()}), 1.0),
    )
    with pytest.raises(AllocationError) as raised:
        deciding().allocate(RESOURCE, (info.uuid or "",), snapshot, last=True)
    assert raised.value.reason == "DeviceTaken"


def test_a_request_for_an_unknown_pod_can_be_retried() -> None:
    error = refusal(node(), 0, last=False)
    assert isinstance(error, UnknownPodError)
    assert error.reason == "PodUnknown"


def test_in_the_end_it_is_given_while_nri_corrects_it_and_else_refused() -> None:
    assert visible(node(in_force=True), 2) == names(2)
    error = refusal(node(), 2)
    assert not isinstance(error, UnknownPodError)
    assert "NRI" in str(error)


def test_a_grant_newer_than_the_last_check_is_checked_at_once() -> None:
    """The check of all grants runs every half second, and the kubelet admits nothing meanwhile."""
    asks = replace(
        waiting(1, node_name=NODE),
        annotations=((ANNOTATION, text(entry(factory.gpu(5), WHOLE))),),
        wants=((GPU, 1),),
    )
    snapshot = node(asks)
    new = replace(snapshot, allocations=SnapshotPart(AllocationView(), 1.0))
    assert visible(new, 0, last=False) == names(5)


def test_a_card_is_kept_from_others_before_its_grant_is_checked() -> None:
    """The kubelet asks for a pod without a grant right after one with a grant was admitted."""
    owner = replace(
        waiting(1, node_name=NODE),
        annotations=((ANNOTATION, text(entry(factory.gpu(5), WHOLE))),),
        wants=((GPU, 1),),
    )
    kubelet_allocations = (
        KubeletAllocation(pod_uid=owner.uid, resource=GPU, ids=(card(0),), container="main"),
    )
    snapshot = replace(
        node(owner, waiting(2), kubelet_allocations=kubelet_allocations),
        allocations=SnapshotPart(AllocationView(), 1.0),
    )
    result = deciding().allocate(GPU, (card(5),), snapshot)
    assert result.exchanges == ((card(5), card(0)),)
    over = replace(snapshot.cluster, pods=(replace(owner, phase="Failed"), waiting(2)))
    assert visible(replace(snapshot, cluster=over), 5) == names(5)


def test_a_refused_grant_is_checked_again_as_of_now() -> None:
    """Who held the card has ended since the last check."""
    asks = replace(
        waiting(1, node_name=NODE),
        annotations=((ANNOTATION, text(entry(factory.gpu(5), WHOLE))),),
        wants=((GPU, 1),),
    )
    refused = PodAllocation(uid=asks.uid, refusal="DeviceTaken", message="taken")
    view = AllocationView(pods={asks.uid: refused}, looked=frozenset({asks.uid}))
    assert visible(
        replace(node(asks), allocations=SnapshotPart(view, 1.0)), 0, last=False
    ) == names(5)


@pytest.mark.parametrize(
    ("snapshot", "reason"),
    [
        (node(waiting(1), refused=(0,)), "DeviceUnknown"),
        (node(waiting(1), waiting(2), grants={0: allocation_of(card(6))}), "AmbiguousPod"),
        (node(waiting(1), waiting(2, 3), grants={1: allocation_of(card(0))}), "DeviceTaken"),
    ],
)
def test_what_the_end_or_the_start_of_a_pod_may_cure_is_worth_a_new_try(
    snapshot: NodeSnapshot, reason: str
) -> None:
    error = refusal(snapshot, 0, last=False)
    assert isinstance(error, UnknownPodError)
    assert error.reason == reason
    assert not isinstance(refusal(snapshot, 0), UnknownPodError)


def test_a_host_that_was_not_read_yet_is_worth_a_new_try() -> None:
    blind = replace(node(clustered=False), host_devices=SnapshotPart(HostDevicesView()))
    assert isinstance(refusal(blind, 0, last=False), UnknownPodError)
    assert refusal(blind, 0).reason == "HostNotReadYet"
