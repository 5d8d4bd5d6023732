"""The status page of a node with 16 cards and 250 pods: CPU time, size, longest slice.

The limit is what any page of that size costs: its pieces are joined and encoded.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator

from agent.web.body import SlicedBody
from agent.web.page.document import StatusPage
from bench.counters import cpu_ms
from bench.harness import Row, compare
from tests.unit.web.busy_node import busy_snapshot
from tests.unit.web.view import StillView

CARDS, PODS = 16, 250
BUDGET_MS = 50
BUDGET_KB = 100  # 1000 bytes each
SLICE_BUDGET_MS = 15
REPEATS = 3  # pages a figure, so that the clock's tick does not matter


def _longest_slice_s(page: StatusPage) -> float:
    """Render the page in slices, as for a browser; return the seconds of the longest one."""
    longest_s = 0.0
    body = SlicedBody(lambda: (piece.encode() for piece in page.render()), compress=True)
    whole = None
    while whole is None:
        began_s = time.thread_time()
        whole = body.render_slice()
        longest_s = max(longest_s, time.thread_time() - began_s)
    return longest_s


def rows() -> Iterator[Row]:
    """Yield the CPU time, the size, the size as sent, and the longest slice of one page."""
    page = StatusPage(StillView(busy_snapshot(CARDS, pods=PODS)))
    pieces = list(page.render())
    size = len("".join(pieces).encode())
    sent = len(gzip.compress("".join(pieces).encode(), 1))

    def render() -> None:
        for _ in range(REPEATS):
            "".join(page.render())

    def join() -> None:
        for _ in range(REPEATS):
            "".join(pieces).encode()

    yield compare(
        "page",
        "cpu_ms",
        lambda: cpu_ms(render) / REPEATS,
        limit=lambda: cpu_ms(join) / REPEATS,
        gate=f"subject<={BUDGET_MS}",
    )
    yield compare("page_size", "kB", lambda: size / 1e3, gate=f"subject<={BUDGET_KB}", rounds=1)
    yield compare("page_size_gzip", "kB", lambda: sent / 1e3, rounds=1)
    yield compare(
        "page_longest_slice",
        "cpu_ms",
        lambda: 1e3 * _longest_slice_s(page),
        gate=f"subject<={SLICE_BUDGET_MS}",
    )
