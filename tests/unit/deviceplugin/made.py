"""Nodes for decisions of the device plug-in: cards, pods that wait, grants, means."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from agent.config.containers import DevicePluginSettings
from agent.deviceplugin.allocator import Allocator
from agent.snapshot.allocation import (
    AllocatedDevice,
    AllocationView,
    DeviceAllocation,
    PodAllocation,
)
from agent.snapshot.cluster import ClusterView
from agent.snapshot.container import RuntimeView
from agent.snapshot.device import Device, DeviceKind, DeviceNode, DevicePartition, VendorDevice
from agent.snapshot.device_plugin import DevicePluginView, KubeletAllocation
from agent.snapshot.host_devices import HostDevices, HostDevicesView
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView, ResourceRequest
from agent.wire_formats.device_allocated import ANNOTATION
from agent.workers.load import load_vendors
from plugins.vendors.nvidia.settings import NvidiaSettings
from tests import factory

GPU, HCA = "nvidia.com/gpu", "rdma/hca"
NODES: tuple[tuple[str, int, int], ...] = (
    ("/dev/nvidiactl", 195, 255),
    ("/dev/nvidia-uvm", 511, 0),
    ("/dev/nvidia-uvm-tools", 511, 1),
    *((f"/dev/nvidia{i}", 195, i) for i in range(8)),
)
MAJORS = (("nvidia", 195), ("nvidia-uvm", 511), ("nvidia-caps", 236))
VENDORS = load_vendors()


def card(i: int) -> str:
    """The uuid of a card of the factory."""
    return factory.gpu(i).info.uuid or ""


def plugin_settings(**changes: object) -> DevicePluginSettings:
    """Settings that serve every vendor, with changes."""
    inputs = {"vendors": ("nvidia", "ascend", "cambricon", "rdma"), **changes}
    return DevicePluginSettings(**inputs)  # type: ignore[arg-type]  # its fields


def deciding(**changes: object) -> Allocator:
    return Allocator(plugin_settings(**changes), VENDORS)


def means(handler: str = "", *, in_force: bool = False) -> Mapping[str, HostDevices]:
    nodes = tuple(DeviceNode(path=p, major=a, minor=b) for p, a, b in NODES)
    host_devices = HostDevices(
        nodes=nodes,
        majors=MAJORS,
        default_handler=handler,
        cdi_enabled=in_force,
        settings=NvidiaSettings(),
    )
    return {"nvidia": host_devices}


def waiting(index: int, count: int = 1, resource: str = GPU, **changes: object) -> PodView:
    """A pod that was not begun, with one container that asks."""
    asks = (ResourceRequest(container="main", resource=resource, count=count),)
    base = factory.pod(index, 0, cgroup="", phase="Pending", asks=asks)
    return replace(base, **changes)


def allocation_of(*names: str, kind: str = "gpu", vfs: tuple[str, ...] = ()) -> DeviceAllocation:
    return DeviceAllocation(
        devices=tuple(AllocatedDevice(type=kind, id=name, vfs=vfs) for name in names)
    )


def node(
    *pods: PodView,
    devices: tuple[Device, ...] | None = None,
    grants: Mapping[int, DeviceAllocation] | None = None,  # by the pod's place in `pods`
    refused: Iterable[int] = (),
    kubelet_allocations: tuple[KubeletAllocation, ...] = (),
    handler: str = "nvidia",
    in_force: bool = False,
    clustered: bool = True,
    begun: tuple[PodView, ...] = (),
    **changes: object,
) -> NodeSnapshot:
    """A node with pods; those with grants carry the annotation, as a scheduler writes it."""
    table = {
        pods[i].uid: PodAllocation(uid=pods[i].uid, grant=one) for i, one in (grants or {}).items()
    }
    for i in refused:
        table[pods[i].uid] = PodAllocation(uid=pods[i].uid, refusal="DeviceUnknown", message="gone")
    listed = tuple(
        replace(pod, annotations=((ANNOTATION, _written(table[pod.uid])),), wants=((GPU, 8),))
        if pod.uid in table
        else pod
        for pod in pods
    )
    base = factory.snapshot(devices, pods=begun)
    by_key: dict[str, tuple[str, ...]] = {}
    for uid, one in table.items():
        for entry in one.grant.devices:
            for device in base.devices.value.devices:
                slices = (part.uuid for part in device.info.partitions)
                if entry.id in (device.info.uuid, device.info.bus_id, *slices):
                    by_key[device.key] = (*by_key.get(device.key, ()), uid)
    return replace(
        base,
        cluster=ClusterView(is_clustered=clustered, pods=(*listed, *begun)),
        allocations=SnapshotPart(
            AllocationView(pods=table, held=by_key, looked=frozenset(pod.uid for pod in pods)), 1.0
        ),
        host_devices=SnapshotPart(HostDevicesView(vendors=means(handler)), 1.0),
        runtime=SnapshotPart(RuntimeView(state="synchronized" if in_force else "waiting"), 1.0),
        served=SnapshotPart(DevicePluginView(held=kubelet_allocations), 1.0),
        **changes,
    )


def _written(grant: PodAllocation) -> str:
    """The annotation behind a grant; what is refused names a card that is not there."""
    return json.dumps({"gpu": [{"minor": 99, "id": "GPU-99"}]}) if grant.refusal else "{}"


def device(info: VendorDevice, numa_node: int = -1) -> Device:
    return Device(info=info, place=replace(factory.place("15", "1b", 0), numa_node=numa_node))


def npu(phy: int, family: str = "910B", **changes: object) -> VendorDevice:
    base = VendorDevice(
        kind=DeviceKind.NPU,
        vendor="huawei",
        bus_id=f"0000:{0xC0 + phy:02x}:00.0",
        uuid=f"0000000{phy}-AAAAAAAA-00000000-00000000-00000000",
        minor=phy,
        vendor_minor=phy,
        resources=(("huawei.com/npu-core", "20"),),
        facts=(("family", family),),
        nodes=(DeviceNode(path=f"/dev/davinci{phy}", major=240, minor=phy),),
    )
    return replace(base, **changes)


def vnpu(number: int, template: str, owner: str = "") -> DevicePartition:
    return DevicePartition(uuid=f"vnpu-{number}", profile=template, instance=number, owner=owner)


def mlu(index: int, **changes: object) -> VendorDevice:
    base = VendorDevice(
        kind=DeviceKind.MLU,
        vendor="cambricon",
        bus_id=f"0000:{0x40 + index:02x}:00.0",
        uuid=f"MLU-0000000{index}-0000-0000-0000-000000000000",
        minor=index,
        vendor_minor=index,
        resources=(("koordinator.sh/gpu-core", "100"),),
    )
    return replace(base, **changes)
