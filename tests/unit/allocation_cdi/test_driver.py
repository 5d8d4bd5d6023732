from __future__ import annotations

from msgspec.structs import replace

from agent.allocation.cdi_files import CdiFileSet, build_cdi_files
from agent.recording.tree import LinkEntry, TreeBuilder, TreeFiles
from agent.snapshot.allocation import AllocatedDevice, DeviceAllocation
from agent.snapshot.device import DeviceNode, DevicePartition
from agent.snapshot.host_devices import CdiDevice, CdiSpec, HostDevices
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from plugins.vendors.nvidia.injection.driver_files import (
    NvidiaDriverFiles,
    edits_of_files,
    read_driver_files,
)
from plugins.vendors.nvidia.injection.edits import edits
from tests import factory
from tests.unit.allocation_cdi.reader import read
from tests.unit.deviceplugin.made import VENDORS, card, means, node
from tests.unit.vendors_injection.made import POD

VERSION = "570.124.06"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
CUDA = f"{LIBRARIES}/libcuda.so.{VERSION}"
FILES = (
    "/usr/bin/nvidia-cdi-hook",
    "/usr/bin/nvidia-smi",
    "/run/nvidia-persistenced/socket",
    CUDA,
    f"{LIBRARIES}/libnvidia-ml.so.{VERSION}",
    f"{LIBRARIES}/vdpau/libvdpau_nvidia.so.{VERSION}",
    f"{LIBRARIES}/libcuda.so.535.1",
    f"{LIBRARIES}/libc.so.6",
)


def host(*without: str) -> TreeFiles:
    builder = TreeBuilder()
    for path in FILES:
        if path not in without:
            builder.put(path, b"")
    builder.put("/usr/lib64", LinkEntry("lib/x86_64-linux-gnu"))
    return builder.build("")


def snapshot(**changes: object) -> NodeSnapshot:
    base = node(devices=())
    cards = tuple(
        replace(
            factory.gpu(i).info,
            nodes=(DeviceNode(path=f"/dev/nvidia{i}", major=195, minor=i),),
            **changes,
        )
        for i in range(2)
    )
    inventory = SnapshotPart(Inventory(vendor="nvidia", devices=cards), 1.0)
    return replace(base, vendors=(replace(base.vendors[0], inventory=inventory),))


def files(of: NodeSnapshot, driver: NvidiaDriverFiles | None) -> CdiFileSet:
    return build_cdi_files(of, VENDORS, {"nvidia": edits_of_files(driver)} if driver else {})


def test_the_loaded_drivers_files_are_found_once() -> None:
    driver_files = read_driver_files(host(), VERSION)
    assert driver_files == NvidiaDriverFiles(
        version=VERSION,
        hook="/usr/bin/nvidia-cdi-hook",
        libraries=(
            CUDA,
            f"{LIBRARIES}/libnvidia-ml.so.{VERSION}",
            f"{LIBRARIES}/vdpau/libvdpau_nvidia.so.{VERSION}",
        ),
        programs=("/usr/bin/nvidia-smi",),
        sockets=("/run/nvidia-persistenced/socket",),
    )


def test_without_the_hook_the_version_or_the_driver_there_is_nothing() -> None:
    assert read_driver_files(host("/usr/bin/nvidia-cdi-hook"), VERSION) is None
    assert read_driver_files(host(CUDA), VERSION) is None
    assert read_driver_files(host(), "580.1") is None
    assert read_driver_files(host(), None) is None


def test_the_file_has_the_shape_of_the_toolkits() -> None:
    (file,) = files(snapshot(), read_driver_files(host(), VERSION)).files
    assert (file.name, file.kind) == ("xpu-agent-nvidia.json", "xpu-agent.io/gpu")
    spec = read(file.text)
    assert spec.cdi_version == "0.3.0"
    own = {
        device.name: [item.path for item in device.container_edits.device_nodes]
        for device in spec.devices
    }
    assert own == {card(0): ["/dev/nvidia0"], card(1): ["/dev/nvidia1"]}
    shared = spec.container_edits
    assert shared is not None
    assert shared.env == [
        f"NVIDIA_CTK_LIBCUDA_DIR={LIBRARIES}",
        "NVIDIA_VISIBLE_DEVICES=void",
    ]
    assert [item.path for item in shared.device_nodes][:2] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert {mount.host_path: mount.options[-1] for mount in shared.mounts}[CUDA] == "rprivate"
    assert [hook.args[1] for hook in shared.hooks] == [
        "create-symlinks",
        "enable-cuda-compat",
        "update-ldcache",
        "disable-device-node-modification",
    ]
    assert shared.hooks[0].args[2] == f"--link=libcuda.so.1::{LIBRARIES}/libcuda.so"


def test_without_the_drivers_files_no_card_is_named() -> None:
    assert files(snapshot(), None) == CdiFileSet()


def test_instances_of_a_cut_card_have_names_and_the_card_has_none() -> None:
    caps = tuple(
        DeviceNode(path=f"/dev/nvidia-caps/nvidia-cap{i}", major=236, minor=i) for i in (12, 13)
    )
    part = DevicePartition(uuid="MIG-1", profile="1g.10gb", instance=1, nodes=caps)
    base = snapshot()
    host_means = means()["nvidia"]
    full = replace(host_means, nodes=(*host_means.nodes, *caps))
    first = base.vendors[0].inventory.value
    assert first is not None
    cut = replace(first.devices[0], resources=(), partitions=(part,))
    inventory = SnapshotPart(replace(first, devices=(cut,)), 1.0)
    state = replace(base.vendors[0], inventory=inventory)
    view = replace(base.host_devices.value, vendors={"nvidia": full})
    (file,) = files(
        replace(base, vendors=(state,), host_devices=SnapshotPart(view, 1.0)),
        read_driver_files(host(), VERSION),
    ).files
    spec = read(file.text)
    assert [device.name for device in spec.devices] == ["MIG-1"]
    assert [item.path for item in spec.devices[0].container_edits.device_nodes] == [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia-caps/nvidia-cap13",
    ]


def test_our_names_are_used_where_nvidias_own_do_not_name_every_card() -> None:
    def spec(kind: str, *names: str) -> CdiSpec:
        devices = tuple(CdiDevice(name=name) for name in names)
        return CdiSpec(path=f"/{kind}", kind=kind, devices=devices)

    own_values = spec("xpu-agent.io/gpu", card(0), card(1))
    grant = DeviceAllocation(devices=(AllocatedDevice(type="gpu", id=card(1)),))
    cards = (factory.gpu(0).info, factory.gpu(1).info)
    for theirs, kind in (
        (spec("nvidia.com/gpu", card(0)), "xpu-agent.io/gpu"),
        (spec("nvidia.com/gpu", card(1)), "nvidia.com/gpu"),
    ):
        container_edits = edits(
            cards, grant, POD, HostDevices(cdi=(own_values, theirs), cdi_enabled=True)
        )
        assert container_edits.cdi == (f"{kind}={card(1)}",)
