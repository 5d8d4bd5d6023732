from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.config.containers import DevicePluginSettings
from agent.deviceplugin.allocator import Allocator
from agent.deviceplugin.resources import KubeletDevice
from agent.errors import BadConfig
from agent.snapshot.device import (
    Device,
    DevicePartition,
    Health,
    HealthState,
    VendorDevice,
    VirtualFunction,
    VirtualFunctionGroup,
)
from agent.snapshot.part import SnapshotPart
from plugins.vendors.ascend.kubelet import vnpu_resource_kind
from tests import factory
from tests.unit.deviceplugin.made import card, deciding, device, mlu, node, npu, vnpu

MIG_ON = (("xpu-agent.io/mig", "true"),)
FAILED = Health(state=HealthState.FAILED, reason="Xid79")
SUSPECT = Health(state=HealthState.SUSPECT, reason="Slow")
MIM = Health(state=HealthState.FAILED, reason="MIMMode")


def offered(*infos: VendorDevice, **settings: object) -> dict[str, list[str]]:
    """Ids by resource."""
    snapshot = node(devices=tuple(device(info) for info in infos))
    resources = deciding(**settings).resources(snapshot)
    return {resource.name: [item.id for item in resource.devices] for resource in resources}


def problems(*infos: VendorDevice, **settings: object) -> list[str]:
    snapshot = node(devices=tuple(device(info) for info in infos))
    return [problem.reason for _, problem in deciding(**settings).problems(snapshot)]


def cut(index: int, *parts: DevicePartition) -> VendorDevice:
    info = factory.gpu(index).info
    return replace(info, labels=MIG_ON, resources=(), partitions=parts)


def mig(number: int, profile: str = "1g.10gb") -> DevicePartition:
    return DevicePartition(uuid=f"MIG-{number}", profile=profile, instance=number)


def test_whole_cards_are_listed_by_uuid_with_health_and_numa_node() -> None:
    sick = factory.gpu(1, health=FAILED)
    slow = factory.gpu(2, health=SUSPECT)
    lost = Device(info=factory.gpu(5).info)
    (result,) = deciding().resources(node(devices=(factory.gpu(0), lost, slow, sick)))
    assert result.name == "nvidia.com/gpu"
    assert result.devices == (
        KubeletDevice(id=card(0), numa_nodes=(0,)),
        KubeletDevice(id=card(1), healthy=False, numa_nodes=(0,)),
        KubeletDevice(id=card(2), numa_nodes=(0,)),  # still serves, as in the Device object
        KubeletDevice(id=card(5)),
    )


def test_equal_devices_in_another_order_are_an_equal_list() -> None:
    cards = tuple(map(factory.gpu, range(8)))
    assert deciding().resources(node(devices=cards)) == deciding().resources(
        node(devices=cards[::-1])
    )


def test_only_vendors_of_the_settings_that_have_answered_are_served() -> None:
    snapshot = node()
    assert [resource.name for resource in deciding().resources(snapshot)] == [
        "nvidia.com/gpu",
        "rdma/hca",
    ]
    assert deciding(vendors=()).resources(snapshot) == ()
    view = replace(snapshot.devices.value, awaited=("nvidia",))
    waiting = replace(snapshot, devices=SnapshotPart(view, 1.0))
    assert [resource.name for resource in deciding().resources(waiting)] == ["rdma/hca"]


def test_mig_strategies() -> None:
    parts = cut(0, mig(1), mig(2, "1c.3g.20gb"), mig(3, "1g.10gb+me"))
    whole = factory.gpu(1).info
    assert offered(parts, whole, mig="none") == {"nvidia.com/gpu": [card(1)]}
    assert offered(parts, whole, mig="mixed") == {
        "nvidia.com/gpu": [card(1)],
        "nvidia.com/mig-1c.3g.20gb": ["MIG-2"],
        "nvidia.com/mig-1g.10gb": ["MIG-1"],
        "nvidia.com/mig-1g.10gb.me": ["MIG-3"],
    }
    assert offered(cut(0, mig(2), mig(1)), cut(1, mig(4)), mig="single") == {
        "nvidia.com/gpu": ["MIG-1", "MIG-2", "MIG-4"]
    }


def test_with_single_one_odd_card_leaves_nothing_and_is_named() -> None:
    assert offered(cut(0, mig(1)), factory.gpu(1).info, mig="single") == {}
    assert problems(cut(0, mig(1)), factory.gpu(1).info, mig="single") == ["MIGNotUniform"]
    assert problems(cut(0, mig(1)), cut(1), mig="single") == ["MIGNotUniform"]
    assert problems(cut(0, mig(1), mig(2, "2g.20gb")), mig="single") == ["MIGNotUniform"]


@pytest.mark.parametrize(
    ("family", "name", "identity"),
    [
        ("910A", "huawei.com/Ascend910", "Ascend910-3"),
        ("910B", "huawei.com/Ascend910", "Ascend910-3"),
        ("A3", "huawei.com/Ascend910", "Ascend910-3"),
        ("310P", "huawei.com/Ascend310P", "Ascend310P-3"),
        ("310", "huawei.com/Ascend310", "Ascend310-3"),
        ("A5", "huawei.com/npu", "npu-3"),
    ],
)
def test_ascend_chips_are_named_as_their_makers_plugin_does(
    family: str, name: str, identity: str
) -> None:
    assert offered(npu(3, family)) == {name: [identity]}


def test_a_chip_cut_by_hand_is_its_parts_and_one_cut_for_a_pod_is_nothing() -> None:
    by_hand = npu(0, "310P", partitions=(vnpu(100, "vir02"), vnpu(101, "vir04_3c")))
    for_pod = npu(1, "310P", partitions=(vnpu(102, "vir02", owner="a-pod"),))
    odd = npu(2, "310P", partitions=(vnpu(103, "special"),))
    assert offered(by_hand, for_pod, odd) == {
        "huawei.com/Ascend310P-2c": ["Ascend310P-2c-100-0"],
        "huawei.com/Ascend310P-4c.3cpu": ["Ascend310P-4c.3cpu-101-0"],
    }
    assert problems(odd) == ["BadResourceName"]


@pytest.mark.parametrize(
    ("template", "kind"),
    [
        ("vir02", "2c"),
        ("vir02_1c", "2c.1cpu"),
        ("vir04_4c_dvpp", "4c.4cpu.dvpp"),
        ("vir04_3c_ndvpp", "4c.3cpu.ndvpp"),
        ("vir05_1c_16g", "5c.1cpu.16g"),
        ("vir10_4c_16g_m", "10c.4cpu.16g.dvpp"),
        ("vir10_3c_16g_nm", "10c.3cpu.16g.ndvpp"),
        ("vir", None),
        ("", None),
    ],
)
def test_templates_of_vnpus(template: str, kind: str | None) -> None:
    assert vnpu_resource_kind(template) == kind


def test_names_that_the_node_has_from_elsewhere_are_never_served() -> None:
    result = offered(npu(0), mlu(0), factory.gpu(0).info, factory.nic(0).info)
    assert sorted(result) == [
        "cambricon.com/mlu",
        "huawei.com/Ascend910",
        "nvidia.com/gpu",
        "rdma/hca",
    ]
    for name in ("koordinator.sh/rdma", "node.koordinator.sh/x", "huawei.com/npu-core", "x", "/"):
        with pytest.raises(BadConfig):
            deciding(rdma_resource=name)


def test_cambricon_cards_and_instances_of_mim() -> None:
    parts = tuple(
        DevicePartition(uuid=f"MLU-1-mim-{i}", profile=p, instance=i)
        for i, p in ((1, "2m.16gb"), (2, "1m.8gb+x"))
    )
    in_mim = mlu(1, health=MIM, resources=(), partitions=parts)
    snapshot = node(devices=(device(mlu(0)), device(in_mim)))
    result = {resource.name: resource.devices for resource in deciding().resources(snapshot)}
    assert result == {
        "cambricon.com/mlu": (KubeletDevice(id=mlu(0).uuid or ""),),
        "cambricon.com/mlu.mim-1m.8gb-x": (KubeletDevice(id="MLU-1-mim-2"),),
        "cambricon.com/mlu.mim-2m.16gb": (KubeletDevice(id="MLU-1-mim-1"),),
    }


def test_a_nic_with_virtual_functions_is_these_and_not_itself() -> None:
    functions = tuple(VirtualFunction(bus_id=f"0000:18:00.{i}") for i in (2, 1))
    cut_up = factory.nic(0, vf_groups=(VirtualFunctionGroup(vfs=functions),)).info
    assert offered(cut_up, factory.nic(1).info, rdma_resource="example.com/nic") == {
        "example.com/nic": ["0000:18:00.1", "0000:18:00.2", "0000:40:00.0"]
    }


def test_unmanaged_hardware_is_not_offered() -> None:
    assert offered(replace(factory.gpu(0).info, managed=False)) == {}
    assert offered(npu(0, managed=False), npu(1, "310B"), npu(2, resources=())) == {}
    assert offered(mlu(0, uuid=None), replace(factory.nic(0).info, vendor="fake")) == {}


def test_a_start_is_checked_where_cards_are_given_whole() -> None:
    def checked(**settings: object) -> dict[str, bool]:
        resources = deciding(**settings).resources(node())
        return {resource.name: resource.check_start for resource in resources}

    assert checked() == {"nvidia.com/gpu": True, "rdma/hca": False}
    assert checked(check_occupancy=False) == {"nvidia.com/gpu": False, "rdma/hca": False}
    rows = ({"resource": "nvidia.com/gpu", "replicas": 2},)
    assert checked(sharing=rows)["nvidia.com/gpu"] is False


def test_a_vendor_that_is_switched_off_cannot_be_served() -> None:
    with pytest.raises(BadConfig, match="rdma is switched off"):
        Allocator(DevicePluginSettings(vendors=("rdma",)), {})
