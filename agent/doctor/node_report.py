"""The vendors and devices of a node, decoded from the JSON of a snapshot.

The running agent and a new discovery are both decoded into this form and compared. Other fields
are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.errors import ParseError
from agent.snapshot.device import VendorDevice
from agent.snapshot.inventory import Problem, RejectionCount
from agent.snapshot.node import NodeSnapshot
from agent.wire_formats.snapshot_json import snapshot_json


class IdentityReport(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that the report is about."""

    source: str = ""  # "this machine", or the name of a recording
    boot_id: str = ""


class InventoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The last answer of a vendor's worker."""

    devices: tuple[VendorDevice, ...] = ()
    driver_version: str | None = None
    problems: tuple[Problem, ...] = ()


class InventoryEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    """The last answer, if there is one."""

    value: InventoryReport | None = None


class VendorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one vendor's worker."""

    vendor: str
    state: str = "starting"
    reason: str = ""
    message: str = ""
    pid: int | None = None  # pid of the worker, on the host
    restarts: int = 0
    inventory: InventoryEnvelope = InventoryEnvelope()
    rejections: tuple[RejectionCount, ...] = ()  # readings that are in no sample

    @property
    def is_silent(self) -> bool:
        """Return whether its driver cannot be called: released, hanging, failing or crashing."""
        return self.state not in ("ready", "starting")

    @property
    def devices(self) -> tuple[VendorDevice, ...]:
        """Return the devices of its last answer."""
        return self.inventory.value.devices if self.inventory.value is not None else ()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return the problems that concern the vendor as a whole."""
        return self.inventory.value.problems if self.inventory.value is not None else ()


class DeviceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A device of the node's list; its place is ignored."""

    info: VendorDevice


class DeviceList(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of all vendors."""

    devices: tuple[DeviceEntry, ...] = ()


class DevicesEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    """The part `devices` of a snapshot."""

    value: DeviceList = DeviceList()


class SnapshotSubset(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a snapshot that are used here."""

    devices: DevicesEnvelope = DevicesEnvelope()


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Vendors and devices of a node at one moment."""

    node: IdentityReport
    vendors: tuple[VendorReport, ...]
    parts: SnapshotSubset

    @property
    def devices(self) -> dict[str, VendorDevice]:
        """Return all devices by key."""
        return {device.info.key: device.info for device in self.parts.devices.value.devices}

    @property
    def vendor_names(self) -> dict[str, str]:
        """Return the name of the vendor plug-in by key of the device."""
        return {device.key: vendor.vendor for vendor in self.vendors for device in vendor.devices}

    def is_same_machine(self, other: NodeReport) -> bool:
        """Return whether both reports are about one boot of one machine."""
        boots = {self.node.boot_id, other.node.boot_id} - {""}
        return self.node.source == other.node.source and len(boots) <= 1


def parse_report(snapshot: Mapping[str, object]) -> NodeReport:
    """Decode the JSON of a snapshot; raises `ParseError` if it has another form."""
    try:
        return msgspec.convert(snapshot, NodeReport)
    except msgspec.ValidationError as error:
        raise ParseError("snapshot", str(error)) from error


def node_report(snapshot: NodeSnapshot) -> NodeReport:
    """Return the report of a snapshot of this process."""
    return parse_report(snapshot_json(snapshot, 0.0))
