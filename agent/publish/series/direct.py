"""GPUDirect RDMA as series: one for each GPU and NIC of which somebody can tell."""

from __future__ import annotations

from agent.model.snapshot import DirectPair
from agent.publish.series.text import Labels, Series, line

NAME = "xpu_gpudirect_ready"
LABELS = ("node", "gpu", "rdma")
OK, UNKNOWN = "ok", "unknown"


def direct_series(pairs: tuple[DirectPair, ...], labels: Labels, node: str) -> Series:
    """Yield 1 for a pair that is ready and 0 for one that is slow or cannot; else nothing."""
    yield (
        NAME,
        [
            line(NAME, labels.open(LABELS, (node, pair.gpu, pair.nic)), int(pair.verdict == OK))
            for pair in pairs
            if pair.verdict != UNKNOWN
        ],
    )
