"""A GPU and a NIC below two downstream ports of one switch, and variations of that."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec.structs import replace

from agent.snapshot.device import Device, DeviceKind, DeviceLink, Placement, VendorDevice
from agent.snapshot.node import DeviceView, GpuDirectHost
from agent.snapshot.pci import PciFunction, PciTree
from agent.topology.pci_config import DOWNSTREAM_PORT, ENDPOINT, ROOT_PORT, UPSTREAM_PORT
from tests.machines import tree_of

MEANS = GpuDirectHost(peer_memory="nvidia_peermem", driver=True, kernel=(5, 15), driver_major=570)
GPU, NIC = "0000:1b:00.0", "0000:18:00.0"
ROOT = "pci0000:15"
ROOT_BRIDGE, UP, NIC_PORT, GPU_PORT = (
    "0000:15:01.0",
    "0000:16:00.0",
    "0000:17:00.0",
    "0000:17:01.0",
)
_TYPES = {
    ROOT_BRIDGE: ROOT_PORT,
    UP: UPSTREAM_PORT,
    NIC_PORT: DOWNSTREAM_PORT,
    GPU_PORT: DOWNSTREAM_PORT,
}


def functions() -> dict[str, PciFunction]:
    """The switch with both devices; no port redirects, no IOMMU."""
    above = {
        ROOT_BRIDGE: (),
        UP: (ROOT_BRIDGE,),
        NIC_PORT: (ROOT_BRIDGE, UP),
        GPU_PORT: (ROOT_BRIDGE, UP),
    }
    bridges = {
        address: PciFunction(
            address=address,
            root=ROOT,
            bridges=way,
            class_code=0x060400,
            port_type=_TYPES[address],
            acs_control=0 if _TYPES[address] != UPSTREAM_PORT else None,
        )
        for address, way in above.items()
    }
    ends = {
        GPU: PciFunction(
            address=GPU, root=ROOT, bridges=(ROOT_BRIDGE, UP, GPU_PORT), port_type=ENDPOINT
        ),
        NIC: PciFunction(
            address=NIC, root=ROOT, bridges=(ROOT_BRIDGE, UP, NIC_PORT), port_type=ENDPOINT
        ),
    }
    return bridges | ends


def tree(
    changes: Mapping[str, Mapping[str, object]] = MappingProxyType({}), **facts: object
) -> PciTree:
    """Return the machine with some functions changed, and facts of the whole tree."""
    changed = (
        replace(function, **changes.get(function.address, {})) for function in functions().values()
    )
    return replace(tree_of(*changed), **facts)


def device(address: str, tree_: PciTree, **place: object) -> Device:
    """One of both, where the tree has it."""
    kind = DeviceKind.GPU if address == GPU else DeviceKind.RDMA
    vendor = "nvidia" if kind is DeviceKind.GPU else "mlx5_core"
    function = tree_.functions[address]
    base = Placement(numa_node=0, root=function.root, path=function.path)
    return Device(
        info=VendorDevice(kind=kind, vendor=vendor, bus_id=address, minor=0),
        place=replace(base, **place),
    )


def view(tree_: PciTree, *links: DeviceLink, **place: object) -> DeviceView:
    """Both devices; `place` changes the GPU's."""
    return DeviceView(devices=(device(GPU, tree_, **place), device(NIC, tree_)), links=links)
