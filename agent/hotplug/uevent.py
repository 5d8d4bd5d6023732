"""What the kernel says when a device comes or goes. No I/O: a message is a mapping of texts.

An event is a hint. Nothing is taken from it but which part of the host to read again, and the
address of the function it is about.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping

import msgspec

from agent.errors import ParseError
from agent.topology.address import parse_address

MAX_BYTES = 8192  # of one message; the kernel's own are a tenth of that

NO_ACTION = "no_action"
ODD_ACTION = "odd_action"
NO_DEVPATH = "no_devpath"
TOO_LONG = "too_long"
NO_TEXT = "no_text"  # its names are no Unicode
REFUSED = "refused"  # by the library: not from the kernel, or no message at all

ACTIONS = frozenset(("add", "remove", "change", "move", "bind", "unbind", "online", "offline"))
_NUMBER = re.compile(r"[0-9]{1,20}")
_VIRTUAL_NET = "/devices/virtual/"  # of containers: each pod makes some
# of the drivers that make devices usable; the kernel loads many others all day
_MODULES = (
    *("nvidia", "nouveau", "drv_", "davinci", "devdrv", "cambricon", "amdgpu", "xe", "habanalabs"),
    *("mlx", "ib_", "rdma", "irdma", "bnxt", "qedr", "hns", "erdma", "efa", "siw", "vfio"),
)


class Part(enum.Enum):
    """What of the host may be another after an event."""

    HOST = "host"  # CPUs, memory nodes, PCI
    RDMA = "rdma"
    ACCELERATORS = "accelerators"


_EVERYTHING = frozenset(Part)
_PARTS: dict[str, frozenset[Part]] = {
    "pci": _EVERYTHING,
    "vfio": _EVERYTHING,
    "module": _EVERYTHING,
    "infiniband": frozenset((Part.RDMA,)),
    "infiniband_verbs": frozenset((Part.RDMA,)),
    "infiniband_mad": frozenset((Part.RDMA,)),
    "net": frozenset((Part.RDMA,)),
    "auxiliary": frozenset((Part.RDMA,)),
    "drm": frozenset((Part.ACCELERATORS,)),
    "accel": frozenset((Part.ACCELERATORS,)),
    "nvme": frozenset((Part.HOST,)),
    "cpu": frozenset((Part.HOST,)),
    "node": frozenset((Part.HOST,)),
    "memory": frozenset((Part.HOST,)),
}


class Uevent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the kernel that is of any use to us."""

    action: str
    subsystem: str
    devpath: str
    address: str | None = None  # of the PCI function that it is about or below
    number: int | None = None  # in the kernel's sequence, which has no gaps

    @property
    def parts(self) -> frozenset[Part]:
        """Return what has to be read again; empty if the event means nothing to us."""
        name = self.devpath.rpartition("/")[2]
        if self.subsystem == "net" and self.devpath.startswith(_VIRTUAL_NET):
            return frozenset()
        if self.subsystem == "module" and not name.startswith(_MODULES):
            return frozenset()
        return _PARTS.get(self.subsystem, frozenset())

    @property
    def function_left(self) -> bool:
        """Say whether the function itself is gone, not only what a driver made of it."""
        return (self.action, self.subsystem) == ("remove", "pci") and self.address is not None

    @property
    def function_came(self) -> bool:
        """Say whether a function is there that was not."""
        return (self.action, self.subsystem) == ("add", "pci") and self.address is not None


def parse_uevent(fields: Mapping[str, str]) -> Uevent | str:
    """Return the event, or in a word why it is dropped."""
    if sum(len(name) + len(value) + 2 for name, value in fields.items()) > MAX_BYTES:
        return TOO_LONG
    action, devpath = fields.get("ACTION", ""), fields.get("DEVPATH", "")
    if not action:
        return NO_ACTION
    if action not in ACTIONS:
        return ODD_ACTION
    if not devpath.startswith("/"):
        return NO_DEVPATH
    number = fields.get("SEQNUM", "")
    return Uevent(
        action=action,
        subsystem=fields.get("SUBSYSTEM", ""),
        devpath=devpath,
        address=_address(fields.get("PCI_SLOT_NAME", ""), devpath),
        number=int(number) if _NUMBER.fullmatch(number) else None,
    )


def _address(slot: str, devpath: str) -> str | None:
    """Return the slot's address, else that of the last function in the path."""
    for text in (slot, *reversed(devpath.split("/"))):
        try:
            return parse_address(text)
        except ParseError:
            continue
    return None
