"""Finds the PCI functions of a vendor in sysfs."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from agent.errors import HostFileError, ParseError
from agent.host.files import read_link_name
from agent.snapshot.host_files import HostFiles
from agent.snapshot.pci import address_sort_key, parse_address

DEVICES = "/sys/bus/pci/devices"
_ID = 6  # bytes of 0x10de


class SysfsFunction(msgspec.Struct, frozen=True):
    """One function and where its attributes are."""

    bus_id: str
    folder: str
    vendor_id: bytes  # as the file `vendor` spells it, in lower case


def find_functions(host: HostFiles, makers: Container[bytes]) -> tuple[SysfsFunction, ...]:
    """Return the functions of these makers in the order of addresses; unreadable ones are none."""
    try:
        names = host.names(DEVICES)
    except HostFileError:
        return ()
    functions = [
        function for name in names if (function := _function(host, name, makers)) is not None
    ]
    return tuple(sorted(functions, key=lambda seen: address_sort_key(seen.bus_id)))


def _function(host: HostFiles, name: str, makers: Container[bytes]) -> SysfsFunction | None:
    folder = f"{DEVICES}/{name}"
    try:
        # the machine may have thousands of functions: one short read decides for most
        maker = host.read(f"{folder}/vendor", _ID).lower()
        return SysfsFunction(parse_address(name), folder, maker) if maker in makers else None
    except (HostFileError, ParseError):
        return None


def link_target_name(host: HostFiles, path: str) -> str | None:
    """Return the last part of a link's text; `None` without a link, or if it cannot be read."""
    try:
        return read_link_name(host, path)
    except HostFileError:
        return None
