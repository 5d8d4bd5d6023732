"""State of a chip: health, fault codes, boot status, network, and links between chips."""

from __future__ import annotations

import ctypes

import msgspec

from agent.errors import AgentError, NotSupported
from plugins.vendors.ascend.library import codes as library_codes
from plugins.vendors.ascend.library.chip import Chip
from plugins.vendors.ascend.library.codes import BadDriverAnswer
from plugins.vendors.ascend.library.dcmi import Dcmi
from plugins.vendors.ascend.library.layout import U32

MAX_CODES = 128
HEALTHS = (0, 1, 2, 3)
BOOTED = (3, 16)  # boot states of a chip that has started
NETWORK_GOOD = (0, 6)  # working, or being set up
LINKS: dict[int, str] = {0: "HCCS", 5: "SIO", 6: "HCCS_SW", 7: "UB"}  # other types are PCIe
TOPOLOGIES = 8
_TOPOLOGY = "dcmi_get_topo_info_by_device_id"


class ChipStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one poll of a chip. `error` is the return code of the health call."""

    health: int | None = None
    error: int = library_codes.SUCCESS
    codes: tuple[int, ...] | None = None  # active fault codes, ascending; None: unknown
    uncoded_faults: int = 0  # faults that the driver counts without a code
    is_booted: bool | None = None  # None: unknown


def read_status(chip: Chip) -> ChipStatus:
    """Poll a chip's state. Never raises."""
    health, error = _health(chip)
    if error in (library_codes.NOT_READY, *library_codes.LOST):
        return ChipStatus(error=error)  # other calls would fail as well, perhaps slowly
    fault_codes = _codes(chip)
    boot = chip.integer("dcmi_get_device_boot_status", low=0, high=255, signed=True)
    return ChipStatus(
        health=health,
        error=error,
        codes=None if fault_codes is None else fault_codes[0],
        uncoded_faults=0 if fault_codes is None else fault_codes[1],
        is_booted=None if boot is None else boot in BOOTED,
    )


def _health(chip: Chip) -> tuple[int | None, int]:
    value = ctypes.c_uint32(U32)
    symbol = "dcmi_get_device_health"
    try:
        chip.dcmi.call(symbol, chip.card, chip.number, ctypes.byref(value))
    except NotSupported:
        return None, library_codes.UNSUPPORTED
    except AgentError as error:
        chip.faults[library_codes.code_of(error)] = symbol
        return None, library_codes.code_of(error)
    if value.value == U32:
        return None, library_codes.GONE  # the driver's value for a missing chip
    health = chip.check_bounds(symbol, int(value.value), 0, max(HEALTHS))
    return health, library_codes.SUCCESS if health is not None else library_codes.INTERNAL


def _codes(chip: Chip) -> tuple[tuple[int, ...], int] | None:
    symbol = "dcmi_get_device_errorcode_v2"
    count, buffer = ctypes.c_int32(0), (ctypes.c_uint32 * MAX_CODES)()
    if not chip.try_call(symbol, None, ctypes.byref(count), buffer, MAX_CODES):
        return None
    length = chip.check_bounds(symbol, int(count.value), 0, MAX_CODES)
    if length is None:
        return None
    fault_codes = sorted({int(code) for code in buffer[:length] if code})
    return tuple(fault_codes), length if length and not fault_codes else 0


def network_state(chip: Chip) -> int | None:
    """Return the state of the chip's RoCE port. The call may block for long."""
    symbol = "dcmi_get_device_network_health"
    return chip.integer(symbol, low=0, high=255, signed=True)


def link_type(a: Chip, b: Chip) -> int | None:
    """Return the type of the link between two chips, 0 to 7; `None` if it is unknown."""
    value = ctypes.c_int32(-1)
    args = (b.card, b.number, ctypes.byref(value))
    if not a.try_call(_TOPOLOGY, (b.card, b.number), *args):
        return None
    return a.check_bounds(_TOPOLOGY, int(value.value), 0, TOPOLOGIES - 1)


def can_read_links(dcmi: Dcmi) -> bool:
    """Return whether the driver has the call for link types."""
    return _TOPOLOGY not in dcmi.missing


def die_policy(dcmi: Dcmi) -> int | None:
    """Return 0 if the two dies of a card are allocated together, 1 if they are independent."""
    value = ctypes.c_uint32(U32)
    symbol = "dcmi_get_multi_die_policy"
    try:
        dcmi.call(symbol, ctypes.byref(value))
    except NotSupported:
        return None
    if value.value not in (0, 1):
        raise BadDriverAnswer(symbol, f"policy {value.value}")
    return int(value.value)
