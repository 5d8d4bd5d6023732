"""Which functions are accelerators, by the identity that PCI gives them."""

from __future__ import annotations

import pytest

from agent.snapshot.device import HealthState
from agent.snapshot.settings import VendorSettings
from plugins.vendors.accelerators.makers import MAKERS, maker_of
from plugins.vendors.accelerators.sysfs import find_accelerators
from plugins.vendors.accelerators.vendor import AcceleratorsVendor
from tests.machines import Sysfs


@pytest.mark.parametrize(
    ("vendor_id", "device_id", "class_code", "virtual", "label"),
    [
        pytest.param(0x19E5, 0xD802, 0x120000, False, "huawei", id="V61"),
        pytest.param(0x19E5, 0x1711, 0x030000, False, None, id="V61 a management controller"),
        pytest.param(0x19E5, 0xA222, 0x020000, False, None, id="V61 a NIC"),
        pytest.param(0xCABC, 0x0370, 0x120000, False, "cambricon", id="V62"),
        pytest.param(0xCABC, 0x0370, 0x120000, True, None, id="V62 a virtual function"),
        pytest.param(0x1D94, 0x62B7, 0x0B4000, False, "hygon", id="V63"),
        pytest.param(0x1D94, 0x1453, 0x060400, False, None, id="V63 a CPU's bridge"),
        pytest.param(0x9999, 0x4001, 0x038000, False, "metax", id="V64"),
        pytest.param(0x1D22, 0x1380, 0x010802, False, None, id="V64 a disk"),
        pytest.param(0x1D94, 0x1234, 0x038000, False, None, id="an id not listed of a CPU maker"),
        pytest.param(0x1E36, 0x9999, 0x120000, False, "enflame", id="a model not known yet"),
        pytest.param(0x1ED5, 0x02FF, 0x040300, False, None, id="the audio function of a GPU"),
        pytest.param(0x1002, 0x74A1, 0x120000, False, "amd", id="an AMD accelerator"),
        pytest.param(0x10EE, 0x5000, 0x120000, False, "xilinx", id="an FPGA"),
        pytest.param(0x10EE, 0x5000, 0x020000, False, None, id="a NIC on an FPGA"),
        pytest.param(0x8086, 0x1234, 0x120000, False, None, id="a maker not in the table"),
        pytest.param(0x9999, None, None, False, None, id="a class that cannot be read"),
        pytest.param(0x1E3E, None, 0x120000, False, "iluvatar", id="an id that cannot be read"),
    ],
)
def test_identity_decides(
    vendor_id: int, device_id: int | None, class_code: int | None, virtual: bool, label: str | None
) -> None:
    maker = maker_of(vendor_id, device_id, class_code, virtual=virtual)
    assert (maker.label if maker else None) == label


def machine() -> Sysfs:
    sysfs = Sysfs()
    sysfs.function("pci0000:16/0000:16:01.0", **{"class": "0x060400", "vendor": "0x8086"})
    sysfs.function(
        "pci0000:16/0000:16:01.0/0000:17:00.0",
        **{"class": "0x038000", "vendor": "0x9999", "device": "0x4001", "driver": ">../metax"},
    )
    sysfs.function(
        "pci0000:16/0000:18:00.0",
        **{"class": "0x120000", "vendor": "0x1E36", "device": "0x0021", "driver": ">../vfio-pci"},
    )
    sysfs.function(
        "pci0000:16/0000:18:00.1",
        **{"class": "0x120000", "vendor": "0x1e36", "physfn": ">../0000:18:00.0"},
    )
    sysfs.function("pci0000:16/0000:19:00.0", **{"class": "0x120000", "vendor": "0x1172"})
    sysfs.function("pci0000:16/0000:1a:00.0")  # NVIDIA's own plug-in lists it
    sysfs.function("pci0000:16/0000:1b:00.0", **{"class": "0x120000", "vendor": "0x19e5"})
    return sysfs


def test_functions_are_listed_as_unmanaged_with_their_identity() -> None:
    result = AcceleratorsVendor().detect(machine().builder.build(), VendorSettings())
    assert [(d.vendor, d.bus_id, d.model, d.uuid) for d in result] == [
        ("metax", "0000:17:00.0", "C500", "metax-0000:17:00.0"),
        ("enflame", "0000:18:00.0", "T20/T21", "enflame-0000:18:00.0"),
        ("altera", "0000:19:00.0", None, "altera-0000:19:00.0"),
    ]
    assert not any(device.managed or device.resources for device in result)
    assert [device.health.reason for device in result] == [
        "NoVendorPlugin",
        "BoundToVFIO",
        "NoVendorPlugin",
    ]
    assert result[0].health.state is HealthState.HEALTHY
    assert dict(result[0].facts) == {"pci_id": "9999:4001", "driver": "metax"}
    assert dict(result[2].facts)["role"] == "fpga"


def test_makers_with_their_own_vendor_plug_in_are_left_out() -> None:
    assert {maker.label for maker in MAKERS.values() if maker.has_vendor_plugin} == {
        "nvidia",
        "huawei",
        "cambricon",
    }
    accelerators = find_accelerators(machine().builder.build())
    assert not [item for item in accelerators if item.maker.has_vendor_plugin]
