"""Dashboards and rules of `daemonset/observe`, and the labels of each metric that is exported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.prometheus.promql import parse

ROOT = Path(__file__).parents[2]
OBSERVE = ROOT / "daemonset" / "observe"
RULES = OBSERVE / "xpu-agent.rules.yaml"
DASHBOARDS = sorted((OBSERVE / "dashboards").glob("*.json"))
# that Prometheus or its configuration adds to every series
TARGET_LABELS = frozenset(("cluster", "job", "instance"))
_METRIC = re.compile(r"`(xpu_scheduler\w+|…\w+)(?:\{([\w,]*)\})?`")

Json = dict[str, Any]


class PanelQuery(NamedTuple):
    """One query of a panel."""

    dashboard: str
    panel: str
    letter: str
    expression: str  # as in the dashboard, with its variables
    legend: str
    unit: str
    is_instant: bool

    def __str__(self) -> str:
        """Return the place of the query, for messages."""
        return f"{self.dashboard} / {self.panel} / {self.letter}"


@cache
def dashboards() -> dict[str, Json]:
    """Return the dashboards by the names of their files."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in DASHBOARDS}


def panels(dashboard: Json) -> Iterator[Json]:
    """Yield the panels that are no rows."""
    return (panel for panel in dashboard["panels"] if panel["type"] != "row")


def panel_queries() -> Iterator[PanelQuery]:
    """Yield the queries of all dashboards."""
    for name, dashboard in dashboards().items():
        for panel in panels(dashboard):
            for target in panel["targets"]:
                yield PanelQuery(
                    name,
                    panel["title"],
                    target["refId"],
                    target["expr"],
                    target["legendFormat"],
                    panel["fieldConfig"]["defaults"]["unit"],
                    target["instant"],
                )


@cache
def rules() -> tuple[Json, ...]:
    """Return the rules of all groups."""
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return tuple(rule for group in groups for rule in group["rules"])


def alerts() -> tuple[Json, ...]:
    """Return the rules that alert."""
    return tuple(rule for rule in rules() if "alert" in rule)


def records() -> tuple[Json, ...]:
    """Return the rules that record."""
    return tuple(rule for rule in rules() if "record" in rule)


def fill_variables(expression: str, interval: str = "1m") -> str:
    """Return an expression as Grafana sends it when everything is selected."""
    text = expression.replace("$__rate_interval", interval)
    return re.sub(r'"\$[a-z]+"', '".*"', text)


@cache
def exported_labels() -> dict[str, frozenset[str]]:
    """Return the labels of each metric, as the references and the recording rules have them."""
    labels = {**_agent_metrics(), **_scheduler_metrics(), "up": frozenset[str]()}
    for rule in records():
        labels[rule["record"]] = parse(rule["expr"]).outputs - {"le"}
    return labels


def _agent_metrics() -> dict[str, frozenset[str]]:
    """Return the metrics of the first table of docs/metrics.md, without those of aliases."""
    labels: dict[str, frozenset[str]] = {}
    document = (ROOT / "docs" / "metrics.md").read_text("utf-8").partition("\n## ")[0]
    for line in document.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 5 or not cells[0].startswith(("`xpu_", "`process_")):
            continue
        name = cells[0].strip("`")
        own = frozenset(re.findall(r"`(\w+)`", cells[2]))
        _add(labels, name, own, is_histogram=cells[1] == "histogram")
    return labels


def _scheduler_metrics() -> dict[str, frozenset[str]]:
    """Return the metrics of the table in docs/scheduler.md."""
    labels: dict[str, frozenset[str]] = {}
    document = (ROOT / "docs" / "scheduler.md").read_text("utf-8")
    for line in document.splitlines():
        if not line.startswith("| `xpu_scheduler_"):
            continue
        for name, own in _METRIC.findall(line.split("|")[1]):
            whole = name.replace("…", "xpu_scheduler")
            is_histogram = whole.endswith("_seconds")
            names = frozenset(own.split(",")) - {""}
            _add(labels, whole, names, is_histogram=is_histogram)
    return labels


def _add(
    labels: dict[str, frozenset[str]], name: str, own: frozenset[str], *, is_histogram: bool
) -> None:
    if not is_histogram:
        labels[name] = own
        return
    labels[f"{name}_bucket"] = own | {"le"}
    labels[f"{name}_sum"] = labels[f"{name}_count"] = own
