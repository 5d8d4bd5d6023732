"""PCI functions by their maker, as plug-ins look for their own in sysfs."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from agent.errors import HostFileError, ParseError
from agent.host.files import HostFiles, link_name
from agent.topology.address import parse_address, sort_key

DEVICES = "/sys/bus/pci/devices"
_ID = 6  # bytes of 0x10de


class Function(msgspec.Struct, frozen=True):
    """One function and where its attributes are."""

    bus_id: str
    folder: str
    maker: bytes  # as the file `vendor` spells it, in lower case


def made_by(host: HostFiles, makers: Container[bytes]) -> tuple[Function, ...]:
    """Return the functions of these makers in the order of addresses; unreadable ones are none."""
    try:
        names = host.names(DEVICES)
    except HostFileError:
        return ()
    found = [seen for name in names if (seen := _function(host, name, makers)) is not None]
    return tuple(sorted(found, key=lambda seen: sort_key(seen.bus_id)))


def _function(host: HostFiles, name: str, makers: Container[bytes]) -> Function | None:
    folder = f"{DEVICES}/{name}"
    try:
        # the machine may have thousands of functions: one short read decides for most
        maker = host.read(f"{folder}/vendor", _ID).lower()
        return Function(parse_address(name), folder, maker) if maker in makers else None
    except (HostFileError, ParseError):
        return None


def linked(host: HostFiles, path: str) -> str | None:
    """Return the last part of a link's text; `None` without a link, or if it cannot be read."""
    try:
        return link_name(host, path)
    except HostFileError:
        return None
