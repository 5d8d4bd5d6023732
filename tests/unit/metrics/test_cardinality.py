from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from agent.config.sources import decode_settings
from agent.metrics.exposition import (
    MAX_SERIES,
    MetricsRenderer,
    bounded_families,
    render_metrics,
)
from agent.metrics.families import FAMILIES
from agent.metrics.usage_series import PART_LINES
from agent.snapshot.node import NodeSnapshot
from agent.workers.load import load_vendors
from tests.factory import NOW_S, gpu, pod, snapshot
from tests.unit.metrics.test_exposition import VENDORS, Values, value, values

PODS = tuple(pod(i, containers=2) for i in range(10, 30))  # names of equal length: in order
ALIASES = ("hami", "hami_legacy", "koordlet")


def page(snap: NodeSnapshot, max_series: int) -> str:
    renderer = MetricsRenderer(VENDORS, aliases=ALIASES, max_series=max_series)
    return renderer.render(snap, NOW_S).decode()


def pods_of(result: Values, family: str) -> set[str]:
    return {dict(pairs)["pod"] for name, pairs in result if name == family}


def test_a_family_over_the_bound_keeps_that_many_series_and_says_what_it_lacks() -> None:
    text = page(snapshot(pods=PODS), 15)
    result = values(text)
    counts: dict[str, int] = {}
    for name, _ in result:
        counts[name] = counts.get(name, 0) + 1
    whole = values(page(snapshot(pods=PODS), MAX_SERIES))
    assert counts["xpu_pod_cpu_usage_cores"] == 15
    assert value(text, "xpu_agent_metrics_cut_series", family="xpu_pod_cpu_usage_cores") == 5
    assert value(text, "xpu_agent_metrics_cut_series", family="koordlet_container_psi") == (
        sum(1 for name, _ in whole if name == "koordlet_container_psi") - 15
    )
    left_out = sum(v for (name, _), v in result.items() if name == "xpu_agent_metrics_cut_series")
    assert len(whole) - left_out == len(result) - counts["xpu_agent_metrics_cut_series"]
    assert result.items() <= {**whole, **_cuts(result)}.items()


def _cuts(result: Values) -> Values:
    return {key: v for key, v in result.items() if key[0] == "xpu_agent_metrics_cut_series"}


def test_nothing_is_cut_and_nothing_counted_within_the_bound() -> None:
    assert "xpu_agent_metrics_cut_series" not in page(snapshot(pods=PODS), 12 * len(PODS))


def test_the_bound_counts_all_parts_of_a_family() -> None:
    pods = tuple(pod(index) for index in range(PART_LINES + 20))
    text = page(snapshot(pods=pods), PART_LINES)
    assert len(pods_of(values(text), "xpu_pod_cpu_usage_cores")) == PART_LINES
    assert value(text, "xpu_agent_metrics_cut_series", family="xpu_pod_cpu_usage_cores") == 20


def test_the_same_pods_stay_whatever_their_order_their_values_and_the_family() -> None:
    first = {one.name for one in PODS[:5]}
    base = snapshot(pods=PODS)
    shuffled = list(PODS)
    random.Random(1).shuffle(shuffled)
    use = dict(base.usage.value.pods)
    busy = replace(base.usage.value, pods={uid: use[uid] for uid in reversed(use)})
    for snap in (
        base,
        replace(base, pods=replace(base.pods, value=tuple(shuffled))),
        replace(base, usage=replace(base.usage, value=busy)),
    ):
        result = values(page(snap, 5))
        assert pods_of(result, "xpu_pod_cpu_usage_cores") == first
        assert pods_of(result, "xpu_pod_memory_used_bytes") == first
        assert pods_of(result, "xpu_container_memory_used_bytes") < first
        assert pods_of(result, "xpu_pod_pressure_ratio") < first


def test_series_of_devices_are_never_cut() -> None:
    text = page(snapshot((gpu(0), gpu(1)), pods=PODS), 1)
    for minor in ("0", "1"):
        assert value(text, "xpu_device_healthy", minor=minor) == 1
        assert value(text, "xpu_device_health_state", minor=minor, state="healthy") == 1
    assert value(text, "xpu_agent_metrics_cut_series", family="xpu_device_healthy") is None


def test_families_of_pods_are_bounded_and_those_of_devices_and_the_node_are_not() -> None:
    bounded = bounded_families(MetricsRenderer(VENDORS, aliases=ALIASES).families)
    scopes = ("xpu_pod_", "xpu_container_")
    assert {f.name for f in FAMILIES if f.name.startswith(scopes)} <= bounded
    assert {"koordlet_container_psi", "koordlet_pod_psi", "hami_vgpu_memory_used_bytes"} <= bounded
    assert "vGPU_device_memory_usage_in_bytes" in bounded
    processes = {name for name in bounded if name.startswith("xpu_device_process_")}
    assert len(processes) == 4
    prefixes = {name.split("_")[1] for name in bounded - processes if name.startswith("xpu_")}
    assert prefixes == {"pod", "container", "agent"}  # the agent's checks of pods


def test_names_of_other_exporters_of_devices_are_not_bounded() -> None:
    tables = [table for vendor in load_vendors().values() for table in vendor.description.aliases]
    names = tuple(table.name for table in tables)
    renderer = MetricsRenderer(VENDORS, aliases=(*ALIASES, *names), alias_tables=tables)
    assert "dcgm" in names
    assert renderer._bounded == bounded_families(MetricsRenderer(VENDORS, aliases=ALIASES).families)
    assert "DCGM_FI_DEV_GPU_UTIL" not in renderer._bounded


def test_the_bound_is_a_setting_and_holds_for_commands() -> None:
    assert decode_settings({}).metrics.max_series == MAX_SERIES
    assert decode_settings({"metrics": {"max_series": 3}}).metrics.max_series == 3
    text = render_metrics(
        snapshot(pods=PODS), NOW_S, vendor_families=VENDORS, max_series=3
    ).decode()
    assert len(pods_of(values(text), "xpu_pod_cpu_usage_cores")) == 3


@pytest.mark.parametrize("pods", [0, 3])
def test_both_formats_count_what_was_cut(pods: int) -> None:
    snap = snapshot(pods=PODS[:pods])
    renderer = MetricsRenderer(VENDORS, max_series=1)
    text = values(renderer.render(snap, NOW_S).decode())
    openmetrics = renderer.render(snap, NOW_S, openmetrics=True).decode()
    assert values(openmetrics, openmetrics=True) == text
