"""The runbook of Ascend chips: an entry for each reason, and one for each class of faults. Pure."""

from __future__ import annotations

from agent.runbook.entry import FaultCategory, RecommendedAction, RunbookEntry, entry_table
from agent.runbook.impacts import (
    EVENT_ONLY,
    FACTS_MISSING,
    OUT_OF_SERVICE,
    STAYS_IN_SERVICE,
)
from plugins.vendors.ascend.health.fault_codes import FaultClass

NAME = "ascend"
_DRAIN = "drain the chip, then look at it with the maker's tools (`npu-smi info -t health`)"
_SUPPORT = "drain the chip, and ask the vendor's support"
_CLEAR = "look at the chip, then let it back: `xpu-agent clear DEVICE`"
_WORKS_ON = "look at the chip with the maker's tools; it works on"
_LOOK, _NONE = RecommendedAction.LOOK, RecommendedAction.NONE
_PROCESSOR, _DRIVER = FaultCategory.PROCESSOR, FaultCategory.DRIVER

# effect on the chip, impact, remedy and action of a fault, by the class of Huawei's table
_CLASSES: dict[FaultClass, tuple[str, str, str, RecommendedAction]] = {
    FaultClass.MANUAL: (
        "the chip is to be separated until a person lets it back",
        OUT_OF_SERVICE,
        _CLEAR,
        _LOOK,
    ),
    FaultClass.SEPARATE: (
        "the chip is to be separated",
        OUT_OF_SERVICE,
        _SUPPORT,
        RecommendedAction.REPLACE,
    ),
    FaultClass.PRE_SEPARATE: (
        "the chip is to be separated when its job has ended",
        OUT_OF_SERVICE,
        _DRAIN,
        _LOOK,
    ),
    FaultClass.RESTART_CHIP: (
        "the chip is to be reset at once",
        OUT_OF_SERVICE,
        "reset the chip (`npu-smi set -t reset`) after its jobs were ended",
        RecommendedAction.DRAIN_AND_RESET,
    ),
    FaultClass.RESTART_CHIP_IF_FREE: (
        "the chip is to be reset when it is free",
        OUT_OF_SERVICE,
        "reset the chip (`npu-smi set -t reset`) when nothing runs on it",
        RecommendedAction.RESET,
    ),
    FaultClass.RESTART_JOB: (
        "the job on the chip is to be started again",
        OUT_OF_SERVICE,
        "restart the job that runs on the chip",
        _LOOK,
    ),
    FaultClass.RESTART_REQUEST: (
        "the request of the job is to be sent again",
        OUT_OF_SERVICE,
        "have the job send its request again",
        _LOOK,
    ),
    FaultClass.SUB_HEALTH: ("the chip works with a fault", STAYS_IN_SERVICE, _WORKS_ON, _LOOK),
    FaultClass.NONE: ("the fault needs no action", STAYS_IN_SERVICE, "nothing", _NONE),
}


def _class_entry(kind: FaultClass) -> RunbookEntry:
    title, impact, remedy, action = _CLASSES[kind]
    return RunbookEntry(
        "ChipFault",
        title,
        f"Huawei's table has the fault codes of the message in the class {kind.value}.",
        impact,
        remedy,
        action,
        _PROCESSOR if kind is not FaultClass.NONE else FaultCategory.OTHER,
        NAME,
        kind.value,
    )


_BY_CLASS = {kind: _class_entry(kind) for kind in _CLASSES}

REASONS = entry_table(
    RunbookEntry(
        "DeviceLost",
        "the chip is gone",
        "The driver does not list the chip any more, or answers that it is lost.",
        OUT_OF_SERVICE,
        "look at the slot; reboot the node",
        RecommendedAction.REBOOT,
        FaultCategory.PCIE,
    ),
    RunbookEntry(
        "CardDropped",
        "the chip is not ready",
        "The driver answers -8012: the card has dropped from its bus, or does not start.",
        OUT_OF_SERVICE,
        "reset the card (`npu-smi set -t reset`)",
        RecommendedAction.DRAIN_AND_RESET,
        FaultCategory.PCIE,
    ),
    RunbookEntry(
        "Resetting",
        "the chip starts",
        "The chip, or another chip of its card, is being reset.",
        OUT_OF_SERVICE,
        "wait; if it takes more than 150 s, look at the firmware",
        _NONE,
        _PROCESSOR,
    ),
    RunbookEntry(
        "ManuallySeparated",
        "a fault came again and again",
        "A fault of Huawei's list occurred twice within a day.",
        OUT_OF_SERVICE,
        _CLEAR,
        _LOOK,
        _PROCESSOR,
    ),
    RunbookEntry(
        "ChipFault",
        "the chip reports a fault",
        "The message has the codes of the faults and their worst class.",
        OUT_OF_SERVICE,
        _DRAIN,
        RecommendedAction.DRAIN_AND_RESET,
        _PROCESSOR,
    ),
    RunbookEntry(
        "HealthCode",
        "the chip reports a bad health without a fault code",
        "The reason has the number that the chip reports: HealthCode2 is major, HealthCode3 "
        "critical.",
        OUT_OF_SERVICE,
        _DRAIN,
        RecommendedAction.DRAIN_AND_RESET,
        _PROCESSOR,
    ),
    RunbookEntry(
        "PreSeparated",
        "the chip is to be separated when its job has ended",
        "A fault of the class PreSeparateNPU, or a RoCE port without a link for long.",
        OUT_OF_SERVICE,
        _DRAIN,
        _LOOK,
        _PROCESSOR,
    ),
    RunbookEntry(
        "DriverError",
        "calls of the driver fail",
        "A call about the chip failed in three rounds in a row, or the driver does not list it.",
        OUT_OF_SERVICE,
        "look at the driver: `npu-smi info`, the kernel's log, /var/log/npu",
        _LOOK,
        _DRIVER,
    ),
    RunbookEntry(
        "NetworkUnhealthy",
        "the chip's network port does not work",
        "The RoCE port of the chip reports a state that is not good.",
        "Jobs on several nodes fail or are slow.",
        "check the cable, the transceiver and the switch's port",
        _LOOK,
        FaultCategory.NETWORK,
    ),
    RunbookEntry(
        "SubHealth",
        "the chip works with a fault",
        "The chip reports faults of the class SubHealthFault.",
        STAYS_IN_SERVICE,
        _WORKS_ON,
        _LOOK,
        _PROCESSOR,
    ),
    RunbookEntry(
        "FirmwareInconsistent",
        "firmware and driver do not fit",
        "The driver answers -8022.",
        STAYS_IN_SERVICE,
        "install the firmware that belongs to the driver",
        _LOOK,
        _DRIVER,
    ),
    RunbookEntry(
        "FirmwareUpgrade",
        "the firmware is being upgraded",
        "The driver answers -8017 while an upgrade runs.",
        "The state of the chip is unknown until then.",
        "wait until the upgrade is over",
        _NONE,
    ),
    RunbookEntry(
        "UnsupportedGeneration",
        "a chip generation that the agent only lists",
        "The chip is newer than what the agent can allocate.",
        "The chip is listed and not allocated.",
        "nothing: chips of this generation are listed only",
        _NONE,
    ),
    RunbookEntry(
        "UnknownModel",
        "a chip of an unknown model",
        "The agent's table of models lacks the chip.",
        "The chip is granted by its memory only.",
        "report the model; until then it is granted by its memory only",
        _NONE,
    ),
    RunbookEntry(
        "DeviceRenumbered",
        "the driver gave a chip another number",
        "The number of a chip changed after a reset or a restart of the driver.",
        "Running pods may have the device node of another chip.",
        "delete the pods that use these chips",
        _LOOK,
        _DRIVER,
    ),
    RunbookEntry(
        "BadDriverAnswer",
        "an answer of the driver cannot be true",
        "The driver's answer contradicts itself: two chips with one number or one die id, or a "
        "chip without a name.",
        FACTS_MISSING,
        "look at the driver: `npu-smi info`, the kernel's log, /var/log/npu",
        _LOOK,
        _DRIVER,
    ),
    RunbookEntry(
        "DcmiFault",
        "a call of DCMI failed",
        "The message has the call and the number of the error.",
        FACTS_MISSING,
        "look at the driver: `npu-smi info`, the kernel's log, /var/log/npu",
        _LOOK,
        _DRIVER,
    ),
    RunbookEntry(
        "BadVdevId",
        "the driver returned an impossible vNPU",
        "The driver made a vNPU for a pod and returned a number that no vNPU has.",
        "The pod does not start.",
        "delete the pod; see `npu-smi info -t info-vnpu`",
        _LOOK,
        _DRIVER,
    ),
    RunbookEntry(
        "VnpuRefused",
        "a vNPU cannot be made for a pod",
        "The chip has too many vNPUs, lacks the template, or made another one than was asked for.",
        "The pod does not start; the agent tries again.",
        "see the message; delete the pod, so that the scheduler grants anew",
    ),
    RunbookEntry(
        "OwnershipNotWritten",
        "the list of the agent's vNPUs cannot be written",
        "The file in node.state_dir with the agent's vNPUs is written before a vNPU is made, and "
        "that failed.",
        "No vNPU is made: the agent could not find it again.",
        "make node.state_dir writable; the message says what prevents it",
    ),
    RunbookEntry(
        "FaultCodesRefused",
        "the file of fault codes is not used",
        "The file that discovery.ascend.fault_codes names is not valid.",
        "The maker's table decides what a fault means.",
        "mend the file that discovery.ascend.fault_codes names",
    ),
    RunbookEntry(
        "EventsLost",
        "the driver sends no fault events",
        "The subscription of fault events failed.",
        "A fault is noticed some seconds later.",
        "look at the driver; faults are still found by polling",
        _LOOK,
        _DRIVER,
    ),
    RunbookEntry(
        "CardsBooting",
        "some cards still start",
        "The driver lists fewer chips than sysfs has.",
        "Chips are missing until they have started.",
        "wait until all cards have started",
        _NONE,
    ),
    RunbookEntry(
        "FaultNotice",
        "the driver reported a fault of a moment",
        "The driver sent a fault event that has no end.",
        EVENT_ONLY,
        "see the state of the chip",
        _NONE,
    ),
    vendor=NAME,
)


# names of DCMI's return codes, which are reasons where a whole call failed
CALL_ERRORS = frozenset(
    {
        "BadParameter",
        "OutOfMemory",
        "SecurityFunctionFailed",
        "DriverTimeout",
        "IoctlFailed",
        "SendFailed",
        "ReceiveFailed",
        "NotReady",
        "NotInContainer",
        "FileOperationFailed",
        "ResetFailed",
        "ResetCancelled",
        "Occupied",
        "NotConfigured",
        "SymbolMissing",
    }
)


class AscendRunbook:
    """The entries of Ascend chips."""

    def entries(self) -> tuple[RunbookEntry, ...]:
        """Return the entries of all reasons, then those of the classes of faults."""
        return (*REASONS.entries(), *_BY_CLASS.values())

    def find(self, reason: str, message: str, /) -> RunbookEntry | None:
        """Return the entry of a reason; for a chip fault that of the class in the message."""
        for kind, entry in _BY_CLASS.items() if reason == "ChipFault" else ():
            if f"({kind.value})" in message:
                return entry
        if reason.startswith("HealthCode"):
            return REASONS.find("HealthCode", message)
        if reason in CALL_ERRORS:
            return REASONS.find("DriverError", message)
        return REASONS.find(reason, message)
