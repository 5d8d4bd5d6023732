"""Which device vendors there are: those we ship, and those installed beside us."""

from __future__ import annotations

import glob
import sys
from collections.abc import Container
from importlib import import_module
from typing import TYPE_CHECKING

from agent.errors import BadConfig
from agent.probe.base import DeviceVendor
from plugins.vendors import BUILTIN

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "xpu_node_agent.vendors"
MAX_TABLE = 1 << 20


def load_vendors(without: Container[str] = ()) -> dict[str, DeviceVendor]:
    """Return all vendors by name; a name that is taken twice is a `BadConfig`.

    An installed package offers one as an entry point whose name is the vendor's name. Those of
    `without` are not even imported.
    """
    vendors = {
        name: _builtin(name, reference) for name, reference in BUILTIN if name not in without
    }
    for point in _installed():
        if point.name in without:
            continue
        if point.name in vendors:
            raise BadConfig(
                f"two device vendors are called {point.name!r}; "
                f"one is {point.value}: uninstall or rename it"
            )
        vendors[point.name] = _load(point)
    return vendors


def load_vendor(name: str) -> DeviceVendor:
    """Return one vendor and import nothing of the others."""
    reference = dict(BUILTIN).get(name)
    if reference is not None:
        return _builtin(name, reference)
    found = [point for point in _installed() if point.name == name]
    if len(found) != 1:
        raise BadConfig(f"{len(found)} device vendors are called {name!r}")
    return _load(found[0])


def _builtin(name: str, reference: str) -> DeviceVendor:
    module, _, attribute = reference.partition(":")
    vendor: DeviceVendor = getattr(import_module(module), attribute)()
    return _named(vendor, name)


def _offered() -> bool:
    """Say whether any installed package names our group; costs a twentieth of asking properly."""
    for folder in sys.path:
        for table in glob.iglob(f"{glob.escape(folder)}/*.*-info/entry_points.txt"):
            try:
                with open(table, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - as glob
                    if ENTRY_POINT_GROUP in file.read(MAX_TABLE):
                        return True
            except OSError:
                continue
    return False


def _installed() -> tuple[EntryPoint, ...]:
    if not _offered():
        return ()
    # imported here: it costs more than all the rest of a start
    from importlib.metadata import entry_points  # noqa: PLC0415 - see above

    return tuple(sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda p: (p.name, p.value)))


def _load(point: EntryPoint) -> DeviceVendor:
    try:
        vendor: DeviceVendor = point.load()()
    except (ImportError, AttributeError, TypeError) as error:
        raise BadConfig(f"device vendor {point.name!r} ({point.value}): {error}") from error
    return _named(vendor, point.name)


def _named(vendor: DeviceVendor, name: str) -> DeviceVendor:
    if vendor.name != name:
        raise BadConfig(f"device vendor {name!r} calls itself {vendor.name!r}")
    return vendor
