"""CDI names stay as long as a pod may hold them, whoever serves the kubelet."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.app.allocation import CdiFileUpdater
from agent.app.composition import AgentInputs
from agent.clock import ManualClock
from agent.config.cluster import KubeletSettings
from agent.config.containers import CdiSettings, DevicePluginSettings
from agent.config.settings import NodeSettings, Settings
from agent.errors import HostFileError, PublishError
from agent.recording.directory import DirectoryFiles
from agent.recording.host_source import HostSource
from agent.snapshot.device import DeviceNode, VendorDevice
from agent.snapshot.host_devices import HostDevices, HostDevicesView
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import DeviceView, NodeIdentity, NodeSnapshot, SnapshotStore, VendorState
from agent.snapshot.part import SnapshotPart
from agent.workers.load import load_vendors
from tests import factory
from tests.unit.deviceplugin.made import means
from tests.vendors import decode

FILE = "xpu-agent-rdma.json"


def nic(index: int) -> VendorDevice:
    node = DeviceNode(path=f"/dev/infiniband/uverbs{index}", major=231, minor=192 + index)
    return replace(factory.nic(index).info, nodes=(node,))


FIRST, SECOND = nic(0), nic(1)


def snapshot(*nics: VendorDevice) -> NodeSnapshot:
    inventory = Inventory(vendor="rdma", devices=nics)
    return NodeSnapshot(
        node=NodeIdentity(name="n"),
        vendors=(VendorState(vendor="rdma", inventory=SnapshotPart(inventory, 1.0)),),
        devices=SnapshotPart(DeviceView(), 1.0),
        host_devices=SnapshotPart(HostDevicesView(vendors={"rdma": HostDevices()}), 1.0),
    )


class Scene:
    """A host with two NICs, the kubelet's folder and that of CDI files."""

    def __init__(self, folder: Path, **device_plugin: object) -> None:
        self.cdi, self.plugins = folder / "cdi", folder / "kubelet" / "device-plugins"
        self.plugins.mkdir(parents=True)
        self.settings = Settings(
            cdi=CdiSettings(dir=str(self.cdi)),
            kubelet=KubeletSettings(root_dir=str(folder / "kubelet")),
            device_plugin=DevicePluginSettings(**device_plugin),  # type: ignore[arg-type] # its own
        )
        self.store = SnapshotStore(snapshot(FIRST, SECOND))
        self.files: HostFiles = DirectoryFiles(folder)
        self.folder = folder

    def cdi_of_nvidia(self) -> CdiSettings:
        """Return the settings by which NVIDIA's cards have a file, too."""
        return decode({"cdi": {"dir": str(self.cdi), "nvidia": True}}).cdi

    def agent(self) -> CdiFileUpdater:
        """Begin, as after a start: nobody has told what is held."""
        inputs = AgentInputs(
            settings=self.settings,
            host_source=HostSource(files=self.files),
            clock=ManualClock(),
            vendors=load_vendors(),
            store=self.store,
        )
        return CdiFileUpdater(self.settings, self.store, inputs.vendors, inputs.node_files)

    def hold(self, resource: str = "rdma/hca") -> None:
        entry = {"PodUID": "u", "ContainerName": "c", "ResourceName": resource, "DeviceIDs": {}}
        self.write(json.dumps({"Data": {"PodDeviceEntries": [entry]}}))

    def write(self, text: str) -> None:
        aside = self.plugins / "aside"
        aside.write_text(text)
        os.replace(aside, self.plugins / "kubelet_internal_checkpoint")

    def names(self) -> list[str]:
        loads = json.loads((self.cdi / FILE).read_text())
        return [device["name"] for device in loads["devices"]]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    created = Scene(tmp_path)
    created.agent().update_files()
    assert created.names() == [FIRST.bus_id, SECOND.bus_id]
    created.store.put(vendors=snapshot(FIRST).vendors)
    return created


def test_a_name_that_a_pod_may_hold_outlives_an_agent_that_does_not_serve_the_kubelet(
    scene: Scene,
) -> None:
    scene.hold()
    naming = scene.agent()
    naming.update_files()
    assert scene.names() == [FIRST.bus_id, SECOND.bus_id]
    scene.hold("example.com/other")
    naming.update_files()
    assert scene.names() == [FIRST.bus_id]


def test_a_checkpoint_that_cannot_be_read_frees_no_name(scene: Scene) -> None:
    scene.write('{"Data"')
    naming = scene.agent()
    naming.update_files()
    assert scene.names() == [FIRST.bus_id, SECOND.bus_id]
    (scene.plugins / "kubelet_internal_checkpoint").unlink()
    naming.update_files()
    assert scene.names() == [FIRST.bus_id]


def test_a_resource_of_another_name_is_known_by_the_settings(tmp_path: Path) -> None:
    created = Scene(tmp_path, rdma_resource="example.com/nic")
    created.agent().update_files()
    created.store.put(vendors=snapshot(FIRST).vendors)
    created.hold("example.com/nic")
    created.agent().update_files()
    assert created.names() == [FIRST.bus_id, SECOND.bus_id]


def test_the_driver_is_searched_on_the_host_and_not_in_the_agents_container(
    tmp_path: Path,
) -> None:
    library = tmp_path / "host" / "usr" / "lib64" / "libcuda.so.1"
    program = tmp_path / "host" / "usr" / "bin" / "nvidia-cdi-hook"
    for path in (library, program):
        path.parent.mkdir(parents=True)
        path.touch()
    created = Scene(tmp_path)
    own = NodeSettings(host_root=str(tmp_path / "host"))
    created.settings = replace(created.settings, cdi=created.cdi_of_nvidia(), node=own)
    card = factory.gpu(0).info
    inventory = Inventory(vendor="nvidia", devices=(card,))
    host = replace(means()["nvidia"], driver_version="1")
    created.store.put(
        vendors=(VendorState(vendor="nvidia", inventory=SnapshotPart(inventory, 1.0)),),
        host_devices=SnapshotPart(HostDevicesView(vendors={"nvidia": host}), 1.0),
    )
    created.agent().update_files()
    text = (created.cdi / "xpu-agent-nvidia.json").read_text()
    assert "/usr/lib64/libcuda.so.1" in text
    assert str(tmp_path) not in text


def test_an_unreadable_folder_of_libraries_is_reported(tmp_path: Path) -> None:
    class Unreadable(DirectoryFiles):
        def names(self, path: str) -> tuple[str, ...]:
            raise HostFileError(path, 5)

        def exists(self, path: str) -> bool:
            del path
            return True

    created = Scene(tmp_path)
    created.settings = replace(created.settings, cdi=created.cdi_of_nvidia())
    created.files = Unreadable(tmp_path)
    view = HostDevicesView(vendors={"nvidia": HostDevices(driver_version="1")})
    created.store.put(host_devices=SnapshotPart(view, 1.0))
    naming = created.agent()
    with pytest.raises((HostFileError, PublishError)):
        naming.update_files()
    assert naming.problem
