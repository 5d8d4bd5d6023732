"""Current values of a chip in DCMI's units. A value that the chip does not report is `None`."""

from __future__ import annotations

import ctypes
import ipaddress
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from plugins.vendors.ascend.library.chip import Chip
from plugins.vendors.ascend.library.facts import MAX_MEMORY_MB
from plugins.vendors.ascend.library.layout import (
    U32,
    number_member,
    numbers_member,
    structure,
    structure_member,
)

MAX_PROCESSES = 32
MAX_NUMBER = (1 << 31) - 2  # bound of clocks, voltages and counters of 32 bits
MAX_COUNT = 1 << 53  # bound of counters of 64 bits: a metric value represents no larger one exactly
MAX_PAGES = 1 << 20
KB_PER_MB = 1 << 10
AI_CORE, MEMORY, VECTOR, OVERALL, CUBE = 2, 6, 12, 13, 14  # types of utilization
CORE_CLOCK = 7  # type of frequency
HBM = 2  # memory type of dcmi_get_device_ecc_info
PORTS = 16
_ROCE = (1, 0)  # port type and port
_HCCS, _WIDE, _NARROW = 16, 5, 3
_SIO = 56
_VDEV, _ACTIVITY = 52, 5


class UtilizationRates(msgspec.Struct, frozen=True, kw_only=True):
    """Utilization in percent, by unit."""

    core: int | None = None
    vector: int | None = None
    cube: int | None = None
    overall: int | None = None


class HbmState(msgspec.Struct, frozen=True, kw_only=True):
    """The high-bandwidth memory of a chip."""

    total_mb: int
    used_mb: int | None
    temperature_celsius: int | None
    bandwidth_percent: int | None


class MemoryErrorCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of the HBM; each is single-bit errors, then double-bit ones."""

    total: tuple[int | None, int | None]  # over the lifetime of the chip
    since_reset: tuple[int | None, int | None]
    isolated_pages: tuple[int | None, int | None]
    is_enabled: bool | None  # whether errors are detected


class LinkCount(msgspec.Struct, frozen=True, kw_only=True):
    """A counter of one port; `kind` is crc, retry, tx_crc or rx_crc of errors, tx or rx."""

    link: str  # hccs, sio
    port: int
    kind: str
    count: int


class LinkCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of the links between chips."""

    errors: tuple[LinkCount, ...] = ()
    packets: tuple[LinkCount, ...] = ()  # of HCCS


def read_rates(chip: Chip, *, period: bool) -> UtilizationRates | None:
    """Return the utilization from the newest call that the driver has.

    `period` allows a call that measures for one second and may block for that time.
    """
    name = "dcmi_get_device_multi_utilization_rate"
    record = structure("multi_utilization")()
    values = period and chip.try_call(f"{name}_period", None, ctypes.byref(record), 1)
    if values or chip.try_call(name, None, ctypes.byref(record)):
        aicore, aiv, aic, npu = (
            chip.check_bounds(m, number_member(record, m), 0, 100)
            for m in ("aicore", "aiv", "aic", "npu")
        )
        return UtilizationRates(core=aicore, vector=aiv, cube=aic, overall=npu)
    core, vector, cube, overall = (read_rate(chip, k) for k in (AI_CORE, VECTOR, CUBE, OVERALL))
    if core is vector is cube is overall is None:
        return None
    return UtilizationRates(core=core, vector=vector, cube=cube, overall=overall)


def read_rate(chip: Chip, kind: int) -> int | None:
    """Return the utilization of one unit in percent."""
    return chip.integer("dcmi_get_device_utilization_rate", kind, low=0, high=100)


def read_hbm(chip: Chip) -> HbmState | None:
    """Return the state of the HBM; `None` for a chip without HBM, which may report size 0."""
    record = chip.read_structure("dcmi_get_device_hbm_info", "hbm_info")
    if record is None:
        return None
    total = chip.check_bounds("hbm", number_member(record, "memory_size"), 1, MAX_MEMORY_MB)
    if total is None:
        return None
    return HbmState(
        total_mb=total,
        used_mb=chip.check_bounds("hbm used", number_member(record, "memory_usage"), 0, total),
        temperature_celsius=chip.check_bounds(
            "hbm temp", number_member(record, "temp"), -275, 1000
        ),
        bandwidth_percent=chip.check_bounds(
            "hbm busy", number_member(record, "bandwidth_util"), 0, 100
        ),
    )


def read_ddr(chip: Chip) -> tuple[int, int | None] | None:
    """Return total and used MB of the DDR memory; used is `None` if it is implausible."""
    record = chip.read_structure("dcmi_get_device_memory_info_v3", "memory_info_v3")
    if record is None:
        return None
    total, free = number_member(record, "memory_size"), number_member(record, "memory_available")
    if not 0 < total <= MAX_MEMORY_MB:
        return None
    plausible_free = chip.check_bounds("ddr available", free, 0, total)
    return total, None if plausible_free is None else total - plausible_free


def power_deciwatt(chip: Chip, *, of_card: bool) -> int | None:
    """Return the power; with `of_card` that of the whole card, from its controller."""
    symbol = "dcmi_mcu_get_power_info" if of_card else "dcmi_get_device_power_info"
    return chip.integer(symbol, low=0, high=MAX_NUMBER, signed=True)


def temperature_celsius(chip: Chip) -> int | None:
    """Return the temperature of the chip."""
    symbol = "dcmi_get_device_temperature"
    return chip.integer(symbol, low=-275, high=1000, signed=True)


def voltage_centivolt(chip: Chip) -> int | None:
    """Return the voltage."""
    return chip.integer("dcmi_get_device_voltage", low=0, high=MAX_NUMBER)


def core_clock_mhz(chip: Chip) -> int | None:
    """Return the clock of the AI cores."""
    return chip.integer("dcmi_get_device_frequency", CORE_CLOCK, low=0, high=MAX_NUMBER)


def hbm_errors(chip: Chip) -> MemoryErrorCounts | None:
    """Return the errors of the HBM."""
    record = chip.read_structure("dcmi_get_device_ecc_info", "ecc_info", HBM)
    if record is None:
        return None

    def count(member: str, high: int = MAX_NUMBER) -> int | None:
        return chip.check_bounds(f"ecc {member}", number_member(record, member), 0, high)

    enabled = chip.check_bounds("ecc enable", number_member(record, "enable"), 0, 1)
    return MemoryErrorCounts(
        total=(count("total_single"), count("total_double")),
        since_reset=(count("single"), count("double")),
        isolated_pages=(count("single_isolated", MAX_PAGES), count("double_isolated", MAX_PAGES)),
        is_enabled=None if enabled is None else enabled == 1,
    )


def read_processes(chip: Chip) -> tuple[tuple[int, int], ...] | None:
    """Return (pid, bytes) of every process on the chip."""
    buffer = (structure("proc_mem_info") * MAX_PROCESSES)()
    count = ctypes.c_int32(0)
    if not chip.try_call("dcmi_get_device_resource_info", None, buffer, ctypes.byref(count)):
        return None
    plausible_count = chip.check_bounds("processes", int(count.value), 0, MAX_PROCESSES)
    if plausible_count is None:
        return None
    values = (
        (number_member(p, "pid"), number_member(p, "bytes")) for p in buffer[:plausible_count]
    )
    return tuple((pid, size) for pid, size in values if pid > 0 and size <= MAX_MEMORY_MB << 20)


def read_port_address(chip: Chip) -> str | None:
    """Return the address of the chip's RoCE port; `None` if none is configured."""
    record, mask = structure("ip_addr")(), structure("ip_addr")()
    args = (*_ROCE, ctypes.byref(record), ctypes.byref(mask))
    if not chip.try_call("dcmi_get_device_ip", None, *args):
        return None
    raw = bytes(numbers_member(record, "addr"))
    values = ipaddress.ip_address(raw if number_member(record, "type") == 1 else raw[:4])
    return None if values.is_unspecified else str(values)


def read_links(chip: Chip) -> LinkCounts:
    """Return the counters of used HCCS ports, and of the link between the dies (SIO)."""
    record = chip.read_info(_HCCS, _WIDE, "hccs_statistic_u64")
    record = record or chip.read_info(_HCCS, _NARROW, "hccs_statistic")
    errors: list[LinkCount] = []
    packets: list[LinkCount] = []
    if record is not None:
        tx, rx, crc, retry = (numbers_member(record, m) for m in ("tx", "rx", "crc_err", "retry"))
        for port in (p for p in range(PORTS) if tx[p] or rx[p] or crc[p] or retry[p]):
            errors += _hccs_counts(chip, port, (("crc", crc), ("retry", retry)))
            packets += _hccs_counts(chip, port, (("tx", tx), ("rx", rx)))
    sio = chip.read_info(_SIO, 0, "sio_crc")
    if sio is not None:
        for kind, member in (("tx_crc", "tx_err"), ("rx_crc", "rx_err")):
            errors.append(
                LinkCount(link="sio", port=0, kind=kind, count=number_member(sio, member))
            )
    return LinkCounts(errors=tuple(errors), packets=tuple(packets))


def _hccs_counts(
    chip: Chip, port: int, counters: Iterable[tuple[str, Sequence[int]]]
) -> Iterator[LinkCount]:
    for kind, counts in counters:
        count = counts[port]
        # older drivers have 32 bits: all of them set is no count
        if count != U32 and chip.check_bounds(f"hccs {kind}", count, 0, MAX_COUNT) is not None:
            yield LinkCount(link="hccs", port=port, kind=kind, count=count)


class VdevActivity(msgspec.Struct, frozen=True, kw_only=True):
    """What one vNPU uses; `None` is implausible or not reported."""

    percent: int | None
    total_kb: int | None
    used_kb: int | None


def vdev_activity(chip: Chip, vdev: int) -> VdevActivity | None:
    """Return what one vNPU uses; `None` if the chip does not report it."""
    query = structure("vdev_query")(vdev_id=vdev)
    if not chip.fill_info(_VDEV, _ACTIVITY, query):
        return None
    computing = structure_member(structure_member(query, "info"), "computing")
    total, free = (
        number_member(computing, "vdev_mem_total"),
        number_member(computing, "vdev_mem_free"),
    )
    is_plausible = 0 <= free <= total <= MAX_MEMORY_MB * KB_PER_MB
    return VdevActivity(
        percent=chip.check_bounds("vnpu", number_member(computing, "vdev_aicore_util"), 0, 100),
        total_kb=total if is_plausible and total else None,
        used_kb=total - free if is_plausible and total else None,
    )
