"""A node with one NPU and one MLU that can be cut, and pods that were granted parts of them."""

from __future__ import annotations

from msgspec.structs import replace

from agent.snapshot.allocation import (
    CORE,
    MEMORY,
    RATIO,
    AllocatedDevice,
    AllocationView,
    DeviceAllocation,
    PodAllocation,
)
from agent.snapshot.cluster import ClusterView
from agent.snapshot.device import Device, DeviceKind, DevicePartition, VendorDevice
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import DeviceView, NodeIdentity, NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import KubeQos, PodView
from agent.snapshot.vendor import slicing_vendors
from agent.workers.load import load_vendor

SLICERS = slicing_vendors({name: load_vendor(name) for name in ("ascend", "cambricon")})
NPU = VendorDevice(
    kind=DeviceKind.NPU, vendor="huawei", bus_id="0000:c1:00.0", uuid="die-0", minor=0
)
MLU = VendorDevice(
    kind=DeviceKind.MLU, vendor="cambricon", bus_id="0000:3b:00.0", uuid="MLU-1", minor=3
)
TEMPLATE = AllocatedDevice(type="gpu", minor=0, template="vir05_1c_16g")
PART = AllocatedDevice(
    type="gpu", id="MLU-1", minor=3, resources=((CORE, 50), (MEMORY, 1 << 30), (RATIO, 6))
)
WHOLE = AllocatedDevice(type="gpu", id="MLU-1", minor=3, resources=((CORE, 100), (RATIO, 100)))


def pod(uid: str, phase: str = "Pending") -> PodView:
    """Return a pod of this node."""
    return PodView(uid=uid, qos=KubeQos.BURSTABLE, name=uid, namespace="d", phase=phase)


def node(
    *allocations: tuple[str, AllocatedDevice], pods: tuple[PodView, ...] | None = None
) -> NodeSnapshot:
    """Return the node whose pods were granted that; listed are those that were, unless said."""
    listed = pods if pods is not None else tuple(pod(uid) for uid, _ in allocations)
    pod_allocations = {
        uid: PodAllocation(uid=uid, grant=DeviceAllocation(devices=(entry,)))
        for uid, entry in allocations
    }
    vendors = (_vendor("ascend", NPU), _vendor("cambricon", MLU))
    return NodeSnapshot(
        node=NodeIdentity(name="n"),
        vendors=vendors,
        devices=SnapshotPart(DeviceView(devices=(Device(info=NPU), Device(info=MLU))), 0.0),
        allocations=SnapshotPart(AllocationView(pods=pod_allocations), 0.0),
        cluster=ClusterView(is_clustered=True, pods=listed, has_pod_list=True),
    )


def cut(snapshot: NodeSnapshot, vendor: str, owner: str) -> NodeSnapshot:
    """Return the node with one slice made for a pod."""

    def with_slice(state: VendorState) -> VendorState:
        inventory = state.inventory.value
        if state.vendor != vendor or inventory is None:
            return state
        part = DevicePartition(uuid=f"slice-of-{owner}", profile="", owner=owner)
        device = replace(inventory.devices[0], partitions=(part,))
        return replace(state, inventory=SnapshotPart(replace(inventory, devices=(device,)), 0.0))

    return replace(snapshot, vendors=tuple(map(with_slice, snapshot.vendors)))


def _vendor(name: str, device: VendorDevice) -> VendorState:
    inventory = Inventory(vendor=name, devices=(device,))
    return VendorState(vendor=name, state="ready", inventory=SnapshotPart(inventory, 0.0))
