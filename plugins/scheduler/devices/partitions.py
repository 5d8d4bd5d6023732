"""Chooses a published group of GPUs: the best score, then the least fragmentation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

from plugins.scheduler.devices.device_table import Partition, PartitionTable

# what an untouched partition of a size counts for, the larger ones first
_SIZE_WEIGHTS = ((8, 10000), (4, 100), (2, 1))


def choose_partition(
    table: PartitionTable,
    size: int,
    is_usable: Callable[[int], bool],
    is_untouched: Callable[[int], bool],
    *,
    bandwidth: int | None = None,
    best_score_only: bool = False,
    lowest_score_first: bool = False,
) -> Partition | None:
    """Return the best free partition; `None` if none is free.

    A partition is free if all its minors are usable, and untouched if no pod uses any of them, sick
    devices included. Those of the best score are tried first; with
    `best_score_only` no others are. `bandwidth` is the least ring bandwidth. Koordinator tries
    the lowest score first (`lowest_score_first`), against the comment in its own API.
    """
    ordered = sorted(table.get(size, ()), key=lambda one: one.score, reverse=not lowest_score_first)
    for _, of_score in groupby(ordered, key=lambda one: one.score):
        free = [one for one in of_score if _is_free(one, is_usable, bandwidth)]
        if free:
            return max(free, key=lambda one: _untouched_weight(table, size, one, is_untouched))
        if best_score_only:
            return None
    return None


def _is_free(partition: Partition, is_usable: Callable[[int], bool], bandwidth: int | None) -> bool:
    if bandwidth is not None and (partition.ring_bandwidth or 0) < bandwidth:
        return False
    return all(map(is_usable, partition.minors))


def _untouched_weight(
    table: PartitionTable, size: int, taken: Partition, is_untouched: Callable[[int], bool]
) -> int:
    """Return the weight of the partitions that stay free if one is taken."""
    return sum(
        weight * one.score
        for at_least, weight in _SIZE_WEIGHTS
        if at_least >= size
        for one in _best_scored(table, at_least)
        if all(minor not in taken.minors and is_untouched(minor) for minor in one.minors)
    )


def _best_scored(table: PartitionTable, size: int) -> Iterator[Partition]:
    partitions = table.get(size, ())
    best = max((partition.score for partition in partitions), default=0)
    return (partition for partition in partitions if partition.score == best)
