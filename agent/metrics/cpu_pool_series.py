"""Series of the CPUs that several pods share, of which koordlet has two gauges as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent.allocation.cpus import CpuPool, node_cpus
from agent.metrics.families import NODE, ExportedFamily
from agent.metrics.text_format import SeriesLines, label_pairs, sample_line
from agent.snapshot.node import NodeSnapshot, SnapshotMemo

SHARED_CPUS = "xpu_node_shared_cpus"
LATENCY_SENSITIVE, BEST_EFFORT = "ls", "be"
CPU_POOL_FAMILIES: tuple[ExportedFamily, ...] = (
    ExportedFamily(
        name=SHARED_CPUS,
        type="gauge",
        help="CPUs that pods without CPUs of their own share: ls or be, for best-effort pods.",
        labels=(*NODE, "pool"),
        stability="alpha",
    ),
)


class SharedCpuCounter:
    """Counts shared CPUs, again only if a fact that they are computed from is another one."""

    def __init__(self) -> None:
        self._memo = SnapshotMemo(_facts, _count_cpus)

    def count(self, snapshot: NodeSnapshot) -> Mapping[str, int]:
        """Return the number of CPUs by pool; empty until their owners are known."""
        return self._memo(snapshot)


def cpu_pool_series(counts: Mapping[str, int], label_prefix: str) -> SeriesLines:
    """Yield the family; `counts` are by pool."""
    yield SHARED_CPUS, list(_lines(counts, label_prefix))


def _lines(counts: Mapping[str, int], label_prefix: str) -> Iterator[str]:
    for pool, count in counts.items():
        yield sample_line(SHARED_CPUS, label_prefix, count, label_pairs(("pool",), (pool,)))


def _facts(snapshot: NodeSnapshot) -> tuple[object, ...]:
    cluster = snapshot.cluster
    return (
        snapshot.cpus.value,
        snapshot.pods.value,
        snapshot.pods.taken_s is None,
        cluster.is_clustered,
        cluster.node.value,
        cluster.kubelet.value,
    )


def _count_cpus(snapshot: NodeSnapshot) -> Mapping[str, int]:
    pools = node_cpus(snapshot, reads_kubelet=True).pools if snapshot.cpus.value.cpus else None
    if pools is None:
        return {}
    return {LATENCY_SENSITIVE: _size(pools.ls), BEST_EFFORT: _size(pools.be)}


def _size(pools: tuple[CpuPool, ...]) -> int:
    return sum(len(pool.cpus) for pool in pools)
