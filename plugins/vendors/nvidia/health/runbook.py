"""The runbook of NVIDIA cards: the entry of a reason or of an Xid. Pure."""

from __future__ import annotations

import re
from functools import cache

from agent.runbook.entry import FaultCategory, RecommendedAction, RunbookEntry
from agent.runbook.impacts import OUT_OF_SERVICE, STAYS_IN_SERVICE
from plugins.vendors.nvidia.health import xid
from plugins.vendors.nvidia.health.runbook_entries import AT_RESET, NAME, REASONS
from plugins.vendors.nvidia.health.xid import XidClass

UNKNOWN_XID = "XidUnknown"
_XID = re.compile(r"Xid([0-9]{1,6})")
_SXID = re.compile(r"SXid[0-9]+")
_NVML_ERROR = re.compile(r"NVMLError[0-9]+")
_APPLICATION = "look at the application: the card itself is well"
_SEE_LOG = "see the kernel's log, and whether it comes again"
_DEFAULT_REMEDIES = {
    XidClass.APPLICATION: _APPLICATION,
    XidClass.WARNING: _SEE_LOG,
    XidClass.NVLINK: "check the NVLink connectors, then reset the GPUs on both ends",
    XidClass.INQUIRE: _SEE_LOG,
}
_REMEDIES = {63: AT_RESET, 160: AT_RESET}

_CLASS_ACTIONS = {
    XidClass.APPLICATION: RecommendedAction.NONE,
    XidClass.WARNING: RecommendedAction.LOOK,
    XidClass.RESET: RecommendedAction.DRAIN_AND_RESET,
    XidClass.REBOOT: RecommendedAction.REBOOT,
    XidClass.NVLINK: RecommendedAction.DRAIN_AND_RESET,
    XidClass.INQUIRE: RecommendedAction.LOOK,
    XidClass.FAULT: RecommendedAction.LOOK,
}
# for numbers whose class alone gives the wrong action
_ACTIONS = {
    54: RecommendedAction.REPLACE,  # a cable
    63: RecommendedAction.RESET,
    151: RecommendedAction.LOOK,  # the virtual machine is restarted from outside
    160: RecommendedAction.RESET,
}
_CATEGORIES: dict[FaultCategory, frozenset[int]] = {
    FaultCategory.MEMORY: frozenset(
        {26, 48, 57, 58, 63, 64, 92, 94, 95, 140, 160, 161, 171, 172},
    ),
    FaultCategory.INTERCONNECT: frozenset({74, 121, 137, *range(144, 151), 155}),
    FaultCategory.PCIE: frozenset({18, 32, 79, 80, 167}),
    FaultCategory.POWER: frozenset({54, 162, 163}),
    FaultCategory.DRIVER: frozenset({9, 12, 38, 66, 67, 78, 119, 120, 143, 151, 154, 999}),
}
_EFFECTS = {
    XidClass.APPLICATION: "A program on the card failed; the card works.",
    XidClass.WARNING: STAYS_IN_SERVICE,
    XidClass.NVLINK: f"{STAYS_IN_SERVICE} A fatal or repeated error takes it out of service.",
    XidClass.INQUIRE: "The driver's recovery action decides.",
}
_ENDS = {
    XidClass.RESET: " The fault ends when the driver requires no recovery action any more, or "
    "after a reset.",
    XidClass.REBOOT: " The fault ends when the node is booted again.",
    XidClass.FAULT: " The fault ends after a reset, or after ten minutes without a new one.",
}


_UNKNOWN = RunbookEntry(
    UNKNOWN_XID,
    "an Xid that no catalogue has",
    "The driver reported an Xid that NVIDIA's catalogue did not have when this version was made."
    + _ENDS[XidClass.FAULT],
    OUT_OF_SERVICE,
    xid.SUPPORT,
    RecommendedAction.LOOK,
    FaultCategory.PROCESSOR,
    NAME,
)


def xid_entry(number: int) -> RunbookEntry:
    """Return the entry of an Xid."""
    effect = xid.CLASSES.get(number, XidClass.FAULT)
    if number not in xid.CLASSES and number not in xid.XID_MEANINGS:
        return _UNKNOWN
    meaning = xid.XID_MEANINGS.get(number, "an error that NVIDIA's catalogue does not explain")
    return RunbookEntry(
        f"Xid{number}",
        meaning,
        f"The driver reported Xid {number}, in an event or in the kernel's log."
        + _ENDS.get(effect, ""),
        _EFFECTS.get(effect, OUT_OF_SERVICE),
        xid.xid_remedy(number) or _REMEDIES.get(number) or _DEFAULT_REMEDIES[effect],
        _ACTIONS.get(number, _CLASS_ACTIONS[effect]),
        _category(number, effect),
        NAME,
    )


def _category(number: int, effect: XidClass) -> FaultCategory:
    if effect is XidClass.APPLICATION and number not in (94,):
        return FaultCategory.OTHER
    return next(
        (category for category, numbers in _CATEGORIES.items() if number in numbers),
        FaultCategory.PROCESSOR,
    )


@cache
def _xid_entries() -> dict[str, RunbookEntry]:
    numbers = sorted(xid.CLASSES.keys() | xid.XID_MEANINGS.keys())
    entries = (*map(xid_entry, numbers), _UNKNOWN)
    return {entry.reason: entry for entry in entries}


class NvidiaRunbook:
    """The entries of NVIDIA cards."""

    def entries(self) -> tuple[RunbookEntry, ...]:
        """Return the entries of all reasons, then those of all Xids."""
        return (*REASONS.entries(), *_xid_entries().values())

    def find(self, reason: str, message: str, /) -> RunbookEntry | None:
        """Return the entry of a reason; of an unknown Xid that of all unknown ones."""
        if _XID.fullmatch(reason):
            return _xid_entries().get(reason, _xid_entries()[UNKNOWN_XID])
        if _SXID.fullmatch(reason):
            return REASONS.find("SXid", message)
        if _NVML_ERROR.fullmatch(reason):
            return REASONS.find("NVMLError", message)
        return REASONS.find(reason, message)
