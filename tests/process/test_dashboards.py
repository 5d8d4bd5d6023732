"""A real Prometheus that scrapes a small fleet has data for every panel of every dashboard."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.prometheus.fleet import WITH_FAILED_CHIP, run_fleet
from tests.prometheus.observed import (
    TARGET_LABELS,
    PanelQuery,
    fill_variables,
    panel_queries,
    records,
)
from tests.prometheus.preview import write_pages
from tests.prometheus.promql import parse
from tests.prometheus.server import PAUSE_S, Prometheus, needs_prometheus
from tests.realgroups import needs_v1

INTERVAL = "10s"  # of rates; targets are scraped each second
_PREDICTION = "predictions need minutes of samples"
_RESCTRL = "this machine has no resctrl"
_PRESSURE = "pressure in cgroups needs version 2 or a kernel with both"
# queries that have no data on these hosts, by panel
WITHOUT_DATA = {
    "agent / Collectors and publishers that fail / B": "all objects are written",
    "colocation / CPU for mid-tier pods / A": _PREDICTION,
    "colocation / CPU that production leaves / A": _PREDICTION,
    "colocation / Memory that production leaves / A": _PREDICTION,
    "colocation / Peak of production's CPU / A": _PREDICTION,
    "colocation / Pods that are predicted / A": _PREDICTION,
    "colocation / CPU for best-effort pods / C": "the NodeSLO asks for a quota, not for CPUs",
    "colocation / CPU taken away because other pods wait / A": _PRESSURE,
    "colocation / CPU taken away because other pods wait / B": _PRESSURE,
    "colocation / CPU limits that burst has raised / A": "no container is throttled",
    "colocation / Cycles for an instruction / A": "counters of hardware are not counted here",
    "colocation / Cache by group of resctrl / A": _RESCTRL,
    "colocation / Memory bandwidth by group of resctrl / A": _RESCTRL,
    "colocation / Groups of resctrl / B": _RESCTRL,
    "colocation / Groups of resctrl / C": _RESCTRL,
    "colocation / Writes that the kernel refused / A": "the kernel takes every value",
    "devices / Error numbers of drivers / B": "no card of Cambricon reports a fault",
    "devices / GPUs and NICs that exchange data without the host's memory / A": (
        "no recorded host has a GPU and a NIC of hardware"
    ),
    "node / Pods with the most disk traffic / A": "block IO is in no group of the fleet",
}


def test_what_may_lack_data_is_a_query_of_a_panel() -> None:
    assert WITHOUT_DATA.keys() <= {str(query) for query in panel_queries()}


def wait_for_data(server: Prometheus) -> list[str]:
    """Query until all that must have data have it; return the places of those that have none."""
    waiting = list(panel_queries())
    until_s = time.monotonic() + PATIENCE_S
    while True:
        waiting = [query for query in waiting if not answer(server, query)]
        missing = [str(query) for query in waiting if str(query) not in WITHOUT_DATA]
        if not missing or time.monotonic() > until_s:
            return missing
        time.sleep(PAUSE_S)


def answer(server: Prometheus, query: PanelQuery) -> bool:
    return bool(server.query(fill_variables(query.expression, INTERVAL)))


def labels_of(server: Prometheus, metric: str) -> set[str]:
    """Return the labels of all series of a metric."""
    return set().union(*server.api("series", **{"match[]": metric}))


def find_foreign_labels(server: Prometheus) -> list[tuple[str, str]]:
    """Return the labels in queries that no series of their metrics has."""
    foreign = []
    for query in panel_queries():
        if str(query) in WITHOUT_DATA:
            continue
        parsed = parse(fill_variables(query.expression))
        present = {*TARGET_LABELS, "namespace"}  # a device that no pod uses has none
        for selector in parsed.selectors:
            present |= labels_of(server, selector.metric)
        used = parsed.grouped.union(*(one.labels for one in parsed.selectors))
        foreign += [(str(query), label) for label in used - present]
    return foreign


@needs_prometheus
@needs_v1
@pytest.mark.slow
def test_every_panel_has_data_from_a_small_fleet(tmp_path: Path) -> None:
    def look(server: Prometheus) -> None:
        assert wait_for_data(server) == []
        assert find_foreign_labels(server) == []
        for rule in records():
            assert server.wait_for(rule["record"]), rule["record"]
        (failed,) = server.wait_for(
            f'ALERTS{{alertname="XpuDeviceFailed", node="{WITH_FAILED_CHIP}"}}'
        )
        assert failed[0]["reason"] == "ChipFault"
        checks = {labels["check"] for labels, _ in server.query("xpu_agent_self_check")}
        assert {"lock", "events", "health-state", "published-minors", "admin-socket"} <= checks
        out = Path(os.environ.get("XPU_PREVIEW", tmp_path / "pages"))
        empty = write_pages(server, out, 30.0)
        places = {f"{name} / {place}" for name, own in empty.items() for place in own}
        assert places <= WITHOUT_DATA.keys()
        assert all((out / f"{name}.html").stat().st_size > 2000 for name in empty)

    run_fleet(tmp_path, look)
