"""The Device object in a cluster: when there is one, when none, and when nothing is said."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agent.objects.device import DevicePublisher
from agent.objects.events import events_between
from agent.snapshot.device import Device, Health, HealthState
from agent.snapshot.inventory import Inventory, Problem
from agent.snapshot.node import DeviceView, NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciTree
from agent.snapshot.publications import DesiredObject
from agent.snapshot.vendor import SessionContext
from plugins.vendors.rdma.session import RdmaSession
from plugins.vendors.rdma.settings import RdmaSettings
from tests import clustered
from tests.factory import gpu, nic
from tests.unit.rdma import made

Tree = Any
SILENT = ("stalled", "restarting", "quarantined", "released", "starting")


def vendor(name: str = "nvidia", state: str = "ready", error: str = "") -> VendorState:
    """A vendor that listed nothing."""
    return VendorState(
        vendor=name, state=state, inventory=SnapshotPart(Inventory(vendor=name), 1.0, error)
    )


def snapshot_with(
    *devices: Device, vendors: tuple[VendorState, ...] = (vendor(),), **view: Any
) -> NodeSnapshot:
    return replace(
        clustered.snapshot(),
        vendors=vendors,
        pci=SnapshotPart(PciTree(), 1.0),
        devices=SnapshotPart(DeviceView(devices=devices, **view), 1.0),
    )


def rendered(now: NodeSnapshot) -> tuple[DesiredObject, ...]:
    return DevicePublisher().render(now, 0.0)


def absent(now: NodeSnapshot) -> bool:
    """Whether the object is to go; nothing rendered means that it stays as it is."""
    return any(desired.is_absent for desired in rendered(now))


def test_the_node_owns_the_object() -> None:
    (desired,) = rendered(snapshot_with(gpu(0)))
    body: Tree = desired.body
    assert body["metadata"]["ownerReferences"][0]["uid"] == clustered.UID
    assert body["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] is False


def test_nothing_is_published_before_the_node_is_known() -> None:
    now = snapshot_with(gpu(0))
    unknown = replace(now, cluster=replace(now.cluster, node=SnapshotPart(None)))
    assert rendered(unknown) == ()


def test_a_node_without_hardware_has_no_device_and_an_old_one_goes() -> None:
    for vendors in ((), (vendor(),), (vendor("nvidia"), vendor("rdma"))):
        (desired,) = rendered(snapshot_with(vendors=vendors))
        assert desired.is_absent
        assert desired.body == {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Device",
            "metadata": {"name": clustered.NAME},
        }


def test_without_a_cluster_such_a_node_has_an_empty_object_as_ever() -> None:
    now = snapshot_with()
    (desired,) = rendered(replace(now, cluster=replace(now.cluster, is_clustered=False)))
    assert not desired.is_absent
    assert desired.body["spec"] == {}


def test_a_pulled_card_is_listed_first_and_its_object_goes_when_nobody_lists_it_any_more() -> None:
    (desired,) = rendered(snapshot_with(gpu(0)))
    assert not desired.is_absent
    assert absent(snapshot_with())


@pytest.mark.parametrize("state", SILENT)
def test_a_vendor_that_does_not_answer_is_no_proof_of_no_hardware(state: str) -> None:
    assert rendered(snapshot_with(vendors=(vendor("nvidia", state), vendor("rdma")))) == ()


@pytest.mark.parametrize(
    "state",
    [
        VendorState(vendor="nvidia", state="ready"),
        vendor(error="the library went away"),
    ],
)
def test_a_vendor_without_a_whole_answer_is_no_proof_either(state: VendorState) -> None:
    assert rendered(snapshot_with(vendors=(state,))) == ()


@pytest.mark.parametrize("reason", ["LibraryMissing", "DriverMissing", "PermissionDenied"])
def test_a_missing_library_or_driver_is_no_proof_either(reason: str) -> None:
    problem = Problem(reason=reason, message="…")
    assert rendered(snapshot_with(problems=(("nvidia", problem),))) == ()


@pytest.mark.parametrize(
    ("reason", "goes"), [("UeventsUnavailable", True), ("PciLimit", False), ("PciVanished", False)]
)
def test_of_the_hosts_problems_those_count_that_may_hide_a_device(reason: str, goes: bool) -> None:
    assert absent(snapshot_with(problems=(("host", Problem(reason=reason, message="…")),))) is goes


def test_an_awaited_vendor_or_an_unread_bus_is_no_proof_either() -> None:
    now = snapshot_with()
    assert rendered(snapshot_with(awaited=("nvidia",))) == ()
    assert rendered(replace(now, pci=SnapshotPart(PciTree()))) == ()
    assert rendered(replace(now, pci=SnapshotPart(PciTree(), 1.0, "/sys/bus/pci: EIO"))) == ()


def test_a_card_that_cannot_be_allocated_is_hardware_all_the_same() -> None:
    (desired,) = rendered(snapshot_with(gpu(0, managed=False)))
    assert not desired.is_absent
    assert desired.body["spec"] == {}


def plain_nics() -> tuple[Device, ...]:
    """NICs of a CPU node, as the vendor describes them: their RDMA module is not loaded."""
    entries = made.nics(("0000:1a:00.0", "mlx5_0"), ("0000:3e:00.0", "mlx5_1"))
    nics = {path: entry for path, entry in entries.items() if "infiniband" not in path}
    infos = (
        RdmaSession(made.tree(nics), RdmaSettings(), SessionContext(is_replay=True))
        .discover()
        .devices
    )
    return tuple(Device(info=info) for info in infos)


def test_a_node_with_nics_that_serve_no_rdma_has_no_device_and_nobody_is_warned() -> None:
    nics = plain_nics()
    assert [(nic.info.managed, nic.info.health.reason) for nic in nics] == [
        (False, "NoRdmaDevice")
    ] * 2
    assert absent(snapshot_with(*nics, vendors=(vendor("rdma"),)))
    assert rendered(snapshot_with(*nics, vendors=(vendor("rdma", "stalled"),))) == ()
    kinds = {event.type for event in events_between(None, snapshot_with(*nics), 0.0)}
    assert "Warning" not in kinds


def test_such_nics_beside_other_devices_change_nothing() -> None:
    nics = plain_nics()
    (desired,) = rendered(snapshot_with(gpu(0), *nics))
    body: Tree = desired.body
    assert [device["type"] for device in body["spec"]["devices"]] == ["gpu"]
    assert not absent(snapshot_with(gpu(0, managed=False), *nics))


def test_a_nic_that_lost_its_driver_keeps_the_object() -> None:
    unbound = Health(state=HealthState.FAILED, reason="DriverUnbound", message="…")
    assert not absent(snapshot_with(nic(0, managed=False, health=unbound)))


def test_a_vendor_that_is_switched_off_leaves_nothing_behind() -> None:
    # its cards are in the tree of PCI functions and in nobody's list: a person has said so
    assert absent(snapshot_with(vendors=()))
