"""The processes on a card: their lists joined by pid, with their utilization."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.snapshot.inventory import ProcessSample
from plugins.vendors.nvidia.library import bounds
from plugins.vendors.nvidia.library.card import NvmlCard
from plugins.vendors.nvidia.library.structures import (
    NO_INSTANCE,
    read_process_utilization,
    read_processes,
)

KINDS = ("Compute", "Graphics", "MPSCompute")
FIRST_WINDOW_US = 1_000_000  # a first sample looks back that far

MigSlot = tuple[int, int]  # GPU instance, compute instance


class ProcessEntry(msgspec.Struct, frozen=True):
    """One process in one list; `None` is what the driver does not tell."""

    pid: int
    memory_bytes: int | None
    slot: MigSlot | None = None  # of a card that is cut by MIG


def first_window_start_us(wall_s: float) -> int:
    """Return the time stamp from which on a first look wants samples, in microseconds."""
    return max(0, int(wall_s * 1e6) - FIRST_WINDOW_US)


def read_lists(card: NvmlCard, kinds: Iterable[str] = KINDS) -> dict[str, list[ProcessEntry]]:
    """Return the entries of these lists by kind; what the driver does not have is missing."""
    return {kind: found for kind in kinds if (found := _list(card, kind)) is not None}


def _list(card: NvmlCard, kind: str) -> list[ProcessEntry] | None:
    """Read one list by the newest entry point that the driver has; `None` if by none."""
    for suffix in ("_v3", "_v2", ""):
        symbol = f"nvmlDeviceGet{kind}RunningProcesses{suffix}"
        found = card.attempt((symbol,), lambda s=symbol: _entries(card, s))  # type: ignore[misc]
        if isinstance(found, list):
            return [
                entry for told in found if (entry := _within_bounds(card, symbol, told)) is not None
            ]
        if card.nothing:
            return []
    return None


def _within_bounds(card: NvmlCard, symbol: str, told: ProcessEntry) -> ProcessEntry | None:
    """Return what of an entry can be true; `None` if no process is called so."""
    if card.within(f"pid of {symbol}", told.pid, bounds.PIDS) is None:
        return None
    most = card.memory_bytes or bounds.MAX_BYTES
    size = card.within(f"memory of {symbol}", told.memory_bytes, (0, most))
    return told if size == told.memory_bytes else ProcessEntry(told.pid, None, told.slot)


def _entries(card: NvmlCard, symbol: str) -> list[ProcessEntry]:
    return [
        ProcessEntry(pid, size, None if gi == NO_INSTANCE else (gi, ci))
        for pid, size, gi, ci in read_processes(card.nvml, symbol, card.handle)
    ]


def join_processes(
    entries: Iterable[ProcessEntry], busy: Mapping[int, float] | None, slices: Mapping[MigSlot, str]
) -> tuple[ProcessSample, ...]:
    """Merge entries by pid and slice, with each pid's percent of the card's multiprocessors.

    A process stands in several lists with the same memory: the greatest counts, not the sum. One
    without a utilisation sample did nothing, and keeps its memory. `busy` is `None` if the driver
    does not tell, as of a card that is cut.
    """
    used: dict[tuple[int, str], int | None] = {}
    for entry in entries:
        part = slices.get(entry.slot, "") if entry.slot is not None else ""
        known = used.get((entry.pid, part))
        size = entry.memory_bytes
        used[entry.pid, part] = size if known is None else max(known, size or 0)
    return tuple(
        ProcessSample(
            pid=pid,
            memory_bytes=used[pid, part],
            core_percent=None if busy is None or part else busy.get(pid, 0.0),
            partition=part,
        )
        for pid, part in sorted(used)
    )


def total_memory(processes: tuple[ProcessSample, ...] | None) -> int | None:
    """Add up what all processes use; `None` if that of one is not told."""
    if processes is None or any(p.memory_bytes is None for p in processes):
        return None
    return sum(p.memory_bytes or 0 for p in processes)


def process_percent(card: NvmlCard, wall_s: float) -> dict[int, float] | None:
    """Return each process's newest multiprocessor utilisation; `None` if it cannot be told."""
    last = card.seen.get("processes", first_window_start_us(wall_s))
    found = card.attempt(
        ("process utilisation",), lambda: read_process_utilization(card.nvml, card.handle, last)
    )
    if not isinstance(found, tuple):
        return {} if card.nothing else None
    name, stamps = "nvmlDeviceGetProcessUtilization", (0, wall_s * 1e6 + bounds.MAX_AHEAD_US)
    told = [
        sample
        for sample in found
        if card.within(name, sample[2], bounds.PERCENT) is not None
        and card.within("time stamp of a process", sample[1], stamps) is not None
    ]
    newest: dict[int, tuple[int, float]] = {}
    for pid, stamp, percent in told:
        if pid not in newest or stamp >= newest[pid][0]:
            newest[pid] = (stamp, float(percent))
    card.seen["processes"] = max((stamp for _, stamp, _ in told), default=last)
    return {pid: percent for pid, (_, percent) in newest.items()}
