"""Cards, grants and hosts for what containers get of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.snapshot.allocation import AllocatedDevice, DeviceAllocation
from agent.snapshot.container import ContainerSpec
from agent.snapshot.device import DeviceKind, DeviceNode, DevicePartition, VendorDevice
from agent.snapshot.edits import ContainerEdits
from agent.snapshot.host_devices import HostDevices
from plugins.vendors.nvidia.settings import NvidiaSettings
from tests.vendors import section

UUIDS = tuple(f"GPU-00000000-0000-4000-8000-{i:012d}" for i in range(20))
MAJORS = (("nvidia", 195), ("nvidia-uvm", 511), ("nvidia-caps", 236))
HAMI = (("koordinator.sh/gpu-isolation-provider", "HAMi-core"),)
POD = ContainerSpec(name="worker", pod_uid="6f6f0000-0000-4000-8000-000000000001")


def node(path: str, major: int = 240, minor: int = 0) -> DeviceNode:
    return DeviceNode(path=path, major=major, minor=minor)


def nodes(*paths: str) -> tuple[DeviceNode, ...]:
    return tuple(node(path, 240, i) for i, path in enumerate(paths))


def gpu(minor: int, bus: int | None = None, **changes: object) -> VendorDevice:
    """One card; cards are in PCI order of their minors unless a bus is given."""
    facts: dict[str, object] = {
        "kind": DeviceKind.GPU,
        "vendor": "nvidia",
        "bus_id": f"0000:{(minor + 0x10) if bus is None else bus:02x}:00.0",
        "uuid": UUIDS[minor],
        "minor": minor,
        "vendor_minor": minor,
    }
    return VendorDevice(**{**facts, **changes})  # type: ignore[arg-type]  # fields of the struct


def mig(number: int, *caps: int) -> DevicePartition:
    return DevicePartition(
        uuid=f"MIG-0000000{number}",
        profile="1g.10gb",
        instance=number,
        compute_instance=0,
        nodes=tuple(node(f"/dev/nvidia-caps/nvidia-cap{cap}", 236, cap) for cap in caps),
    )


def allocation_of(
    *ids: str, amounts: Mapping[str, int] | None = None, kind: str = "gpu"
) -> DeviceAllocation:
    """Grant devices by id, each with the same amounts: core, memory, ratio."""
    names = {"core": "gpu-core", "memory": "gpu-memory", "ratio": "gpu-memory-ratio"}
    resources = tuple(
        (f"koordinator.sh/{names[key]}", value) for key, value in (amounts or {}).items()
    )
    return DeviceAllocation(
        devices=tuple(AllocatedDevice(type=kind, id=name, resources=resources) for name in ids)
    )


def nvidia_host(
    minors: Iterable[int] = range(8),
    *,
    without: Iterable[str] = (),
    settings: Mapping[str, object] | None = None,
    paths: Iterable[str] = (),
    **changes: object,
) -> HostDevices:
    """A host with the driver's nodes of these cards."""
    device_nodes = [
        node("/dev/nvidiactl", 195, 255),
        node("/dev/nvidia-uvm", 511, 0),
        node("/dev/nvidia-uvm-tools", 511, 1),
        node("/dev/nvidia-modeset", 195, 254),
        *(node(f"/dev/nvidia{minor}", 195, minor) for minor in minors),
        *(node(f"/dev/nvidia-caps/nvidia-cap{cap}", 236, cap) for cap in range(1, 30)),
    ]
    missing = set(without)
    return HostDevices(
        nodes=tuple(item for item in device_nodes if item.path not in missing),
        majors=MAJORS,
        paths=frozenset(paths),
        settings=section(NvidiaSettings, settings or {}),
        **changes,  # type: ignore[arg-type]  # fields of the struct
    )


def env(edits: ContainerEdits) -> dict[str, str]:
    """Return the variables; each is set once."""
    assert len({name for name, _ in edits.env}) == len(edits.env)
    return dict(edits.env)


def names_of(edits: ContainerEdits) -> list[str]:
    """Return the last parts of the nodes' paths in the container."""
    return [item.path.rpartition("/")[2] for item in edits.nodes]


def reasons(edits: ContainerEdits) -> list[str]:
    return [note.reason for note in edits.notes]
