"""Containers that the kubelet starts with an answer that it stored before a boot."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from agent.config.containers import HookSettings
from agent.containers import devices as devices_module
from agent.containers.devices import DevicesHook
from agent.snapshot.allocation import RefusalReason
from agent.snapshot.container import ContainerSpec, HookRequest, HookStage, PodSandbox
from agent.snapshot.device import (
    Device,
    DeviceKind,
    VendorDevice,
    VirtualFunction,
    VirtualFunctionGroup,
)
from agent.snapshot.device_plugin import DevicePluginView, KubeletAllocation
from agent.snapshot.host_devices import HostDevices, HostDevicesView, RdmaFunction
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView
from tests.unit.allocation.made import WHOLE, entry, pod, snapshot, text
from tests.unit.containers_devices.made import VENDORS, created, device
from tests.unit.vendors_injection.made import UUIDS, gpu, mig, node, nodes, nvidia_host

VFS = ("0000:01:00.2", "0000:01:00.3")  # of the first adapter
CAPS = "/dev/nvidia-caps/nvidia-cap"
DIVIDED = gpu(0, nodes=nodes("/dev/nvidia0"), partitions=(mig(1, 12, 13), mig(2, 12, 14)))
OTHER_CARD = gpu(1, nodes=nodes("/dev/nvidia1"), partitions=(mig(3, 21, 22),))


def adapter(number: int, *functions: str) -> VendorDevice:
    """An RDMA device with a node of its own, and the one that all share."""
    vfs = tuple(VirtualFunction(bus_id=address) for address in functions)
    return VendorDevice(
        kind=DeviceKind.RDMA,
        vendor="mlx5",
        bus_id=f"0000:0{number}:00.0",
        nodes=(node(f"/dev/infiniband/uverbs{number}"), node("/dev/infiniband/rdma_cm")),
        vf_groups=(VirtualFunctionGroup(vfs=vfs),),
    )


DEVICES = tuple(map(device, (DIVIDED, OTHER_CARD, adapter(1, *VFS), adapter(2))))
POD = pod(1)


FUNCTIONS = tuple(
    RdmaFunction(address=address, verbs=(node(f"/dev/infiniband/uverbs{number}"),))
    for number, address in enumerate(VFS, start=3)
)


def refusal(
    *allocations: KubeletAllocation,
    checks: bool = True,
    stage: HookStage = HookStage.CREATE,
    listed: PodView = POD,
    devices: tuple[Device, ...] = DEVICES,
    functions: tuple[RdmaFunction, ...] = FUNCTIONS,
) -> str:
    """Return why a container of the pod with these allocations is refused; empty if it is not.

    The sandbox has no annotation, whatever the `listed` pod has.
    """
    hook = DevicesHook(VENDORS, HookSettings(), checks_stored_nodes=checks)
    sandbox = PodSandbox(id="box-1", uid=POD.uid, name=POD.name, namespace=POD.namespace)
    request = HookRequest(stage=stage, pod=sandbox, container=ContainerSpec(name="worker"))
    host = {"rdma": HostDevices(functions=functions)}
    now = replace(
        snapshot([listed], [], devices=devices),
        served=SnapshotPart(DevicePluginView(held=allocations), 1.0),
        host_devices=SnapshotPart(HostDevicesView(vendors=host), 1.0),
    )
    answer = hook.adjust(request, now)
    assert answer.reason in ("", RefusalReason.NODE_MISMATCH.value)
    return answer.failed


def stored(*ids: str, paths: tuple[str, ...], **changes: object) -> KubeletAllocation:
    entry = KubeletAllocation(
        pod_uid=POD.uid, resource="x/y", container="worker", ids=ids, nodes=paths
    )
    return replace(entry, **changes)


@pytest.mark.parametrize(
    ("name", "paths", "other"),
    [
        ("MIG-00000001", ("/dev/nvidia0", f"{CAPS}12", f"{CAPS}13"), ""),
        ("MIG-00000001", ("/dev/nvidia1", f"{CAPS}21", f"{CAPS}22"), "/dev/nvidia1"),
        ("MIG-00000001", ("/dev/nvidia0", f"{CAPS}12", f"{CAPS}14"), f"{CAPS}14"),
        (f"{UUIDS[1]}::3", ("/dev/nvidia0",), "/dev/nvidia0"),
        (f"{UUIDS[1]}::3", ("/dev/nvidia1", "/dev/nvidiactl"), ""),
        ("0000:01:00.0", ("/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm"), "uverbs2"),
        ("0000:01:00.0", ("/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm"), ""),
    ],
    ids=["slice", "slice-card", "slice-sibling", "replica", "replica-own", "rdma", "rdma-own"],
)
def test_a_container_with_a_stored_node_of_another_device_is_not_created(
    name: str, paths: tuple[str, ...], other: str
) -> None:
    text = refusal(stored(name, paths=paths))
    assert bool(text) == bool(other)
    assert other in text
    if other:
        assert text.startswith("NodeMismatch: ")
        assert "delete the pod" in text
    assert refusal(stored(name, paths=paths), checks=False) == ""


@pytest.mark.parametrize(
    "entry",
    [
        stored(UUIDS[1], paths=("/dev/nvidia0",), container="init"),
        stored(UUIDS[1], paths=("/dev/nvidia0",), container=""),
        stored(UUIDS[1], paths=("/dev/nvidia0",), pod_uid="another"),
        stored(UUIDS[1], paths=("/dev/nvidia0",), exchanges=((UUIDS[1], UUIDS[0]),)),
        stored(UUIDS[1], paths=()),
        stored("Ascend910-3", paths=("/dev/nvidia0",)),
        stored(UUIDS[1], "Ascend910-3", paths=("/dev/nvidia0",)),
    ],
    ids=["other-container", "unknown", "other-pod", "exchanged", "no-nodes", "no-uuid", "part"],
)
def test_what_is_not_surely_another_device_is_created(entry: KubeletAllocation) -> None:
    assert refusal(entry) == ""


def test_a_pod_with_an_allocation_gets_that_whatever_the_kubelet_stored() -> None:
    entry_of_pod = stored(UUIDS[1], paths=("/dev/nvidia0",))

    def served(now: NodeSnapshot) -> NodeSnapshot:
        return replace(now, served=SnapshotPart(DevicePluginView(held=(entry_of_pod,)), 1.0))

    cards = (device(gpu(0, nodes=nodes("/dev/nvidia0"))), device(gpu(1)))
    host = {"nvidia": nvidia_host()}
    assert not created(text(entry(cards[0], WHOLE)), host, cards, before=served).failed


def test_a_virtual_function_has_its_own_node_and_the_shared_one() -> None:
    own, other = "/dev/infiniband/uverbs3", "/dev/infiniband/uverbs4"
    assert refusal(stored(VFS[0], paths=(own, "/dev/infiniband/rdma_cm"))) == ""
    assert other in refusal(stored(VFS[0], paths=(other, "/dev/infiniband/rdma_cm")))


def test_a_container_that_runs_already_is_not_refused() -> None:
    foreign = stored(UUIDS[1], paths=("/dev/nvidia0",))
    assert refusal(foreign)
    assert refusal(foreign, stage=HookStage.RECONCILE) == ""


MANAGER = "/dev/infiniband/rdma_cm"


def test_a_node_for_all_devices_is_of_none_even_if_only_one_device_lists_it_now() -> None:
    moved = replace(adapter(2), nodes=())  # into the network namespace of a pod
    devices = (device(adapter(1, *VFS)), device(moved))
    assert refusal(stored("0000:02:00.0", paths=(MANAGER,)), devices=devices) == ""
    without_verbs = replace(adapter(2, "0000:02:00.2"), nodes=())
    devices = (device(adapter(1)), device(without_verbs))
    own = RdmaFunction(address="0000:02:00.2", verbs=(node("/dev/infiniband/uverbs5"),))
    entry_of_function = stored(own.address, paths=("/dev/infiniband/uverbs5", MANAGER))
    assert refusal(entry_of_function, devices=devices, functions=(own,)) == ""


def test_the_nodes_of_the_other_functions_of_a_bonded_nic_are_not_of_another_device() -> None:
    bond = replace(adapter(2), facts=(("members", "0000:02:00.0,0000:02:00.1"),))
    verbs = {"0000:02:00.0": "/dev/infiniband/uverbs2", "0000:02:00.1": "/dev/infiniband/uverbs6"}
    functions = tuple(RdmaFunction(address=a, verbs=(node(path),)) for a, path in verbs.items())
    entry_of_bond = stored("0000:02:00.0", paths=(*verbs.values(), MANAGER))
    assert refusal(entry_of_bond, devices=(device(bond),), functions=functions) == ""


def test_an_id_that_two_devices_have_stands_for_both() -> None:
    cards = [gpu(n, uuid=UUIDS[0], nodes=nodes(f"/dev/nvidia{n}")) for n in range(3)]
    devices = (*map(device, (*cards[:2], replace(cards[2], uuid=UUIDS[2]))),)
    for number in range(2):
        own = stored(UUIDS[0], paths=(f"/dev/nvidia{number}",))
        assert refusal(own, devices=devices) == ""
    assert refusal(stored(UUIDS[0], paths=("/dev/nvidia2",)), devices=devices)
    slices = [mig(1, 12, 13), replace(mig(1, 21, 22), nodes=nodes(f"{CAPS}21", f"{CAPS}22"))]
    divided = (
        device(replace(card, partitions=(part,))) for card, part in zip(cards, slices, strict=False)
    )
    own_slice = stored("MIG-00000001", paths=("/dev/nvidia0", f"{CAPS}12", f"{CAPS}13"))
    assert refusal(own_slice, devices=tuple(divided)) == ""


def test_an_allocation_that_only_the_list_of_pods_has_is_what_the_kubelet_stored() -> None:
    cards = (device(gpu(0, nodes=nodes("/dev/nvidia0"))), device(gpu(1)))
    annotated = pod(1, text(entry(cards[0], WHOLE)))
    answer = stored(UUIDS[1], paths=("/dev/nvidia0",))
    assert refusal(answer, listed=annotated, devices=cards) == ""
    assert refusal(answer, devices=cards)


def test_a_new_answer_of_the_kubelets_leaves_the_tables_of_the_hardware(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build = Mock(side_effect=devices_module._hardware_tables)
    monkeypatch.setattr(devices_module, "_hardware_tables", build)
    hook = DevicesHook(VENDORS, HookSettings())
    sandbox = PodSandbox(id="box-1", uid=POD.uid, name=POD.name, namespace=POD.namespace)
    request = HookRequest(
        stage=HookStage.CREATE, pod=sandbox, container=ContainerSpec(name="worker")
    )
    now = snapshot([POD], [], devices=DEVICES)
    answers = [stored(UUIDS[1], paths=(f"/dev/nvidia{number}",)) for number in (1, 0)]
    views = [DevicePluginView(held=(answer,)) for answer in answers]
    texts = [
        hook.adjust(request, replace(now, served=SnapshotPart(view, 1.0))).failed for view in views
    ]
    assert [bool(text) for text in texts] == [False, True]
    assert build.call_count == 1
