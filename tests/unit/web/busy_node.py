"""A node at its busiest: many cards and pods, a failed card, refusals, changes and events."""

from __future__ import annotations

import math
from array import array

from msgspec.structs import replace

from agent.snapshot.allocation import (
    AllocatedDevice,
    AllocationView,
    ContainerVerification,
    DeviceAllocation,
    PodAllocation,
    VerificationStatus,
    VerificationView,
)
from agent.snapshot.container import RuntimeView
from agent.snapshot.device import Device, DeviceLink, Health, HealthState
from agent.snapshot.inventory import (
    POWER,
    POWER_LIMIT,
    TEMPERATURE,
    DeviceSample,
    MetricValue,
    ProcessSample,
)
from agent.snapshot.node import DeviceView, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciLink
from agent.snapshot.pod import PodView
from agent.snapshot.publications import AuditRecord, EventLine
from agent.snapshot.self_check import (
    DesiredFiles,
    EnforcementView,
    LoopStatus,
    StrategyState,
    StrategyStatus,
)
from agent.snapshot.usage import DeviceTrend, LinkTrafficTrend, Trend, TrendView
from tests import factory
from tests.factory import BOOT_S, NOW_S

VALUES = 36  # of a trend
PIDS = 4000  # of the first card's first process


class HeldFile:
    """The value of a file that a hook asks for."""

    owner, message, source = "batch", "set cpu.shares", "pod"

    def __init__(self, cgroup: str, key_name: str) -> None:
        self.cgroup = cgroup
        self.key_name = key_name

    def text(self, version: int) -> str:
        return f"{version}"


def card(index: int) -> Device:
    """One of up to 32 cards, four to a root."""
    base = factory.gpu(index % 8)
    bus_id = f"0000:{16 + index:02x}:00.0"
    uuid = f"GPU-{index:08d}-0000-4000-8000-000000000000"
    info = replace(base.info, bus_id=bus_id, uuid=uuid, minor=index, vendor_minor=index)
    place = replace(base.place, numa_node=index // 8 % 2, path=(*base.place.path[:-1], bus_id))
    return replace(base, info=info, place=place)


def ruin(device: Device, message: str = "GPU has fallen off the bus") -> Device:
    """Return a device that failed two minutes ago."""
    health = Health(
        state=HealthState.FAILED,
        reason="Xid79",
        message=message,
        since_s=BOOT_S - 120,
        changes=3,
        last_event="Xid79",
    )
    return replace(device, info=replace(device.info, health=health))


def slow(device: Device) -> Device:
    """Return a device whose PCIe link has a quarter of its lanes."""
    link = PciLink(speed=320, width=4, max_speed=320, max_width=16)
    return replace(device, place=replace(device.place, link=link, link_degraded="width"))


def sample(device: Device, index: int) -> DeviceSample:
    """Return two processes, heat and power of a card."""
    return DeviceSample(
        key=device.key,
        core_percent=37.0 + 3 * index,
        memory_used_bytes=(40 + index) << 30,
        memory_total_bytes=device.info.memory_bytes,
        processes=tuple(
            ProcessSample(pid=PIDS + 2 * index + n, memory_bytes=(20 - n) << 30, core_percent=20.0)
            for n in range(2)
        ),
        readings=(
            MetricValue(family=TEMPERATURE, value=41.0 + 2 * index, labels=("gpu",)),
            MetricValue(family=TEMPERATURE, value=48.0 + 2 * index, labels=("memory",)),
            MetricValue(family=POWER, value=310.0 + 9 * index),
            MetricValue(family=POWER_LIMIT, value=700.0),
        ),
    )


def wave(mean: float, swing: float, phase: int) -> Trend:
    """Return an uneven trend, which no run of equal values makes short."""
    values = (
        mean + swing * (0.7 * math.sin((n + 5 * phase) / 3) + 0.3 * math.sin((n * n + phase) / 2))
        for n in range(VALUES)
    )
    return Trend(packed=array("f", values).tobytes())


def device_trend(index: int, links: tuple[str, ...] = ("NVLink", "PCIe")) -> DeviceTrend:
    return DeviceTrend(
        busy_percent=wave(60, 39, index),
        memory_bytes=wave(40 << 30, 20 << 30, index + 1),
        temperature_celsius=wave(60, 20, index + 2),
        power_watts=wave(400, 250, index + 3),
        links=tuple(
            LinkTrafficTrend(
                link=link, sent=wave(4e10, 3e10, index), received=wave(4e10, 3e10, index + 4)
            )
            for link in links
        ),
    )


def allocation(pod: PodView, device: Device) -> PodAllocation:
    entry = AllocatedDevice(
        type="gpu",
        id=device.info.uuid or "",
        resources=(("koordinator.sh/gpu-core", 100), ("koordinator.sh/gpu-memory", 80 << 30)),
    )
    grant = DeviceAllocation(devices=(entry,))
    return PodAllocation(uid=pod.uid, namespace=pod.namespace, name=pod.name, grant=grant)


def busy_snapshot(cards: int = 16, nics: int = 0, pods: int = 250) -> NodeSnapshot:
    """Return a node whose every section has more to show than fits."""
    devices = [card(index) for index in range(cards)]
    devices[2:4] = [change(one) for change, one in zip((ruin, slow), devices[2:4], strict=False)]
    network = [factory.nic(index) for index in range(nics)]
    keys = sorted(device.key for device in devices)
    links = tuple(
        DeviceLink(a=a, b=b, type="NVSwitch", count=18) for a in keys for b in keys if a < b
    )
    every_pod = tuple(factory.pod(index, 2) for index in range(pods))
    base = factory.snapshot(tuple(devices), every_pod)
    trends = {one.key: device_trend(index) for index, one in enumerate(devices)}
    trends |= {one.key: device_trend(index, ("RDMA",)) for index, one in enumerate(network)}
    granted = dict(zip(every_pod, devices, strict=False))
    allocations = {pod.uid: allocation(pod, device) for pod, device in granted.items()}
    refused = every_pod[cards]  # has no card left
    allocations[refused.uid] = PodAllocation(
        uid=refused.uid,
        namespace=refused.namespace,
        name=refused.name,
        refusal="DeviceTaken",
        message="DeviceTaken: GPU 3 is allocated to team-a/train-3",
    )
    verdicts = {
        one.containers[0].id: ContainerVerification(
            container_id=one.containers[0].id,
            container=one.containers[0].name,
            pod_uid=one.uid,
            namespace=one.namespace,
            pod=one.name,
            verdict=VerificationStatus.MISSING if index == 4 else VerificationStatus.VERIFIED,
            details=("/dev/nvidia4 is missing",) if index == 4 else (),
            way="nri",
        )
        for index, one in enumerate(granted)
    }
    owners = {
        PIDS + 2 * index + n: (pod.uid, pod.containers[n].id)
        for index, pod in enumerate(granted)
        for n in range(2)
    }
    files = tuple(
        HeldFile(container.cgroup or f"{pod.cgroup}/{container.id}", name)
        for pod in every_pod
        for container in pod.containers
        for name in ("cpu.shares", "cpu.cfs_quota_us", "memory.limit_in_bytes")
    )
    strategies = tuple(
        StrategyStatus(
            name=f"strategy_{index}",
            mode="on",
            state=StrategyState.ACTIVE,
            message="it is active, for a reason of some length",
            values=120,
            figures=(("budget_cores", 11.4), ("suppressed_pods", 3.0)),
        )
        for index in range(10)
    )
    vendor = replace(
        base.vendors[0],
        samples=SnapshotPart(tuple(sample(one, n) for n, one in enumerate(devices)), NOW_S),
    )
    read = {
        name: SnapshotPart(getattr(base, name).value, NOW_S) for name in ("cpus", "numa", "pci")
    }
    return replace(
        base,
        **read,
        vendors=(vendor,),
        devices=SnapshotPart(DeviceView(devices=(*devices, *network), links=links), NOW_S),
        usage=SnapshotPart(replace(base.usage.value, owners=owners), NOW_S),
        trend=SnapshotPart(
            TrendView(
                step_s=5.0,
                cpu_cores=wave(30, 20, 1),
                memory_bytes=wave(2 << 39, 2 << 38, 2),
                devices=trends,
            ),
            NOW_S,
        ),
        allocations=SnapshotPart(AllocationView(pods=allocations), NOW_S),
        verification=SnapshotPart(VerificationView(containers=verdicts), NOW_S),
        runtime=SnapshotPart(RuntimeView(state="synchronized", runtime="containerd"), NOW_S),
        desired_files=DesiredFiles(hooks=files),
        enforcement=SnapshotPart(EnforcementView(strategies=strategies), NOW_S),
        loops=tuple(
            LoopStatus(name=f"loop-{index}", interval_s=1.0, last_success_s=NOW_S)
            for index in range(20)
        ),
        audit=tuple(_change(index, every_pod[index % pods]) for index in range(100)),
        events=tuple(_event(index, devices[min(2, cards - 1)]) for index in range(100)),
    )


def _change(index: int, pod: PodView) -> AuditRecord:
    return AuditRecord(
        wall_s=BOOT_S + index,
        owner="cpu_suppression",
        path=f"/sys/fs/cgroup/cpu{pod.cgroup}/{'a' * 64}/cpu.cfs_quota_us",
        key="cpu.cfs_quota_us",
        old="-1",
        new="250000",
        source="NodeSLO spec.resourceUsedThresholdWithBE.cpuSuppressThresholdPercent",
    )


def _event(index: int, device: Device) -> EventLine:
    return EventLine(
        time="2026-01-02T03:04:05Z",
        reason="DeviceUnhealthy",
        about="Device",
        message=f"GPU 2 ({device.key}): Xid79: GPU has fallen off the bus, time {index}",
    )
