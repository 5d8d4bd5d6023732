"""What a card does now: one round of calls, bounded in number, as typed values and readings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agent.model.inventory import DeviceSample, MetricFamily, ProcessSample, Reading
from plugins import families
from plugins.bindings.nvml.card import Card
from plugins.bindings.nvml.library import INSUFFICIENT_SIZE, NvmlFault

ALL_LINKS = 0xFFFFFFFF
POWER_NOW, POWER_MEAN, ENERGY, MEMORY_HEAT = (186, 0), (185, 0), (83, 0), (82, 0)
PCIE = ((197, 0), (198, 0))  # bytes sent, received
NVLINK_KIB = ((138, ALL_LINKS), (139, ALL_LINKS))
NVLINK_BYTES = ((202, ALL_LINKS), (204, ALL_LINKS))  # NVLink 5
FIELDS = (POWER_NOW, POWER_MEAN, ENERGY, MEMORY_HEAT, *PCIE, *NVLINK_KIB, *NVLINK_BYTES)
_GPU_SAMPLES = 1
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_FIRST_WINDOW_US = 1_000_000  # a first sample looks back that far
_MAX_TRIES = 3

FAMILIES = (
    families.POWER,
    families.ENERGY,
    families.TEMPERATURE,
    families.CLOCK,
    families.PCIE_BYTES,
    MetricFamily(
        name="xpu_device_nvlink_bytes_total",
        type="counter",
        help="Bytes of data that the card sent or received over all its NVLinks.",
        labels=("direction",),
    ),
    MetricFamily(
        name="xpu_device_xid_errors_total",
        type="counter",
        help="Xid errors seen since the worker started.",
        labels=("xid",),
    ),
    MetricFamily(
        name="xpu_device_throttle_active",
        type="gauge",
        help="Whether the card holds its clocks back for the reason.",
        labels=("reason",),
    ),
    MetricFamily(
        name="xpu_device_recovery_action",
        type="gauge",
        help="What the driver asks for: 0 nothing, 1 GPU reset, 2 reboot, 3 and on see NVML.",
    ),
    MetricFamily(
        name="xpu_device_remapped_rows_total",
        type="counter",
        help="Memory rows replaced, by the kind of error that was the cause.",
        labels=("kind",),
    ),
)

_THROTTLES = (
    ("sw_power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("sw_thermal", 0x20),
    ("hw_thermal", 0x40),
    ("hw_power_brake", 0x80),
)


def sample(card: Card, wall_s: float, shared_bytes: int | None) -> DeviceSample:
    """Sample one card; raises `CardStopped` if it answers nothing more.

    `shared_bytes` is the machine's memory if the card shares it, and the card counts none.
    """
    fields = card.fields(FIELDS)
    memory = card.memory() if shared_bytes is None else None
    busy = core_percent(card, wall_s)
    processes = process_samples(card, wall_s)
    total, used = memory or (shared_bytes, _sum(processes))
    return DeviceSample(
        key=card.bus_id,
        core_percent=busy,
        memory_used_bytes=used,
        memory_total_bytes=total,
        processes=processes,
        readings=tuple(_readings(card, fields)),
    )


def _sum(processes: tuple[ProcessSample, ...] | None) -> int | None:
    if processes is None or any(p.memory_bytes is None for p in processes):
        return None
    return sum(p.memory_bytes or 0 for p in processes)


def core_percent(card: Card, wall_s: float) -> float | None:
    """Return the mean of the busy samples since the last cycle, else the driver's own rate."""
    last = card.seen.get("gpu", _back(wall_s))
    found = card.attempt(("samples",), lambda: card.nvml.samples(card.handle, _GPU_SAMPLES, last))
    if isinstance(found, tuple) and found:
        card.seen["gpu"] = max(stamp for stamp, _ in found)
        return float(sum(value for _, value in found) / len(found))
    rates = card.ask("nvmlDeviceGetUtilizationRates")
    return float(getattr(rates, "gpu")) if rates is not None else None  # noqa: B009 - a structure


def _back(wall_s: float) -> int:
    return max(0, int(wall_s * 1e6) - _FIRST_WINDOW_US)


def process_samples(card: Card, wall_s: float) -> tuple[ProcessSample, ...] | None:
    """Join the process lists with the processes' utilisation, by pid.

    A process stands in several lists with the same memory: the greatest counts, not the sum. One
    without a utilisation sample did nothing, and keeps its memory.
    """
    kinds = ("Compute", "Graphics", "MPSCompute")
    lists = [found for kind in kinds if (found := _list(card, kind)) is not None]
    if not lists:
        return None
    used: dict[int, int | None] = {}
    for pid, size in (entry for found in lists for entry in found):
        known = used.get(pid)
        used[pid] = size if known is None else max(known, size or 0)
    busy = process_percent(card, wall_s) if used else {}
    return tuple(
        ProcessSample(
            pid=pid,
            memory_bytes=used[pid],
            core_percent=None if busy is None else busy.get(pid, 0.0),
        )
        for pid in sorted(used)
    )


def _list(card: Card, kind: str) -> list[tuple[int, int | None]] | None:
    """Read one list by the newest entry point that the driver has; `None` if by none."""
    for suffix in ("_v3", "_v2", ""):
        symbol = f"nvmlDeviceGet{kind}RunningProcesses{suffix}"
        found = card.attempt((symbol,), lambda s=symbol: _read_list(card, s))  # type: ignore[misc]
        if isinstance(found, list):
            return found
    return None


def _read_list(card: Card, symbol: str) -> list[tuple[int, int | None]]:
    if not symbol.endswith(("_v3", "_v2")):
        return list(card.nvml.old_processes(symbol, card.handle))
    for _ in range(_MAX_TRIES - 1):
        try:
            return card.nvml.processes(symbol, card.handle)
        except NvmlFault as error:
            if error.code != INSUFFICIENT_SIZE:  # else more were born between two calls
                raise
    return card.nvml.processes(symbol, card.handle)


def process_percent(card: Card, wall_s: float) -> dict[int, float] | None:
    """Return each process's newest multiprocessor utilisation; `None` if it cannot be told."""
    last = card.seen.get("processes", _back(wall_s))
    found = card.attempt(
        ("process utilisation",), lambda: card.nvml.process_utilization(card.handle, last)
    )
    if not isinstance(found, tuple):
        return {} if card.nothing else None
    newest: dict[int, tuple[int, float]] = {}
    for pid, stamp, percent in found:
        if pid not in newest or stamp >= newest[pid][0]:
            newest[pid] = (stamp, float(percent))
    card.seen["processes"] = max((stamp for _, stamp, _ in found), default=last)
    return {pid: percent for pid, (_, percent) in newest.items()}


def _readings(card: Card, fields: dict[tuple[int, int], float]) -> Iterator[Reading]:
    power = _first(fields, (POWER_NOW, POWER_MEAN))
    power = power if power is not None else card.number("nvmlDeviceGetPowerUsage")
    energy = fields.get(ENERGY)
    energy = energy if energy is not None else card.number("nvmlDeviceGetTotalEnergyConsumption")
    yield from _reading("xpu_device_power_watts", _thousandth(power), 1)
    yield from _reading("xpu_device_energy_joules_total", _thousandth(energy), 1)
    heat = card.number("nvmlDeviceGetTemperature", 0)
    yield from _reading("xpu_device_temperature_celsius", heat, 1, "gpu")
    yield from _reading("xpu_device_temperature_celsius", fields.get(MEMORY_HEAT), 1, "memory")
    for name, number in (("sm", _SM_CLOCK), ("memory", _MEMORY_CLOCK)):
        clock = card.number("nvmlDeviceGetClockInfo", number)
        yield from _reading("xpu_device_clock_hertz", clock, 1e6, name)
    for direction, pcie, kib, five in zip(
        ("tx", "rx"), PCIE, NVLINK_KIB, NVLINK_BYTES, strict=True
    ):
        yield from _reading("xpu_device_pcie_bytes_total", fields.get(pcie), 1, direction)
        sent = fields[kib] * 1024 if kib in fields else fields.get(five)
        yield from _reading("xpu_device_nvlink_bytes_total", sent, 1, direction)


def _thousandth(value: float | None) -> float | None:
    # dividing is exact where multiplying by 0.001 is not
    return value / 1000 if value is not None else None


def _first(fields: dict[tuple[int, int], float], keys: Iterable[tuple[int, int]]) -> float | None:
    return next((fields[key] for key in keys if key in fields), None)


def _reading(family: str, value: float | None, scale: float, *labels: str) -> Iterator[Reading]:
    if value is not None:
        yield Reading(family=family, value=float(value * scale), labels=labels)


def slow_readings(
    card: Card, recovery_action: int | None, remapped: tuple[int, ...] | None
) -> tuple[Reading, ...]:
    """Return the readings that change seldom; they are taken every tenth cycle."""
    found = list(_reading("xpu_device_recovery_action", recovery_action, 1))
    if remapped is not None:
        for kind, count in (("correctable", remapped[0]), ("uncorrectable", remapped[1])):
            found += _reading("xpu_device_remapped_rows_total", count, 1, kind)
    mask = card.number("nvmlDeviceGetCurrentClocksEventReasons")
    if mask is None:
        mask = card.number("nvmlDeviceGetCurrentClocksThrottleReasons")
    if mask is not None:
        for name, bit in _THROTTLES:
            found += _reading("xpu_device_throttle_active", float(bool(mask & bit)), 1, name)
    return tuple(found)
