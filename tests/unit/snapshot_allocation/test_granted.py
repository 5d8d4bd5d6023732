from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.snapshot.allocation import (
    AllocatedDevice,
    AllocationRefused,
    DeviceAllocation,
    match_devices,
    sort_by_bus_id,
)
from agent.snapshot.container import ContainerSpec
from agent.snapshot.device import DeviceKind, DevicePartition, VendorDevice
from agent.snapshot.edits import (
    ContainerEdits,
    ContainerNote,
    DeviceNodeEdit,
    FolderEdit,
    MountEdit,
    RlimitEdit,
    merge_edits,
)
from tests.hostile import texts, vendor_devices

CARD = VendorDevice(
    kind=DeviceKind.GPU,
    vendor="nvidia",
    bus_id="0000:10:00.0",
    uuid="GPU-0",
    minor=0,
    partitions=(DevicePartition(uuid="MIG-1", profile="1g", instance=1),),
)
NIC = replace(CARD, kind=DeviceKind.RDMA, uuid="0000:18:00.0", bus_id="0000:18:00.0")


def matches(*entries: AllocatedDevice) -> list[tuple[str, str]]:
    pairs = match_devices(DeviceAllocation(devices=entries), (CARD, NIC))
    return [(m.device.key, m.partition.uuid if m.partition else "") for m in pairs]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (AllocatedDevice(type="gpu", id="GPU-0"), [("0000:10:00.0", "")]),
        (AllocatedDevice(type="gpu", id="0000:10:00.0"), [("0000:10:00.0", "")]),
        (AllocatedDevice(type="gpu", id="MIG-1"), [("0000:10:00.0", "MIG-1")]),
        (AllocatedDevice(type="gpu", id="GPU-0", partition="MIG-1"), [("0000:10:00.0", "MIG-1")]),
        (AllocatedDevice(type="gpu", minor=0), [("0000:10:00.0", "")]),
        (AllocatedDevice(type="rdma", minor=0), [("0000:18:00.0", "")]),
        (AllocatedDevice(type="rdma", id="GPU-0"), []),
        (AllocatedDevice(type="gpu", id="GPU-9", minor=0), []),
        (AllocatedDevice(type="gpu"), []),
        (AllocatedDevice(type="fpga", minor=0), []),
    ],
)
def test_an_id_decides_and_the_minor_only_without_one(
    entry: AllocatedDevice, expected: list[tuple[str, str]]
) -> None:
    assert matches(entry) == expected


def test_neither_id_nor_minor_means_no_device_without_a_minor() -> None:
    lost = replace(CARD, minor=None)
    assert match_devices(DeviceAllocation(devices=(AllocatedDevice(type="gpu"),)), (lost,)) == ()


def test_one_entry_twice_is_one_match_and_a_slice_that_is_gone_is_refused() -> None:
    entry = AllocatedDevice(type="gpu", id="GPU-0")
    assert len(matches(entry, entry)) == 1
    with pytest.raises(AllocationRefused, match="PartitionMissing"):
        matches(replace(entry, partition="MIG-2"))


@given(
    st.lists(vendor_devices, max_size=4),
    st.lists(
        st.builds(
            AllocatedDevice,
            type=st.sampled_from(("gpu", "rdma")),
            id=texts | st.just(""),
            minor=st.none() | st.integers(-2, 20),
        ),
        max_size=4,
    ).map(tuple),
)
def test_hostile_devices_are_matched_and_ordered_without_a_crash(
    devices: list[VendorDevice], entries: tuple[AllocatedDevice, ...]
) -> None:
    pairs = match_devices(DeviceAllocation(devices=entries), devices)
    assert set(sort_by_bus_id(pairs)) == set(pairs)


def test_a_container_reads_its_last_value_and_its_labels() -> None:
    pod = ContainerSpec(
        env=(("A", "1"), ("A", "2")), labels=(("l", "v"),), annotations=(("a", "w"),)
    )
    assert (pod.env_value("A"), pod.env_value("B")) == ("2", None)
    assert (pod.label("l"), pod.label("m")) == ("v", None)
    assert (pod.annotation("a"), pod.annotation("b")) == ("w", None)


NODE = DeviceNodeEdit(host_path="/dev/a", path="/dev/a", major=1, minor=2)
DEEP = MountEdit(host_path="/a/b", path="/a/b", options=("ro",))
FULL = ContainerEdits(
    nodes=(NODE,),
    mounts=(DEEP,),
    env=(("A", "1"),),
    cdi=("v/c=n",),
    rlimits=(RlimitEdit(name="RLIMIT_MEMLOCK", soft=1, hard=1),),
    folders=(FolderEdit(host_path="/f", mode=0o700),),
    notes=(ContainerNote(reason="R", message="m"),),
)


def test_equal_edits_of_two_vendors_are_one() -> None:
    assert merge_edits((FULL, FULL)) == FULL
    assert merge_edits(()) == ContainerEdits()


def test_mounts_of_several_vendors_do_not_hide_each_other() -> None:
    shallow = ContainerEdits(mounts=(MountEdit(host_path="/x", path="/a", options=()),))
    assert [mount.path for mount in merge_edits((FULL, shallow)).mounts] == ["/a", "/a/b"]


@pytest.mark.parametrize(
    "other",
    [
        ContainerEdits(nodes=(replace(NODE, minor=3),)),
        ContainerEdits(mounts=(replace(DEEP, host_path="/else"),)),
        ContainerEdits(env=(("A", "2"),)),
        ContainerEdits(rlimits=(RlimitEdit(name="RLIMIT_MEMLOCK", soft=0, hard=1),)),
        ContainerEdits(folders=(FolderEdit(host_path="/f", mode=0o777),)),
    ],
)
def test_two_answers_for_one_thing_are_refused(other: ContainerEdits) -> None:
    with pytest.raises(AllocationRefused, match="DeviceConflict"):
        merge_edits((FULL, other))
