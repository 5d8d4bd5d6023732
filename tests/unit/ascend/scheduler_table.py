"""A partition table as the real scheduler reads it, in Python: which row a pod gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Table = Mapping[str, Sequence[Row]]
WEIGHTS = {8: 10_000, 4: 100, 2: 1}
UNSUPPORTED = "node(s) Unsupported number of GPU requests"
INSUFFICIENT = "Insufficient Partitioned GPU Devices"


class NotPlaced(Exception):
    """The scheduler refuses the node; the text is what users see."""


def place(table: Table, count: int, used: frozenset[int], unhealthy: frozenset[int]) -> list[int]:
    """Return the minors that a pod of `count` whole devices gets under the policy Honor.

    `unhealthy` are devices that are not healthy. Groups of rows with one score are visited from the
    lowest score up, whatever the field's comment says; the first group that has a free row wins.
    """
    if str(count) not in table:
        raise NotPlaced(UNSUPPORTED)
    for group in _by_score(table[str(count)]):
        free = [row for row in group if not used & {*row["minors"]}]
        free = [row for row in free if not unhealthy & {*row["minors"]}]
        if free:
            return list(max(free, key=lambda row: _untouched(table, count, used, row))["minors"])
    raise NotPlaced(INSUFFICIENT)


def _by_score(rows: Sequence[Row]) -> list[list[Row]]:
    scores = sorted({row["allocationScore"] for row in rows})
    return [[row for row in rows if row["allocationScore"] == score] for score in scores]


def _untouched(table: Table, count: int, used: frozenset[int], chosen_row: Row) -> int:
    """Return what is left of larger rows once a row is taken: `max` keeps the first of equals."""
    occupied = used | {*chosen_row["minors"]}
    untouched = 0
    for size, weight in WEIGHTS.items():
        if size >= count and table.get(str(size)):
            for row in _by_score(table[str(size)])[0]:
                if not occupied & {*row["minors"]}:
                    untouched += weight * row["allocationScore"]
    return untouched
