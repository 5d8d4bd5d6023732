"""What a person does about each reason that is given for an Ascend chip. Data."""

from __future__ import annotations

from plugins.faults.ascend.codes import FaultClass

_DRAIN = "drain the chip, then look at it with the maker's tools (`npu-smi info -t health`)"
_BY_CLASS: dict[FaultClass, str] = {
    FaultClass.MANUAL: "look at the chip, then let it back: `xpu-agent clear DEVICE`",
    FaultClass.SEPARATE: "drain the chip, and ask the vendor's support",
    FaultClass.PRE_SEPARATE: _DRAIN,
    FaultClass.RESTART_CHIP: "reset the chip (`npu-smi set -t reset`) after its jobs were ended",
    FaultClass.RESTART_CHIP_IF_FREE: "reset the chip (`npu-smi set -t reset`) when nothing runs on "
    "it",
    FaultClass.RESTART_JOB: "restart the job that runs on the chip",
    FaultClass.RESTART_REQUEST: "have the job send its request again",
    FaultClass.SUB_HEALTH: "look at the chip with the maker's tools; it works on",
}

REMEDIES: dict[str, str] = {
    "DeviceLost": "look at the slot; reboot the node",
    "CardDropped": "reset the card (`npu-smi set -t reset`)",
    "Resetting": "wait; if it takes more than 150 s, look at the firmware",
    "ManuallySeparated": _BY_CLASS[FaultClass.MANUAL],
    "ChipFault": _DRAIN,
    "PreSeparated": _DRAIN,
    "DriverError": "look at the driver: `npu-smi info`, the kernel's log, /var/log/npu",
    "NetworkUnhealthy": "check the cable, the transceiver and the switch's port",
    "SubHealth": _BY_CLASS[FaultClass.SUB_HEALTH],
    "FirmwareInconsistent": "install the firmware that belongs to the driver",
    "FirmwareUpgrade": "wait until the upgrade is over",
    "UnsupportedGeneration": "nothing: chips of this generation are listed only",
    "UnknownModel": "report the model; until then it is granted by its memory only",
    "FaultCodesRefused": "mend the file that discovery.ascend.fault_codes names",
    "EventsLost": "look at the driver; faults are still found by polling",
    "CardsBooting": "wait until all cards have started",
}


def remedy(reason: str, message: str) -> str:
    """Return what to do about a reason; of a chip fault the class in the message decides."""
    for kind, words in _BY_CLASS.items():
        if f"({kind.value})" in message:
            return words
    if reason.startswith("HealthCode"):
        return _DRAIN
    return REMEDIES.get(reason, "")
