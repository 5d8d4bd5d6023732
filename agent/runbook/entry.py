"""An entry of the runbook: the meaning of a reason, its impact, its remedy and an action."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec
from msgspec.structs import replace


class RecommendedAction(enum.StrEnum):
    """The action for a machine that acts on nodes; from the mildest to the hardest."""

    NONE = "none"  # nothing is broken, or it ends by itself
    LOOK = "look"  # a person has to look; no automatic action is right
    RESET = "reset"  # reset the device while nothing runs on it
    DRAIN_AND_RESET = "drain-and-reset"  # end what runs on the device, then reset it
    REBOOT = "reboot"  # drain and reboot the node
    REPLACE = "replace"  # the hardware has to be replaced or repaired


ACTION_ORDER = tuple(RecommendedAction)


def hardest_action(actions: Iterable[RecommendedAction]) -> RecommendedAction:
    """Return the hardest of some actions; `NONE` if there are none."""
    return max(actions, key=ACTION_ORDER.index, default=RecommendedAction.NONE)


class FaultCategory(enum.StrEnum):
    """The class of a device's fault; a condition of the Node has one class."""

    OTHER = ""  # no fault of a device: it is in no condition of a class
    MEMORY = "memory"
    INTERCONNECT = "interconnect"  # NVLink, HCCS, MLULink and their fabric
    PCIE = "pcie"  # also a device that has left its bus
    THERMAL = "thermal"
    POWER = "power"
    DRIVER = "driver"  # driver, library and firmware, and calls that hang
    PROCESSOR = "processor"  # the chip itself, its microcontrollers, and faults of no other class
    NETWORK = "network"  # ports and links of NICs, and network ports of accelerators


class RunbookEntry(msgspec.Struct, frozen=True):
    """What a reason means and what to do.

    `remedy` is a clause without a capital letter and a full stop: texts join several of them.
    """

    reason: str  # CamelCase, as in conditions, events and metrics
    title: str
    meaning: str
    impact: str
    remedy: str
    action: RecommendedAction = RecommendedAction.LOOK
    category: FaultCategory = FaultCategory.OTHER
    vendor: str = ""  # name of the plug-in whose reason it is; empty: the agent's own
    variant: str = ""  # of several entries for one reason

    @property
    def anchor(self) -> str:
        """Return the anchor of the entry in docs/runbook.md and on the page `/runbook`."""
        return anchor_of(self.heading)

    @property
    def heading(self) -> str:
        """Return the heading of the entry, which is unique."""
        return " ".join(word for word in (self.vendor, self.reason, self.variant) if word)


_NOT_IN_ANCHORS = re.compile(r"[^a-z0-9-]+")


def anchor_of(heading: str) -> str:
    """Return the anchor that Markdown viewers give a heading of plain words."""
    return _NOT_IN_ANCHORS.sub("", heading.lower().replace(" ", "-"))


class RunbookSection(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of a part of the agent or of a vendor; `where` is where people see the reasons."""

    title: str
    where: str
    entries: tuple[RunbookEntry, ...]


class VendorRunbook(Protocol):
    """The entries of one vendor; pure."""

    def entries(self) -> tuple[RunbookEntry, ...]:
        """Return all entries, in the order of the document."""
        ...

    def find(self, reason: str, message: str, /) -> RunbookEntry | None:
        """Return the entry of a reason that the vendor reported; `None` if it has none.

        The reason is that of a device's health, a condition, an event or a problem.
        """
        ...


class EntryTable(msgspec.Struct, frozen=True):
    """A runbook in which the reason alone determines the entry."""

    by_reason: Mapping[str, RunbookEntry]

    def entries(self) -> tuple[RunbookEntry, ...]:
        """Return all entries."""
        return tuple(self.by_reason.values())

    def find(self, reason: str, _message: str, /) -> RunbookEntry | None:
        """Return the entry of a reason."""
        return self.by_reason.get(reason)


def entry_table(*entries: RunbookEntry, vendor: str = "") -> EntryTable:
    """Return a table of entries, which become those of `vendor`."""
    return EntryTable({entry.reason: replace(entry, vendor=vendor) for entry in entries})
