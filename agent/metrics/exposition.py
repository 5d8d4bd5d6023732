"""Renders the snapshot in the two formats that Prometheus reads.

The number of series of pods in one family is bounded. The series that stay do not depend on
earlier pages or on values: they are the first ones in the order of their labels, which begin with
namespace and pod. So the same pods stay in every family and on every page. Series of devices are
never left out: a node has few, and alerts need them. Series of processes on devices are bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter

from agent.metrics.agent_series import agent_series, problem_series
from agent.metrics.alias_series import AliasSeries, alias_families, check_aliases
from agent.metrics.cluster_series import (
    CLUSTER_FAMILIES,
    SLO_FAMILIES,
    cluster_series,
    slo_series,
)
from agent.metrics.collector_series import (
    COLLECTOR_FAMILIES,
    collected_node_series,
    collected_pod_series,
    status_series,
)
from agent.metrics.container_series import CONTAINER_FAMILIES, container_series
from agent.metrics.cpu_pool_series import CPU_POOL_FAMILIES, SharedCpuCounter, cpu_pool_series
from agent.metrics.device_pods import DevicePodIndex
from agent.metrics.device_process_series import device_process_series
from agent.metrics.device_series import (
    check_families,
    device_series,
    export_family,
    gpudirect_series,
)
from agent.metrics.enforcement_series import (
    ENFORCEMENT_FAMILIES,
    enforcement_series,
    limit_series,
)
from agent.metrics.families import FAMILIES, NODE, PROCESS, ExportedFamily
from agent.metrics.hami import hami_families, hami_series
from agent.metrics.infiniband import infiniband_families, infiniband_series
from agent.metrics.koordlet import koordlet_families, koordlet_series
from agent.metrics.resctrl_series import RESCTRL_FAMILIES, resctrl_series
from agent.metrics.text_format import (
    LabelCache,
    LabelKey,
    SeriesLines,
    family_header,
    label_pairs,
    sample_line,
)
from agent.metrics.usage_series import application_series, node_series, pod_series
from agent.runbook.runbook import OWN_RUNBOOK, Runbook
from agent.snapshot.inventory import DeviceSample, MetricFamily
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.vendor import AliasTable

MAX_VALUE_AGE_S = 180.0  # older values are not exported; their age is
BLOCK_LINES = 320  # some 64 KB: memory for longer texts is mapped and unmapped each time
MAX_SERIES = 10_000  # of one family; 500 containers with all six pressures have 3,000
CUT_FAMILY = ExportedFamily(
    name="xpu_agent_metrics_cut_series",
    type="gauge",
    help="Series of pods, containers or processes that a family lacks: metrics.max_series is less.",
    labels=(*NODE, "family"),
)

_POD_LABELS = frozenset({"pod", "pod_uid", "pod_name", "podname"})  # ours and those of aliases
_DEVICE_LABELS = frozenset({"vendor", "minor"})
_PROCESS_LABELS = frozenset(PROCESS)
_RDMA_PREFIX = "xpu_rdma_"


class MetricsRenderer:
    """Renders pages; caches the label texts of the last page.

    Equal arguments give equal bytes, independent of earlier pages. `render` may run on any thread,
    also on two at the same time.
    """

    def __init__(
        self,
        vendor_families: Mapping[str, Iterable[MetricFamily]],  # by vendor name
        *,
        pods: bool = True,
        aliases: tuple[str, ...] = (),
        alias_tables: Iterable[AliasTable] = (),  # of vendors; `aliases` switches them on
        max_series: int = MAX_SERIES,
        max_age_s: float = MAX_VALUE_AGE_S,
        runbook: Runbook = OWN_RUNBOOK,
    ) -> None:
        check = check_families(sorted(vendor_families.items()))
        families: tuple[ExportedFamily, ...] = (
            *FAMILIES,
            *SLO_FAMILIES,
            *CLUSTER_FAMILIES,
            *CONTAINER_FAMILIES,
            *COLLECTOR_FAMILIES,
            *ENFORCEMENT_FAMILIES,
            *RESCTRL_FAMILIES,
            *CPU_POOL_FAMILIES,
            *(export_family(check.families[name]) for name in sorted(check.families)),
            *hami_families(aliases),
            *infiniband_families(aliases),
            *koordlet_families(aliases),
            CUT_FAMILY,
        )
        alias_check = check_aliases(
            [table for table in alias_tables if table.name in aliases],
            [family.name for family in families],
        )
        self.families = (*families, *alias_families(alias_check.tables))
        self._bounded = bounded_families(families)  # tables of vendors are about devices
        self._max_series = max_series
        # for people: families that cannot be exported, with the reason
        self.errors = (*check.errors, *alias_check.errors)
        self._vendor_families = {name: check.families[name] for name in sorted(check.families)}
        self._alias_tables = [
            AliasSeries(table, self._vendor_families) for table in alias_check.tables
        ]
        self._headers = {
            openmetrics: {
                family.name: family_header(family, openmetrics=openmetrics).encode(
                    "utf-8", "replace"
                )
                for family in self.families
            }
            for openmetrics in (False, True)
        }
        self._pods = pods
        self._aliases = aliases
        self._max_age_s = max_age_s
        self._runbook = runbook
        self._labels: Mapping[LabelKey, str] = {}
        self._device_pods = DevicePodIndex()
        self._shared_cpus = SharedCpuCounter()

    def render(
        self,
        snapshot: NodeSnapshot,
        now_s: float,
        *,
        openmetrics: bool = False,
    ) -> bytes:
        """Return the page. `now_s` is monotonic; families without samples are left out."""
        return b"".join(self.render_chunks(snapshot, now_s, openmetrics=openmetrics))

    def render_chunks(
        self,
        snapshot: NodeSnapshot,
        now_s: float,
        *,
        openmetrics: bool = False,
    ) -> Iterator[bytes]:
        """Yield the page in parts of a family: the caller may do other work between two."""
        labels = LabelCache(self._labels)
        for name, blocks in self._bounded_series(snapshot, now_s, labels):
            if blocks:
                yield self._headers[openmetrics][name]
            for block in blocks:
                yield block.encode("utf-8", "replace")  # text of others may have lone surrogates
        self._labels = labels.used
        if openmetrics:
            yield b"# EOF\n"

    def _bounded_series(
        self,
        snapshot: NodeSnapshot,
        now_s: float,
        labels: LabelCache,
    ) -> Iterator[tuple[str, list[str]]]:
        """Yield the families as blocks of lines; count the series of pods over `max_series` last.

        Lines are joined before the next ones are made: many small texts at a time would take
        memory that is mapped and unmapped for each family.
        """
        cut: dict[str, int] = {}
        series = self._series(snapshot, now_s, labels)
        for name, parts in groupby(series, key=itemgetter(0)):
            blocks: list[str] = []
            count = 0
            for _, lines in parts:
                count += len(lines)
                blocks += join_lines(lines)
            if count > self._max_series and name in self._bounded:
                cut[name] = count - self._max_series
                blocks = cut_series(blocks, self._max_series)
            yield name, blocks
        node = snapshot.node.name or "unknown"
        yield CUT_FAMILY.name, cut_lines(cut, labels.prefix(NODE, (node,)))

    def _series(
        self,
        snapshot: NodeSnapshot,
        now_s: float,
        labels: LabelCache,
    ) -> SeriesLines:
        node = snapshot.node.name or "unknown"
        label_prefix = labels.prefix(NODE, (node,))
        usage_is_fresh = self._is_fresh(snapshot.usage.age_s(now_s))
        samples: dict[str, DeviceSample] = {
            sample.key: sample
            for vendor in snapshot.vendors
            if self._is_fresh(vendor.samples.age_s(now_s))
            for sample in vendor.samples.value
        }
        shared_is_fresh = self._is_fresh(snapshot.sharing.age_s(now_s))
        mps = snapshot.sharing.value.mps if shared_is_fresh else ()
        yield from agent_series(snapshot, now_s, label_prefix)
        yield from problem_series(snapshot, self._runbook, now_s, label_prefix)
        yield from status_series(snapshot, label_prefix)
        yield from cluster_series(snapshot, now_s, label_prefix)
        yield from container_series(snapshot, label_prefix)
        yield from enforcement_series(snapshot, label_prefix)
        yield from resctrl_series(snapshot, label_prefix)
        yield from slo_series(snapshot, now_s, label_prefix)
        shared_cpus = self._shared_cpus.count(snapshot)
        yield from cpu_pool_series(shared_cpus, label_prefix)
        yield from node_series(snapshot, label_prefix, usage_is_fresh=usage_is_fresh)
        if usage_is_fresh:
            yield from application_series(snapshot.usage.value, node, labels)
            yield from collected_node_series(snapshot, label_prefix)
        pods = self._device_pods.find(snapshot, samples)
        yield from device_series(snapshot, samples, self._vendor_families, labels, pods, mps)
        if self._pods:
            devices = snapshot.devices.value.devices
            yield from device_process_series(devices, samples, labels, pods, node)
        yield from gpudirect_series(snapshot.devices.value.direct, labels, node)
        if self._aliases:
            yield from hami_series(
                snapshot, samples, self._aliases, labels, sharing_is_fresh=shared_is_fresh
            )
            yield from infiniband_series(samples, self._aliases, labels)
            yield from koordlet_series(
                snapshot, self._aliases, labels, shared_cpus, usage_is_fresh=usage_is_fresh
            )
            for table in self._alias_tables:
                yield from table.render(snapshot, samples, labels, pods)
        if self._pods and usage_is_fresh:
            yield from pod_series(snapshot.pods.value, snapshot.usage.value, node, labels)
            yield from collected_pod_series(snapshot, node, labels)
        if self._pods:
            yield from limit_series(snapshot, node, labels)

    def _is_fresh(self, age_s: float | None) -> bool:
        return age_s is not None and age_s <= self._max_age_s


def render_metrics(  # noqa: PLR0913 - the settings of a renderer
    snapshot: NodeSnapshot,
    now_s: float,
    *,
    vendor_families: Mapping[str, Iterable[MetricFamily]],
    pods: bool = True,
    aliases: tuple[str, ...] = (),
    alias_tables: Iterable[AliasTable] = (),
    max_series: int = MAX_SERIES,
    openmetrics: bool = False,
    runbook: Runbook = OWN_RUNBOOK,
) -> bytes:
    """Render one page without a lasting renderer, for commands."""
    renderer = MetricsRenderer(
        vendor_families,
        pods=pods,
        aliases=aliases,
        alias_tables=alias_tables,
        max_series=max_series,
        runbook=runbook,
    )
    return renderer.render(snapshot, now_s, openmetrics=openmetrics)


def bounded_families(families: Iterable[ExportedFamily]) -> frozenset[str]:
    """Return the names of families about pods and containers, also of those in aliases."""
    families = tuple(families)
    about_devices = {
        family.name
        for family in families
        if (_DEVICE_LABELS.issubset(family.labels) and not _PROCESS_LABELS.issubset(family.labels))
        or family.name.startswith(_RDMA_PREFIX)
    }
    return frozenset(
        family.name
        for family in families
        if family.name not in about_devices
        and family.alias_of not in about_devices
        and not _POD_LABELS.isdisjoint(family.labels)
    )


def join_lines(lines: list[str]) -> list[str]:
    """Return the lines in blocks of at most `BLOCK_LINES`."""
    return [
        "".join(lines[first : first + BLOCK_LINES]) for first in range(0, len(lines), BLOCK_LINES)
    ]


def cut_series(blocks: list[str], max_series: int) -> list[str]:
    """Return the lines that stay of a family's samples, in blocks."""
    lines = [f"{line}\n" for line in "".join(blocks).split("\n") if line]
    return join_lines(sorted(lines)[:max_series])


def cut_lines(cut: Mapping[str, int], label_prefix: str) -> list[str]:
    """Return the samples of `CUT_FAMILY`; `cut` has numbers of series by family."""
    return [
        sample_line(CUT_FAMILY.name, label_prefix, count, label_pairs(("family",), (name,)))
        for name, count in sorted(cut.items())
    ]
