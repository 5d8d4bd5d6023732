from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.snapshot.allocation import AllocationRefused, DeviceAllocation
from agent.snapshot.device import DeviceKind, DevicePartition, VendorDevice
from agent.snapshot.edits import NO_EDITS, ContainerEdits
from agent.snapshot.host_devices import CdiDevice, CdiSpec, HostDevices
from plugins.vendors.cambricon.injection import edits
from plugins.vendors.cambricon.settings import CambriconSettings
from tests.unit.vendors_injection.made import POD, allocation_of, env, node, nodes, reasons

RUNTIME = replace(POD, runtime_handler="cambricon")


def smlu(card: int, instance: int) -> DevicePartition:
    cap = f"/dev/cambricon-caps/cap_dev{card}_mi{instance}"
    return DevicePartition(
        uuid=f"smlu-{card}-{instance}", profile="p", instance=instance, nodes=(node(cap),)
    )


def mlu(index: int, *parts: DevicePartition) -> VendorDevice:
    return VendorDevice(
        kind=DeviceKind.MLU,
        vendor="cambricon",
        bus_id=f"0000:{0x10 + index:02x}:00.0",
        uuid=f"MLU-{index}",
        minor=index,
        vendor_minor=index,
        partitions=parts,
    )


def host(*names: str, **changes: object) -> HostDevices:
    devices = HostDevices(nodes=nodes(*(f"/dev/{name}" for name in names)))
    return replace(devices, **changes)


def paths(edits: ContainerEdits) -> list[str]:
    return [item.path.removeprefix("/dev/") for item in edits.nodes]


CAP = "cambricon-caps/cap_dev0_mi1"


@pytest.mark.parametrize(
    "there",
    [pytest.param(("cambricon_ctl", "cambricon_dev0", "cambricon_ipcm0", CAP), id="58")],
)
def test_a_slice_comes_with_its_card_and_its_capability(there: tuple[str, ...]) -> None:
    result = edits((mlu(0, smlu(0, 1)),), allocation_of("smlu-0-1"), POD, host(*there))
    assert paths(result) == list(there)
    assert {item.permissions for item in result.nodes} == {"rw"}
    assert result.env == ()


def test_whole_cards_come_ascending_and_each_path_is_checked_itself() -> None:
    there = ("cambricon_dev0", "cambricon_dev1", "cambricon_ipcm0", "cambr-rpc:1", "cambricon_gdr")
    result = edits((mlu(0), mlu(1)), allocation_of("MLU-1", "MLU-0"), POD, host(*there))
    assert paths(result) == [
        "cambricon_gdr",
        "cambricon_ipcm0",
        "cambricon_dev0",
        "cambr-rpc:1",
        "cambricon_dev1",
    ]


def test_slices_of_one_card_share_its_nodes() -> None:
    card = mlu(0, smlu(0, 2), smlu(0, 1))
    caps = ("cambricon-caps/cap_dev0_mi1", "cambricon-caps/cap_dev0_mi2")
    result = edits(
        (card,), allocation_of("smlu-0-2", "smlu-0-1"), POD, host("cambricon_dev0", *caps)
    )
    assert paths(result) == ["cambricon_dev0", *caps]


def test_with_the_makers_runtime_the_environment_is_all() -> None:
    there = host("cambricon_dev0", "cambricon_ipcm0", CAP)
    cards = (mlu(0, smlu(0, 1)), mlu(2))
    assert edits(cards, allocation_of("MLU-2", "MLU-0"), RUNTIME, there) == replace(
        NO_EDITS, env=(("CAMBRICON_VISIBLE_DEVICES", "0,2"),)
    )
    result = edits(cards, allocation_of("smlu-0-1"), RUNTIME, there)
    assert env(result) == {
        "VIRTUAL_DEVICES": f"/dev/cambricon_dev0,/dev/cambricon_ipcm0,/dev/{CAP}"
    }


def test_a_slice_that_lists_its_cards_nodes_itself_names_each_once() -> None:
    part = smlu(0, 1)
    whole = replace(part, nodes=(*part.nodes, *nodes("/dev/cambricon_ipcm0")))
    there = host("cambricon_dev0", "cambricon_ipcm0", CAP)
    result = edits((mlu(0, whole),), allocation_of("smlu-0-1"), RUNTIME, there)
    assert env(result)["VIRTUAL_DEVICES"].split(",") == [
        "/dev/cambricon_dev0",
        "/dev/cambricon_ipcm0",
        f"/dev/{CAP}",
    ]
    assert len(edits((mlu(0, whole),), allocation_of("smlu-0-1"), POD, there).nodes) == 3


def test_the_makers_tool_is_mounted_where_it_is() -> None:
    there = host("cambricon_dev0", paths=frozenset({"/usr/bin/cnmon"}))
    (mount,) = edits((mlu(0),), allocation_of("MLU-0"), POD, there).mounts
    assert (mount.host_path, mount.options) == ("/usr/bin/cnmon", ("bind", "ro", "rprivate"))
    has = replace(POD, mounts=("/usr/bin/cnmon",))
    assert edits((mlu(0),), allocation_of("MLU-0"), has, there).mounts == ()


def test_cdi_names_are_of_whole_cards() -> None:
    spec = CdiSpec(path="/etc/cdi/c", kind="cambricon.com/mlu", devices=(CdiDevice(name="mlu-0"),))
    on = host(cdi=(spec,), cdi_enabled=True, settings=CambriconSettings(injection="cdi"))
    assert edits((mlu(0),), allocation_of("MLU-0"), POD, on).cdi == ("cambricon.com/mlu=mlu-0",)
    with pytest.raises(AllocationRefused, match="CDINameMissing"):
        edits((mlu(1),), allocation_of("MLU-1"), POD, on)


@pytest.mark.parametrize(
    ("ids", "there", "words"),
    [
        (("MLU-1",), ("cambricon_dev0",), "DeviceNodeMissing: /dev/cambricon_dev1"),
        (("smlu-0-1",), ("cambricon_dev0",), "DeviceNodeMissing: /dev/cambricon-caps"),
        (("smlu-0-1", "MLU-1"), ("cambricon_dev0", "cambricon_dev1", CAP), "MixedGrant"),
    ],
)
def test_what_the_container_could_not_use_is_refused(
    ids: tuple[str, ...], there: tuple[str, ...], words: str
) -> None:
    with pytest.raises(AllocationRefused, match=words):
        edits((mlu(0, smlu(0, 1)), mlu(1)), allocation_of(*ids), POD, host(*there))


def test_a_container_that_requests_devices_by_itself_is_reported() -> None:
    pod = replace(RUNTIME, env=(("CAMBRICON_VISIBLE_DEVICES", "0"),))
    result = edits((mlu(0),), DeviceAllocation(), pod, host())
    assert reasons(result) == ["UngrantedDevices"]
    assert result.env == ()
