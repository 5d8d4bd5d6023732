"""The runbook of Cambricon cards: an entry for each reason. Pure."""

from __future__ import annotations

from agent.runbook.entry import FaultCategory, RecommendedAction, RunbookEntry, entry_table
from agent.runbook.impacts import FACTS_MISSING, OUT_OF_SERVICE, STAYS_IN_SERVICE
from plugins.vendors.cambricon import kubelet

NAME = "cambricon"
UNKNOWN_INCIDENT = "Incident1"
_SUPPORT = "drain the card, and ask the vendor's support"
_RESET = "reset the card (`cnmon reset -c CARD`) when nothing runs on it"
_AT_RESET = "reset the card at the next maintenance: `cnmon reset -c CARD` when nothing runs on it"
_LOOK, _NONE = RecommendedAction.LOOK, RecommendedAction.NONE
_DRAIN = RecommendedAction.DRAIN_AND_RESET
_DRIVER, _PROCESSOR = FaultCategory.DRIVER, FaultCategory.PROCESSOR


def _incident(
    code: int,
    title: str,
    remedy: str,
    action: RecommendedAction,
    category: FaultCategory = _PROCESSOR,
) -> RunbookEntry:
    return RunbookEntry(
        f"Incident{code}",
        title,
        f"The card's health report fails with incident {code}. Its message has the details.",
        OUT_OF_SERVICE,
        remedy,
        action,
        category,
    )


REASONS = entry_table(
    RunbookEntry(
        "DriverStarting",
        "the card's driver starts",
        "The driver brings the card up.",
        OUT_OF_SERVICE,
        "wait; if it takes minutes, see the kernel's log",
        _NONE,
        _DRIVER,
    ),
    RunbookEntry(
        "DriverFault",
        "the card's driver failed",
        "The driver could not start or reset the card.",
        OUT_OF_SERVICE,
        "reload the card's driver, or reboot the node",
        RecommendedAction.REBOOT,
        _DRIVER,
    ),
    RunbookEntry(
        "Resetting",
        "the card is being reset",
        "The driver resets the card.",
        OUT_OF_SERVICE,
        "wait until the reset is over",
        _NONE,
        _PROCESSOR,
    ),
    RunbookEntry(
        "DeviceInProblem",
        "the card reports a problem",
        "Device state or health of the card is not good.",
        OUT_OF_SERVICE,
        _RESET,
        _DRAIN,
        _PROCESSOR,
    ),
    RunbookEntry(
        "ComputeProhibited",
        "the card's compute mode is prohibited",
        "Somebody set the compute mode so that no program may run on the card.",
        OUT_OF_SERVICE,
        "set the compute mode back (`cnmon set -c CARD -cm default`)",
    ),
    RunbookEntry(
        "SubHealth",
        "the card warns",
        "The card's health report has a warning.",
        STAYS_IN_SERVICE,
        "see `cnmon info -c CARD`; the card works on",
        _LOOK,
        _PROCESSOR,
    ),
    RunbookEntry(
        "DriverError",
        "calls of the driver fail",
        "The card's health could not be read several times in a row, or its listing failed.",
        OUT_OF_SERVICE,
        "see the kernel's log, and `cnmon info`",
        _LOOK,
        _DRIVER,
    ),
    RunbookEntry(
        "DriverNotLoaded",
        "Cambricon's driver is not loaded",
        "The cards are in sysfs, and the library finds no driver.",
        OUT_OF_SERVICE,
        "install or load Cambricon's driver",
        _LOOK,
        _DRIVER,
    ),
    RunbookEntry(
        "CndevFault",
        "a call of CNDev failed",
        "The message has the call and the number of the error.",
        FACTS_MISSING,
        "see the kernel's log, and `cnmon info`",
        _LOOK,
        _DRIVER,
    ),
    RunbookEntry(
        "SliceRefused",
        "an sMLU cannot be made for a pod",
        "sMLU mode is off, the amounts fit no profile, or the driver made another one.",
        "The pod does not start; the agent tries again.",
        "see the message; switch sMLU mode on, or delete the pod so that the scheduler grants anew",
    ),
    RunbookEntry(
        "OwnershipUnknown",
        "which sMLUs the agent made is not known",
        "The file in node.state_dir with the agent's sMLUs cannot be read or written.",
        "No sMLU is made or deleted.",
        "make node.state_dir readable and writable for the agent",
    ),
    RunbookEntry(
        "ToolOnly",
        "the tool is asked instead of the library",
        "libcndev is missing, so the agent reads what cnmon prints.",
        f"{FACTS_MISSING} Readings are rarer.",
        "install libcndev, or name its file in discovery.cambricon.library_path",
        _LOOK,
        _DRIVER,
    ),
    RunbookEntry(
        kubelet.MIM_MODE_REASON,
        "the card is cut into instances",
        "MIM mode is on: the instances are in service, and the whole card is not.",
        "The card is not allocated as a whole.",
        "nothing: the card is cut into instances",
        _NONE,
    ),
    *(
        RunbookEntry(reason, title, meaning, STAYS_IN_SERVICE, remedy, action, FaultCategory.MEMORY)
        for reason, title, meaning, remedy, action in (
            (
                "RepairFailed",
                "memory could not be repaired",
                "The driver could not replace faulty memory. The card's health report is good.",
                _SUPPORT,
                RecommendedAction.REPLACE,
            ),
            (
                "RepairPending",
                "memory is repaired at the next reset",
                "The driver has a repair of faulty memory waiting.",
                _AT_RESET,
                RecommendedAction.RESET,
            ),
            (
                "PageRetirementPending",
                "memory pages are retired at the next reset",
                "Faulty pages are taken out of use after the next reset.",
                _AT_RESET,
                RecommendedAction.RESET,
            ),
        )
    ),
    _incident(1, "an incident without a known kind", _SUPPORT, _LOOK),
    _incident(3, "a program or the card failed (Xid)", _RESET, _DRAIN),
    _incident(
        9,
        "an MLULink is down",
        "check the MLULink cables and connectors",
        _LOOK,
        FaultCategory.INTERCONNECT,
    ),
    _incident(15, "an uncorrectable memory error", _RESET, _DRAIN, FaultCategory.MEMORY),
    _incident(
        22,
        "memory could not be repaired",
        _SUPPORT,
        RecommendedAction.REPLACE,
        FaultCategory.MEMORY,
    ),
    _incident(
        26,
        "the card is too hot",
        "look at airflow and temperature",
        _LOOK,
        FaultCategory.THERMAL,
    ),
    _incident(
        29,
        "the card's driver failed",
        "reload the card's driver, or reboot the node",
        RecommendedAction.REBOOT,
        _DRIVER,
    ),
    _incident(30, "the card's own system failed", _SUPPORT, _LOOK),
    vendor=NAME,
)


class CambriconRunbook:
    """The entries of Cambricon cards."""

    def entries(self) -> tuple[RunbookEntry, ...]:
        """Return all entries."""
        return REASONS.entries()

    def find(self, reason: str, message: str, /) -> RunbookEntry | None:
        """Return the entry of a reason; of an unknown incident that of incident 1."""
        entry = REASONS.find(reason, message)
        if entry is None and reason.startswith("Incident"):
            return REASONS.find(UNKNOWN_INCIDENT, message)
        return entry
