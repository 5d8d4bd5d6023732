from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.allocation.slices import live_pods, slice_requests
from agent.snapshot.allocation import MEMORY, RATIO, AllocationView, DeviceAllocation, PodAllocation
from agent.snapshot.cluster import ClusterView
from agent.snapshot.container import PodSandbox, RuntimeView
from agent.snapshot.host_devices import HostDevices, HostDevicesView
from agent.snapshot.inventory import SliceRequest
from agent.snapshot.part import SnapshotPart
from tests.unit.allocation_slices.scene import MLU, NPU, PART, SLICERS, TEMPLATE, WHOLE, node, pod


def test_a_template_and_a_part_of_a_card_are_wished_for_and_a_whole_card_is_not() -> None:
    requests = slice_requests(node(("b", TEMPLATE), ("a", PART), ("c", WHOLE)), SLICERS)
    assert requests == {
        "ascend": (SliceRequest(pod="b", device=NPU.key, template="vir05_1c_16g"),),
        "cambricon": (
            SliceRequest(pod="a", device=MLU.key, core_percent=50, memory_bytes=1 << 30),
        ),
    }


def test_a_part_of_a_cards_memory_is_a_part_of_the_card() -> None:
    memory = replace(PART, resources=((MEMORY, 1 << 30), (RATIO, 6)))
    (wish,) = slice_requests(node(("a", memory)), SLICERS)["cambricon"]
    assert (wish.core_percent, wish.memory_bytes) == (None, 1 << 30)


def test_a_refused_grant_wishes_for_nothing() -> None:
    refused = PodAllocation(
        uid="a", grant=DeviceAllocation(devices=(PART,)), refusal="DeviceConflict"
    )
    snapshot = replace(node(), allocations=SnapshotPart(AllocationView(pods={"a": refused}), 0.0))
    assert slice_requests(snapshot, SLICERS) == {}


def test_a_device_that_is_not_here_is_not_wished_for() -> None:
    assert slice_requests(node(("a", replace(PART, id="MLU-9"))), SLICERS) == {}


@pytest.mark.parametrize("by", ["the pod's class", "the node's default"])
def test_where_the_runtime_cuts_itself_nothing_is_wished_for(by: str) -> None:
    snapshot = node(("a", TEMPLATE))
    if by == "the pod's class":
        box = PodSandbox(id="s", uid="a", runtime_handler="ascend")
        snapshot = replace(snapshot, runtime=SnapshotPart(RuntimeView(sandboxes={"s": box}), 0.0))
    else:
        host_devices = HostDevicesView(
            vendors={"ascend": HostDevices(default_handler="ascend-docker-runtime")}
        )
        snapshot = replace(snapshot, host_devices=SnapshotPart(host_devices, 0.0))
    assert slice_requests(snapshot, SLICERS) == {}


def test_pods_live_that_are_listed_and_not_over_or_have_a_sandbox_or_a_cgroup() -> None:
    boxes = {
        "s": PodSandbox(id="s", uid="boxed"),
        "t": PodSandbox(id="t", uid="stopped", stopped=True),
    }
    snapshot = replace(
        node(pods=(pod("listed"), pod("over", "Succeeded"))),
        runtime=SnapshotPart(RuntimeView(sandboxes=boxes), 0.0),
        pods=SnapshotPart((pod("grouped"),), 0.0),
    )
    assert live_pods(snapshot) == frozenset({"listed", "boxed", "grouped"})


@pytest.mark.parametrize(
    ("cluster", "runtime"),
    [
        (ClusterView(is_clustered=True), RuntimeView(state="synchronized")),
        (ClusterView(), RuntimeView(state="registered")),
        (ClusterView(), RuntimeView()),
    ],
)
def test_without_a_list_it_is_unknown_which_pods_have_ended(
    cluster: ClusterView, runtime: RuntimeView
) -> None:
    snapshot = replace(node(), cluster=cluster, runtime=SnapshotPart(runtime, 0.0))
    assert live_pods(snapshot) is None


def test_without_a_cluster_the_runtime_knows() -> None:
    runtime = RuntimeView(state="synchronized")
    snapshot = replace(node(), cluster=ClusterView(), runtime=SnapshotPart(runtime, 0.0))
    assert live_pods(snapshot) == frozenset()
