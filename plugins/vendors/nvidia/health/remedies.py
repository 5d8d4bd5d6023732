"""The remedy for each reason of an NVIDIA card."""

from __future__ import annotations

import re

from plugins.vendors.nvidia.health import xid
from plugins.vendors.nvidia.health.xid import REBOOT, RESET, SUPPORT

RECOVERY_ACTIONS: dict[int, tuple[str, str]] = {
    1: ("GPUResetRequired", "reset the GPU"),
    2: ("NodeRebootRequired", "reboot the node"),
    3: ("DrainP2P", "end what uses peer-to-peer traffic"),
    4: ("DrainAndReset", "drain the card and reset it"),
    6: ("BusResetRequired", "reset the PCI bus"),
    7: ("NodeRebootRequired", "reboot the node"),
}

_XID_REASON = re.compile(r"Xid([0-9]{1,6})")

_APPLICATION = "look at the application: the card itself is well"

_AT_RESET = (
    "reset the GPU at the next maintenance: `nvidia-smi --gpu-reset` when nothing runs on it"
)

_MANAGER = "start nvidia-fabricmanager of the driver's own version, and see its log"

_LINKS = "check the NVLink connectors and cables, then reset the GPUs on both ends"

REMEDIES: dict[str, str] = {
    # answers of NVML
    "GpuLost": "reboot the node; if it comes again, reseat or replace the card",
    "ResetRequired": RESET,
    "NVMLUnknown": "see the kernel's log for Xid lines; reset the GPU, else reboot the node",
    "NVMLUninitialized": "restart the agent; see the kernel's log if it stays",
    "InsufficientPower": "connect the card's power cables",
    "IRQIssue": "reboot the node; look at the interrupt settings of the firmware",
    "OperatingSystemRefused": "see the kernel's log, and limits of the agent's container",
    "DriverMismatch": "load the kernel module of the library's version: unload the old one, or "
    "reboot the node",
    "DriverMissing": "install or load NVIDIA's kernel module",
    "DriverNotBound": "bind the function to NVIDIA's driver; see the kernel's log for the reason",
    "BoundToNouveau": "blacklist nouveau, rebuild the initramfs, and reboot",
    "BoundToNvgpu": "nothing: an integrated GPU is not granted",
    "BoundToOther": "bind the function to NVIDIA's driver, if the card is to be granted",
    "VirtualFunction": "nothing: the card is shared out to virtual machines",
    "Excluded": "remove the card from NVreg_ExcludedGpus, and load the module again",
    "GarbledAnswer": "see the kernel's log for Xid 79; reset the GPU or reboot the node",
    "MinorChanged": "restart the agent, once no pod uses the card",
    "DuplicateUUID": "replace the card with the wrong UUID, or set another one in its InfoROM",
    # the driver's recovery action
    **dict(RECOVERY_ACTIONS.values()),
    "NodeRebootRequired": REBOOT,
    "RecoverIMEXDomain": "restart nvidia-imex on the nodes of the clique",
    # memory
    "RowRemapFailure": "reset the GPU; if it stays, replace the card",
    "SRAMThreshold": "replace the card: the errors of its SRAM are above the limit",
    "UnrepairableMemory": "replace the card",
    "UncorrectableECC": RESET,
    "RowRemapPending": _AT_RESET,
    "PageRetirementPending": _AT_RESET,
    "RepairPending": _AT_RESET,
    "RetiredPagesLimit": "replace the card: too many memory pages are retired",
    "OrphanMemory": "find what was killed on the card; reset the GPU when nothing runs on it",
    "CorruptedInfoROM": "flash the InfoROM by the maker's tool, or replace the card",
    # links, clocks, fabric
    "PCIeWidthReduced": "reseat the card; look at the riser and the slot",
    "Throttled": "look at power supply, airflow and power limit (`nvidia-smi -q -d PERFORMANCE`)",
    "NVLinkErrors": _LINKS,
    "NVLinkDown": _LINKS,
    "NVLinkAsymmetric": _LINKS,
    "FabricManagerDown": _MANAGER,
    "FabricNotReady": _MANAGER,
    "FabricError": _MANAGER,
    "CliqueMismatch": "look at the racks' cabling and at nvidia-imex's list of nodes",
    # what the agent may read
    "KernelLogUnread": "give the agent's container CAP_SYSLOG and /dev/kmsg (privileged)",
    "MIGModePending": _AT_RESET,
    # the driver's settings and answers
    "PersistenceModeOff": "switch persistence mode on: run nvidia-persistenced, or "
    "`nvidia-smi -pm 1`",
    "ImplausibleReading": "see the kernel's log for Xid lines; update the driver if it stays",
}


def remedy(reason: str, _message: str) -> str:
    """Return the remedy for a reason; empty if there is none."""
    if match := _XID_REASON.fullmatch(reason):
        number = int(match[1])
        if number not in xid.CLASSES:
            return SUPPORT
        application = xid.CLASSES[number] is xid.XidClass.APPLICATION
        return xid.xid_remedy(number) or (_APPLICATION if application else "")
    return REMEDIES.get(reason, "")
