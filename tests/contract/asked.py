"""Every vendor there is, and sessions of them on hosts that are recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from agent.errors import NotSupported
from agent.host.files import HostFiles
from agent.model.inventory import DeviceEvent, DeviceSample, Inventory
from agent.probe import wire
from agent.probe.base import DeviceVendor, VendorSession
from agent.probe.vendors import load_vendors
from plugins.vendors.fake.vendor import FakeVendor
from plugins.vendors.template.vendor import TemplateVendor
from tests.contract.hosts import HOSTS, host_of

NAMES = (*load_vendors(), TemplateVendor.name)
SCENE = {
    "devices": [
        {
            "uuid": "FAKE-0",
            "minor": 0,
            "memory_bytes": 1 << 36,
            "core_percent": {"mean": 50, "swing": 80, "period_s": 1},
            "memory_used_bytes": {"from": 0, "to": 1 << 40, "over_s": 1},
            "temperature_celsius": 55,
            "power_watts": 300,
            "processes": [{"pid": 1}],
            "nodes": [{"path": "/dev/fake0", "major": 240, "minor": 0}],
            "labels": {"a": "b"},
        },
        {"kind": "rdma", "bus_id": "0000:3b:00.0", "ports": [{"number": 1, "state": 4}]},
    ],
    "links": [{"a": "0000:3b:00.0", "b": "FAKE-0", "type": "NVLink", "count": 2}],
    "events": [{"at_s": 0, "key": "FAKE-0", "reason": "Xid79", "state": "failed"}],
}
of_every_vendor = pytest.mark.parametrize("name", NAMES)
on_every_host = pytest.mark.parametrize("host", HOSTS)


def vendor_of(name: str, folder: Path | None = None) -> tuple[DeviceVendor, dict[str, object]]:
    """Return the vendor and what its worker's settings are on a recorded host."""
    if name == FakeVendor.name and folder is not None:
        file = folder / "fake.yaml"
        file.write_text(yaml.safe_dump(SCENE))
        return FakeVendor(str(file)), {"file": str(file), "replay": True}
    vendor = {**load_vendors(), TemplateVendor.name: TemplateVendor()}[name]
    return vendor, {"replay": True}


@contextlib.contextmanager
def session_of(
    name: str, host: HostFiles, folder: Path
) -> Iterator[tuple[DeviceVendor, VendorSession]]:
    """Open a vendor's session and close it."""
    vendor, settings = vendor_of(name, folder)
    session = vendor.open(host, settings)
    yield vendor, session
    session.close()


def inventory_of(name: str, host: str, folder: Path) -> Inventory:
    """Return what a vendor finds on one of the hosts."""
    with session_of(name, host_of(host), folder) as (_, session):
        return session.discover()


def sample_of(session: VendorSession) -> tuple[DeviceSample, ...]:
    """Sample; a vendor that cannot has none."""
    try:
        return session.sample()
    except NotSupported:
        return ()


def events_of(session: VendorSession) -> tuple[DeviceEvent, ...]:
    """Ask for events without waiting; a vendor that cannot has none."""
    try:
        return session.events(0.0)
    except NotSupported:
        return ()


def across(reply: wire.Reply) -> wire.Reply:
    """Return what is left of a reply on the other side of the wire."""
    return wire.decode_reply("x", wire.encode(reply))
