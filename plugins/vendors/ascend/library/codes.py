"""DCMI's return codes, mapped to the agent's errors."""

from __future__ import annotations

from agent.errors import AgentError, DeviceGone, NotSupported, VendorFault

SUCCESS = 0
BAD_PARAMETER = -8001
NO_PERMISSION = -8002
INTERNAL = -8005
TIMEOUT = -8006
INVALID_ID = -8007
GONE = -8008
NOT_READY = -8012
IN_CONTAINER = -8013
UPGRADING = -8017
BUSY = -8020
INCONSISTENT = -8022
UNCONFIGURED = -8023
UNSUPPORTED = -8255
SYMBOL_MISSING = -99998

# codes that mean "not supported" until the process ends
NOT_SUPPORTED = (BAD_PARAMETER, IN_CONTAINER, UNCONFIGURED, UNSUPPORTED, SYMBOL_MISSING)
LOST = (INVALID_ID, GONE)

_NAMES: dict[int, str] = {
    BAD_PARAMETER: "BadParameter",
    NO_PERMISSION: "PermissionDenied",
    -8003: "OutOfMemory",
    -8004: "SecurityFunctionFailed",
    INTERNAL: "DriverError",
    TIMEOUT: "DriverTimeout",
    INVALID_ID: "DeviceLost",
    GONE: "DeviceLost",
    -8009: "IoctlFailed",
    -8010: "SendFailed",
    -8011: "ReceiveFailed",
    NOT_READY: "NotReady",
    IN_CONTAINER: "NotInContainer",
    -8014: "FileOperationFailed",
    -8015: "ResetFailed",
    -8016: "ResetCancelled",
    UPGRADING: "FirmwareUpgrade",
    BUSY: "Occupied",
    INCONSISTENT: "FirmwareInconsistent",
    UNCONFIGURED: "NotConfigured",
    UNSUPPORTED: "NotSupported",
    SYMBOL_MISSING: "SymbolMissing",
}


class DcmiFault(VendorFault):
    """A failed call; `code` is the library's return code, `reason` its CamelCase name."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: {reason_of(code)} (DCMI error {code})")
        self.code = code
        self.reason = reason_of(code)


class BadDriverAnswer(VendorFault):
    """An answer that no hardware can give; the agent discards all of it."""

    def __init__(self, call: str, value: str) -> None:
        super().__init__(f"{call}: {value}: the driver's answer cannot be true")


def reason_of(code: int) -> str:
    """Return the code's name; an unknown code is an internal error of the driver."""
    return _NAMES.get(code, "DriverError")


def error_of(call: str, code: int) -> AgentError:
    """Return the error for a failed call: `NotSupported`, `DeviceGone` or `DcmiFault`."""
    if code in NOT_SUPPORTED:
        return NotSupported(f"{call}: {reason_of(code)} (DCMI error {code})")
    if code in LOST:
        return DeviceGone(f"{call}: the chip is not there any more (DCMI error {code})")
    return DcmiFault(call, code)


def code_of(error: AgentError) -> int:
    """Return the DCMI code of a typed error: -8008 for a lost chip."""
    if isinstance(error, DcmiFault):
        return error.code
    return GONE if isinstance(error, DeviceGone) else INTERNAL
