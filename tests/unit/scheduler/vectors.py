"""Nodes of the worked vectors: eight GPUs and their NICs, with places and virtual functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.snapshot.allocation import AllocatedDevice
from plugins.scheduler.devices.device_table import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    RDMA,
    Amounts,
    DeviceFunction,
    DeviceTable,
    FunctionGroup,
    NodeDevice,
)

KIB = 1 << 10
CARD_BYTES = 83201216 * KIB
RDMA_NAME = "koordinator.sh/rdma"
WHOLE: Amounts = {GPU_CORE: 100, GPU_MEMORY: CARD_BYTES, GPU_MEMORY_RATIO: 100}
NIC: Amounts = {RDMA_NAME: 100}
FAKE_W = {"type": "fakeW"}
NIC_BUSES = ("0000:1f:00.0", "0000:90:00.0", "0000:51:00.0", "0000:b9:00.0")


def gpu(
    minor: int, pcie: str, numa: int, total: Amounts = WHOLE, *, placed: bool = True
) -> NodeDevice:
    """Return a card; its socket is its NUMA node."""
    return NodeDevice(
        kind=GPU,
        minor=minor,
        id=f"GPU-{minor}",
        total=total,
        has_topology=placed,
        numa_node=numa if placed else -1,
        socket=numa if placed else -1,
        pcie=pcie if placed else "",
    )


def nic(
    minor: int,
    bus: str,
    pcie: str,
    numa: int,
    groups: tuple[FunctionGroup, ...] = (),
    *,
    placed: bool = True,
) -> NodeDevice:
    """Return a NIC with the label that the requests of the vectors select."""
    return NodeDevice(
        kind=RDMA,
        minor=minor,
        id=bus,
        total=NIC,
        labels=FAKE_W,
        has_topology=placed,
        numa_node=numa if placed else -1,
        socket=numa if placed else -1,
        pcie=pcie if placed else "",
        function_groups=groups,
    )


def group(name: str, functions: Iterable[tuple[str, int]]) -> FunctionGroup:
    """Return a group of virtual functions, by bus id."""
    return FunctionGroup(
        {"type": name}, tuple(DeviceFunction(bus, minor) for bus, minor in sorted(functions))
    )


def _general(bus: str) -> FunctionGroup:
    """Return thirty functions of a NIC: `.2` to `.7`, then those of devices 01 to 03."""
    domain = bus.rsplit(":", 1)[0]
    places = [(0, number) for number in range(2, 8)]
    places += [(device, number) for device in (1, 2, 3) for number in range(8)]
    return group(
        "general", ((f"{domain}:{d:02x}.{n}", minor) for minor, (d, n) in enumerate(places))
    )


def _flat(prefix: str) -> FunctionGroup:
    return group("general", ((f"{prefix}.{number:x}", number) for number in range(30)))


def _gpus(numa_of: Mapping[int, int], total: Amounts = WHOLE) -> tuple[NodeDevice, ...]:
    return tuple(gpu(minor, str(minor // 2), numa_of[minor // 2], total) for minor in range(8))


BOTH = {0: 0, 1: 0, 2: 1, 3: 1}  # NUMA node of each PCIe root
ONE = dict.fromkeys(range(4), 0)


def _table(gpus: tuple[NodeDevice, ...], nics: Iterable[NodeDevice]) -> DeviceTable:
    return DeviceTable(node="node", devices={GPU: gpus, RDMA: tuple(nics)})


def _node_a(numa_of: Mapping[int, int] = BOTH, *, functions: bool = True) -> DeviceTable:
    nics = (
        nic(i + 1, bus, str(i), numa_of[i], (_general(bus),) if functions else ())
        for i, bus in enumerate(NIC_BUSES)
    )
    return _table(_gpus(numa_of), nics)


def _node_a0() -> DeviceTable:
    gpus = tuple(gpu(minor, "", 0, placed=False) for minor in range(8))
    nics = (nic(i + 1, bus, "", 0, placed=False) for i, bus in enumerate(NIC_BUSES))
    return _table(gpus, nics)


def _node_b() -> DeviceTable:
    nics = (
        nic(i + 1, bus, str(i), 0, (_flat("0000:20:00"),) if i == 0 else ())
        for i, bus in enumerate(NIC_BUSES)
    )
    return _table(_gpus(ONE), nics)


def _nodes_c_d(count: int) -> DeviceTable:
    nics = (
        nic(
            i + 1,
            NIC_BUSES[i % 4].replace("0000", f"{i // 4:04x}"),
            str(i % 4),
            BOTH[i % 4],
            (_flat(f"{i // 4:04x}:{0x20 + i % 4:02x}:00"),),
        )
        for i in range(count)
    )
    return _table(_gpus(BOTH), nics)


def _node_e() -> DeviceTable:
    gpus = tuple(gpu(minor, str(minor), 0) for minor in range(4))
    roots = ("0", "0", "0", "1", "2", "3")
    nics = (
        nic(
            i,
            f"0000:{0x20 + i:02x}:00.1",
            root,
            0,
            (group("general", [(f"0000:{0x20 + i:02x}:00.0", -1)]),),
        )
        for i, root in enumerate(roots)
    )
    return _table(gpus, nics)


_H_ROOTS = ("0", "2", "3", "4", "5", "6", "7", "8")
_H_BUSES = ("0000:09", "0000:7f", "0000:a3", "0000:c7", "0001:08", "0001:7e", "0001:a2", "0001:c6")


def _node_h() -> DeviceTable:
    gpus = tuple(gpu(i, root, i // 4) for i, root in enumerate(_H_ROOTS))
    nics = (
        nic(
            i + 1,
            f"{bus}:00.0",
            _H_ROOTS[i],
            i // 4,
            (
                group("fakeS", [(f"{bus}:00.2", 0)]),
                group("fakeG", [(f"{bus}:00.{n}", n - 2) for n in range(3, 7)]),
                group("fakeC", [(f"{bus}:02.{n}", n + 14) for n in range(2, 6)]),
            ),
        )
        for i, bus in enumerate(_H_BUSES)
    )
    return _table(gpus, nics)


NPU: Amounts = {
    "huawei.com/npu-core": 8,
    "huawei.com/npu-cpu": 7,
    "huawei.com/npu-dvpp": 100,
    GPU_MEMORY: 24 << 30,
    GPU_MEMORY_RATIO: 100,
}

NODES: Mapping[str, DeviceTable] = {
    "A": _node_a(),
    "A0": _node_a0(),
    "B": _node_b(),
    "C": _nodes_c_d(4),
    "D": _nodes_c_d(8),
    "E": _node_e(),
    "F": _node_a(ONE, functions=False),
    "H": _node_h(),
    "N": DeviceTable(node="node", devices={GPU: _gpus(BOTH, NPU)}),
}


def holding(
    table: DeviceTable,
    gpus: Iterable[int] = (),
    functions: Iterable[str] = (),
    nics: Iterable[int] = (),
) -> tuple[AllocatedDevice, ...]:
    """Return allocations of whole cards, of whole NICs, and of functions by bus id."""
    entries = [
        AllocatedDevice(type=GPU, minor=minor, resources=tuple(WHOLE.items())) for minor in gpus
    ]
    entries += [
        AllocatedDevice(type=RDMA, minor=minor, resources=tuple(NIC.items())) for minor in nics
    ]
    owners = {
        function.bus_id: device.minor
        for device in table.of(RDMA)
        for of_group in device.function_groups
        for function in of_group.functions
    }
    entries += [
        AllocatedDevice(type=RDMA, minor=owners[bus], resources=((RDMA_NAME, 1),), vfs=(bus,))
        for bus in functions
    ]
    return tuple(entries)
