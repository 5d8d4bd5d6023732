"""What containers get of granted devices, of each vendor, from the annotation on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.app.pod_files import Explanations
from agent.config.containers import HookSettings
from agent.containers.devices import DevicesHook
from agent.snapshot.container import Adjustment, ContainerSpec, HookRequest, HookStage, PodSandbox
from agent.snapshot.device import DeviceKind, DevicePartition, VendorDevice
from agent.snapshot.host_devices import (
    CdiDevice,
    CdiSpec,
    HostDevices,
    HostDevicesView,
    RdmaFunction,
)
from agent.snapshot.node import SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import ContainerResources
from agent.snapshot.usage import MpsDaemon
from plugins.vendors.nvidia.injection.sharing import LIBRARY
from tests.factory import nic
from tests.unit.allocation.made import WHOLE, entry, pod, snapshot, text
from tests.unit.allocation.made import box as sandbox_of
from tests.unit.allocation.made import container as inside_of
from tests.unit.containers_devices.made import (
    OLD,
    VENDORS,
    created,
    device,
    env,
    mounts,
    nodes,
    reasons,
)
from tests.unit.vendors_injection.made import UUIDS, gpu, mig, node, nvidia_host
from tests.unit.vendors_injection.made import nodes as nodes_at

CARDS = tuple(device(gpu(minor)) for minor in range(4))
HOST = {"nvidia": nvidia_host()}
HANDLER = {"runtime_handler": "nvidia"}
SHARE = {"ratio": "50", "core": "50", "memory": "8Gi"}
BASE = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"]


def test_whole_cards_are_named_by_uuid_in_pci_order_to_nvidias_runtime() -> None:
    swapped = (device(gpu(0, bus=0x20)), device(gpu(1, bus=0x10)))
    annotation = text(entry(swapped[0], WHOLE), entry(swapped[1], WHOLE))
    answer = created(annotation, HOST, swapped, box=HANDLER)
    assert env(answer) == {"NVIDIA_VISIBLE_DEVICES": f"{UUIDS[1]},{UUIDS[0]}"}
    upstream = {"nvidia": nvidia_host(settings={"upstream_compatible": True})}
    answer = created(text(entry(1, WHOLE), entry(0, WHOLE)), upstream, swapped, box=HANDLER)
    assert env(answer) == {"NVIDIA_VISIBLE_DEVICES": "1,0"}


def test_whole_cards_are_nodes_if_the_runtime_is_not_nvidias() -> None:
    answer = created(text(entry(CARDS[2], WHOLE)), HOST, CARDS)
    assert nodes(answer) == [*BASE, "/dev/nvidia2"]
    assert {one.permissions for one in answer.edits.nodes} == {"rw"}


def test_a_slice_of_a_card_comes_with_its_card_and_its_two_capabilities() -> None:
    cut = device(
        gpu(0, resources=(), facts=(("unschedulable", "MIGEnabled"),), partitions=(mig(1, 12, 13),))
    )
    answer = created(text(entry("MIG-00000001")), HOST, [cut])
    caps = [f"/dev/nvidia-caps/nvidia-cap{number}" for number in (12, 13)]
    assert nodes(answer) == [*BASE, "/dev/nvidia0", *caps]
    assert created(text(entry(0, WHOLE)), HOST, [cut]).reason == "MIGEnabled"


def test_a_share_of_a_card_is_enforced_by_hami_core() -> None:
    labels = (("koordinator.sh/gpu-isolation-provider", "HAMi-core"),)
    host = {"nvidia": nvidia_host(paths=(LIBRARY,))}
    answer = created(text(entry(CARDS[0], SHARE)), host, CARDS, box={**HANDLER, "labels": labels})
    region = f"{pod(1).uid}_worker"
    assert env(answer) == {
        "NVIDIA_VISIBLE_DEVICES": UUIDS[0],
        "CUDA_DEVICE_MEMORY_LIMIT": "8589934592",
        "CUDA_DEVICE_SM_LIMIT": "50",
        "LD_PRELOAD": "/usr/local/vgpu/libvgpu.so",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"/usr/local/vgpu/{region}.cache",
    }
    assert mounts(answer) == ["/tmp/vgpulock", "/usr/local/vgpu", LIBRARY]
    folders = [(folder.host_path, folder.mode, folder.emptied) for folder in answer.edits.folders]
    lock = ("/tmp/vgpulock", 0o1777, False)
    assert folders == [lock, (f"/usr/local/vgpu/containers/{region}", 0o700, True)]
    missing = created(text(entry(CARDS[0], SHARE)), HOST, CARDS, box={"labels": labels})
    assert missing.reason == "HAMiCoreMissing"
    whole = created(text(entry(CARDS[0], WHOLE)), host, CARDS, box={**HANDLER, "labels": labels})
    assert env(whole) == {"NVIDIA_VISIBLE_DEVICES": UUIDS[0]}


def test_a_pod_that_requests_mps_is_a_client_of_its_cards_daemon() -> None:
    requests = ("xpu-agent.io/gpu-isolation", "mps")
    annotation = text(entry(CARDS[1], SHARE))
    root = f"/run/xpu-agent/mps/{UUIDS[1]}"
    daemon = MpsDaemon(pid=7, pipe_dir=f"{root}/pipe", cards=(UUIDS[1],))
    one = pod(1, annotation)
    box = {**HANDLER, "annotations": (*one.annotations, requests)}
    answer = created(annotation, {"nvidia": nvidia_host(mps=(daemon,))}, CARDS, box=box)
    assert env(answer) == {
        "NVIDIA_VISIBLE_DEVICES": UUIDS[1],
        "CUDA_MPS_PIPE_DIRECTORY": f"{root}/pipe",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8192M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
    }
    assert created(annotation, HOST, CARDS, box=box).reason == "MPSDown"


def chip(number: int, *parts: DevicePartition) -> VendorDevice:
    return VendorDevice(
        kind=DeviceKind.NPU,
        vendor="huawei",
        bus_id=f"0000:c{number}:00.0",
        uuid=f"die-{number}",
        minor=number,
        vendor_minor=number,
        model="Ascend-310P3",
        resources=(("koordinator.sh/gpu-memory-ratio", "100"), ("huawei.com/npu-core", "8")),
        partitions=parts,
    )


MANAGERS = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc", "/dev/dvpp_cmdlist")
ASCEND = {
    "ascend": HostDevices(
        nodes=nodes_at("/dev/davinci1", "/dev/davinci3", "/dev/vdavinci116", *MANAGERS)
    )
}


def test_whole_chips_come_ascending_with_their_managers() -> None:
    chips = [device(chip(1)), device(chip(3))]
    answer = created(
        text(entry(chips[1], {"ratio": 100}), entry(chips[0], {"ratio": 100})), ASCEND, chips
    )
    assert nodes(answer) == ["/dev/davinci1", "/dev/davinci3", *MANAGERS]
    assert env(answer)["ASCEND_VISIBLE_DEVICES"] == "1,3"


def vnpu(owner: str) -> VendorDevice:
    part = DevicePartition(uuid="vnpu-116", profile="vir02", instance=116, owner=owner)
    return chip(1, part)


def test_a_template_is_made_by_ascends_runtime_or_is_the_slice_made_for_this_pod() -> None:
    annotation = text(entry("die-1", {"npu": 2}, template="vir02"))
    runtime = {"runtime_handler": "ascend-docker-runtime"}
    answer = created(annotation, ASCEND, [device(chip(1))], box=runtime)
    assert env(answer) == {"ASCEND_VISIBLE_DEVICES": "1", "ASCEND_VNPU_SPECS": "vir02"}
    cut = created(annotation, ASCEND, [device(vnpu(pod(1).uid))])
    assert nodes(cut) == ["/dev/davinci116", *MANAGERS]
    assert env(cut) == {"ASCEND_VISIBLE_DEVICES": "116", "ASCEND_RUNTIME_OPTIONS": "VIRTUAL"}
    for other in (chip(1), vnpu("another")):
        assert created(annotation, ASCEND, [device(other)]).reason == "PartitionMissing"


CAP = "/dev/cambricon-caps/cap_dev0_mi1"
CAMBRICON = {
    "cambricon": HostDevices(
        nodes=nodes_at("/dev/cambricon_ctl", "/dev/cambricon_dev0", "/dev/cambricon_ipcm0", CAP)
    )
}


def card(owner: str | None) -> VendorDevice:
    part = DevicePartition(
        uuid="MLU-0-smlu-1", profile="p", instance=1, nodes=(node(CAP),), owner=owner or ""
    )
    return VendorDevice(
        kind=DeviceKind.MLU,
        vendor="cambricon",
        bus_id="0000:10:00.0",
        uuid="MLU-0",
        minor=0,
        vendor_minor=0,
        partitions=() if owner is None else (part,),
    )


def test_a_share_of_an_mlu_is_the_slice_made_for_this_pod_and_never_the_card() -> None:
    annotation = text(entry("MLU-0", {"ratio": "5", "core": "5", "memory": "1Gi"}))
    answer = created(annotation, CAMBRICON, [device(card(pod(1).uid))])
    assert nodes(answer) == [
        "/dev/cambricon_ctl",
        "/dev/cambricon_dev0",
        "/dev/cambricon_ipcm0",
        CAP,
    ]
    for other in (None, "another"):
        refused = created(annotation, CAMBRICON, [device(card(other))])
        assert refused.reason == "PartitionMissing"
    whole = created(text(entry("MLU-0", WHOLE)), CAMBRICON, [device(card(None))])
    assert nodes(whole)[-1] == "/dev/cambricon_dev0"


NIC = nic(0, vfs=2)
VF = "0000:18:00.2"
MANAGER = node("/dev/infiniband/rdma_cm", 10, 58)


def rdma(*functions: RdmaFunction) -> dict[str, HostDevices]:
    return {"rdma": HostDevices(nodes=(MANAGER,), functions=functions)}


def verbs(address: str, number: int) -> RdmaFunction:
    return RdmaFunction(
        address=address,
        names=(f"mlx5_{number}",),
        verbs=(node(f"/dev/infiniband/uverbs{number}", 231, 192 + number),),
    )


def test_a_whole_nic_and_a_virtual_function_each_come_with_their_own_verbs() -> None:
    both = rdma(verbs("0000:18:00.0", 0), verbs(VF, 7))
    whole = created(text(entry(NIC, {"rdma": 100}), kind="rdma"), both, [NIC])
    assert nodes(whole) == ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"]
    assert whole.edits.rlimits[0].name == "RLIMIT_MEMLOCK"
    virtual = created(text(entry(NIC, {"rdma": 1}, vfs=[VF]), kind="rdma"), both, [NIC])
    assert nodes(virtual) == ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs7"]
    assert env(virtual)["XPU_RDMA_PCI"] == VF
    without = rdma(RdmaFunction(address=VF))
    refused = created(text(entry(NIC, {"rdma": 1}, vfs=[VF]), kind="rdma"), without, [NIC])
    assert (refused.reason, VF in refused.failed) == ("VerbsMissing", True)


def test_devices_of_several_vendors_are_given_together() -> None:
    annotation = f"{text(entry(CARDS[0], WHOLE))[:-1]}, {text(entry(NIC), kind='rdma')[1:]}"
    means = {**HOST, **rdma(verbs("0000:18:00.0", 0))}
    assert nodes(created(annotation, means, [*CARDS, NIC])) == [
        *BASE,
        "/dev/nvidia0",
        "/dev/infiniband/rdma_cm",
        "/dev/infiniband/uverbs0",
    ]


@pytest.mark.parametrize("runs", [False, True])
def test_a_new_container_gets_no_device_until_its_pod_is_listed_and_running_ones_keep_theirs(
    runs: bool,
) -> None:
    one = pod(1, text(entry(CARDS[0], WHOLE)))
    sandbox = sandbox_of(one)
    inside = [inside_of(sandbox)] if runs else []
    now = replace(
        snapshot([], [sandbox], inside, devices=CARDS),
        host_devices=SnapshotPart(HostDevicesView(vendors=dict(HOST)), 1.0),
    )
    hook = DevicesHook(VENDORS, HookSettings())
    container = ContainerSpec(name="worker")
    create = HookRequest(stage=HookStage.CREATE, pod=sandbox, container=container)
    refused = hook.adjust(create, now)
    assert (refused.reason, nodes_of(refused)) == ("PodRequestsUnknown", ())
    assert refused.failed.startswith("PodRequestsUnknown: neither the API server nor the kubelet")
    verified = hook.adjust(replace(create, stage=HookStage.RECONCILE), now)
    assert bool(nodes_of(verified)) is runs
    listed = replace(now, cluster=replace(now.cluster, pods=(one,)))
    assert nodes(hook.adjust(create, listed)) == [*BASE, "/dev/nvidia0"]


def nodes_of(answer: Adjustment) -> tuple[object, ...]:
    return answer.edits.nodes


@pytest.mark.parametrize("names", [True, False])
def test_cdi_names_are_used_where_the_runtime_takes_them(names: bool) -> None:
    named = CdiDevice(name=UUIDS[0])
    spec = CdiSpec(path="/etc/cdi/n.yaml", kind="nvidia.com/gpu", devices=(named,))
    observations = replace(OLD, takes_cdi=names)
    means = {"nvidia": nvidia_host(cdi=(spec,))}
    answer = created(text(entry(CARDS[0], WHOLE)), means, CARDS, runtime=observations)
    assert answer.edits.cdi == ((f"nvidia.com/gpu={UUIDS[0]}",) if names else ())
    assert bool(answer.edits.nodes) is not names


@pytest.mark.parametrize("name", ["init-data", "worker", "sidecar", "debugger-x7x2z"])
def test_every_container_of_a_pod_gets_what_the_pod_was_granted(name: str) -> None:
    answer = created(
        text(entry(CARDS[0], WHOLE)), HOST, CARDS, container=ContainerSpec(name=name), box=HANDLER
    )
    assert env(answer) == {"NVIDIA_VISIBLE_DEVICES": UUIDS[0]}


def test_a_container_does_not_start_without_what_it_was_granted() -> None:
    annotation = text(entry(CARDS[0], WHOLE))
    unknown = created(text(entry("GPU-elsewhere", WHOLE)), HOST, CARDS)
    assert (unknown.reason, unknown.edits.nodes) == ("DeviceUnknown", ())
    assert "GPU-elsewhere" in unknown.failed
    assert created(annotation, {}, CARDS).reason == "HostNotReadYet"
    assert created("{", HOST, CARDS).reason == "BadGrant"
    ownerless = created(annotation, HOST, CARDS, before=lambda now: replace(now, vendors=()))
    assert ownerless.reason == "DeviceUnknown"
    removed = {"nvidia": nvidia_host(without=("/dev/nvidia0",))}
    assert created(annotation, removed, CARDS).reason == "DeviceNodeMissing"


def test_a_sandbox_itself_gets_nothing() -> None:
    request = HookRequest(stage=HookStage.CREATE, pod=PodSandbox(id="x"))
    answer = DevicesHook(VENDORS, HookSettings()).adjust(request, snapshot())
    assert (answer.edits.env, answer.failed, reasons(answer)) == ((), "", [])


def test_what_a_pod_will_get_is_explained_before_it_has_a_container() -> None:
    one = replace(
        pod(1, text(entry(CARDS[2], WHOLE))),
        resources=(ContainerResources(name="first", is_init=True), ContainerResources(name="app")),
    )
    now = replace(
        snapshot([one], [], devices=CARDS),
        pods=SnapshotPart((one,), 1.0),
        host_devices=SnapshotPart(HostDevicesView(vendors=HOST), 1.0),
        runtime=SnapshotPart(OLD, 1.0),
    )
    hook = DevicesHook(VENDORS, HookSettings(), own_uid="own")
    shown = Explanations(SnapshotStore(now), hook, None).explain_injection(one.uid)
    assert [container.container for container in shown] == ["first", "app"]
    for container in shown:
        assert [node.path for node in container.edits.nodes] == [*BASE, "/dev/nvidia2"]
