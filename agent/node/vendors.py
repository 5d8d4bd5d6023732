"""Which vendors are asked on this node, and with which settings."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.config.sections import Settings
from agent.errors import BadConfig
from agent.host.files import HostFiles
from agent.probe.base import DeviceVendor
from agent.probe.base import Settings as VendorSettings
from agent.probe.vendors import load_vendors
from plugins.vendors import BUILTIN


def vendor_settings(settings: Settings) -> dict[str, VendorSettings]:
    """Return each vendor's own section of `discovery`, with the folder for lasting state."""
    discovery = settings.discovery
    own: dict[str, dict[str, object]] = {
        name: msgspec.structs.asdict(getattr(discovery, name))
        for name, _ in BUILTIN
        if hasattr(discovery, name)
    }
    if settings.node.state_dir:
        for values in own.values():
            values["state_dir"] = settings.node.state_dir
    return dict(own)


def wanted_vendors(settings: Settings) -> dict[str, DeviceVendor]:
    """Return the vendors that no setting switches off.

    Raises `BadConfig` on a clash of names, and for what a vendor finds wrong in its settings.
    """
    switches: Mapping[str, str] = msgspec.structs.asdict(settings.discovery.vendors)
    if switches["fake"] == "on" and not settings.discovery.fake.file:
        raise BadConfig("discovery.vendors.fake: on, but discovery.fake.file names no devices")
    unwanted = {name for name, switch in switches.items() if switch == "off"}
    file = settings.discovery.fake.file
    vendors = load_vendors(without={*unwanted, "fake"})
    if file and "fake" not in unwanted:
        from plugins.vendors.fake.vendor import FakeVendor  # noqa: PLC0415 - few nodes have one

        vendors["fake"] = FakeVendor(file)
    own = vendor_settings(settings)
    for name, vendor in vendors.items():
        vendor.check(own.get(name, {}))
    return vendors


def forced(settings: Settings, name: str) -> bool:
    """Say whether a vendor is started although sysfs shows nothing of it."""
    switches: Mapping[str, str] = msgspec.structs.asdict(settings.discovery.vendors)
    return switches.get(name) == "on"


def has_devices(files: HostFiles, vendors: Mapping[str, DeviceVendor]) -> bool:
    """Say whether any vendor sees hardware here, from sysfs alone."""
    return any(vendor.sighted(files) for vendor in vendors.values())
