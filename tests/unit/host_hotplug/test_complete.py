"""What a function lacks, as the snapshot shows it."""

from __future__ import annotations

import pytest

from agent.devices.presence import missing_parts
from agent.snapshot.device import Device, DeviceKind, DeviceNode, DevicePort, VendorDevice
from agent.snapshot.node import DeviceView, NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciFunction, PciTree

ADDRESS = "0000:26:00.0"
NODE = DeviceNode(path="/dev/infiniband/uverbs0", major=231, minor=192)
GPU, CO, IB, ETHERNET, DISK = 0x030200, 0x0B4000, 0x020700, 0x020000, 0x010802


def rdma(*, nodes: bool = True, ports: bool = True) -> VendorDevice:
    return VendorDevice(
        kind=DeviceKind.RDMA,
        vendor="mlx5",
        bus_id=ADDRESS,
        nodes=(NODE,) if nodes else (),
        ports=(DevicePort(number=1, state=4),) if ports else (),
    )


CARD = VendorDevice(kind=DeviceKind.GPU, vendor="nvidia", bus_id=ADDRESS)


def snapshot(function: PciFunction | None, *devices: VendorDevice) -> NodeSnapshot:
    tree = PciTree(functions={ADDRESS: function} if function is not None else {})
    view = DeviceView(devices=tuple(Device(info=info) for info in devices))
    return NodeSnapshot(
        node=NodeIdentity(name="n"), pci=SnapshotPart(tree), devices=SnapshotPart(view)
    )


def function(kind: int, driver: str | None, physfn: str | None = None) -> PciFunction:
    return PciFunction(address=ADDRESS, class_code=kind, driver=driver, physfn=physfn)


@pytest.mark.parametrize(
    ("found", "devices", "lacks"),
    [
        pytest.param(None, (), (), id="it left again"),
        pytest.param(function(GPU, None), (), ("driver",), id="a card without a driver"),
        pytest.param(function(CO, None), (), ("driver",), id="a co-processor without a driver"),
        pytest.param(function(GPU, "nvidia"), (CARD,), (), id="a card"),
        pytest.param(function(GPU, None), (CARD,), ("driver",), id="a listed card, no driver"),
        pytest.param(function(IB, None), (), ("driver",), id="InfiniBand without a driver"),
        pytest.param(function(IB, "mlx5_core"), (), ("infiniband",), id="not an RDMA device yet"),
        pytest.param(function(IB, "mlx5_core"), (rdma(),), (), id="InfiniBand"),
        pytest.param(
            function(ETHERNET, "mlx5_core"),
            (rdma(nodes=False, ports=False),),
            ("ports", "uverbs"),
            id="no nodes and no ports",
        ),
        pytest.param(function(ETHERNET, None), (), (), id="any other NIC"),
        pytest.param(function(DISK, None), (), (), id="a disk"),
        pytest.param(function(GPU, None, "0000:26:00.0"), (), (), id="a virtual function"),
    ],
)
def test_what_is_missing_is_named(
    found: PciFunction | None, devices: tuple[VendorDevice, ...], lacks: tuple[str, ...]
) -> None:
    assert missing_parts(snapshot(found, *devices), ADDRESS) == lacks
