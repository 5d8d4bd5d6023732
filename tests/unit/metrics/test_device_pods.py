"""Series of devices name the pods that use them, and say why where they cannot."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from agent.metrics.exposition import MetricsRenderer
from agent.snapshot.allocation import AllocationView, PodAllocation
from agent.snapshot.device import DevicePartition, Health, HealthState
from agent.snapshot.device_plugin import DevicePluginView, KubeletAllocation
from agent.snapshot.inventory import DeviceSample, MetricFamily, MetricValue, ProcessSample
from agent.snapshot.node import NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.vendor import (
    AliasLabel,
    AliasSource,
    AliasTable,
    DeviceValue,
    LabelOrigin,
    MetricAlias,
)
from tests.factory import NOW_S, gpu, nic, pod, snapshot

POD, OTHER = pod(0), pod(1)
CARD = gpu(0)
Labels = dict[str, str]


def series(
    snap: NodeSnapshot, name: str = "xpu_device_healthy", families: Iterable[MetricFamily] = ()
) -> list[Labels]:
    """Return the labels of a family's samples on the page, in order."""
    page = MetricsRenderer({"nvidia": tuple(families)}).render(snap, NOW_S).decode()
    return [
        sample.labels
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name
    ]


def names(labels: Labels) -> tuple[str | None, ...]:
    return tuple(map(labels.get, ("namespace", "pod", "container", "pod_uid")))


def reasons(snap: NodeSnapshot) -> list[str]:
    return [labels["reason"] for labels in series(snap, "xpu_device_pod_unknown")]


def allocation_part(
    *uids: str, allocations: Iterable[PodAllocation] = ()
) -> SnapshotPart[AllocationView]:
    pods = {allocation.uid: allocation for allocation in allocations}
    return SnapshotPart(AllocationView(held={CARD.key: uids}, pods=pods), NOW_S)


def by_kubelet(*ids: str, container: str = "worker-0") -> SnapshotPart[DevicePluginView]:
    kubelet_allocation = KubeletAllocation(
        pod_uid=POD.uid, resource="nvidia.com/gpu", ids=ids, container=container
    )
    return SnapshotPart(DevicePluginView(held=(kubelet_allocation,)), NOW_S)


def with_processes(snap: NodeSnapshot, **owners: tuple[str, str]) -> NodeSnapshot:
    """Have processes 1, 2, … of these containers run on the card."""
    pids = range(1, len(owners) + 1)
    sample = DeviceSample(key=CARD.key, processes=tuple(ProcessSample(pid=pid) for pid in pids))
    vendor = VendorState(vendor="nvidia", samples=SnapshotPart((sample,), NOW_S))
    usage = replace(snap.usage.value, owners=dict(zip(pids, owners.values(), strict=True)))
    return replace(snap, vendors=(vendor,), usage=SnapshotPart(usage, NOW_S))


def test_the_pod_that_was_granted_a_device_is_on_its_series() -> None:
    snap = replace(snapshot((CARD,), pods=(POD,)), allocations=allocation_part(POD.uid))
    (labels,) = series(snap)
    assert names(labels) == ("team-a", "train-0", "worker-0", POD.uid)
    assert reasons(snap) == []


def test_a_card_that_several_pods_share_has_a_series_for_each() -> None:
    snap = replace(
        snapshot((CARD,), pods=(POD, OTHER)), allocations=allocation_part(POD.uid, OTHER.uid)
    )
    assert [labels["pod"] for labels in series(snap)] == ["train-0", "train-1"]


def test_a_free_device_has_no_label_of_a_pod_and_the_reason_is_exported() -> None:
    snap = snapshot((CARD,), pods=(POD,))
    (labels,) = series(snap)
    assert names(labels) == (None, None, None, None)
    assert reasons(snap) == ["NoPod"]


@pytest.mark.parametrize("device_id", [CARD.info.uuid, f"{CARD.info.uuid}::3"])
def test_a_pod_that_got_a_card_or_a_replica_of_the_kubelet_is_on_its_series(
    device_id: str,
) -> None:
    snap = replace(snapshot((CARD,), pods=(POD,)), served=by_kubelet(device_id))
    (labels,) = series(snap)
    assert names(labels) == ("team-a", "train-0", "worker-0", POD.uid)


def of_another_plugin(resource: str, device_id: str) -> SnapshotPart[tuple[KubeletAllocation, ...]]:
    kubelet_allocation = KubeletAllocation(
        pod_uid=POD.uid, resource=resource, ids=(device_id,), container="worker-0"
    )
    return SnapshotPart((kubelet_allocation,), NOW_S)


@pytest.mark.parametrize(
    ("resource", "device_id", "is_named"),
    [
        ("nvidia.com/gpu", str(CARD.info.uuid), True),
        ("nvidia.com/gpu", "card-0", True),  # the driver's number of the card
        ("nvidia.com/gpu", "card-1", False),
        ("huawei.com/Ascend910", "Ascend910-0", False),  # a device of another maker
        ("nvidia.com/gpu", "", False),
    ],
)
def test_a_pod_that_got_a_card_by_another_plugin_is_on_its_series(
    resource: str, device_id: str, is_named: bool
) -> None:
    allocation = of_another_plugin(resource, device_id)
    snap = replace(snapshot((CARD,), pods=(POD,)), kubelet_devices=allocation)
    assert (series(snap)[0].get("pod") == "train-0") is is_named


def test_a_pod_that_got_a_slice_is_on_the_series_of_its_card() -> None:
    card = gpu(0, partitions=(DevicePartition(profile="1g.10gb", uuid="MIG-1"),))
    snap = replace(snapshot((card,), pods=(POD,)), served=by_kubelet("MIG-1"))
    (labels,) = series(snap)
    assert labels["pod"] == "train-0"


SLICE_MEMORY = MetricFamily(
    name="xpu_device_slice_bytes",
    type="gauge",
    help="B.",
    labels=("mig_uuid",),
    slice_label="mig_uuid",
)
BY_NUMBER = MetricFamily(
    name="xpu_npu_vnpu_bytes",
    type="gauge",
    help="B.",
    labels=("port", "vnpu"),
    slice_label="vnpu",
)


def sliced(*owners: str) -> NodeSnapshot:
    """Return a node with a card of two slices that have readings; owners are uids of pods."""
    parts = tuple(
        DevicePartition(profile="1g.10gb", uuid=f"MIG-{number}", owner=owner)
        for number, owner in enumerate((*owners, "", "")[:2])
    )
    readings = tuple(
        MetricValue(family=SLICE_MEMORY.name, value=1.0, labels=(part.uuid,)) for part in parts
    )
    sample = DeviceSample(key=CARD.key, readings=readings)
    vendor = VendorState(vendor="nvidia", samples=SnapshotPart((sample,), NOW_S))
    snap = snapshot((gpu(0, partitions=parts),), pods=(POD, OTHER))
    return replace(snap, vendors=(vendor,))


def slice_pods(snap: NodeSnapshot) -> list[tuple[str, str | None]]:
    rows = series(snap, SLICE_MEMORY.name, (SLICE_MEMORY,))
    return [(labels["mig_uuid"], labels.get("pod")) for labels in rows]


def test_readings_of_a_slice_have_the_pod_that_got_the_slice_and_no_other() -> None:
    snap = replace(sliced(), served=by_kubelet("MIG-0"))
    assert slice_pods(snap) == [("MIG-0", "train-0"), ("MIG-1", None)]


def test_readings_of_a_slice_that_has_a_number_have_its_pod_and_other_numbers_mean_nothing() -> (
    None
):
    parts = tuple(
        DevicePartition(profile="vir02", uuid=f"{CARD.key}-vnpu-{number}", instance=number)
        for number in (100, 101)
    )
    readings = tuple(
        MetricValue(family=BY_NUMBER.name, value=1.0, labels=("101", str(part.instance)))
        for part in parts
    )
    sample = DeviceSample(key=CARD.key, readings=readings)
    vendor = VendorState(vendor="nvidia", samples=SnapshotPart((sample,), NOW_S))
    snap = replace(
        snapshot((gpu(0, partitions=parts),), pods=(POD, OTHER)),
        vendors=(vendor,),
        served=by_kubelet(parts[0].uuid),
    )
    rows = series(snap, BY_NUMBER.name, (BY_NUMBER,))
    assert [(labels["vnpu"], labels.get("pod")) for labels in rows] == [
        ("100", "train-0"),
        ("101", None),
    ]


def test_a_slice_that_was_made_for_a_pod_has_that_pod() -> None:
    snap = replace(sliced(OTHER.uid, POD.uid), allocations=allocation_part(POD.uid, OTHER.uid))
    assert slice_pods(snap) == [("MIG-0", "train-1"), ("MIG-1", "train-0")]


def test_a_process_names_the_pod_of_a_slice() -> None:
    snap = replace(sliced(), allocations=allocation_part(POD.uid, OTHER.uid))
    (sample,) = snap.vendors[0].samples.value
    processes = (ProcessSample(pid=1, partition="MIG-1"), ProcessSample(pid=2, partition="MIG-0"))
    vendor = VendorState(
        vendor="nvidia", samples=SnapshotPart((replace(sample, processes=processes),), NOW_S)
    )
    owners = {1: (POD.uid, POD.containers[0].id), 2: (OTHER.uid, OTHER.containers[0].id)}
    usage = SnapshotPart(replace(snap.usage.value, owners=owners), NOW_S)
    running = replace(snap, vendors=(vendor,), usage=usage)
    assert slice_pods(running) == [("MIG-0", "train-1"), ("MIG-1", "train-0")]


def test_a_pod_whose_slice_is_not_known_may_use_each_slice_without_another_user() -> None:
    snap = replace(sliced(OTHER.uid), allocations=allocation_part(POD.uid, OTHER.uid))
    assert slice_pods(snap) == [("MIG-0", "train-1"), ("MIG-1", "train-0")]


def test_the_annotation_decides_if_the_kubelet_counts_another_card() -> None:
    other = gpu(1)
    snap = replace(
        snapshot((CARD, other), pods=(POD,)),
        allocations=allocation_part(POD.uid, allocations=(PodAllocation(uid=POD.uid),)),
        served=by_kubelet(str(other.info.uuid)),
    )
    assert [labels.get("pod") for labels in series(snap)] == ["train-0", None]


def test_a_process_names_the_pod_where_there_is_no_allocation() -> None:
    owner = (POD.uid, POD.containers[0].id)
    snap = with_processes(snapshot((CARD,), pods=(POD,)), first=owner)
    (labels,) = series(snap)
    assert names(labels) == ("team-a", "train-0", "worker-0", POD.uid)


def test_a_process_names_the_container_of_a_pod_that_has_several() -> None:
    two = pod(0, containers=2)
    snap = replace(snapshot((CARD,), pods=(two,)), allocations=allocation_part(two.uid))
    assert series(snap)[0].get("container") is None
    assert reasons(snap) == ["SeveralContainers"]
    running = with_processes(snap, first=(two.uid, two.containers[1].id))
    assert series(running)[0]["container"] == "worker-1"
    assert reasons(running) == []


def test_processes_of_a_pod_without_a_grant_do_not_hide_the_pod_with_the_grant() -> None:
    snap = replace(snapshot((CARD,), pods=(POD, OTHER)), allocations=allocation_part(POD.uid))
    running = with_processes(snap, first=(OTHER.uid, OTHER.containers[0].id))
    assert [labels["pod"] for labels in series(running)] == ["train-0"]


def test_a_pod_that_nobody_lists_has_its_uid_and_the_reason_is_exported() -> None:
    snap = replace(snapshot((CARD,)), allocations=allocation_part("u-1"))
    (labels,) = series(snap)
    assert names(labels) == (None, None, None, "u-1")
    assert reasons(snap) == ["PodNotListed"]


def test_a_pod_that_is_not_listed_yet_has_the_names_of_its_allocation() -> None:
    allocation = PodAllocation(uid="u-1", namespace="d", name="new")
    snap = replace(snapshot((CARD,)), allocations=allocation_part("u-1", allocations=(allocation,)))
    assert series(snap)[0]["pod"] == "new"


def test_readings_of_a_vendor_have_the_pod_too_and_those_of_one_pod_have_that_one() -> None:
    card = MetricFamily(name="xpu_rdma_bytes", type="gauge", help="Bytes.")
    own = MetricFamily(name="xpu_rdma_handles", type="gauge", help="H.", labels=("pod_uid",))
    device = nic(0)
    sample = DeviceSample(
        key=device.key,
        readings=(
            MetricValue(family=card.name, value=1.0),
            MetricValue(family=own.name, value=2.0, labels=(OTHER.uid,)),
        ),
    )
    vendor = VendorState(vendor="rdma", samples=SnapshotPart((sample,), NOW_S))
    snap = replace(
        snapshot((device,), pods=(POD, OTHER)),
        vendors=(vendor,),
        allocations=SnapshotPart(AllocationView(held={device.key: (POD.uid,)}), NOW_S),
    )
    (of_card,) = series(snap, card.name, (card, own))
    (of_pod,) = series(snap, own.name, (card, own))
    assert names(of_card) == ("team-a", "train-0", "worker-0", POD.uid)
    assert names(of_pod) == ("team-a", "train-1", None, OTHER.uid)


def figures(snap: NodeSnapshot, name: str) -> dict[tuple[str | None, ...], float]:
    """Return a family's values by pod, container and process."""
    page = MetricsRenderer({}).render(snap, NOW_S).decode()
    return {
        tuple(map(sample.labels.get, ("pod", "container", "pid"))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name
    }


def running(*processes: ProcessSample, **owners: tuple[str, str]) -> NodeSnapshot:
    """Return a node whose card runs these processes; `owners` has containers by `pid_N`."""
    sample = DeviceSample(key=CARD.key, processes=processes)
    vendor = VendorState(vendor="nvidia", samples=SnapshotPart((sample,), NOW_S))
    snap = replace(
        snapshot((CARD,), pods=(POD, OTHER)), allocations=allocation_part(POD.uid, OTHER.uid)
    )
    by_pid = {int(name.removeprefix("pid_")): owner for name, owner in owners.items()}
    usage = SnapshotPart(replace(snap.usage.value, owners=by_pid), NOW_S)
    return replace(snap, vendors=(vendor,), usage=usage)


IN_POD, IN_OTHER = ((one.uid, one.containers[0].id) for one in (POD, OTHER))


def test_each_process_has_its_memory_and_its_own_pod_on_a_card_that_pods_share() -> None:
    snap = running(
        ProcessSample(pid=1, memory_bytes=100, core_percent=20.0),
        ProcessSample(pid=2, memory_bytes=30),
        ProcessSample(pid=3, memory_bytes=7),
        pid_1=IN_POD,
        pid_2=IN_OTHER,
    )
    assert figures(snap, "xpu_device_process_memory_used_bytes") == {
        ("train-0", "worker-0", "1"): 100,
        ("train-1", "worker-0", "2"): 30,
        (None, None, "3"): 7,
    }
    assert figures(snap, "xpu_device_process_utilization_ratio") == {
        ("train-0", "worker-0", "1"): 0.2
    }


def test_a_process_has_its_units_and_its_address_space_and_no_pod_has_their_sum() -> None:
    snap = running(
        ProcessSample(
            pid=1, virtual_bytes=5, engine_percents=(("encoder", 20.0), ("decoder", 50.0))
        ),
        ProcessSample(pid=2),
        pid_1=IN_POD,
        pid_2=IN_POD,
    )
    of_process = ("train-0", "worker-0", "1")
    assert figures(snap, "xpu_device_process_virtual_memory_bytes") == {of_process: 5}
    page = MetricsRenderer({}).render(snap, NOW_S).decode()
    busy = [line for line in page.splitlines() if line.startswith("xpu_device_process_engine_r")]
    assert [line.partition(",pid=")[2] for line in busy] == [
        '"1",engine="encoder"} 0.2',
        '"1",engine="decoder"} 0.5',
    ]
    assert not [line for line in page.splitlines() if "xpu_device_pod_engine" in line]


def test_under_another_exporters_name_a_process_has_its_own_pod_too() -> None:
    snap = running(
        ProcessSample(pid=1, memory_bytes=100),
        ProcessSample(pid=2, memory_bytes=30),
        pid_1=IN_POD,
    )
    alias = MetricAlias(
        name="other_process_bytes",
        type="gauge",
        sources=(AliasSource(value=DeviceValue.PROCESS_MEMORY_BYTES),),
        labels=(AliasLabel("pod", LabelOrigin.POD), AliasLabel("pid", LabelOrigin.READING, "pid")),
    )
    table = AliasTable(name="other", exporter="other", maker="nvidia", metrics=(alias,))
    page = MetricsRenderer({}, aliases=("other",), alias_tables=(table,)).render(snap, NOW_S)
    lines = [x for x in page.decode().splitlines() if x.startswith("other_process_bytes{")]
    assert sorted(lines) == [
        'other_process_bytes{pod="train-0",pid="1"} 100',
        # nobody knows whose it is: each pod that was granted the card may be
        'other_process_bytes{pod="train-0",pid="2"} 30',
        'other_process_bytes{pod="train-1",pid="2"} 30',
    ]


def test_processes_of_one_container_are_added_up_and_those_of_no_pod_count_for_none() -> None:
    snap = running(
        ProcessSample(pid=1, memory_bytes=100, core_percent=20.0),
        ProcessSample(pid=2, memory_bytes=30, core_percent=5.0),
        ProcessSample(pid=3, memory_bytes=7),
        ProcessSample(pid=4, memory_bytes=5),
        pid_1=IN_POD,
        pid_2=IN_POD,
        pid_4=IN_OTHER,
    )
    assert figures(snap, "xpu_device_pod_memory_used_bytes") == {
        ("train-0", "worker-0", None): 130,
        ("train-1", "worker-0", None): 5,
    }
    assert figures(snap, "xpu_device_pod_utilization_ratio") == {
        ("train-0", "worker-0", None): 0.25
    }


def test_a_sum_of_which_a_part_is_not_known_is_absent() -> None:
    snap = running(
        ProcessSample(pid=1, memory_bytes=100),
        ProcessSample(pid=2),
        pid_1=IN_POD,
        pid_2=IN_POD,
    )
    assert figures(snap, "xpu_device_pod_memory_used_bytes") == {}
    assert figures(snap, "xpu_device_process_memory_used_bytes") == {
        ("train-0", "worker-0", "1"): 100
    }


def test_a_process_on_two_slices_of_a_card_has_one_series_with_both_parts() -> None:
    snap = running(
        ProcessSample(pid=1, memory_bytes=100, partition="MIG-0"),
        ProcessSample(pid=1, memory_bytes=11, partition="MIG-1"),
        pid_1=IN_POD,
    )
    name = "xpu_device_process_memory_used_bytes"
    assert figures(snap, name) == {("train-0", "worker-0", "1"): 111}


def test_the_reason_and_the_state_of_a_sick_device_are_labels() -> None:
    health = Health(state=HealthState.FAILED, reason="Xid79", message="fell off the bus")
    snap = snapshot((gpu(0, health=health), gpu(1)))
    (labels,) = series(snap, "xpu_device_health_reason")
    assert (labels["state"], labels["reason"]) == ("failed", "Xid79")
