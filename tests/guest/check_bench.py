"""The cost of reading real groups of version 2."""

from __future__ import annotations

from bench.harness import Row


def test_a_cycle_costs_little_more_than_the_least_that_reads_the_same(rows: list[Row]) -> None:
    assert len(rows) == 2
    assert [str(row) for row in rows if not row.passed] == []
