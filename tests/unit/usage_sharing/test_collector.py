from __future__ import annotations

from pathlib import Path

from agent.host.files import LiveHostFiles
from agent.recording.tree import TreeBuilder
from agent.snapshot.device import Device
from agent.snapshot.host_files import HostFiles
from agent.snapshot.pod import ContainerView, KubeQos, PodView
from agent.snapshot.usage import SharingView
from agent.usage.hami_regions import LAYOUT_A
from agent.usage.shared_devices import SharedDeviceCollector
from tests.factory import gpu, nic
from tests.unit.usage_sharing.made import Region

POD = PodView(uid="u1", qos=KubeQos.BURSTABLE, containers=(ContainerView(id="1", name="worker"),))


def machine(root: Path) -> LiveHostFiles:
    """A live host below a folder, with one region and one MPS daemon."""
    folder = root / "regions/u1_worker"
    folder.mkdir(parents=True)
    (folder / "a.cache").write_bytes(Region(LAYOUT_A).data)
    process = root / "proc/9"
    process.mkdir(parents=True)
    (process / "comm").write_text("nvidia-cuda-mps\n")
    (process / "cmdline").write_text("nvidia-cuda-mps-control\0")
    return LiveHostFiles(str(root))


def look(
    host: HostFiles, now_s: float = 0.0, regions: str = "/regions", devices: tuple[Device, ...] = ()
) -> SharingView:
    return SharedDeviceCollector(host, regions).collect(
        now_s, 1.5e9, [POD], devices or (gpu(0),), []
    )


def test_regions_and_daemons_are_found_below_the_hosts_root(tmp_path: Path) -> None:
    view = look(machine(tmp_path))
    assert [region.container for region in view.regions] == ["worker"]
    assert [daemon.pid for daemon in view.mps] == [9]
    assert view.problems == ()


def test_a_node_without_cards_of_nvidia_is_not_read(tmp_path: Path) -> None:
    assert look(machine(tmp_path), devices=(nic(0),)) == SharingView()


def test_without_a_folder_and_on_a_recording_there_are_no_regions(tmp_path: Path) -> None:
    view = look(machine(tmp_path), regions="")
    assert (view.regions, len(view.mps)) == ((), 1)
    assert look(TreeBuilder().build("")) == SharingView(wall_s=1.5e9)


def test_the_next_reading_is_due_after_ten_seconds(tmp_path: Path) -> None:
    collector = SharedDeviceCollector(machine(tmp_path), "/regions")
    assert collector.due_s < 0.0
    collector.collect(5.0, 0.0, [POD], [gpu(0)], [])
    assert collector.due_s == 15.0
