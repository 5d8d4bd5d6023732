"""Six hours without an API server on a simulated clock, and what comes after.

The watches, writers, events and the kubelet's pods of the agent itself, against a store with the
rules of the tests' API server; see `tests.whole.outage`.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness import Row
from tests.whole.outage import outage

HOURS = 6.0
GROWTH_BYTES = 5 << 20


def rows() -> Iterator[Row]:
    """Yield what was lost, what was asked and written after it, and the growth of memory."""
    result = outage(HOURS, traced=True)
    yield Row(name="outage_lost", metric="grants", subject=len(result.lost), gate="subject<=0")
    for name, count in result.lists.items():
        gate = "subject<=1,subject>=1"
        yield Row(name=f"outage_lists_{name}", metric="lists", subject=count, gate=gate)
    for name, count in result.writes.items():
        gate = "subject<=1,subject>=1"
        yield Row(name=f"outage_writes_{name}", metric="writes", subject=count, gate=gate)
    tries = result.tries / HOURS / 60
    yield Row(name="outage_tries", metric="per_min", subject=tries, gate="subject<=40")
    yield Row(
        name="outage_growth",
        metric="bytes",
        subject=result.growth_bytes,
        gate=f"subject<={GROWTH_BYTES}",
    )
