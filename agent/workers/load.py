"""Loads the vendors: those of this project, and those of installed packages."""

from __future__ import annotations

import glob
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from agent.errors import BadConfig
from agent.snapshot.device import VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.settings import VendorSettings
from agent.snapshot.vendor import CdiNaming, DeviceVendor, VendorDescription
from plugins.vendors import BUILTIN

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from agent.config.settings import Settings


def vendor_settings(
    settings: Settings, vendors: Mapping[str, DeviceVendor]
) -> dict[str, VendorSettings]:
    """Return each vendor's own section of `discovery`."""
    return {name: settings.discovery.of(vendor.description) for name, vendor in vendors.items()}


def vendor_descriptions() -> tuple[VendorDescription, ...]:
    """Return the descriptions of all vendors; raises as `load_vendors`."""
    return tuple(vendor.description for vendor in load_vendors().values())


def cdi_namings() -> dict[str, CdiNaming]:
    """Return how CDI files name devices, by vendor; of all vendors whose files the agent writes."""
    return {one.name: one.cdi for one in vendor_descriptions() if one.cdi is not None}


def driver_modules() -> tuple[str, ...]:
    """Return how names of kernel modules of all vendors' drivers start."""
    return tuple(name for vendor in vendor_descriptions() for name in vendor.kernel_modules)


def load_enabled_vendors(settings: Settings) -> dict[str, DeviceVendor]:
    """Return the vendors that no setting disables.

    Raises `BadConfig` on a clash of names, and for a wrong value in a vendor's settings.
    """
    vendors = {}
    for name, vendor in load_vendors().items():
        switch = settings.discovery.switch(vendor.description)
        vendor_settings = settings.discovery.of(vendor.description)
        if switch == "off":
            continue
        vendor_settings.check(is_forced=switch == "on")
        if vendor_settings.is_complete:
            vendors[name] = vendor
    return vendors


def is_forced(settings: Settings, vendor: DeviceVendor) -> bool:
    """Return whether a vendor is started although sysfs shows no device of it."""
    return settings.discovery.switch(vendor.description) == "on"


def detect_devices(
    vendor: DeviceVendor, files: HostFiles, settings: Settings
) -> tuple[VendorDevice, ...]:
    """Return the devices of a vendor in sysfs."""
    return vendor.detect(files, settings.discovery.of(vendor.description))


def any_vendor_has_devices(
    files: HostFiles, vendors: Mapping[str, DeviceVendor], settings: Settings
) -> bool:
    """Return whether any vendor has a device in sysfs."""
    return any(detect_devices(vendor, files, settings) for vendor in vendors.values())


ENTRY_POINT_GROUP = "xpu_node_agent.vendors"

MAX_ENTRY_POINTS_BYTES = 1 << 20


def load_vendors() -> dict[str, DeviceVendor]:
    """Return all vendors by name; raises `BadConfig` if two have one name.

    An installed package offers a vendor as an entry point whose name is the vendor's name.
    """
    vendors = {name: _load_builtin(name, reference) for name, reference in BUILTIN}
    for point in _entry_points():
        if point.name in vendors:
            raise BadConfig(
                f"two device vendors are called {point.name!r}; "
                f"one is {point.value}: uninstall or rename it"
            )
        vendors[point.name] = _load_entry_point(point)
    return vendors


def load_vendor(name: str) -> DeviceVendor:
    """Return one vendor; other vendors are not imported."""
    reference = dict(BUILTIN).get(name)
    if reference is not None:
        return _load_builtin(name, reference)
    points = [point for point in _entry_points() if point.name == name]
    if len(points) != 1:
        raise BadConfig(f"{len(points)} device vendors are called {name!r}")
    return _load_entry_point(points[0])


def _load_builtin(name: str, reference: str) -> DeviceVendor:
    return _check_name(_vendor_class(reference)(), name)


def _vendor_class(reference: str) -> Callable[..., DeviceVendor]:
    module, _, attribute = reference.partition(":")
    vendor_class: Callable[..., DeviceVendor] = getattr(import_module(module), attribute)
    return vendor_class


def _has_entry_points() -> bool:
    """Return whether an installed package names the entry point group.

    Reading the files takes a twentieth of the time of `importlib.metadata`.
    """
    for folder in sys.path:
        for table in glob.iglob(f"{glob.escape(folder)}/*.*-info/entry_points.txt"):
            try:
                with open(table, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - as glob
                    if ENTRY_POINT_GROUP in file.read(MAX_ENTRY_POINTS_BYTES):
                        return True
            except OSError:
                continue
    return False


def _entry_points() -> tuple[EntryPoint, ...]:
    if not _has_entry_points():
        return ()
    from importlib.metadata import entry_points  # noqa: PLC0415 - 3 MB, in each worker as well

    return tuple(sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda p: (p.name, p.value)))


def _load_entry_point(point: EntryPoint) -> DeviceVendor:
    try:
        vendor: DeviceVendor = point.load()()
    except (ImportError, AttributeError, TypeError) as error:
        raise BadConfig(f"device vendor {point.name!r} ({point.value}): {error}") from error
    return _check_name(vendor, point.name)


def _check_name(vendor: DeviceVendor, name: str) -> DeviceVendor:
    own_name = vendor.description.name
    if own_name != name:
        raise BadConfig(f"device vendor {name!r} calls itself {own_name!r}")
    return vendor
