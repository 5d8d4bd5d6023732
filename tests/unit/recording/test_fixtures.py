from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from agent.host.cpu import read_cpu_numa
from agent.host.kernel import read_identity
from agent.host.pci import read_pci
from agent.recording.format import parse_recording
from agent.recording.host_source import open_host
from plugins.vendors.nvidia.discovery.sysfs import find_hardware
from tests.captures import SHARED, needs_shared

HOSTS = Path(__file__).resolve().parents[3] / "fixtures" / "hosts"
EIGHT = HOSTS / "qemu-4numa-8xh100"
NONE = HOSTS / "vm-no-devices"
MAX_BYTES = 1_500_000
ALL = sorted(item for item in HOSTS.iterdir() if (item / "host.txt").is_file())


@pytest.mark.parametrize("folder", ALL, ids=lambda folder: folder.name)
def test_a_fixture_is_small_and_says_where_it_comes_from(folder: Path) -> None:
    assert (folder / "host.txt").stat().st_size < MAX_BYTES
    assert "## Origin" in (folder / "README.md").read_text()
    assert open_host(str(folder)).wall_s is not None


@pytest.mark.parametrize("folder", ALL, ids=lambda folder: folder.name)
def test_a_fixture_can_be_read_by_every_part_of_the_agent(folder: Path) -> None:
    host = open_host(str(folder)).files
    identity = read_identity(host, "node", folder.name)
    assert identity.kernel
    assert identity.architecture in ("x86_64", "aarch64")
    assert identity.boot_time_s > 0
    for path in ("/proc/stat", "/proc/meminfo", "/proc/pressure/memory", "/proc/devices"):
        assert host.read(path)


@needs_shared
def test_the_eight_gpu_host_is_made_of_its_capture() -> None:
    source = SHARED / "captures/qemu/sysfs-4numa-8xh100-4rxe.tar.xz"
    build = runpy.run_path(str(HOSTS / "complete_qemu.py"))["build"]
    assert build(source) == (EIGHT / "host.txt").read_text()


def test_the_eight_gpu_host_has_its_shape() -> None:
    host = open_host(str(EIGHT)).files
    cpus, numa = read_cpu_numa(host)
    assert len(cpus.usable) == 8
    assert numa.nodes[0].distances == (10, 12, 32, 32)
    assert len(read_pci(host).functions) == 50
    assert len(host.names("/sys/class/infiniband")) == 4


def test_its_cards_are_bound_and_known_to_the_driver() -> None:
    host = open_host(str(EIGHT)).files
    cards = find_hardware(host).cards
    assert [card.minor for card in cards] == list(range(8))
    assert {card.driver for card in cards} == {"nvidia"}
    assert [card.uuid for card in cards] == [
        f"GPU-00000000-0000-4000-8000-00000000000{minor}" for minor in range(8)
    ]
    bound = host.names("/sys/bus/pci/drivers/nvidia")
    assert bound == tuple(card.bus_id for card in cards)
    for address in bound:
        assert host.read(f"/sys/bus/pci/drivers/nvidia/{address}/vendor") == b"0x10de\n"
        assert host.exists(f"/sys/bus/pci/devices/{address}/driver")
    assert host.read("/sys/module/nvidia/version") == b"570.124.06\n"
    assert b"570.124.06" in host.read("/proc/driver/nvidia/version")


def test_the_host_without_devices_has_none() -> None:
    host = open_host(str(NONE)).files
    assert find_hardware(host).cards == ()
    assert host.names("/sys/class/infiniband") == ()
    assert len(read_pci(host).functions) == 6
    assert host.read("/sys/fs/cgroup/cpuacct/cpuacct.usage").strip().isdigit()
    assert b"total_inactive_anon" in host.read("/sys/fs/cgroup/memory/memory.stat")


def test_the_host_without_devices_names_nobody() -> None:
    text = (NONE / "host.txt").read_text()
    assert parse_recording(text.encode()).header["pseudonymised"] == "yes"
    assert re.findall(r"[\w.-]+@[\w.-]+", text) == ["builder@host"]
    assert not re.findall(r"\b(?:[0-9]{1,3}\.){3}[0-9]{1,3}\b", text)
    assert "root=" not in text
