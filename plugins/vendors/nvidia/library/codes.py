"""Return codes and constants of NVML."""

from __future__ import annotations

from agent.errors import DeviceGone, NotSupported, VendorFault

SUCCESS = 0
UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
MISMATCH = 18
VERSION_MISMATCH = 25
UNKNOWN = 999

# 3 not supported, 13 and 25 older driver, 22, 24, 26 kinds of the same
_NOT_SUPPORTED = frozenset({3, FUNCTION_NOT_FOUND, 22, 24, VERSION_MISMATCH, 26})

# 0: the binding raises success when a list is empty; 6, 21, 28: nothing of that kind
HARMLESS = frozenset({SUCCESS, NOT_FOUND, 21, 28})

# the card answers no further call, so calling it only takes time
CARD_UNAVAILABLE = frozenset({8, 11, 16})

# busy, out of a resource or not ready: the next cycle may succeed
TRANSIENT = frozenset({NO_PERMISSION, TIMEOUT, 19, 20, 23, 27})

# the library does not fit the kernel module, or lost its connection to it
PROCESS_UNUSABLE = frozenset({UNINITIALIZED, 17, MISMATCH})

REASONS: dict[int, str] = {
    UNINITIALIZED: "NVMLUninitialized",
    NO_PERMISSION: "NoPermission",
    NOT_FOUND: "GpuLost",  # as an answer to a look-up
    8: "InsufficientPower",
    DRIVER_NOT_LOADED: "DriverMissing",
    11: "IRQIssue",
    LIBRARY_NOT_FOUND: "LibraryMissing",
    14: "CorruptedInfoROM",
    GPU_IS_LOST: "GpuLost",
    16: "ResetRequired",
    17: "OperatingSystemRefused",
    MISMATCH: "DriverMismatch",
    28: "GpuLost",
    UNKNOWN: "NVMLUnknown",
}


class NvmlFault(VendorFault):
    """NVML answered with a code that is neither a value nor `not supported`."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: NVML error {code} ({reason_of(code)})")
        self.code = code


class GarbledAnswer(VendorFault):
    """NVML returned bytes that are not text, as cards do that fall off the bus."""


def reason_of(code: int) -> str:
    """Return a code's reason in CamelCase; rare codes have their number as the reason."""
    return REASONS.get(code, f"NVMLError{code}")


def error_of(call: str, code: int) -> NotSupported | DeviceGone | NvmlFault:
    """Return the typed error for a return code of a call."""
    if code in _NOT_SUPPORTED:
        return NotSupported(f"{call}: NVML error {code}")
    if code == GPU_IS_LOST:
        return DeviceGone(f"{call}: the GPU no longer answers on its bus (NVML error 15)")
    return NvmlFault(call, code)


def code_of(error: Exception) -> int:
    """Return the NVML code of a typed error: 15 for a lost card, 999 for an unknown error."""
    if isinstance(error, NvmlFault):
        return error.code
    return GPU_IS_LOST if isinstance(error, DeviceGone) else UNKNOWN
