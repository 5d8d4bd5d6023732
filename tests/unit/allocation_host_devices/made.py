"""Hosts with device nodes, and the reader of what they have for containers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from agent.allocation.host_devices import HostDeviceReader
from agent.clock import ManualClock
from agent.host.files import LiveHostFiles
from agent.recording.tree import DeviceNodeEntry, LinkEntry, TreeEntry, TreeFiles
from agent.snapshot.device import Device, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.settings import VendorSettings
from agent.workers.load import load_vendor
from tests.unit.allocation.made import snapshot

VENDORS = ("nvidia", "ascend", "cambricon", "rdma", "fake")


def recorded(files: Mapping[str, str | TreeEntry]) -> TreeFiles:
    """A host that does not change."""
    return TreeFiles.from_entries(
        {path: one.encode() if isinstance(one, str) else one for path, one in files.items()}
    )


def at(major: int, minor: int) -> DeviceNodeEntry:
    return DeviceNodeEntry(major=major, minor=minor)


def link(text: str) -> LinkEntry:
    return LinkEntry(text=text)


class Living(LiveHostFiles):
    """A folder as the machine; its plain files in dev are device nodes of major 240.

    What is read, and how often, is counted.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.folder = folder
        self.reads: list[str] = []
        self.stats: list[str] = []

    def read(self, path: str, limit: int = 64 * 1024) -> bytes:
        """Read, and remember it."""
        self.reads.append(path)
        return super().read(path, limit)

    def device_number(self, path: str) -> tuple[int, int] | None:
        """Number nodes by their names' last digits."""
        self.stats.append(path)
        if not self.exists(path):
            return None
        digits = "".join(filter(str.isdigit, path.rpartition("/")[2]))
        return 240, int(digits or 0)

    def write(self, path: str, text: str = "") -> None:
        """Write a file as editors do: a new one in the place of the old."""
        file = Path(self.path(path))
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(file.name + "~")
        new.write_text(text)
        new.rename(file)


def reader(
    host: HostFiles, clock: ManualClock | None = None, **settings: VendorSettings
) -> HostDeviceReader:
    """The reader of the vendors that we ship, with what each queries."""
    vendors = {name: load_vendor(name) for name in VENDORS}
    own = {name: vendor.description.settings() for name, vendor in vendors.items()} | settings
    return HostDeviceReader(host, vendors, own, clock or ManualClock())


def here(devices: Iterable[VendorDevice], driver: str | None = None) -> NodeSnapshot:
    """A node with these devices, whose vendors' driver is of that version."""
    now = snapshot(devices=tuple(Device(info=info) for info in devices))
    states = []
    for state in now.vendors:
        reported_inventory = state.inventory.value or Inventory(vendor=state.vendor)
        inventory = replace(reported_inventory, driver_version=driver)
        states.append(replace(state, inventory=SnapshotPart(inventory, 1.0)))
    return replace(now, vendors=tuple(states))
