"""Every family that the agent may export, with all aliases, as the tools of Prometheus see it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from prometheus_client.openmetrics import parser as openmetrics_parser

from agent.cli.reference import exported_families
from agent.metrics.exposition import MetricsRenderer
from agent.metrics.families import ExportedFamily
from agent.metrics.text_format import family_header
from tests.factory import NOW_S, pod, snapshot
from tests.prometheus.promtool import OWN_PREFIXES, is_about_name, lint, needs_promtool
from tests.unit.metrics.test_exposition import VENDORS

FAMILIES = exported_families()


def page_of(families: Iterable[ExportedFamily], *, openmetrics: bool) -> str:
    """Return a page with a sample of each family, all of its labels told."""
    chunks = []
    for family in families:
        chunks.append(family_header(family, openmetrics=openmetrics))
        labels = ",".join(f'{name}="x"' for name in family.labels)
        if family.type != "histogram":
            chunks.append(f"{family.name}{{{labels}}} 1\n")
            continue
        comma = "," if labels else ""
        chunks.append(f'{family.name}_bucket{{{labels}{comma}le="+Inf"}} 1\n')
        chunks += [f"{family.name}_{part}{{{labels}}} 1\n" for part in ("sum", "count")]
    return "".join(chunks) + ("# EOF\n" if openmetrics else "")


@needs_promtool
def test_promtool_finds_nothing_in_our_names_and_only_names_in_those_of_others() -> None:
    result = lint(page_of(FAMILIES, openmetrics=False))
    own = {one[0] for one in result if one[0].startswith(OWN_PREFIXES)}
    assert own == {"xpu_rdma_counter_saturated"}  # it is about counters, and has the kernel's word
    assert [one for one in result if not is_about_name(one[1])] == []


@needs_promtool
@pytest.mark.parametrize("alias", ["", "hami", "koordlet", "node_exporter"])
def test_promtool_finds_nothing_in_a_page_with_an_alias(alias: str) -> None:
    renderer = MetricsRenderer(VENDORS, aliases=(alias,))
    snap = snapshot(pods=tuple(pod(i, containers=2) for i in range(3)))
    assert lint(renderer.render(snap, NOW_S).decode()) == []


def test_every_family_is_valid_openmetrics_with_its_own_name() -> None:
    page = page_of(FAMILIES, openmetrics=True)
    families = list(openmetrics_parser.text_string_to_metric_families(page))  # type: ignore[no-untyped-call]
    assert len(families) == len(FAMILIES)
    assert {sample.name for family in families for sample in family.samples} >= {
        family.name for family in FAMILIES if family.type != "histogram"
    }


def test_counters_end_in_total_and_no_family_has_a_time_of_creation() -> None:
    for family in FAMILIES:
        if family.name.startswith(OWN_PREFIXES):
            assert (family.type == "counter") == family.name.endswith("_total"), family.name
        assert not family.name.endswith("_created")
