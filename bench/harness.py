"""Rows of figures: subject, peer and limit taken in turn in one run, medians, gates on ratios.

A bench module has `rows() -> Iterator[Row]` and makes each row with `compare`. A figure is what
one call of `subject`, `peer` or `limit` returns (see `bench.counters`); the three are called in
turn, so that a drift of the machine's speed meets all of them. A gate is a text such as
`ratio_limit<=1.5`, `ratio_peer<=0.25` or `subject<=300`, several joined by `,`; empty: no gate.
"""

from __future__ import annotations

import operator
import re
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Figure = Callable[[], float]

_GATE = re.compile(r"(subject|ratio_peer|ratio_limit)(<=|>=)([0-9.]+)")
_COMPARE = {"<=": operator.le, ">=": operator.ge}
HEADER = "name metric subject peer limit ratio_peer ratio_limit gate verdict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a run; ratios are subject to peer and subject to limit."""

    name: str
    metric: str
    subject: float
    peer: float | None = None
    limit: float | None = None
    gate: str = ""

    @property
    def ratio_peer(self) -> float | None:
        """Below 1: the subject is cheaper than the peer."""
        return self.subject / self.peer if self.peer else None

    @property
    def ratio_limit(self) -> float | None:
        """1 is as good as can be."""
        return self.subject / self.limit if self.limit else None

    @property
    def passed(self) -> bool:
        """Say whether every part of the gate holds; a part without its figure does not."""
        for part in filter(None, self.gate.split(",")):
            match = _GATE.fullmatch(part)
            if match is None:
                raise ValueError(f"gate {part!r} of {self.name} is no gate")
            value = getattr(self, match[1])
            if value is None or not _COMPARE[match[2]](value, float(match[3])):
                return False
        return True

    def __str__(self) -> str:
        cells = [self.name, self.metric]
        cells += [_number(v) for v in (self.subject, self.peer, self.limit)]
        cells += [_number(v) for v in (self.ratio_peer, self.ratio_limit)]
        verdict = ("PASS" if self.passed else "FAIL") if self.gate else "-"
        return " ".join([*cells, self.gate or "-", verdict])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if abs(value) < 1e6 else f"{value:.4e}"


def compare(
    name: str,
    metric: str,
    subject: Figure,
    *,
    peer: Figure | None = None,
    limit: Figure | None = None,
    gate: str = "",
    rounds: int = 7,
) -> Row:
    """Warm each figure up once, then take them in turn `rounds` times; return the medians."""
    figures = [figure for figure in (subject, peer, limit) if figure is not None]
    chosen: list[list[float]] = [[] for _ in figures]
    for figure in figures:
        figure()
    for _ in range(rounds):
        for values, figure in zip(chosen, figures, strict=True):
            values.append(figure())
    medians = iter([statistics.median(values) for values in chosen])
    return Row(
        name=name,
        metric=metric,
        subject=next(medians),
        peer=next(medians) if peer else None,
        limit=next(medians) if limit else None,
        gate=gate,
    )


def report(rows: Iterator[Row]) -> bool:
    """Print the rows as they come; return whether all gates hold."""
    print(HEADER, flush=True)
    good = True
    for row in rows:
        print(row, flush=True)
        good = good and row.passed
    return good
