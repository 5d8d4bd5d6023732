"""The bound on series of pods in one family, and the metric of what it left out.

The series that stay do not depend on earlier pages or on values: they are the first ones in the
order of their labels, which begin with namespace and pod. So the same pods stay in every family
and on every page. Series of devices are never left out: a node has few, and alerts need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.metrics.families import NODE, ExportedFamily
from agent.metrics.text_format import label_pairs, sample_line

MAX_SERIES = 10_000  # of one family; 500 containers with all six pressures have 3,000
CUT_FAMILY = ExportedFamily(
    name="xpu_agent_metrics_cut_series",
    type="gauge",
    help="Series of pods and containers that a family lacks because metrics.max_series bounds it.",
    labels=(*NODE, "family"),
)

_POD_LABELS = frozenset({"pod", "pod_uid", "pod_name", "podname"})  # ours and those of aliases
_DEVICE_LABELS = frozenset({"vendor", "minor"})
_RDMA_PREFIX = "xpu_rdma_"


def bounded_families(families: Iterable[ExportedFamily]) -> frozenset[str]:
    """Return the names of families about pods and containers, also of those in aliases."""
    families = tuple(families)
    about_devices = {
        family.name
        for family in families
        if _DEVICE_LABELS.issubset(family.labels) or family.name.startswith(_RDMA_PREFIX)
    }
    return frozenset(
        family.name
        for family in families
        if family.name not in about_devices
        and family.alias_of not in about_devices
        and not _POD_LABELS.isdisjoint(family.labels)
    )


def cut_series(lines: list[str], max_series: int) -> list[str]:
    """Return the lines that stay of a family's samples."""
    return sorted(lines)[:max_series]


def cut_lines(cut: Mapping[str, int], label_prefix: str) -> list[str]:
    """Return the samples of `CUT_FAMILY`; `cut` has numbers of series by family."""
    return [
        sample_line(CUT_FAMILY.name, label_prefix, count, label_pairs(("family",), (name,)))
        for name, count in sorted(cut.items())
    ]
