from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from msgspec.structs import replace

from agent.clock import ManualClock
from agent.snapshot.allocation import (
    AllocatedDevice,
    AllocationRefused,
    AllocationView,
    DeviceAllocation,
    RefusalReason,
)
from agent.snapshot.container import Adjustment, HookRequest, HookStage
from agent.snapshot.device import Device, DeviceNode, DevicePartition, VendorDevice
from agent.snapshot.edits import ContainerEdits
from agent.snapshot.host_devices import HostDevices, HostDevicesView, RdmaFunction
from agent.snapshot.node import DeviceView, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import ResourceRequest
from agent.verification.container_check import DeviceNodes
from agent.verification.expectation import card_names, expectation_of, pods_with_cards
from agent.verification.verifier import Verifier
from plugins.vendors.nvidia.settings import NvidiaSettings
from tests import factory
from tests.cgroups import CgroupHost
from tests.unit.verification.test_schedule import ALLOCATION, BOX, ID, POD, snapshot

ENV = ContainerEdits(env=(("A", "1"),))


class FixedHook:
    """A hook that gives every container the same."""

    name, stages, required = "devices", frozenset((HookStage.CREATE,)), True

    def __init__(self, answer: Adjustment | AllocationRefused) -> None:
        self.answer = answer
        self.requests: list[HookRequest] = []

    def adjust(self, request: HookRequest, _: NodeSnapshot) -> Adjustment:
        self.requests.append(request)
        if isinstance(self.answer, AllocationRefused):
            raise self.answer
        return self.answer


def fixed_hook(**fields: object) -> FixedHook:
    return FixedHook(Adjustment(**fields))  # type: ignore[arg-type]  # fields of the struct


def node(path: str, minor: int) -> DeviceNode:
    return DeviceNode(path=path, major=195, minor=minor)


def test_a_container_must_have_what_its_hook_would_give_it_now() -> None:
    hook = fixed_hook(edits=ENV)
    expectation = expectation_of(hook, snapshot(), BOX, "main")
    assert (expectation.edits, expectation.problem, expectation.is_empty) == (ENV, "", False)
    (request,) = hook.requests
    assert request.container is not None
    assert (request.stage, request.pod, request.container.name) == (
        HookStage.RECONCILE,
        BOX,
        "main",
    )


def test_an_expectation_that_is_unknown_is_reported_and_not_taken_for_nothing() -> None:
    refused = FixedHook(AllocationRefused(RefusalReason.DEVICE_UNKNOWN, "gone"))
    failed = fixed_hook(failed="DeviceTaken: by another", reason="DeviceTaken")
    problems = [expectation_of(hook, snapshot(), BOX, "m") for hook in (refused, failed)]
    assert [expectation.problem for expectation in problems] == [
        "DeviceUnknown: gone",
        "DeviceTaken: by another",
    ]
    assert not any(expectation.is_empty for expectation in problems)
    assert expectation_of(fixed_hook(), snapshot(), BOX, "m").is_empty


def inventory(*devices: VendorDevice) -> SnapshotPart[DeviceView]:
    return SnapshotPart(DeviceView(devices=tuple(Device(info=info) for info in devices)), 1.0)


def test_a_cdi_name_says_nothing_of_what_a_container_must_have() -> None:
    """What its file says of it may be another card."""
    named = fixed_hook(edits=ContainerEdits(cdi=("nvidia.com/gpu=0",)))
    card = replace(factory.gpu(0).info, nodes=(node("/dev/nvidia0", 0),))
    expectation = expectation_of(named, snapshot(devices=inventory(card)), BOX, "m")
    assert expectation.edits.nodes == ()
    assert expectation.devices == (DeviceNodes(name=card.key, nodes=card.nodes),)


def test_the_published_number_of_a_card_is_not_taken_for_the_drivers() -> None:
    npu = replace(factory.gpu(1).info, minor=0, nodes=(node("/dev/davinci3", 3),))
    expectation = expectation_of(fixed_hook(edits=ENV), snapshot(devices=inventory(npu)), BOX, "m")
    assert expectation.devices == (DeviceNodes(name=npu.key, nodes=(node("/dev/davinci3", 3),)),)


def test_a_devices_own_nodes_identify_it_and_shared_ones_do_not() -> None:
    shared = node("/dev/ctl", 255)
    part = DevicePartition(uuid="MIG-1", profile="p", nodes=(node("/dev/cap", 21),))
    cards = (
        replace(factory.gpu(0).info, nodes=(node("/dev/nvidia0", 0), shared), partitions=(part,)),
        replace(factory.gpu(1).info, nodes=(node("/dev/nvidia1", 1), shared)),
    )
    virtual = RdmaFunction(address="0000:3b:00.1", verbs=(node("/dev/uverbs1", 9),))
    host_devices = SnapshotPart(
        HostDevicesView(vendors={"rdma": HostDevices(functions=(virtual,))})
    )
    now = snapshot(devices=inventory(*cards), host_devices=host_devices)
    assert card_names(now) == {
        (195, 0): cards[0].key,
        (195, 21): "MIG-1",
        (195, 1): cards[1].key,
        (195, 9): "0000:3b:00.1",
    }


def with_allocation(now: NodeSnapshot, *devices: AllocatedDevice) -> NodeSnapshot:
    allocation = replace(ALLOCATION, grant=DeviceAllocation(devices=devices))
    return replace(
        now,
        allocations=SnapshotPart(
            AllocationView(pods=MappingProxyType({ALLOCATION.uid: allocation}))
        ),
    )


def test_what_was_granted_has_nodes_of_its_own_however_it_is_shown() -> None:
    partitions = (
        DevicePartition(uuid="MIG-1", profile="p", nodes=(node("/dev/cap", 21),)),
        DevicePartition(uuid="VNPU-1", profile="p", nodes=(node("/dev/v", 22),), with_card=False),
    )
    card = replace(factory.gpu(0).info, nodes=(node("/dev/nvidia0", 0),), partitions=partitions)
    nodes = (node("/dev/uverbs0", 8), node("/dev/umad0", 18))
    member = "0000:18:00.7"
    nic = replace(factory.nic(0, vfs=2).info, nodes=nodes, facts=(("members", member),))
    away = replace(factory.nic(1).info, nodes=(node("/dev/uverbs7", 7), node("/dev/umad7", 17)))
    verbs = tuple(
        RdmaFunction(address=address, verbs=(node(f"/dev/uverbs{minor}", minor),))
        for minor, address in ((8, nic.bus_id or ""), (9, "0000:18:00.1"), (10, "0000:18:00.2"))
    )
    host_devices = SnapshotPart(HostDevicesView(vendors={"rdma": HostDevices(functions=verbs)}))
    now = snapshot(devices=inventory(card, nic, away), host_devices=host_devices)

    def own(*devices: AllocatedDevice) -> list[tuple[str, list[int]]]:
        expectation = expectation_of(
            fixed_hook(edits=ENV), with_allocation(now, *devices), BOX, "m"
        ).devices
        return [(one.name, [own.minor for own in one.nodes]) for one in expectation]

    key = nic.bus_id or ""
    assert own(AllocatedDevice(type="gpu", minor=0)) == [(card.key, [0])]
    assert own(AllocatedDevice(type="gpu", id="MIG-1")) == [(card.key, [0]), ("MIG-1", [21])]
    assert own(AllocatedDevice(type="gpu", id="VNPU-1")) == [("VNPU-1", [22])]
    # cut by the maker's runtime: nobody knows yet which slice it is
    cut = own(AllocatedDevice(type="gpu", minor=0, template="vir04"))
    assert cut == [(f"{card.key} vir04", []), ("MIG-1", []), ("VNPU-1", [])]
    assert own(AllocatedDevice(type="rdma", id=key)) == [(key, [8]), (member, [])]
    assert own(AllocatedDevice(type="rdma", id=key, vfs=("0000:18:00.1",))) == [
        ("0000:18:00.1", [9])
    ]
    # in a pod's network namespace: what the last discovery found
    assert own(AllocatedDevice(type="rdma", id=away.bus_id or "")) == [(away.key, [7])]


def test_the_holder_of_a_card_follows_from_the_grants() -> None:
    part = DevicePartition(uuid="MIG-1", profile="p", nodes=(node("/dev/cap", 21),))
    cards = (replace(factory.gpu(0).info, partitions=(part,)), factory.gpu(1).info)
    now = snapshot(devices=inventory(*cards, factory.nic(0).info))
    entries = (
        AllocatedDevice(type="gpu", id="MIG-1"),
        AllocatedDevice(type="gpu", minor=1),
        AllocatedDevice(type="rdma", minor=0),
    )
    holders = pods_with_cards(with_allocation(now, *entries))
    assert {name: pod.uid for name, pod in holders.items()} == {
        "MIG-1": ALLOCATION.uid,
        cards[1].key: ALLOCATION.uid,
    }


def test_what_came_by_the_kubelet_is_compared_with_what_the_setting_of_its_way_brings(
    tmp_path: Path,
) -> None:
    host = HostDevices(default_handler="nvidia", settings=NvidiaSettings())
    host_devices = SnapshotPart(HostDevicesView(vendors={"nvidia": host}))
    asks = (ResourceRequest(container="worker-0", resource="nvidia.com/gpu", count=1),)
    now = snapshot(
        missed_containers={ID: "Late"},
        pods=SnapshotPart((replace(POD, asks=asks),)),
        host_devices=host_devices,
    )

    class Takes(FixedHook):
        def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
            vendor = snapshot.host_devices.value.vendors["nvidia"]
            injection = vendor.settings_as(NvidiaSettings).injection
            takes = snapshot.runtime.value.takes_cdi
            self.ways.append((vendor.default_handler, injection, takes))
            return super().adjust(request, snapshot)

        ways: ClassVar[list[tuple[str, str, bool]]] = []

    for injection in ("auto", "nodes", "env", "cdi"):
        host_of_files = CgroupHost(tmp_path / injection)
        hook = Takes(Adjustment(edits=ENV))
        Verifier(host_of_files.files, hook, ManualClock(), injection=injection).run_once(now)
    assert Takes.ways == [
        ("nvidia", "auto", False),
        ("", "nodes", False),
        ("nvidia", "env", False),
        ("", "cdi", True),
    ]
