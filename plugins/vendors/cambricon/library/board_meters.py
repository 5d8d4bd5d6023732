"""Values of a card's supply, heat and errors, which change seldom; as `meters` yields them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import partial

from agent.snapshot.inventory import AMPERES, BYTES_PER_SECOND, FLAG, NUMBER, Bounds, scale
from plugins.vendors.cambricon.library.card import (
    CARD_CELSIUS,
    COUNTS,
    KIB,
    MAX_MEMORY_MIB,
    MEMORY_MIB,
    MIB,
    CndevCard,
)
from plugins.vendors.cambricon.library.meters import GIGA, ROWS, Labelled

MILLI = 1000  # the card reports millivolts and milliamperes
MILLIVOLTS: Bounds = (0, 10_000)
ERRORS: Bounds = (0, 1 << 30)  # of counts of 32 bits
CLUSTERS = 20  # elements of the list of clusters
MEMORY_WIDTHS: Bounds = (1, 1 << 16)
BAR_BYTES: Bounds = (1, 1 << 44)  # of memory that the host can address
SYSTEM_KIB: Bounds = (1, 1 << 30)  # memory of the system on the card
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
_SWAP_KINDS = (("correctable", "correctable"), ("uncorrectable", "uncorrectable"))
_SPARES = ("none", "some", "all")  # elements of a histogram of repair resources
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


def read_address_swaps(card: CndevCard) -> Labelled:
    """Yield (kind, addresses) replaced after correctable and uncorrectable memory errors."""
    record = card.read("cndevGetAddressSwaps", "RowsV2")
    yield from _counts(card, "address swaps", record, _SWAP_KINDS, ROWS)


def read_repair_channels(card: CndevCard) -> Labelled:
    """Yield (spares, channels) of the memory that have no, some or all of their spares left."""
    record = card.read("cndevGetAddressSwaps", "RowsV2")
    for spares, channels in zip(
        _SPARES, record.histogram if record is not None else (), strict=False
    ):
        if card.is_possible(f"channels {spares}", channels, ROWS):
            yield (spares,), float(channels)


def read_ecc_modes(card: CndevCard) -> Labelled:
    """Yield (when, 0 or 1): whether the memory has ECC now, and after the next reset."""
    now, after_reset = card.cndev.record("Mode"), card.cndev.record("Mode")
    symbol = "cndevGetEccMode"
    if card.call(symbol, partial(_fill_both, card, symbol, now, after_reset)):
        for when, record in (("now", now), ("after_reset", after_reset)):
            if card.is_possible(f"ecc mode {when}", record.mode, FLAG):
                yield (when,), float(record.mode)


def _fill_both(
    card: CndevCard, symbol: str, first: ctypes.Structure, second: ctypes.Structure
) -> bool:
    card.cndev.call(symbol, ctypes.byref(first), ctypes.byref(second), card.handle)
    return True


def read_page_retirement(card: CndevCard) -> Labelled:
    """Yield (nothing, 0 or 1): whether faulty memory pages are taken out of use."""
    yield from _flag(card, "cndevGetRetiredPagesOperation", "Mode", "mode")


def read_clock_lock(card: CndevCard) -> Labelled:
    """Yield (nothing, 0 or 1): whether the clock of the cores is locked."""
    yield from _flag(card, "cndevGetMLUFrequencyStatus", "ClockLock", "is_locked")


def _flag(card: CndevCard, symbol: str, name: str, member: str) -> Labelled:
    record = card.read(symbol, name)
    if record is not None and card.is_possible(symbol, getattr(record, member), FLAG):
        yield (), float(getattr(record, member))


def read_heartbeats(card: CndevCard) -> Labelled:
    """Yield (nothing, count) of heartbeats of the card's firmware."""
    record = card.read("cndevGetCardHeartbeatCount", "Heartbeats")
    yield from _counts(card, "heartbeats", record, (("count",),), NUMBER)


def read_cluster_temperatures(card: CndevCard) -> Labelled:
    """Yield (cluster, degrees Celsius)."""
    count = card.read("cndevGetClusterCount", "CoreCount")
    clusters = count.count if count is not None and 0 < count.count <= CLUSTERS else 0
    record = card.read("cndevGetTemperatureInfo", "Temp") if clusters else None
    for cluster, celsius in enumerate(record.cluster[:clusters] if record is not None else ()):
        # below zero: not measured
        if celsius >= 0 and card.is_possible("temperature cluster", celsius, CARD_CELSIUS):
            yield (str(cluster),), float(celsius)


def read_memory_bandwidth(card: CndevCard) -> float | None:
    """Return the bandwidth of the memory in bytes per second."""
    record = card.read("cndevGetDDRInfo", "Ddr")
    if record is None:
        return None
    # the decimals are a number of their own: 1229 and 5 are 1229.5 GB/s
    gigabytes = float(f"{record.bandwidth}.{record.decimal}")
    is_possible = card.is_possible("memory bandwidth", gigabytes, scale(BYTES_PER_SECOND, 1 / GIGA))
    return gigabytes * GIGA if gigabytes and is_possible else None


def read_memory_width(card: CndevCard) -> float | None:
    """Return the width of the memory's data bus as the driver reports it."""
    record = card.read("cndevGetDDRInfo", "Ddr")
    if record is None or not card.is_possible("memory width", record.width, MEMORY_WIDTHS):
        return None
    return float(record.width)


def read_memory_parts(card: CndevCard) -> Labelled:
    """Yield (part, bytes) of memories of the card that are no memory for containers."""
    yield from _driver_memory(card)
    system = card.read("cndevGetDeviceOsMemoryUsageV2", "OsMemory")
    if system is not None and card.is_possible("memory system_total", system.total, SYSTEM_KIB):
        yield ("system_total",), float(system.total * KIB)
        if card.is_possible("memory system_used", system.used, (0, system.total)):
            yield ("system_used",), float(system.used * KIB)
    window = card.read("cndevGetBAR4MemoryInfo", "Bar4")
    if window is not None and card.is_possible("memory bar4_total", window.total, BAR_BYTES):
        yield ("bar4_total",), float(window.total)
        for part in ("used", "free"):
            size = getattr(window, part)
            if card.is_possible(f"memory bar4_{part}", size, (0, window.total)):
                yield (f"bar4_{part}",), float(size)


def _driver_memory(card: CndevCard) -> Labelled:
    """Yield the driver's own memory, and virtual memory."""
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
