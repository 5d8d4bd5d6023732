"""Xid numbers: meaning, effect on the card, remedies, and overrides by settings. Pure.

Sources: NVIDIA's catalogue for numbers to 172, the driver's header for those to 176.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

XID_MEANINGS: dict[int, str] = {
    1: "bad command stream",
    6: "bad command stream",
    7: "bad address in a command stream",
    8: "the GPU stopped working on a task",
    9: "the driver made an error programming the GPU",
    11: "bad command stream",
    12: "the driver could not handle an exception",
    13: "exception in the graphics or compute engine",
    16: "the display engine hangs",
    18: "bus mastering is switched off in PCI config space",
    19: "display engine error",
    25: "bad setting of the command stream",
    26: "time-out of the framebuffer",
    31: "page fault in GPU memory",
    32: "bad command stream, or corruption on PCIe",
    38: "driver firmware error",
    43: "a channel stopped: the application failed",
    44: "fault while switching contexts",
    45: "a channel was torn down after an earlier error",
    46: "the GPU stopped processing",
    48: "uncorrectable memory error (double bit ECC)",
    54: "an auxiliary power cable is missing",
    56: "display engine error",
    57: "video memory could not be trained",
    58: "video memory is unstable",
    59: "error of an internal microcontroller",
    61: "an internal microcontroller stopped at a breakpoint",
    62: "an internal microcontroller stopped",
    63: "a bad memory page or row was recorded for replacement",
    64: "a bad memory page or row could not be recorded",
    66: "illegal access by the driver",
    67: "illegal access by the driver",
    68: "exception in the video decoder",
    69: "error of the graphics engine's class",
    74: "NVLink error",
    78: "a virtual GPU did not start",
    79: "the GPU has fallen off the bus",
    80: "corrupt data sent to the GPU",
    92: "many correctable memory errors",
    93: "the InfoROM is written too often",
    94: "contained uncorrectable memory error: only its application is hit",
    95: "uncontained uncorrectable memory error",
    106: "test message of the management bus",
    107: "test message of the management bus",
    109: "time-out while switching contexts",
    110: "security fault",
    119: "the GPU's system processor did not answer",
    120: "the GPU's system processor failed",
    121: "corrected error of the chip-to-chip link",
    122: "the firmware flash could not be read",
    123: "the firmware flash could not be written",
    124: "the firmware flash could not be erased",
    125: "error in the InfoROM's file system",
    137: "illegal access through NVLink",
    140: "uncorrected memory error found by the firmware",
    143: "the GPU could not be initialised",
    144: "NVLink error (SAW)",
    145: "NVLink error (RLW)",
    146: "NVLink error (TLW)",
    147: "NVLink error (TREX)",
    148: "NVLink error (power control)",
    149: "NVLink error (network interface)",
    150: "NVLink error (management)",
    151: "the rotation of encryption keys failed",
    154: "the action needed for recovery changed",
    155: "NVLink error that software defined",
    156: "a faulty part of the chip was taken out of use",
    157: "a faulty part of the chip could not be taken out of use",
    158: "fatal time-out of the GPU",
    160: "a memory channel is to be retired",
    161: "a memory channel could not be retired",
    162: "power smoothing limits changed",
    163: "power smoothing limits changed",
    167: "fatal time-out on PCIe",
    169: "an internal microcontroller stopped",
    171: "uncorrectable error in DRAM",
    172: "uncorrectable error in SRAM",
    999: "an error that the driver has no number for",
}

RESET = "reset the GPU when nothing runs on it"
REBOOT = "reboot the node"
SUPPORT = "drain the card and ask the vendor's support"

# for numbers whose class alone would give the wrong advice
XID_ACTIONS: dict[int, str] = {
    48: "reset the GPU; a following Xid 63 or 94 says that the fault is contained",
    54: "connect the card's power cables",
    64: "reset the GPU; if it comes again, replace the card",
    74: "check the NVLink connectors, then reset the GPUs on both ends",
    78: "check the licence and the versions of host and guest driver",
    79: "reboot the node; if it comes again, reseat or replace the card",
    151: "restart the virtual machine",
    154: "follow the recovery action that the driver names",
}

MAX_XID = 1_000_000  # of settings; a larger number is a mistake


class XidClass(enum.Enum):
    """The effect of an Xid on its card."""

    APPLICATION = "A"  # the program failed, the card is fine
    WARNING = "W"
    RESET = "R"
    REBOOT = "B"
    NVLINK = "N"  # a warning, unless it is fatal or repeated
    INQUIRE = "I"  # the driver's recovery action decides
    FAULT = "F"  # unknown, or for the vendor's support


_LISTS: tuple[tuple[XidClass, str], ...] = (
    (
        XidClass.APPLICATION,
        "8 11 13 25 31 32 39 40 41 43 45 60 68 69 70-72 75-77 80 82-86 88 89 94 96-105 109"
        " 126-135 139 141 174",
    ),
    (
        XidClass.WARNING,
        "14 16 19 37 38 44 56 63 66 67 78 81 92 93 106-108 112-118 121 137 152 153 157 159-165"
        " 168 170 176",
    ),
    (
        XidClass.RESET,
        "46 48 62 64 95 110 119 120 136 140 143 151 155 156 158 166 167 169 171 172 173 175",
    ),
    (XidClass.REBOOT, "79"),
    (XidClass.NVLINK, "74 144-150"),
    (XidClass.INQUIRE, "154"),
)

# messages of a controller or of power management do not concern the card's health
EVENT_ONLY = frozenset({106, 107, 162, 163})
UPSTREAM_IGNORED = frozenset({13, 31, 43, 45, 68, 109})  # as koordlet and NVIDIA's device plug-in
NVLINK_AGAIN_S = 600.0  # a repetition of a number within this time counts as fatal
FAILING = frozenset({XidClass.RESET, XidClass.REBOOT, XidClass.FAULT})

_CLASS_ACTIONS = {
    XidClass.RESET: RESET,
    XidClass.REBOOT: REBOOT,
    XidClass.FAULT: SUPPORT,
}


def _expand_ranges(text: str) -> Iterable[int]:
    for part in text.split():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


CLASSES: Mapping[int, XidClass] = MappingProxyType(
    {number: kind for kind, text in _LISTS for number in _expand_ranges(text)}
)


class XidRules(msgspec.Struct, frozen=True, kw_only=True):
    """The classes of Xids, as changed by this node's settings."""

    ignore: frozenset[int] = frozenset()
    fatal: frozenset[int] = frozenset()
    is_off: bool = False  # no Xid changes any card's health
    is_upstream: bool = False  # every number that upstream does not ignore fails the card

    def class_of(self, number: int) -> XidClass:
        """Return the class of a number; unknown numbers are faults."""
        catalogued = CLASSES.get(number, XidClass.FAULT)
        if number in self.fatal:
            return catalogued if catalogued in FAILING else XidClass.FAULT
        if self.is_off or number in self.ignore:
            return XidClass.APPLICATION
        if self.is_upstream:
            ignored = number in UPSTREAM_IGNORED
            return XidClass.APPLICATION if ignored else self._upstream(catalogued)
        return catalogued

    @staticmethod
    def _upstream(catalogued: XidClass) -> XidClass:
        return catalogued if catalogued in FAILING else XidClass.RESET


def xid_remedy(number: int) -> str:
    """Return the remedy for an Xid; empty if it needs none."""
    action = XID_ACTIONS.get(number)
    return action or _CLASS_ACTIONS.get(CLASSES.get(number, XidClass.FAULT), "")


def xid_message(number: int) -> str:
    """Return koordlet's text for an Xid, its meaning and its remedy."""
    text = f"Xid error detected on device, error code: {number}"
    meaning, action = XID_MEANINGS.get(number), xid_remedy(number)
    return text + (f" ({meaning})" if meaning else "") + (f"; {action}" if action else "")
