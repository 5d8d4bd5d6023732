"""One node with cards of every vendor: what the agent would know of it. No such card is here.

The numbers of its device nodes belong to no driver of this kernel: to open one that the device
cgroup allows fails with ENXIO ("No such device or address"), one that it denies with EPERM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from agent.snapshot.cpu import CpuTopology
from agent.snapshot.device import (
    Device,
    DeviceKind,
    DeviceNode,
    DevicePartition,
    VendorDevice,
    VirtualFunction,
    VirtualFunctionGroup,
)
from agent.snapshot.host_devices import CdiSpec, HostDevices, HostDevicesView, RdmaFunction
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import DeviceView, NodeIdentity, NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.settings import VendorSettings
from agent.wire_formats.cdi_specs import decode_spec
from plugins.vendors.rdma.settings import RdmaSettings

GRANT = "scheduling.koordinator.sh/device-allocated"
HAMI = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
LIBRARY = "/usr/local/vgpu/libvgpu.so"
PF, VFS = "0000:3b:00.0", ("0000:3b:00.1", "0000:3b:00.2")
UVERBS = 231
MAJORS = (("nvidia", 195), ("nvidia-uvm", 511), ("nvidia-caps", 236))
CPUS = frozenset((0, 1))
CAP_SYS_RESOURCE = 24


def may_raise_limits() -> bool:
    """Say whether programs that tests start here may give a container more than they have."""
    status = Path("/proc/self/status").read_text()
    (effective,) = re.findall(r"^CapEff:\s(\w+)$", status, re.MULTILINE)
    return bool(int(effective, 16) >> CAP_SYS_RESOURCE & 1)


def node(path: str, major: int, minor: int) -> DeviceNode:
    return DeviceNode(path=f"/dev/{path}", major=major, minor=minor)


CONTROL = (
    node("nvidiactl", 195, 255),
    node("nvidia-uvm", 511, 0),
    node("nvidia-uvm-tools", 511, 1),
    node("nvidia-modeset", 195, 254),
)
CAPS = tuple(node(f"nvidia-caps/nvidia-cap{number}", 236, number) for number in (21, 22, 30, 31))
MANAGERS = tuple(
    node(name, 237, number)
    for number, name in enumerate(("davinci_manager", "devmm_svm", "hisi_hdc"))
)
MANAGER = node("infiniband/rdma_cm", 10, 240)


def _gpu(minor: int) -> VendorDevice:
    parts: tuple[DevicePartition, ...] = ()
    if minor == 3:  # is cut into two
        parts = tuple(
            DevicePartition(
                uuid=f"MIG-0000000{number}",
                profile="3g.40gb",
                instance=number + 1,
                compute_instance=0,
                nodes=CAPS[2 * number : 2 * number + 2],
            )
            for number in range(2)
        )
    return VendorDevice(
        kind=DeviceKind.GPU,
        vendor="nvidia",
        bus_id=f"0000:{0x10 + minor:02x}:00.0",
        uuid=f"GPU-{minor}",
        minor=minor,
        vendor_minor=minor,
        memory_bytes=80 << 30,
        nodes=(node(f"nvidia{minor}", 195, minor),),
        partitions=parts,
        resources=() if parts else _whole(80 << 30),
        facts=(("unschedulable", "MIGEnabled"),) if parts else (),
    )


def _whole(memory: int) -> tuple[tuple[str, str], ...]:
    amounts = {"gpu-core": 100, "gpu-memory": memory, "gpu-memory-ratio": 100}
    return tuple((f"koordinator.sh/{name}", str(amount)) for name, amount in amounts.items())


def _npu(minor: int) -> VendorDevice:
    virtual = DevicePartition(
        uuid="vnpu-100",
        profile="vir04",
        instance=100,
        nodes=(node("vdavinci100", 238, 100),),
        with_card=False,
    )
    return VendorDevice(
        kind=DeviceKind.NPU,
        vendor="huawei",
        bus_id=f"0000:{0x40 + minor:02x}:00.0",
        uuid=f"DIE-{minor}",
        minor=minor,
        vendor_minor=minor,
        memory_bytes=64 << 30,
        nodes=(node(f"davinci{minor}", 238, minor),),
        partitions=(virtual,) if minor == 1 else (),
        resources=_whole(64 << 30),
    )


def _mlu(minor: int) -> VendorDevice:
    return VendorDevice(
        kind=DeviceKind.MLU,
        vendor="cambricon",
        bus_id=f"0000:{0x60 + minor:02x}:00.0",
        uuid=f"MLU-{minor}",
        minor=minor,
        vendor_minor=minor,
        memory_bytes=24 << 30,
        nodes=(node(f"cambricon_dev{minor}", 239, minor),),
        resources=_whole(24 << 30),
    )


def _nic() -> VendorDevice:
    virtual = tuple(VirtualFunction(bus_id=address) for address in VFS)
    return VendorDevice(
        kind=DeviceKind.RDMA,
        vendor="mlx5",
        bus_id=PF,
        uuid=PF,
        minor=0,
        nodes=(node("infiniband/uverbs0", UVERBS, 192),),
        vf_groups=(VirtualFunctionGroup(vfs=virtual),),
        resources=(("koordinator.sh/rdma", "100"),),
    )


DEVICES: Mapping[str, tuple[VendorDevice, ...]] = {
    "nvidia": tuple(map(_gpu, range(4))),
    "ascend": tuple(map(_npu, range(2))),
    "cambricon": tuple(map(_mlu, range(2))),
    "rdma": (_nic(),),
}


def _functions() -> tuple[RdmaFunction, ...]:
    return tuple(
        RdmaFunction(
            address=address,
            names=(f"mlx5_{number}",),
            verbs=(node(f"infiniband/uverbs{number}", UVERBS, 192 + number),),
            driver="mlx5_core",
        )
        for number, address in enumerate((PF, *VFS))
    )


def _specs(folder: Path) -> tuple[CdiSpec, ...]:
    paths = sorted(folder.glob("*.json"))
    return tuple(decode_spec(str(path), json.loads(path.read_bytes())) for path in paths)


def _means(vendor: str, specs: tuple[CdiSpec, ...], *, memlock: bool) -> HostDevices:
    own = [result for device in DEVICES[vendor] for result in device.nodes]
    own += [n for device in DEVICES[vendor] for part in device.partitions for n in part.nodes]
    shared = {"nvidia": CONTROL, "ascend": MANAGERS, "rdma": (MANAGER,)}.get(vendor, ())
    mounts = {path for spec in specs for path in spec.mounts if Path(path).exists()}
    return HostDevices(
        nodes=(*shared, *own),
        majors=MAJORS,
        paths=frozenset((LIBRARY, *mounts)),
        functions=_functions() if vendor == "rdma" else (),
        cdi=specs,
        default_handler="runc",
        settings=RdmaSettings(memlock=memlock) if vendor == "rdma" else VendorSettings(),
    )


def snapshot(now_s: float, *, memlock: bool, cdi: Path) -> NodeSnapshot:
    """Return what the agent knows at its start; `memlock` is the setting of RDMA.

    Vendors come in the order of their names, as they do in the agent; `cdi` has the CDI files.
    """
    specs = _specs(cdi)
    means = {name: _means(name, specs, memlock=memlock) for name in sorted(DEVICES)}
    states = tuple(
        VendorState(
            vendor=name,
            state="ready",
            inventory=SnapshotPart(Inventory(vendor=name, devices=devices), now_s),
        )
        for name, devices in sorted(DEVICES.items())
    )
    devices = tuple(Device(info=info) for infos in DEVICES.values() for info in infos)
    return NodeSnapshot(
        node=NodeIdentity(name="node-1"),
        vendors=states,
        devices=SnapshotPart(DeviceView(devices=devices), now_s),
        host_devices=SnapshotPart(HostDevicesView(vendors=means), now_s),
        cpus=SnapshotPart(CpuTopology(present=CPUS, usable=CPUS), now_s),
    )


def entry(minor: int, name: str, *, core: int = 100, memory: str = "", ratio: int = 100) -> object:
    """Return one device of a grant as the scheduler writes it."""
    amounts = {"gpu-core": str(core), "gpu-memory-ratio": str(ratio)}
    if memory:
        amounts["gpu-memory"] = memory
    resources = {f"koordinator.sh/{key}": value for key, value in amounts.items()}
    return {"minor": minor, "id": name, "resources": resources}


def grant(*entries: object, **kinds: list[object]) -> dict[str, str]:
    """Return the annotation of a grant of cards, and of devices of other kinds by name."""
    result = {"gpu": list(entries), **kinds} if entries else dict(kinds)
    return {GRANT: json.dumps(result)}
