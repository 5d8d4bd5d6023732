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
FIRST_WINDOW_US = 1_000_000  # the first sample covers this time

MigSlot = tuple[int, int]  # GPU instance, compute instance


class ProcessEntry(msgspec.Struct, frozen=True):
    """One process in one list; `None` for values that the driver does not report."""

    pid: int
    memory_bytes: int | None
    slot: MigSlot | None = None  # on a card with MIG instances


def window_start_us(card: NvmlCard, ring: str, wall_s: float) -> int:
    """Return the newest time stamp read of a ring; of a second ago if none was, or it is ahead.

    Stamps follow the machine's clock: after that was set back, none would be newer for as long.
    """
    now_us = int(wall_s * 1e6)
    newest_us = card.newest_stamps_us.get(ring)
    if newest_us is None or newest_us > now_us:
        return max(0, now_us - FIRST_WINDOW_US)
    return newest_us


def read_lists(card: NvmlCard, kinds: Iterable[str] = KINDS) -> dict[str, list[ProcessEntry]]:
    """Return the entries of these lists by kind, without lists that the driver does not have."""
    return {kind: entries for kind in kinds if (entries := _list(card, kind)) is not None}


def _list(card: NvmlCard, kind: str) -> list[ProcessEntry] | None:
    """Read one list with the newest entry point that the driver has; `None` if it has none."""
    for suffix in ("_v3", "_v2", ""):
        symbol = f"nvmlDeviceGet{kind}RunningProcesses{suffix}"
        entries = card.attempt((symbol,), lambda s=symbol: _entries(card, s))  # type: ignore[misc]
        if isinstance(entries, list):
            return [
                entry
                for entry_read in entries
                if (entry := _within_bounds(card, symbol, entry_read)) is not None
            ]
        if card.is_last_answer_empty:
            return []
    return None


def _within_bounds(card: NvmlCard, symbol: str, entry: ProcessEntry) -> ProcessEntry | None:
    """Return the entry without an implausible memory size; `None` if its pid is implausible."""
    if card.check_bounds(f"pid of {symbol}", entry.pid, bounds.PIDS) is None:
        return None
    limit = card.memory_bytes or bounds.MAX_BYTES
    size = card.check_bounds(f"memory of {symbol}", entry.memory_bytes, (0, limit))
    return entry if size == entry.memory_bytes else ProcessEntry(entry.pid, None, entry.slot)


def _entries(card: NvmlCard, symbol: str) -> list[ProcessEntry]:
    return [
        ProcessEntry(pid, size, None if gi == NO_INSTANCE else (gi, ci))
        for pid, size, gi, ci in read_processes(card.nvml, symbol, card.handle)
    ]


def join_processes(
    entries: Iterable[ProcessEntry],
    percents: Mapping[int, float] | None,
    slices: Mapping[MigSlot, str],
) -> tuple[ProcessSample, ...]:
    """Merge entries by pid and slice, with each pid's percent of the card's multiprocessors.

    A process may be in several lists with the same memory, so the maximum counts, not the sum. A
    process without a utilization sample used 0 %. `busy` is `None` if the driver reports no
    utilization, as for a card with MIG instances.
    """
    used: dict[tuple[int, str], int | None] = {}
    for entry in entries:
        part = slices.get(entry.slot, "") if entry.slot is not None else ""
        previous = used.get((entry.pid, part))
        size = entry.memory_bytes
        used[entry.pid, part] = size if previous is None else max(previous, size or 0)
    return tuple(
        ProcessSample(
            pid=pid,
            memory_bytes=used[pid, part],
            core_percent=None if percents is None or part else percents.get(pid, 0.0),
            partition=part,
        )
        for pid, part in sorted(used)
    )


def total_memory(processes: tuple[ProcessSample, ...] | None) -> int | None:
    """Return the memory of all processes; `None` if that of one process is unknown."""
    if processes is None or any(p.memory_bytes is None for p in processes):
        return None
    return sum(p.memory_bytes or 0 for p in processes)


def process_percent(card: NvmlCard, wall_s: float) -> dict[int, float] | None:
    """Return each process's newest multiprocessor utilization; `None` if it is unknown."""
    last = window_start_us(card, "processes", wall_s)
    samples = card.attempt(
        ("process utilisation",), lambda: read_process_utilization(card.nvml, card.handle, last)
    )
    if not isinstance(samples, tuple):
        return {} if card.is_last_answer_empty else None
    name, stamps = "nvmlDeviceGetProcessUtilization", (0, wall_s * 1e6 + bounds.MAX_AHEAD_US)
    plausible = [
        sample
        for sample in samples
        if card.check_bounds(name, sample[2], bounds.PERCENT) is not None
        and card.check_bounds("time stamp of a process", sample[1], stamps) is not None
    ]
    newest: dict[int, tuple[int, float]] = {}
    for pid, stamp, percent in plausible:
        if pid not in newest or stamp >= newest[pid][0]:
            newest[pid] = (stamp, float(percent))
    card.newest_stamps_us["processes"] = max((stamp for _, stamp, _ in plausible), default=last)
    return {pid: percent for pid, (_, percent) in newest.items()}
