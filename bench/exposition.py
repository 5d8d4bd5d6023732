"""A page of 7,500 samples, and one with 3,000 more of aliases, as a scraper gets them.

The peer is prometheus-client with the same samples, the limit the bare join of the lines. A page
is rendered in slices on the collector thread; a usage cycle waits for one slice at most.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agent.metrics.exposition import MetricsRenderer
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.usage import SharedCard, SharedRegion, SharingView
from agent.web.body import SlicedBody
from bench.counters import cost, cost_metric, cpu_ms
from bench.harness import Row, compare
from tests.factory import NOW_S, gpu, nic, pod, snapshot

SAMPLES, ALIAS_SAMPLES = 7500, 3000
PODS = 97
CONTAINERS = 3
CARDS, NICS = 8, 4
SHARING_PODS = 24  # of which each container has a share of a card
REPEATS = 5  # pages a figure, so that the clock's tick does not matter
BUDGET_MS = 15
SLICE_BUDGET_MS = 10
ALIASES = ("hami", "hami_legacy", "koordlet", "node_exporter")


def busy_snapshot() -> NodeSnapshot:
    """Return a node with pods, devices, and cards that containers share."""
    pods = tuple(pod(index, CONTAINERS) for index in range(PODS))
    devices = (*(gpu(index) for index in range(CARDS)), *(nic(index) for index in range(NICS)))
    base = snapshot(devices, pods)
    regions = tuple(
        SharedRegion(
            pod_uid=one.uid,
            container=container.name,
            layout="A",
            cards=(SharedCard(index=0, uuid=gpu(index % CARDS).info.uuid or "", used_bytes=index),),
        )
        for index, one in enumerate(pods[:SHARING_PODS])
        for container in one.containers
    )
    sharing = SnapshotPart(SharingView(regions=regions), NOW_S)
    return msgspec.structs.replace(base, sharing=sharing)


def _registry(page: bytes) -> CollectorRegistry:
    """Fill a registry of prometheus-client with the page's samples, each child made beforehand."""
    registry = CollectorRegistry()
    for family in text_string_to_metric_families(page.decode()):
        names = sorted({name for sample in family.samples for name in sample.labels})
        gauge = Gauge(family.name, family.documentation, names, registry=registry)
        for sample in family.samples:
            gauge.labels(**{name: sample.labels.get(name, "") for name in names}).set(sample.value)
    return registry


def _page(renderer: MetricsRenderer, node: NodeSnapshot, samples: int) -> bytes:
    page = renderer.render(node, NOW_S)
    count = sum(1 for line in page.splitlines() if not line.startswith(b"#"))
    if count < samples:
        raise AssertionError(f"the page has {count} samples, fewer than {samples}")
    return page


def _cost_row(name: str, renderer: MetricsRenderer, node: NodeSnapshot, samples: int) -> Row:
    page = _page(renderer, node, samples)
    registry, lines = _registry(page), page.splitlines(keepends=True)
    return compare(
        name,
        cost_metric(),
        lambda: cost(lambda: renderer.render(node, NOW_S)),
        peer=lambda: cost(lambda: generate_latest(registry)),
        limit=lambda: cost(lambda: b"".join(lines)),
        gate="ratio_peer<=0.125",
    )


def _scrape(
    renderer: MetricsRenderer, node: NodeSnapshot, *, openmetrics: bool, compress: bool
) -> float:
    """Render a page in slices, as for a scraper; return the seconds of the longest slice."""
    longest_s = 0.0
    body = SlicedBody(
        lambda: renderer.render_chunks(node, NOW_S, openmetrics=openmetrics), compress=compress
    )
    whole = None
    while whole is None:
        began_s = time.thread_time()
        whole = body.render_slice()
        longest_s = max(longest_s, time.thread_time() - began_s)
    return longest_s


def _page_row(
    name: str, renderer: MetricsRenderer, node: NodeSnapshot, *, openmetrics: bool, compress: bool
) -> Row:
    def scrapes() -> None:
        for _ in range(REPEATS):
            _scrape(renderer, node, openmetrics=openmetrics, compress=compress)

    return compare(name, "cpu_ms", lambda: cpu_ms(scrapes) / REPEATS, gate=f"subject<={BUDGET_MS}")


def rows() -> Iterator[Row]:
    """Yield what pages cost, their CPU time against the budget of one page, the longest slice."""
    pods = tuple(pod(index, CONTAINERS) for index in range(PODS))
    yield _cost_row("exposition", MetricsRenderer({}), snapshot(pods=pods), SAMPLES)
    node, renderer = busy_snapshot(), MetricsRenderer({}, aliases=ALIASES)
    yield _cost_row("exposition_aliases", renderer, node, SAMPLES + ALIAS_SAMPLES)
    for name, openmetrics, compress in (
        ("exposition_page", False, False),
        ("exposition_page_openmetrics", True, False),
        ("exposition_page_gzip", False, True),
    ):
        yield _page_row(name, renderer, node, openmetrics=openmetrics, compress=compress)
    yield compare(
        "exposition_longest_slice",
        "cpu_ms",
        lambda: 1e3 * _scrape(renderer, node, openmetrics=True, compress=True),
        gate=f"subject<={SLICE_BUDGET_MS}",
    )
