"""Which published minors are kept, and when a device has left the node for good."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.devices.minors import (
    MAX_RECORDS,
    MinorRecord,
    MinorRecords,
    decode_records,
    encode_records,
    match_records,
    records_of_object,
    renew_records,
    retain_records,
)
from agent.errors import ParseError
from agent.snapshot.cluster import ClusterView
from agent.snapshot.container import PodSandbox, RuntimeView
from agent.snapshot.device import DeviceKind, VendorDevice
from agent.snapshot.device_plugin import DevicePluginView, KubeletAllocation
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import NodeIdentity, NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciFunction, PciTree
from agent.snapshot.pod import PodView
from agent.wire_formats.device_allocated import ANNOTATION
from tests import factory

BUS = "0000:3b:00.0"
CARD = VendorDevice(
    kind=DeviceKind.GPU, vendor="nvidia", bus_id=BUS, uuid="GPU-1", minor=1, vendor_minor=1
)
RECORD = MinorRecord(type="gpu", minor=4, vendor="nvidia", id="GPU-1", bus_id=BUS, vendor_minor=1)
OTHER = replace(CARD, bus_id="0000:4c:00.0", uuid="GPU-2")


def vendor(name: str = "nvidia", *devices: VendorDevice, state: str = "ready") -> VendorState:
    return VendorState(
        vendor=name,
        state=state,
        inventory=SnapshotPart(Inventory(vendor=name, devices=devices), 1.0),
    )


def node(
    *vendors: VendorState,
    functions: tuple[str, ...] = (),
    pods: tuple[PodView, ...] = (),
    **changes: object,
) -> NodeSnapshot:
    """A node of a cluster whose PCI functions and pods are known."""
    tree = PciTree(functions={name: PciFunction(address=name) for name in functions})
    plain = NodeSnapshot(
        node=NodeIdentity(name="a"),
        vendors=vendors or (vendor(),),
        pci=SnapshotPart(tree, 1.0),
        cluster=ClusterView(is_clustered=True, has_pod_list=True, pods=pods),
    )
    return replace(plain, **changes)


def retain(snapshot: NodeSnapshot, records: MinorRecords = (RECORD,)) -> MinorRecords:
    inventories = [v.inventory.value for v in snapshot.vendors if v.inventory.value is not None]
    return retain_records(records, inventories, snapshot)


def pod_with_grant(annotation: str, **changes: object) -> PodView:
    return replace(
        factory.pod(0, phase="Running"), annotations=((ANNOTATION, annotation),), **changes
    )


def allocated(minor: int, name: str = "", kind: str = "gpu") -> str:
    return json.dumps({kind: [{"minor": minor, "id": name, "resources": {}}]})


def test_a_device_that_vendor_sysfs_and_allocations_lack_has_left() -> None:
    assert retain(node()) == ()


@pytest.mark.parametrize(
    "snapshot",
    [
        pytest.param(node(vendor("nvidia", CARD)), id="listed"),
        pytest.param(node(vendor("ascend"), vendor(state="starting")), id="vendor-starts"),
        pytest.param(node(vendor(state="stalled")), id="vendor-hangs"),
        pytest.param(node(VendorState(vendor="nvidia", state="ready")), id="vendor-silent"),
        pytest.param(node(functions=(BUS,)), id="in-sysfs"),
        pytest.param(node(pci=SnapshotPart(PciTree())), id="sysfs-not-read"),
        pytest.param(node(pci=SnapshotPart(PciTree(), 1.0, "ENODATA")), id="sysfs-unreadable"),
        pytest.param(node(pods=(pod_with_grant(allocated(9, "GPU-1")),)), id="granted-by-id"),
        pytest.param(node(pods=(pod_with_grant(allocated(9, "GPU-1::3")),)), id="granted-replica"),
        pytest.param(node(pods=(pod_with_grant(allocated(4)),)), id="granted-by-minor"),
        pytest.param(node(pods=(pod_with_grant("{"),)), id="grant-unreadable"),
        pytest.param(
            node(cluster=ClusterView(is_clustered=True, has_pod_list=False)), id="pods-not-known"
        ),
        pytest.param(
            node(
                served=SnapshotPart(
                    DevicePluginView(
                        held=(KubeletAllocation(pod_uid="u", resource="r", ids=("GPU-1",)),)
                    )
                )
            ),
            id="held-at-the-kubelet",
        ),
        pytest.param(
            node(
                served=SnapshotPart(
                    DevicePluginView(
                        held=(KubeletAllocation(pod_uid="u", resource="r", ids=("Ascend910-1",)),)
                    )
                )
            ),
            id="held-by-number",
        ),
        pytest.param(
            node(
                runtime=SnapshotPart(
                    RuntimeView(
                        sandboxes={
                            "s": PodSandbox(id="s", annotations=((ANNOTATION, allocated(4)),)),
                        }
                    )
                )
            ),
            id="granted-to-a-sandbox",
        ),
    ],
)
def test_a_minor_is_kept_while_anything_may_still_be_of_its_device(snapshot: NodeSnapshot) -> None:
    assert retain(snapshot) == (RECORD,)


@pytest.mark.parametrize(
    "snapshot",
    [
        pytest.param(node(vendor("ascend", state="stalled"), vendor()), id="another-vendor-hangs"),
        pytest.param(
            node(pods=(pod_with_grant(allocated(4), phase="Succeeded"),)), id="pod-is-over"
        ),
        pytest.param(node(pods=(pod_with_grant(allocated(4, kind="rdma")),)), id="another-type"),
        pytest.param(node(cluster=ClusterView()), id="standalone"),
        pytest.param(node(vendor("ascend")), id="no-worker-of-the-vendor"),
    ],
)
def test_what_says_nothing_of_the_device_does_not_keep_its_minor(snapshot: NodeSnapshot) -> None:
    assert retain(snapshot) == ()


def test_a_record_of_a_device_object_waits_for_every_vendor() -> None:
    record = replace(RECORD, vendor="")
    assert retain(node(vendor("ascend", state="starting"), vendor()), (record,)) == (record,)
    assert retain(node(vendor("ascend"), vendor()), (record,)) == ()


def test_of_a_device_that_is_on_no_bus_its_vendor_alone_can_tell() -> None:
    record = replace(RECORD, bus_id="")
    placeholder = VendorDevice(kind=DeviceKind.GPU, vendor="nvidia", bus_id=None, uuid="tegra")
    assert retain(node(vendor("nvidia", placeholder)), (record,)) == (record,)
    assert retain(node(vendor("ascend")), (record,)) == (record,)
    assert retain(node(vendor("nvidia", OTHER)), (record,)) == ()


def test_a_card_keeps_its_record_in_another_slot_and_its_successor_takes_it_over() -> None:
    moved = replace(CARD, bus_id="0000:5b:00.0")
    successor = replace(CARD, uuid="GPU-9")
    assert match_records([successor, moved], (RECORD,)) == {1: RECORD}
    assert match_records([successor], (RECORD,)) == {0: RECORD}
    assert match_records([replace(CARD, uuid=None)], (RECORD,)) == {0: RECORD}
    assert match_records([replace(CARD, kind=DeviceKind.RDMA)], (RECORD,)) == {}


def test_a_renewed_record_follows_its_device_and_keeps_the_minor() -> None:
    moved = replace(CARD, bus_id="0000:5b:00.0", minor=4, vendor_minor=0)
    (record,) = renew_records([moved], {moved.key: "nvidia"}, (RECORD,))
    assert record == replace(RECORD, bus_id="0000:5b:00.0", vendor_minor=0)
    unknown = replace(CARD, uuid=None, minor=4, vendor_minor=None)
    (record,) = renew_records([unknown], {unknown.key: "nvidia"}, (RECORD,))
    assert record == RECORD


def test_a_record_stays_while_its_device_is_listed_without_a_minor() -> None:
    assert renew_records([replace(CARD, minor=None)], {}, (RECORD,)) == (RECORD,)


def test_records_are_bounded_and_those_of_listed_devices_stay() -> None:
    many = tuple(
        MinorRecord(type="gpu", minor=n, id=f"GPU-{n}") for n in range(10, MAX_RECORDS + 20)
    )
    records = renew_records([replace(CARD, uuid="GPU-a"), replace(OTHER, minor=2)], {}, many)
    assert len(records) == MAX_RECORDS
    assert [record.id for record in records[:3]] == ["GPU-a", "GPU-2", "GPU-10"]


def body_of(*entries: Mapping[str, object]) -> Mapping[str, object]:
    return {"spec": {"devices": list(entries)}}


def test_a_device_object_gives_the_minors_that_it_publishes() -> None:
    body = body_of(
        {"type": "gpu", "id": "GPU-1", "minor": 4, "topology": {"busID": "0000:3B:00.0"}},
        {"type": "rdma", "id": "0000:18:00.0", "minor": 4},
    )
    assert records_of_object(body) == (
        MinorRecord(type="gpu", minor=4, id="GPU-1", bus_id=BUS),
        MinorRecord(type="rdma", minor=4, id="0000:18:00.0"),
    )


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {"spec": None},
        {"spec": {"devices": {}}},
        body_of({"type": "gpu", "minor": 1}),  # names no device
        body_of({"type": "gpu", "id": "a", "minor": -1}),
        body_of({"type": "gpu", "id": "a", "minor": True}),
        body_of({"type": "gpu", "id": "a", "minor": 1 << 40}),
        body_of({"type": "fpga", "id": "a", "minor": 1}),
        body_of({"type": "gpu", "id": "a" * 4096, "minor": 1}),
        body_of({"type": "gpu", "id": ["a"], "minor": 1}),
    ],
)
def test_what_is_no_entry_of_a_device_object_gives_no_record(body: object) -> None:
    assert records_of_object(body) == ()


def test_of_two_entries_with_one_minor_or_one_id_the_first_counts() -> None:
    first = {"type": "gpu", "id": "a", "minor": 1}
    body = body_of(first, {**first, "id": "b"}, {**first, "minor": 2})
    assert records_of_object(body) == (MinorRecord(type="gpu", minor=1, id="a"),)


def test_a_stored_record_is_read_as_it_was_written() -> None:
    records = (RECORD, MinorRecord(type="rdma", minor=0, bus_id="0000:18:00.0"))
    assert decode_records(encode_records(records)) == records
    assert encode_records(records[::-1]) == encode_records(records)


def test_a_file_of_a_later_version_is_read_as_far_as_it_is_understood() -> None:
    document = msgspec.json.decode(encode_records((RECORD,)))
    document |= {"version": 7, "more": 1}
    document["devices"][0]["more"] = {}
    assert decode_records(msgspec.json.encode(document)) == (RECORD,)


@given(st.binary(max_size=64) | st.text(max_size=64).map(str.encode))
def test_a_damaged_file_is_a_parse_error(data: bytes) -> None:
    with pytest.raises(ParseError):
        decode_records(data)


def test_a_file_with_two_devices_of_one_minor_keeps_the_first() -> None:
    twin = replace(RECORD, id="GPU-7", bus_id="")
    document = {
        "version": 1,
        "devices": [msgspec.to_builtins(RECORD), msgspec.to_builtins(twin)],
    }
    assert decode_records(msgspec.json.encode(document)) == (RECORD,)
