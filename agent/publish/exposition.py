"""The exposition: from the snapshot to the bytes that Prometheus reads, in both of its formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.model.inventory import DeviceSample, MetricFamily
from agent.model.snapshot import NodeSnapshot
from agent.publish.families import FAMILIES, NODE, Family
from agent.publish.series.cluster import (
    CLUSTER_FAMILIES,
    SLO_STALE_S,
    ClusterStatus,
    cluster_series,
)
from agent.publish.series.containers import (
    CONTAINER_FAMILIES,
    ContainerStatus,
    container_series,
)
from agent.publish.series.devices import as_family, declared, device_series
from agent.publish.series.direct import direct_series
from agent.publish.series.groups import pod_series
from agent.publish.series.hami import hami_series
from agent.publish.series.hami_names import hami_families
from agent.publish.series.infiniband import infiniband_families, infiniband_series
from agent.publish.series.node import node_series
from agent.publish.series.own import own_series
from agent.publish.series.slo import SLO_FAMILIES, slo_series
from agent.publish.series.text import Key, Labels, Series, header
from agent.publish.status import PublisherStatus

MAX_AGE_S = 180.0  # values older than that are no longer exported; their age is


class MetricsRenderer:
    """Renders pages; keeps the label texts of the last one, so that the next costs less.

    Equal arguments give equal bytes whatever was rendered before. `render` may run on any thread,
    also on two at once.
    """

    def __init__(
        self,
        vendor_families: Mapping[str, Iterable[MetricFamily]],  # by vendor name
        *,
        pods: bool = True,
        aliases: tuple[str, ...] = (),
        max_age_s: float = MAX_AGE_S,
    ) -> None:
        found = declared(sorted(vendor_families.items()))
        self.refused = found.refused  # for people: families that cannot be exported, and why
        self.families: tuple[Family, ...] = (
            *FAMILIES,
            *SLO_FAMILIES,
            *CLUSTER_FAMILIES,
            *CONTAINER_FAMILIES,
            *(as_family(found.families[name]) for name in sorted(found.families)),
            *hami_families(aliases),
            *infiniband_families(aliases),
        )
        self._vendor_families = {name: found.families[name] for name in sorted(found.families)}
        self._headers = {
            openmetrics: {
                family.name: header(family, openmetrics=openmetrics) for family in self.families
            }
            for openmetrics in (False, True)
        }
        self._pods = pods
        self._aliases = aliases
        self._max_age_s = max_age_s
        self._labels: Mapping[Key, str] = {}

    def render(
        self,
        snapshot: NodeSnapshot,
        now_s: float,
        publishers: tuple[PublisherStatus, ...] = (),
        *,
        cluster: ClusterStatus | None = None,
        containers: ContainerStatus | None = None,
        own: bytes = b"",
        openmetrics: bool = False,
    ) -> bytes:
        """Return the whole page. `now_s` is monotonic; families without samples are left out.

        `own` are the families of the agent's own registry, in the same format.
        """
        labels = Labels(self._labels)
        headers = self._headers[openmetrics]
        out: list[str] = []
        for name, lines in self._series(snapshot, now_s, publishers, cluster, containers, labels):
            if lines:
                out.append(headers[name])
                out.append("".join(lines))  # at once: thousands of kept lines cost page faults
        self._labels = labels.used
        page = "".join(out).encode("utf-8", "replace")  # foreign text may hold lone surrogates
        return page + own + (b"# EOF\n" if openmetrics else b"")

    def _series(
        self,
        snapshot: NodeSnapshot,
        now_s: float,
        publishers: tuple[PublisherStatus, ...],
        cluster: ClusterStatus | None,
        containers: ContainerStatus | None,
        labels: Labels,
    ) -> Series:
        node = snapshot.node.name or "unknown"
        opened = labels.open(NODE, (node,))
        usage_is_fresh = self._fresh(snapshot.usage.age_s(now_s))
        samples: dict[str, DeviceSample] = {
            sample.key: sample
            for vendor in snapshot.vendors
            if self._fresh(vendor.samples.age_s(now_s))
            for sample in vendor.samples.value
        }
        devices = snapshot.devices.value.devices
        shared_is_fresh = self._fresh(snapshot.sharing.age_s(now_s))
        mps = snapshot.sharing.value.mps if shared_is_fresh else ()
        yield from own_series(snapshot, now_s, publishers, opened)
        yield from cluster_series(cluster, now_s, opened)
        yield from container_series(snapshot, containers, opened)
        slo_stale_s = SLO_STALE_S if cluster is None else cluster.slo_stale_s
        yield from slo_series(snapshot.cluster, now_s, slo_stale_s, opened)
        yield from node_series(snapshot, opened, usage_is_fresh=usage_is_fresh)
        yield from device_series(
            devices, snapshot.vendors, samples, self._vendor_families, labels, node, mps
        )
        yield from direct_series(snapshot.devices.value.direct, labels, node)
        if self._aliases:
            yield from hami_series(
                snapshot, samples, self._aliases, labels, sharing_is_fresh=shared_is_fresh
            )
            yield from infiniband_series(samples, self._aliases, labels)
        if self._pods and usage_is_fresh:
            yield from pod_series(snapshot.pods.value, snapshot.usage.value, node, labels)

    def _fresh(self, age_s: float | None) -> bool:
        return age_s is not None and age_s <= self._max_age_s


def render_metrics(
    snapshot: NodeSnapshot,
    now_s: float,
    *,
    vendor_families: Mapping[str, Iterable[MetricFamily]],
    pods: bool = True,
    aliases: tuple[str, ...] = (),
    openmetrics: bool = False,
) -> bytes:
    """Render one page without a renderer to keep, as a command does."""
    renderer = MetricsRenderer(vendor_families, pods=pods, aliases=aliases)
    return renderer.render(snapshot, now_s, openmetrics=openmetrics)
