"""A page of 7,500 samples: ours, prometheus-client's with the same samples, and the bare join."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agent.metrics.exposition import MetricsRenderer
from bench.counters import cost, cost_metric, cpu_ms
from bench.harness import Row, compare
from tests.factory import NOW_S, pod, snapshot

SAMPLES = 7500
PODS = 97
CONTAINERS = 3
REPEATS = 5  # pages a figure, so that the clock's tick does not matter
BUDGET_MS = 15


def _registry(page: bytes) -> CollectorRegistry:
    """Fill a registry of prometheus-client with the page's samples, each child made beforehand."""
    registry = CollectorRegistry()
    for family in text_string_to_metric_families(page.decode()):
        names = sorted({name for sample in family.samples for name in sample.labels})
        gauge = Gauge(family.name, family.documentation, names, registry=registry)
        for sample in family.samples:
            gauge.labels(**{name: sample.labels.get(name, "") for name in names}).set(sample.value)
    return registry


def rows() -> Iterator[Row]:
    """Yield what a page costs, and its CPU time against the budget of one page."""
    picture = snapshot(pods=tuple(pod(i, CONTAINERS) for i in range(PODS)))
    renderer = MetricsRenderer({})
    page = renderer.render(picture, NOW_S)
    lines = page.splitlines(keepends=True)
    count = sum(1 for text in lines if not text.startswith(b"#"))
    if count < SAMPLES:
        raise AssertionError(f"the page has {count} samples, fewer than {SAMPLES}")
    registry = _registry(page)
    yield compare(
        "exposition",
        cost_metric(),
        lambda: cost(lambda: renderer.render(picture, NOW_S)),
        peer=lambda: cost(lambda: generate_latest(registry)),
        limit=lambda: cost(lambda: b"".join(lines)),
        gate="ratio_peer<=0.1",
    )
    yield compare(
        "exposition_page",
        "cpu_ms",
        lambda: cpu_ms(lambda: [renderer.render(picture, NOW_S) for _ in range(REPEATS)]) / REPEATS,
        gate=f"subject<={BUDGET_MS}",
    )
