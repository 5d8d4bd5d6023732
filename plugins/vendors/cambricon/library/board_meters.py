"""Values of a card's supply, heat and errors, which change seldom; as `meters` yields them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from agent.snapshot.inventory import AMPERES, FLAG, Bounds, scale
from plugins.vendors.cambricon.library.card import (
    COUNTS,
    MAX_MEMORY_MIB,
    MEMORY_MIB,
    MIB,
    CndevCard,
)
from plugins.vendors.cambricon.library.meters import Labelled

MILLI = 1000  # the card reports millivolts and milliamperes
MILLIVOLTS: Bounds = (0, 10_000)
ERRORS: Bounds = (0, 1 << 30)  # of counts of 32 bits
LIFETIME_SINCE = 6  # interface version whose structure has the counts over the card's life

_HEAT_REACTIONS = (("offs", "power_off"), ("slowdowns", "slowdown"))
_DOMAINS = ("core", "soc", "memory")
_THROTTLE_REASONS = (
    ("tdp", "design_power"),
    ("power_setting", "power_limit"),
    ("clock_setting", "clock_limit"),
    ("frequency_locked", "clock_locked"),
    ("power_brake", "power_brake"),
    ("thermal", "thermal"),
)

# (member of the structure, memory, kind of error)
_ERRORS = (
    ("sram_single", "sram", "single_bit"),
    ("sram_double", "sram", "double_bit"),
    ("sram_parity", "sram", "parity"),
    ("dram_single", "dram", "single_bit"),
    ("dram_double", "dram", "double_bit"),
)
_LIFETIME_ERRORS = tuple((f"{member}_total", *labels) for member, *labels in _ERRORS)
_ECC_EXTENTS = (
    ("one", "one_bit"),
    ("multiple_one", "several_one_bit"),
    ("multiple", "many_bit"),
    ("multiple_multiple", "several_many_bit"),
    ("forbidden", "forbidden_address"),
)


def read_voltages(card: CndevCard) -> Labelled:
    """Yield (domain, volts); a domain that the card does not measure is left out."""
    record = card.read("cndevGetVoltageInfo", "Voltage")
    for domain in _DOMAINS if record is not None else ():
        value = getattr(record, domain)
        if value >= 0 and card.is_possible(f"voltage {domain}", value, MILLIVOLTS):
            yield (domain,), value / MILLI


def read_currents(card: CndevCard) -> Labelled:
    """Yield (domain, amperes); a domain that the card does not measure is left out."""
    record = card.read("cndevGetCurrentInfo", "Current")
    for domain in _DOMAINS if record is not None else ():
        value = getattr(record, domain)
        if value >= 0 and card.is_possible(f"current {domain}", value, scale(AMPERES, MILLI)):
            yield (domain,), value / MILLI


def read_heat_reactions(card: CndevCard) -> Labelled:
    """Yield (reaction, count): how often heat made the card switch off, or slow down."""
    record = card.read("cndevGetOverTemperatureInfo", "Overheat")
    yield from _counts(card, "heat", record, _HEAT_REACTIONS, ERRORS)


def read_throttling(card: CndevCard) -> Labelled:
    """Yield (reason, 0 or 1): whether the card runs slower for it."""
    record = card.read("cndevGetPerformanceThrottleReason", "Throttle")
    for member, reason in _THROTTLE_REASONS if record is not None else ():
        flag = getattr(record, member)
        if card.is_possible(f"throttle {reason}", flag, FLAG):
            yield (reason,), float(flag)


def read_memory_errors(card: CndevCard) -> Labelled:
    """Yield (memory, kind, errors since the driver was loaded)."""
    yield from _counts(card, "memory errors", _memory_errors(card), _ERRORS, ERRORS)


def read_lifetime_memory_errors(card: CndevCard) -> Labelled:
    """Yield (memory, kind, errors over the card's life)."""
    if card.cndev.version >= LIFETIME_SINCE:
        yield from _counts(card, "lifetime errors", _memory_errors(card), _LIFETIME_ERRORS)


def read_excess(card: CndevCard) -> Labelled:
    """Yield (nothing, 0 or 1): whether the on-chip memory had more errors than it should."""
    record = _memory_errors(card) if card.cndev.version >= LIFETIME_SINCE else None
    if record is not None and card.is_possible("sram excess", record.is_exceeded, FLAG):
        yield (), float(record.is_exceeded)


def _memory_errors(card: CndevCard) -> ctypes.Structure | None:
    return card.read("cndevGetMemEccCounter", "MemoryErrors")


def read_ecc_extents(card: CndevCard) -> Labelled:
    """Yield (extent, count) of memory errors by the bits that each touched."""
    yield from _counts(card, "ecc", card.read("cndevGetECCInfo", "Ecc"), _ECC_EXTENTS)


def read_parity_errors(card: CndevCard) -> Labelled:
    """Yield (nothing, count) of parity errors."""
    record = card.read("cndevGetParityError", "Parity")
    yield from _counts(card, "parity", record, (("count",),), ERRORS)


def read_die_link_errors(card: CndevCard) -> Labelled:
    """Yield (kind, count) of checksum errors between the dies of the card."""
    record = card.read("cndevGetCRCInfo", "DieLink")
    yield from _counts(card, "die link", record, (("errors", "crc"), ("overflows", "overflow")))


def _counts(
    card: CndevCard,
    source: str,
    record: ctypes.Structure | None,
    members: Iterable[tuple[str, ...]],
    bounds: Bounds = COUNTS,
) -> Labelled:
    for member, *labels in members if record is not None else ():
        count = getattr(record, member)
        if card.is_possible(" ".join((source, *labels)), count, bounds):
            yield tuple(labels), float(count)


def read_memory_parts(card: CndevCard) -> Labelled:
    """Yield (part, bytes) of the driver's own memory, and of virtual memory."""
    record = card.read("cndevGetMemoryUsageV2", "MemV2")
    if record is None:
        return
    parts = [("reserved", record.reserved)]
    if _is_virtual_possible(card, record):
        parts += [
            ("virtual_total", record.vtotal),
            ("virtual_used", record.vused),
            ("virtual_free", record.vtotal - record.vused),
        ]
    for part, mebibytes in parts:
        if card.is_possible(f"memory {part}", mebibytes, (0, MAX_MEMORY_MIB)):
            yield (part,), float(mebibytes * MIB)


def _is_virtual_possible(card: CndevCard, record: ctypes.Structure) -> bool:
    # 0: the card has no virtual memory
    return (
        record.vtotal != 0
        and card.is_possible("memory virtual_total", record.vtotal, MEMORY_MIB)
        and card.is_possible("memory virtual_used", record.vused, (0, record.vtotal))
    )
