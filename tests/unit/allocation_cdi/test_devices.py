from __future__ import annotations

from msgspec.structs import replace

from agent.allocation.cdi_files import CdiFileSet, build_cdi_files, kinds_in_use
from agent.snapshot.allocation import AllocationView
from agent.snapshot.device import DeviceNode, VendorDevice, VirtualFunction, VirtualFunctionGroup
from agent.snapshot.device_plugin import DevicePluginView, KubeletAllocation, PluginResource
from agent.snapshot.host_devices import (
    CdiDevice,
    CdiSpec,
    HostDevices,
    HostDevicesView,
    RdmaFunction,
)
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import NodeIdentity, NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.workers.load import cdi_namings, load_vendors
from plugins.vendors.ascend.settings import AscendSettings
from plugins.vendors.cambricon.settings import CambriconSettings
from tests import factory
from tests.unit.allocation_cdi.reader import read
from tests.unit.deviceplugin.made import mlu, npu

VENDORS = load_vendors()
LIBRARIES = "/usr/local/Ascend/driver/lib64"


def nodes(*names: str) -> tuple[DeviceNode, ...]:
    return tuple(
        DeviceNode(path=f"/dev/{name}", major=240, minor=i) for i, name in enumerate(names)
    )


NAMINGS = cdi_namings()
CHIPS = nodes(*(f"davinci{i}" for i in range(8)), "davinci_manager", "devmm_svm", "hisi_hdc")
ASCEND = HostDevices(
    nodes=CHIPS,
    paths=frozenset((LIBRARIES, f"{LIBRARIES}/common", f"{LIBRARIES}/driver")),
    settings=AscendSettings(),
)
MLUS = HostDevices(
    nodes=nodes("cambricon_ctl", "cambricon_dev0", "cambricon_dev1"), settings=CambriconSettings()
)


def node(vendor: str, host_devices: HostDevices | None, *devices: VendorDevice) -> NodeSnapshot:
    state = VendorState(
        vendor=vendor, inventory=SnapshotPart(Inventory(vendor=vendor, devices=devices), 1.0)
    )
    return NodeSnapshot(
        node=NodeIdentity(name="a"),
        vendors=(state,),
        host_devices=SnapshotPart(
            HostDevicesView(vendors={vendor: host_devices} if host_devices else {}), 1.0
        ),
    )


def of(vendor: str, host_devices: HostDevices | None, *devices: VendorDevice) -> CdiFileSet:
    return build_cdi_files(node(vendor, host_devices, *devices), VENDORS)


def test_chips_have_their_own_node_and_share_managers_mounts_and_library_path() -> None:
    (file,) = of("ascend", ASCEND, npu(1), npu(0)).files
    assert (file.name, file.kind) == ("xpu-agent-ascend.json", "xpu-agent.io/npu")
    assert file.devices == ("0", "1")
    spec = read(file.text)
    assert spec.cdi_version == "0.5.0"
    own = [[n.path for n in device.container_edits.device_nodes] for device in spec.devices]
    assert own == [["/dev/davinci0"], ["/dev/davinci1"]]
    assert not any(device.container_edits.env for device in spec.devices)
    shared = spec.container_edits
    assert shared is not None
    assert [n.path for n in shared.device_nodes] == [
        "/dev/davinci_manager",
        "/dev/devmm_svm",
        "/dev/hisi_hdc",
    ]
    assert shared.env == [f"LD_LIBRARY_PATH={LIBRARIES}/common:{LIBRARIES}/driver"]
    assert [(m.host_path, m.options) for m in shared.mounts] == [
        (LIBRARIES, ["rbind", "ro", "rprivate"])
    ]


def test_an_only_chip_is_written_alike() -> None:
    (file,) = of("ascend", ASCEND, npu(3)).files
    spec = read(file.text)
    assert [n.path for n in spec.devices[0].container_edits.device_nodes] == ["/dev/davinci3"]
    # which chips a container has is its own business
    assert b"ASCEND_VISIBLE_DEVICES" not in file.text


def test_cards_of_cambricon_are_called_as_their_maker_does() -> None:
    (file,) = of("cambricon", MLUS, mlu(0), mlu(1)).files
    spec = read(file.text)
    assert (spec.kind, spec.cdi_version) == ("xpu-agent.io/mlu", "0.3.0")
    assert [device.name for device in spec.devices] == ["mlu-0", "mlu-1"]


def test_nics_are_called_by_address_and_their_functions_too() -> None:
    def verbs(number: int) -> tuple[DeviceNode, ...]:
        path = f"/dev/infiniband/uverbs{number}"
        return (DeviceNode(path=path, major=231, minor=192 + number),)

    functions = tuple(
        RdmaFunction(address=address, names=(f"mlx5_{i}",), verbs=verbs(i))
        for i, address in enumerate(("0000:18:00.0", "0000:18:00.1"))
    )
    group = VirtualFunctionGroup(vfs=(VirtualFunction(bus_id="0000:18:00.1"),))
    manager = DeviceNode(path="/dev/infiniband/rdma_cm", major=10, minor=58)
    host_devices = HostDevices(functions=functions, nodes=(manager,))
    nic = replace(factory.nic(0).info, vf_groups=(group,), nodes=verbs(0))
    (file,) = of("rdma", host_devices, nic).files
    spec = read(file.text)
    assert [device.name for device in spec.devices] == ["0000:18:00.0", "0000:18:00.1"]
    own = [[n.path for n in device.container_edits.device_nodes] for device in spec.devices]
    assert own == [["/dev/infiniband/uverbs0"], ["/dev/infiniband/uverbs1"]]
    assert spec.container_edits is not None
    (shared,) = spec.container_edits.device_nodes
    assert (shared.path, shared.file_mode) == ("/dev/infiniband/rdma_cm", 0o666)


def test_devices_that_the_vendors_own_file_names_are_not_repeated() -> None:
    own = CdiSpec(path="/etc/cdi/a.json", kind="ascend.com/npu", devices=(CdiDevice(name="0"),))
    (file,) = of("ascend", replace(ASCEND, cdi=(own,)), npu(0), npu(1)).files
    assert file.devices == ("1",)
    assert of("ascend", replace(ASCEND, cdi=(own,)), npu(0)).files == ()


def test_our_own_file_does_not_stand_in_for_itself() -> None:
    own_cdi_spec = CdiSpec(
        path="/var/run/cdi/xpu-agent-ascend.json",
        kind="xpu-agent.io/npu",
        devices=(CdiDevice(name="0"),),
    )
    before = of("ascend", ASCEND, npu(0)).files
    assert of("ascend", replace(ASCEND, cdi=(own_cdi_spec,)), npu(0)).files == before


def test_a_device_without_its_node_is_left_out_and_reported() -> None:
    file_set = of("ascend", ASCEND, npu(0), npu(9))
    assert file_set.files[0].devices == ("0",)
    assert [(vendor, one.reason) for vendor, one in file_set.problems] == [
        ("ascend", "DeviceNodeMissing")
    ]


def test_a_name_that_no_runtime_reads_affects_one_device_and_is_reported() -> None:
    bad = replace(
        factory.nic(0).info,
        uuid="bad name",
        nodes=(DeviceNode(path="/dev/infiniband/uverbs0", major=231, minor=192),),
    )
    good = replace(bad, bus_id="0000:41:00.0", uuid="0000:41:00.0")
    file_set = of("rdma", HostDevices(), bad, good)
    assert file_set.files[0].devices == ("0000:41:00.0",)
    assert of("rdma", HostDevices(), bad).files == ()
    assert [one.reason for _, one in file_set.problems] == ["BadCDIName"]


def test_without_devices_means_or_answers_there_is_no_file() -> None:
    assert of("ascend", None, npu(0)) == CdiFileSet()
    assert of("ascend", ASCEND) == CdiFileSet()
    assert of("ascend", ASCEND, npu(0, managed=False), npu(1, resources=())) == CdiFileSet()
    waiting = replace(node("ascend", ASCEND), vendors=(VendorState(vendor="ascend"),))
    assert build_cdi_files(waiting, VENDORS) == CdiFileSet()


def test_equal_snapshots_give_equal_bytes() -> None:
    assert of("ascend", ASCEND, npu(0), npu(1)) == of("ascend", ASCEND, npu(1), npu(0))


def test_kinds_are_in_use_by_the_kubelets_account_or_by_a_grant() -> None:
    snapshot = node("ascend", ASCEND, npu(0))
    assert kinds_in_use(snapshot, NAMINGS) == frozenset()
    for resource in ("huawei.com/Ascend910", "example.com/renamed"):
        served = DevicePluginView(
            resources=(PluginResource(name="example.com/renamed", vendor="ascend"),),
            held=(KubeletAllocation(pod_uid="a", resource=resource),),
        )
        with_assignment = replace(snapshot, served=SnapshotPart(served, 1.0))
        assert kinds_in_use(with_assignment, NAMINGS) == {"xpu-agent.io/npu"}
    other = DevicePluginView(held=(KubeletAllocation(pod_uid="a", resource="example.com/other"),))
    assert kinds_in_use(replace(snapshot, served=SnapshotPart(other, 1.0)), NAMINGS) == frozenset()
    allocations = AllocationView(held={npu(0).key: ("a",)})
    assert kinds_in_use(replace(snapshot, allocations=SnapshotPart(allocations, 1.0)), NAMINGS) == {
        "xpu-agent.io/npu"
    }


def test_kinds_are_in_use_by_a_checkpoint_that_nobody_serves_the_kubelet_of() -> None:
    snapshot = node("ascend", ASCEND, npu(0))
    for resource, kind in (
        ("huawei.com/Ascend910", "xpu-agent.io/npu"),
        ("example.com/shared", "xpu-agent.io/gpu"),
        ("rdma/hca", "xpu-agent.io/rdma"),
    ):
        assignment = (KubeletAllocation(pod_uid="a", resource=resource),)
        renamed = {"example.com/shared": "nvidia.com/gpu"}
        assert kinds_in_use(snapshot, NAMINGS, assignment, renamed) == {kind}
