from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.host.files import LiveHostFiles
from agent.recording.host_source import open_host
from agent.snapshot.device import HealthState
from agent.snapshot.host_files import MAX_READ
from agent.snapshot.settings import VendorSettings
from plugins.vendors.nvidia.discovery.sysfs import parse_information
from plugins.vendors.nvidia.vendor import NvidiaVendor
from tests.fault.nvml_stub import add_function
from tests.fault.nvml_tape import H100, HOSTS
from tests.unit.nvidia.conftest import BUSES

BUS = "0000:3b:00.0"
INFORMATION = """\
Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 21
GPU UUID: \t GPU-00000000-0000-4000-8000-000000000001
Bus Location: \t 0000:3b:00.0
Device Minor: \t 4
GPU Excluded:\t No
"""


class CountingRoot(LiveHostFiles):
    """A machine's root that counts reads."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self.reads: Counter[str] = Counter()

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        self.reads[path.rpartition("/")[2]] += 1
        return super().read(path, limit)


@pytest.mark.parametrize(
    ("driver", "managed", "reason"),
    [
        ("nvidia", True, "NotYetAsked"),
        ("vfio-pci", False, "BoundToVFIO"),
        ("nouveau", False, "BoundToNouveau"),
        ("nvgpu", False, "BoundToNvgpu"),
        ("pci-stub", False, "BoundToOther"),
        (None, False, "DriverMissing"),
    ],
)
def test_the_binding_says_whose_a_card_is(
    tmp_path: Path, driver: str | None, *, managed: bool, reason: str
) -> None:
    add_function(tmp_path, BUS, driver)
    (device,) = NvidiaVendor().detect(LiveHostFiles(str(tmp_path)), VendorSettings())
    assert (device.managed, device.health.reason) == (managed, reason)
    assert device.health.state is HealthState.SUSPECT
    assert device.health.message


def test_an_unbound_card_beside_a_loaded_driver_is_distinguished(tmp_path: Path) -> None:
    add_function(tmp_path, BUS, None)
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    (device,) = NvidiaVendor().detect(LiveHostFiles(str(tmp_path)), VendorSettings())
    assert device.health.reason == "DriverNotBound"


def test_procfs_identifies_the_card_before_the_library_does(tmp_path: Path) -> None:
    add_function(tmp_path, BUS, Model="x")
    (tmp_path / f"proc/driver/nvidia/gpus/{BUS}/information").write_text(INFORMATION)
    (device,) = NvidiaVendor().detect(LiveHostFiles(str(tmp_path)), VendorSettings())
    assert (device.uuid, device.minor, device.model) == (
        "GPU-00000000-0000-4000-8000-000000000001",
        4,
        "H100-80GB-HBM3",
    )


@pytest.mark.parametrize("uuid", ["GPU-????????-????-????-????-????????????", "", "x"])
def test_a_uuid_that_is_not_known_yet_is_absent(tmp_path: Path, uuid: str) -> None:
    add_function(tmp_path, BUS, GPU_UUID=uuid, Device_Minor="-1")
    (device,) = NvidiaVendor().detect(LiveHostFiles(str(tmp_path)), VendorSettings())
    assert (device.uuid, device.minor) == (None, None)


def test_a_recorded_host_shows_its_cards_with_their_nodes() -> None:
    devices = NvidiaVendor().detect(open_host(str(HOSTS / H100.host)).files, VendorSettings())
    assert [(d.bus_id, d.minor) for d in devices] == list(zip(BUSES, range(8), strict=True))
    assert {d.uuid for d in devices} == {
        f"GPU-00000000-0000-4000-8000-00000000000{n}" for n in range(8)
    }
    assert [n.path for d in devices for n in d.nodes] == [f"/dev/nvidia{n}" for n in range(8)]


def test_an_excluded_card_is_out_of_service(tmp_path: Path) -> None:
    add_function(tmp_path, BUS, GPU_Excluded="Yes")
    (device,) = NvidiaVendor().detect(LiveHostFiles(str(tmp_path)), VendorSettings())
    assert (device.health.reason, device.health.is_in_service) == ("Excluded", False)


@pytest.mark.parametrize("code", ["0x068000", "0x040300", "0x0c0330", "0xzz", ""])
def test_switches_audio_and_nonsense_are_no_cards(tmp_path: Path, code: str) -> None:
    add_function(tmp_path, BUS, code=code)
    assert NvidiaVendor().detect(LiveHostFiles(str(tmp_path)), VendorSettings()) == ()


def test_a_virtual_function_on_its_host_is_left_out(tmp_path: Path) -> None:
    add_function(tmp_path, BUS)
    (tmp_path / f"sys/bus/pci/devices/{BUS}/physfn").symlink_to("../0000:3b:00.4")
    (device,) = NvidiaVendor().detect(LiveHostFiles(str(tmp_path)), VendorSettings())
    assert (device.managed, device.health.reason) == (False, "VirtualFunction")


def test_a_machine_of_others_costs_one_short_read_a_function(tmp_path: Path) -> None:
    for number in range(200):
        folder = tmp_path / f"sys/bus/pci/devices/0000:{number:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x8086\n")
        (folder / "class").write_text("0x030000\n")
    add_function(tmp_path, "0001:3b:00.0")
    host = CountingRoot(str(tmp_path))
    assert len(NvidiaVendor().detect(host, VendorSettings())) == 1
    assert host.reads == {"vendor": 201, "class": 1, "information": 1}


def test_a_machine_without_pci_has_no_cards(tmp_path: Path) -> None:
    assert NvidiaVendor().detect(LiveHostFiles(str(tmp_path)), VendorSettings()) == ()


def test_odd_entries_are_skipped(tmp_path: Path) -> None:
    add_function(tmp_path, "not-an-address")
    (tmp_path / "sys/bus/pci/devices/0000:00:00.0").mkdir()
    add_function(tmp_path, "10000:01:00.0")
    devices = NvidiaVendor().detect(LiveHostFiles(str(tmp_path)), VendorSettings())
    assert [d.bus_id for d in devices] == ["10000:01:00.0"]


@given(st.text(max_size=300))
def test_no_information_file_raises(content: str) -> None:
    assert all(isinstance(value, str) for value in parse_information(content).values())
