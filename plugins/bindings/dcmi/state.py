"""How a chip is: health, fault codes, boot status and network, and how chips are joined."""

from __future__ import annotations

import ctypes

import msgspec

from agent.errors import AgentError, NotSupported
from plugins.bindings.dcmi import codes
from plugins.bindings.dcmi.chip import Chip
from plugins.bindings.dcmi.codes import BadDriverAnswer
from plugins.bindings.dcmi.layout import U32
from plugins.bindings.dcmi.library import Dcmi

MAX_CODES = 128
HEALTHS = (0, 1, 2, 3)
BOOTED = (3, 16)  # what drivers say of a chip that has finished to start
NETWORK_GOOD = (0, 6)  # well, or still being set up
LINKS: dict[int, str] = {0: "HCCS", 5: "SIO", 6: "HCCS_SW", 7: "UB"}  # the rest go over PCIe
TOPOLOGIES = 8
_TOPOLOGY = "dcmi_get_topo_info_by_device_id"


class Polled(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at a chip's state told. `error` is the code that the health call gave."""

    health: int | None = None
    error: int = codes.SUCCESS
    codes: tuple[int, ...] | None = None  # active faults, ascending; None: it was not told
    uncoded: int = 0  # faults that the driver counts without a code
    booted: bool | None = None  # None: the chip cannot tell


def poll(chip: Chip) -> Polled:
    """Ask a chip how it is; it never raises."""
    health, error = _health(chip)
    if error in (codes.NOT_READY, *codes.LOST):
        return Polled(error=error)  # it answers nothing more, and may take long over it
    found = _codes(chip)
    boot = chip.integer("dcmi_get_device_boot_status", low=0, high=255, signed=True)
    return Polled(
        health=health,
        error=error,
        codes=None if found is None else found[0],
        uncoded=0 if found is None else found[1],
        booted=None if boot is None else boot in BOOTED,
    )


def _health(chip: Chip) -> tuple[int | None, int]:
    value = ctypes.c_uint32(U32)
    symbol = "dcmi_get_device_health"
    try:
        chip.dcmi.call(symbol, chip.card, chip.number, ctypes.byref(value))
    except NotSupported:
        return None, codes.UNSUPPORTED
    except AgentError as error:
        chip.faults[codes.code_of(error)] = symbol
        return None, codes.code_of(error)
    if value.value == U32:
        return None, codes.GONE  # the driver's way to say that there is no chip
    known = chip.within(symbol, int(value.value), 0, max(HEALTHS))
    return known, codes.SUCCESS if known is not None else codes.INTERNAL


def _codes(chip: Chip) -> tuple[tuple[int, ...], int] | None:
    symbol = "dcmi_get_device_errorcode_v2"
    count, room = ctypes.c_int32(0), (ctypes.c_uint32 * MAX_CODES)()
    if not chip.tells(symbol, None, ctypes.byref(count), room, MAX_CODES):
        return None
    known = chip.within(symbol, int(count.value), 0, MAX_CODES)
    if known is None:
        return None
    found = sorted({int(code) for code in room[:known] if code})
    return tuple(found), known if known and not found else 0


def network_state(chip: Chip) -> int | None:
    """Return the state of the chip's RoCE port. This call may block for long: give it a thread."""
    symbol = "dcmi_get_device_network_health"
    return chip.integer(symbol, low=0, high=255, signed=True)


def link_type(a: Chip, b: Chip) -> int | None:
    """Return how two chips are joined, 0 to 7; `None` if the driver does not tell."""
    value = ctypes.c_int32(-1)
    args = (b.card, b.number, ctypes.byref(value))
    if not a.tells(_TOPOLOGY, (b.card, b.number), *args):
        return None
    return a.within(_TOPOLOGY, int(value.value), 0, TOPOLOGIES - 1)


def tells_links(dcmi: Dcmi) -> bool:
    """Say whether the driver may be asked how chips are joined."""
    return _TOPOLOGY not in dcmi.missing


def die_policy(dcmi: Dcmi) -> int | None:
    """Return 0 if the two dies of a card go together, 1 if each goes alone."""
    value = ctypes.c_uint32(U32)
    symbol = "dcmi_get_multi_die_policy"
    try:
        dcmi.call(symbol, ctypes.byref(value))
    except NotSupported:
        return None
    if value.value not in (0, 1):
        raise BadDriverAnswer(symbol, f"policy {value.value}")
    return int(value.value)
