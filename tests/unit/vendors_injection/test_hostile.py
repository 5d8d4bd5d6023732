"""Containers and libraries that would have a runtime show what was not granted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.snapshot.allocation import AllocatedDevice, AllocationRefused, DeviceAllocation
from agent.snapshot.device import DeviceKind, DeviceNode, DevicePartition, VendorDevice
from agent.snapshot.edits import ContainerEdits
from agent.snapshot.host_devices import CdiDevice, CdiSpec, HostDevices
from plugins.vendors.ascend.injection import edits as ascend
from plugins.vendors.cambricon.injection import edits as cambricon
from plugins.vendors.nvidia.injection.edits import edits as nvidia
from plugins.vendors.nvidia.injection.sharing import LIBRARY
from tests.unit.vendors_injection.made import (
    HAMI,
    POD,
    UUIDS,
    allocation_of,
    env,
    gpu,
    mig,
    names_of,
    node,
    nodes,
    nvidia_host,
    reasons,
)

NVIDIA = replace(POD, runtime_handler="nvidia", env=(("NVIDIA_VISIBLE_DEVICES", "all"),))


@pytest.mark.parametrize("name", ["all", "0", "1:0"])
def test_a_card_that_calls_itself_like_many_is_not_found_by_that_name_in_a_spec(name: str) -> None:
    liar = gpu(1, uuid=name)
    other = CdiDevice(name=name, nodes=("/dev/nvidia0", "/dev/nvidia2"))
    spec = CdiSpec(path="/etc/cdi/a.yaml", kind="nvidia.com/gpu", devices=(other,))
    host = nvidia_host(cdi=(spec,), cdi_enabled=True, settings={"injection": "cdi"})
    grant = DeviceAllocation(devices=(AllocatedDevice(type="gpu", minor=1),))
    with pytest.raises(AllocationRefused, match="CDINameMissing"):
        nvidia((liar,), grant, POD, host)
    sliced = gpu(1, partitions=(replace(mig(1, 12, 13), uuid=name),))
    with pytest.raises(AllocationRefused, match="CDINameMissing"):
        nvidia((sliced,), allocation_of(name), POD, host)


def test_bare_nodes_prevent_the_makers_runtime_from_adding_the_images_request() -> None:
    host = nvidia_host(settings={"injection": "nodes"})
    result = nvidia((gpu(1),), allocation_of(UUIDS[1]), NVIDIA, host)
    assert env(result) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert names_of(result)[-1] == "nvidia1"
    assert env(nvidia((gpu(1),), allocation_of(UUIDS[1]), POD, host)) == {}
    pod = replace(NVIDIA, env=(("NVIDIA_IMEX_CHANNELS", "0,1"),))
    result = nvidia((gpu(1),), allocation_of(UUIDS[1]), pod, host)
    assert env(result) == {"NVIDIA_VISIBLE_DEVICES": "void", "NVIDIA_IMEX_CHANNELS": ""}


def test_channels_that_were_not_granted_are_taken_from_the_containers_request() -> None:
    pod = replace(NVIDIA, env=(*NVIDIA.env, ("NVIDIA_IMEX_CHANNELS", "0,1")))
    result = nvidia((gpu(1),), allocation_of(UUIDS[1]), pod, nvidia_host())
    assert env(result) == {"NVIDIA_VISIBLE_DEVICES": UUIDS[1], "NVIDIA_IMEX_CHANNELS": ""}


def test_a_limit_by_position_of_the_containers_own_does_not_beat_the_grants() -> None:
    own = (("CUDA_DEVICE_MEMORY_LIMIT_0", "80g"), ("CUDA_DEVICE_SM_LIMIT_0", "100"))
    pod = replace(POD, labels=HAMI, env=own)
    amounts = {"memory": 1 << 30, "core": 50, "ratio": 50}
    host = nvidia_host(paths=(LIBRARY,), settings={"injection": "env"})
    result = nvidia((gpu(0),), allocation_of(UUIDS[0], amounts=amounts), pod, host)
    for name, value in (("MEMORY", str(1 << 30)), ("SM", "50")):
        limit = f"CUDA_DEVICE_{name}_LIMIT"
        assert (env(result)[limit], env(result)[f"{limit}_0"]) == (value, value)
    assert "LimitOverridden" in reasons(result)


@pytest.mark.parametrize(
    ("own", "expected"), [("VIRTUAL", ""), ("NODRV, VIRTUAL", "NODRV"), ("NODRV", None), ("", None)]
)
def test_numbers_of_granted_chips_are_not_read_as_those_of_slices(
    own: str, expected: str | None
) -> None:
    chip = VendorDevice(
        kind=DeviceKind.NPU, vendor="huawei", bus_id="0000:c1:00.0", uuid="die-1", vendor_minor=1
    )
    pod = replace(
        POD, runtime_handler="ascend-docker-runtime", env=(("ASCEND_RUNTIME_OPTIONS", own),)
    )
    variables = env(ascend((chip,), allocation_of("die-1"), pod, HostDevices()))
    assert variables.pop("ASCEND_VISIBLE_DEVICES") == "1"
    assert variables == ({} if expected is None else {"ASCEND_RUNTIME_OPTIONS": expected})


@pytest.mark.parametrize("sliced", [False, True])
def test_a_template_of_the_containers_own_cuts_no_granted_chip(sliced: bool) -> None:
    part = DevicePartition(uuid="vnpu-1", profile="vir02", instance=100)
    chip = VendorDevice(
        kind=DeviceKind.NPU,
        vendor="huawei",
        bus_id="0000:c1:00.0",
        uuid="die-1",
        vendor_minor=1,
        partitions=(part,),
    )
    pod = replace(
        POD, runtime_handler="ascend-docker-runtime", env=(("ASCEND_VNPU_SPECS", "vir04"),)
    )
    variables = env(
        ascend((chip,), allocation_of("vnpu-1" if sliced else "die-1"), pod, HostDevices())
    )
    assert variables["ASCEND_VNPU_SPECS"] == ""
    assert variables["ASCEND_VISIBLE_DEVICES"] == ("100" if sliced else "1")


def cambricon_card(requested: str, grant: DeviceAllocation) -> ContainerEdits:
    cap = DeviceNode(path="/dev/cambricon-caps/cap_dev0_mi1", major=240, minor=9)
    part = DevicePartition(uuid="smlu-0-1", profile="p", instance=1, nodes=(cap,))
    card = VendorDevice(
        kind=DeviceKind.MLU,
        vendor="cambricon",
        bus_id="0000:10:00.0",
        uuid="MLU-0",
        vendor_minor=0,
        partitions=(part,),
    )
    host = HostDevices(nodes=(*nodes("/dev/cambricon_dev0"), node(cap.path, 240, 9)))
    pod = replace(POD, runtime_handler="cambricon", env=((requested, "0,1"),))
    return cambricon((card,), grant, pod, host)


def test_cards_requested_beside_a_slice_and_slices_beside_a_card_are_reported() -> None:
    whole, sliced = allocation_of("MLU-0"), allocation_of("smlu-0-1")
    assert reasons(cambricon_card("CAMBRICON_VISIBLE_DEVICES", sliced)) == ["UngrantedDevices"]
    assert reasons(cambricon_card("VIRTUAL_DEVICES", whole)) == ["UngrantedDevices"]
    assert reasons(cambricon_card("CAMBRICON_VISIBLE_DEVICES", whole)) == []
