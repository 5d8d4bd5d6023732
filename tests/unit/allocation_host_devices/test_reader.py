"""What the host has for containers: on a recording, and on a machine that changes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.clock import ManualClock
from agent.recording.host_source import open_host
from agent.recording.tree import ErrorEntry, TreeEntry
from agent.snapshot.device import DeviceKind, DeviceNode, VendorDevice
from agent.snapshot.host_devices import HostDevices
from agent.snapshot.part import SnapshotPart
from agent.snapshot.usage import MpsDaemon, SharingView
from plugins.vendors.nvidia.injection.sharing import LIBRARY
from plugins.vendors.nvidia.settings import NvidiaSettings
from tests.unit.allocation_host_devices.made import Living, at, here, reader, recorded
from tests.unit.vendors_injection.made import gpu

MAJORS = """Character devices:
  1 mem
195 nvidia
511 nvidia-uvm

Block devices:
  8 sd
"""
DEV: dict[str, str | TreeEntry] = {
    "/dev/nvidia0": at(195, 0),
    "/dev/nvidiactl": at(195, 255),
    "/dev/null": at(1, 3),
    "/dev/nvidia-caps/nvidia-cap1": at(511, 1),
    "/proc/devices": MAJORS,
}
ROOT = Path(__file__).parents[3]
CHIP = VendorDevice(
    kind=DeviceKind.NPU, vendor="huawei", bus_id="0000:c1:00.0", uuid="die-0", minor=0
)


def paths(host_devices: HostDevices) -> list[str]:
    return [node.path for node in host_devices.nodes]


def test_nodes_are_those_of_the_vendors_patterns_with_the_kernels_numbers() -> None:
    host_devices = reader(recorded(DEV)).read(here([gpu(0)], "570.1")).vendors["nvidia"]
    assert paths(host_devices) == ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap1"]
    node = host_devices.node("/dev/nvidiactl")
    assert node is not None
    assert (node.major, node.minor) == (195, 255)
    assert host_devices.majors == (("mem", 1), ("nvidia", 195), ("nvidia-uvm", 511))
    assert host_devices.driver_version == "570.1"


def test_nodes_below_a_drivers_own_root_are_found_beside_them() -> None:
    host = recorded({**DEV, "/run/nvidia/driver/dev/nvidia-uvm": at(511, 0)})
    settings = NvidiaSettings(driver_root="/run/nvidia/driver")
    own = reader(host, nvidia=settings).read(here([gpu(0)]))
    assert "/run/nvidia/driver/dev/nvidia-uvm" in paths(own.vendors["nvidia"])
    assert own.vendors["nvidia"].settings == settings


def test_the_nodes_of_devices_are_checked_without_a_query() -> None:
    named = gpu(0, nodes=(DeviceNode(path="/dev/dxg", major=10, minor=125),))
    host = recorded({**DEV, "/dev/dxg": at(10, 125)})
    assert "/dev/dxg" in paths(reader(host).read(here([named])).vendors["nvidia"])
    strange = gpu(0, nodes=(DeviceNode(path="/dev/../etc/shadow", major=1, minor=1),))
    assert "/dev/../etc/shadow" not in paths(reader(host).read(here([strange])).vendors["nvidia"])


def test_a_vendor_that_is_not_here_has_nothing() -> None:
    assert set(reader(recorded(DEV)).read(here([gpu(0)])).vendors) == {"nvidia"}
    assert reader(recorded(DEV)).read(here([])).vendors == {}


def test_paths_are_the_existing_ones_of_the_vendors_query() -> None:
    host = recorded({**DEV, LIBRARY: "", "/usr/bin/cnmon": "", "/etc/passwd": ""})
    assert reader(host).read(here([gpu(0)])).vendors["nvidia"].paths == {LIBRARY}


@pytest.mark.parametrize(
    ("content", "listed"),
    [
        (None, None),
        ("/usr/lib64/libdcmi.so\n\n# a comment\n../etc\n/a/../b\n", ("/usr/lib64/libdcmi.so",)),
        ("/x\n" * 200, ("/x",) * 128),
    ],
)
def test_ascends_own_list_of_mounts_is_read(
    content: str | None, listed: tuple[str, ...] | None
) -> None:
    files: dict[str, str | TreeEntry] = {
        "/usr/lib64/libdcmi.so": "",
        "/x": "",
        "/proc/devices": MAJORS,
    }
    if content is not None:
        files["/etc/ascend-docker-runtime.d/base.list"] = content
    host_devices = reader(recorded(files)).read(here([CHIP])).vendors["ascend"]
    assert host_devices.mount_list == listed
    assert set(listed or ()) <= host_devices.paths


def test_mps_daemons_and_resctrl_groups_are_those_that_are_known_and_mounted() -> None:
    top = "/sys/fs/resctrl"
    files = {f"{top}/{name}/schemata": "" for name in ("BE", "LS", "info", "mon_groups")}
    daemon = MpsDaemon(pid=7)
    now = replace(here([gpu(0)]), sharing=SnapshotPart(SharingView(mps=(daemon,)), 1.0))
    view = reader(recorded({**DEV, **files, f"{top}/tasks": "", f"{top}/empty/x": ""})).read(now)
    assert view.resctrl_groups == ("BE", "LS")
    assert view.vendors["nvidia"].mps == (daemon,)
    assert reader(recorded(DEV)).read(now).resctrl_groups == ()


def test_what_cannot_be_read_costs_itself_only() -> None:
    refused = ErrorEntry(errno=13)
    files = {**DEV, "/proc/devices": refused, "/etc/cdi": refused, "/sys/fs/resctrl": refused}
    view = reader(recorded(files)).read(here([gpu(0)]))
    assert view.vendors["nvidia"].majors == ()
    assert paths(view.vendors["nvidia"])
    assert [reason for reason, _ in view.problems] == ["CdiSpecUnreadable"]


def test_a_recorded_machine_has_the_capabilities_of_its_slices() -> None:
    host = open_host(str(ROOT / "fixtures" / "hosts" / "a100-mig-4x")).files
    host_devices = reader(host).read(here([gpu(0)])).vendors["nvidia"]
    caps = [path for path in paths(host_devices) if path.startswith("/dev/nvidia-caps/")]
    assert host_devices.node("/dev/nvidia0") == DeviceNode(path="/dev/nvidia0", major=195, minor=0)
    assert len(caps) > 10


def test_an_unchanged_host_gives_the_same_view_with_few_reads(tmp_path: Path) -> None:
    host = Living(tmp_path)
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        host.write(f"/dev/{name}")
    host.write("/etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu\n")
    host.write("/etc/containerd/config.toml", "")
    host_devices, now = reader(host), here([gpu(0)])
    first = host_devices.read(now)
    host.reads.clear()
    host.stats.clear()
    assert host_devices.read(now) is first
    assert host.stats == []
    assert [path for path in host.reads if not path.startswith("/proc/")] == []


def test_added_and_removed_nodes_are_noticed_at_the_next_read(tmp_path: Path) -> None:
    host = Living(tmp_path)
    host.write("/dev/nvidia0")
    host_devices, now = reader(host, ManualClock(wall_s=time.time())), here([gpu(0)])
    assert paths(host_devices.read(now).vendors["nvidia"]) == ["/dev/nvidia0"]
    host.write("/dev/nvidia1")
    assert paths(host_devices.read(now).vendors["nvidia"]) == ["/dev/nvidia0", "/dev/nvidia1"]
    Path(host.path("/dev/nvidia0")).unlink()
    assert paths(host_devices.read(now).vendors["nvidia"]) == ["/dev/nvidia1"]
    host.write("/dev/nvidia-caps/nvidia-cap3")  # a folder that was not there
    assert "/dev/nvidia-caps/nvidia-cap3" in paths(host_devices.read(now).vendors["nvidia"])
