"""Snapshots built by hand: an eight-card machine with four NICs, and as many pods as asked for."""

from __future__ import annotations

from types import MappingProxyType

from msgspec.structs import replace

from agent.snapshot.cpu import NumaNode, NumaTopology
from agent.snapshot.device import (
    Device,
    DeviceKind,
    DeviceLink,
    DevicePort,
    Placement,
    VendorDevice,
    VirtualFunction,
    VirtualFunctionGroup,
)
from agent.snapshot.inventory import DeviceSample, Inventory, MetricValue
from agent.snapshot.node import DeviceView, NodeIdentity, NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciLink
from agent.snapshot.pod import ContainerView, KubeQos, PodView
from agent.snapshot.usage import CgroupUsage, NodeUsage, NumaUsage, Pressure, UsageSample

NOW_S = 1000.0  # monotonic
BOOT_S = 1_767_323_045.0  # wall: 2026-01-02T03:04:05Z
GPU_ROOTS = ("15", "3d", "4c", "5b", "97", "bd", "cb", "d9")
GPU_BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
NICS = ((0, "15", "18"), (3, "3d", "40"), (6, "97", "9a"), (10, "cb", "ce"))  # minor, root, bus
LINK = PciLink(speed=320, width=16, max_speed=320, max_width=16)
PRESSURE = Pressure(some_avg10=1.5, some_total_us=2_500_000, full_avg10=0.25, full_total_us=4000)


def place(root: str, bus: str, node: int) -> Placement:
    """Sit a device below its own switch: root port, upstream port, downstream port, device."""
    first = int(root, 16)
    bridges = (f"0000:{root}:01.0", f"0000:{first + 1:02x}:00.0", f"0000:{first + 2:02x}:00.0")
    return Placement(
        numa_node=node,
        numa_source="firmware",
        socket=node,
        package_id=node,
        root=f"pci0000:{root}",
        path=(f"pci0000:{root}", *bridges, f"0000:{bus}:00.0"),
        switch=bridges[1],
        chip=bridges[1],
        link=LINK,
        acs=(0, None, 29),
    )


def gpu(index: int, **changes: object) -> Device:
    """One H100 of the eight."""
    info = VendorDevice(
        kind=DeviceKind.GPU,
        vendor="nvidia",
        bus_id=f"0000:{GPU_BUSES[index]}:00.0",
        uuid=f"GPU-00000000-0000-4000-8000-{index:012d}",
        minor=index,
        vendor_minor=index,
        model="NVIDIA H100 80GB HBM3",
        memory_bytes=85_520_809_984,
        resources=(
            ("koordinator.sh/gpu-core", "100"),
            ("koordinator.sh/gpu-memory", "81559Mi"),
            ("koordinator.sh/gpu-memory-ratio", "100"),
        ),
    )
    root = GPU_ROOTS[index]
    return Device(
        info=replace(info, **changes),
        place=place(root, GPU_BUSES[index], index // 4),
        pcie_scope_id=f"pci0000:{root}",
    )


def nic(index: int, *, vfs: int = 0, **changes: object) -> Device:
    """One of the four InfiniBand NICs."""
    minor, root, bus = NICS[index]
    virtual = tuple(VirtualFunction(bus_id=f"0000:{bus}:00.{i}") for i in range(1, vfs + 1))
    info = VendorDevice(
        kind=DeviceKind.RDMA,
        vendor="mlx5",
        bus_id=f"0000:{bus}:00.0",
        uuid=f"0000:{bus}:00.0",
        minor=minor,
        model="MT4129",
        resources=(("koordinator.sh/rdma", "100"),),
        facts=(("name", f"mlx5_{minor}"),),
        ports=(
            DevicePort(number=1, state=4, physical_state=5, rate_mbps=400_000, lid=7, sm_lid=1),
        ),
        vf_groups=(VirtualFunctionGroup(vfs=virtual),) if virtual else (),
    )
    return Device(
        info=replace(info, **changes),
        place=place(root, bus, index // 2),
        pcie_scope_id=f"pci0000:{root}",
    )


def sample(device: Device) -> DeviceSample:
    """What a card does: half busy, 1 GiB used."""
    return DeviceSample(
        key=device.key,
        core_percent=50.0,
        memory_used_bytes=1 << 30,
        memory_total_bytes=device.info.memory_bytes,
        readings=(MetricValue(family="xpu_device_power_watts", value=412.5),),
    )


def pod(index: int, containers: int = 1, **changes: object) -> PodView:
    """One running pod; container ids are unique over all pods."""
    uid = f"6f6f0000-0000-4000-8000-{index:012d}"
    base = PodView(
        uid=uid,
        qos=KubeQos.BURSTABLE,
        name=f"train-{index}",
        namespace="team-a",
        cgroup=f"/kubepods/burstable/pod{uid}",
        containers=tuple(
            ContainerView(id=f"{index:060x}{i:04x}", name=f"worker-{i}") for i in range(containers)
        ),
    )
    return replace(base, **changes)


def group(index: int) -> CgroupUsage:
    """Usage with every field told."""
    return CgroupUsage(
        cpu_cores=0.123456789 * (index + 1),
        cpu_total_ns=987_654_321_000 + index,
        memory_bytes=(index + 1) << 20,
        memory_with_cache_bytes=(index + 2) << 20,
        throttled_ratio=0.25,
        throttled_periods=25,
        periods=100,
        pressure=MappingProxyType(dict.fromkeys(("cpu", "memory", "io"), PRESSURE)),
    )


def usage(pods: tuple[PodView, ...]) -> UsageSample:
    """Usage of a node and of all its pods and containers."""
    containers = [container.id for one in pods for container in one.containers]
    return UsageSample(
        node=NodeUsage(
            cpu_cores=12.5,
            cpu_total_ns=10**15,
            memory_bytes=64 << 30,
            memory_with_cache_bytes=96 << 30,
            memory_total_bytes=2 << 40,
            system_cpu_cores=0.5,
            system_memory_bytes=4 << 30,
            pressure=MappingProxyType({"cpu": PRESSURE}),
            numa=(NumaUsage(node_id=0, cpu_cores=6.0, memory_bytes=1 << 30),),
        ),
        pods=MappingProxyType({one.uid: group(i) for i, one in enumerate(pods)}),
        containers=MappingProxyType({name: group(i) for i, name in enumerate(containers)}),
    )


def snapshot(
    devices: tuple[Device, ...] | None = None, pods: tuple[PodView, ...] = ()
) -> NodeSnapshot:
    """Eight cards, four NICs and the pods; every part taken at `NOW_S`."""
    result = (
        devices
        if devices is not None
        else (*map(gpu, range(8)), *(nic(i, vfs=4 if i == 0 else 0) for i in range(4)))
    )
    nvidia = Inventory(vendor="nvidia", driver_version="570.124.06")
    samples = tuple(sample(d) for d in result if d.info.kind is DeviceKind.GPU)
    link = DeviceLink(a="0000:1b:00.0", b="0000:43:00.0", type="NVLink", count=18)
    nodes = tuple(
        NumaNode(id=i, cpus=frozenset((2 * i, 2 * i + 1)), memory_bytes=1 << 40) for i in (0, 1)
    )
    return NodeSnapshot(
        node=NodeIdentity(name="hgx-h100-01", boot_id="b007", boot_time_s=BOOT_S),
        numa=SnapshotPart(NumaTopology(nodes=nodes), NOW_S),
        vendors=(
            VendorState(
                vendor="nvidia",
                state="ready",
                inventory=SnapshotPart(nvidia, NOW_S),
                samples=SnapshotPart(samples, NOW_S),
            ),
        ),
        devices=SnapshotPart(DeviceView(devices=result, links=(link,)), NOW_S),
        pods=SnapshotPart(pods, NOW_S),
        usage=SnapshotPart(usage(pods), NOW_S),
    )
