"""Dashboards as plain pages, drawn from what a real Prometheus answers: no Grafana is needed.

    python -m tests.prometheus.preview OUT [--url http://127.0.0.1:9090] [--minutes 5]

Without `--url` it starts a small fleet on recorded hosts and a Prometheus, and waits for a minute.
"""

from __future__ import annotations

import argparse
import html
import math
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from tests.prometheus.observed import dashboards, fill_variables
from tests.prometheus.server import Prometheus

STEPS = 60  # of a graph
SHOWN_SERIES = 40
SHOWN_ROWS = 12
LEGEND_ROWS = 6
COLOURS = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#b877d9", "#5794f2", "#ffa6b0")
CSS = """
body { background:#111217; color:#ccccdc; font:13px/1.4 sans-serif; margin:12px }
h1 { font-size:20px } h2 { font-size:14px; grid-column:1/-1; margin:8px 0 0 }
main { display:grid; grid-template-columns:repeat(24,1fr); gap:8px }
section { background:#181b1f; border:1px solid #2c3235; padding:6px; overflow:hidden }
h3 { font-size:12px; margin:0 0 4px; font-weight:600 } .empty { color:#ff9830 }
b.stat { font-size:28px; color:#73bf69 } table { border-collapse:collapse; width:100% }
td,th { text-align:left; padding:1px 6px; border-bottom:1px solid #2c3235; font-size:11px }
ul { list-style:none; margin:4px 0 0; padding:0; font-size:11px; columns:2 }
li { white-space:nowrap; overflow:hidden; text-overflow:ellipsis } svg { width:100%; height:120px }
a { color:#8ab8ff; margin-right:12px } small { color:#8e8e9a }
"""


class Series(NamedTuple):
    """The points of one line of a graph, or one value of a table."""

    labels: dict[str, str]
    points: tuple[tuple[float, float], ...]  # time and value

    @property
    def last(self) -> float:
        """Return the last value."""
        return self.points[-1][1]


def read_series(server: Prometheus, target: dict[str, Any], window_s: float) -> list[Series]:
    """Return what Prometheus answers to one query of a panel."""
    expression = fill_variables(target["expr"], interval="15s")
    if target["instant"]:
        data = server.api("query", query=expression)
        pairs = [(one["metric"], [one["value"]]) for one in data["result"]]
    else:
        end_s = time.time()
        step_s = max(1.0, window_s / STEPS)
        span = {"start": f"{end_s - window_s}", "end": f"{end_s}", "step": f"{step_s}"}
        data = server.api("query_range", query=expression, **span)
        pairs = [(one["metric"], one["values"]) for one in data["result"]]
    return [
        Series(labels, tuple((float(at), float(value)) for at, value in points))
        for labels, points in pairs
    ]


def write_pages(server: Prometheus, out: Path, window_s: float) -> dict[str, list[str]]:
    """Write a page for each dashboard; return the queries without data by dashboard."""
    out.mkdir(parents=True, exist_ok=True)
    links = "".join(f'<a href="{name}.html">{name}</a>' for name in dashboards())
    empty: dict[str, list[str]] = {}
    for name, dashboard in dashboards().items():
        parts = []
        for panel in dashboard["panels"]:
            if panel["type"] == "row":
                parts.append(f"<h2>{html.escape(panel['title'])}</h2>")
                continue
            answers = [read_series(server, one, window_s) for one in panel["targets"]]
            empty.setdefault(name, []).extend(
                f"{panel['title']} / {one['refId']}"
                for one, answer in zip(panel["targets"], answers, strict=True)
                if not answer
            )
            parts.append(draw_panel(panel, answers))
        title = html.escape(dashboard["title"])
        head = f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{CSS}</style>"
        (out / f"{name}.html").write_text(
            f"{head}<nav>{links}</nav><h1>{title}</h1><main>{''.join(parts)}</main>"
        )
    return empty


def draw_panel(panel: dict[str, Any], answers: list[list[Series]]) -> str:
    """Return a panel as HTML."""
    place = panel["gridPos"]
    style = f"grid-column:{place['x'] + 1}/span {place['w']}"
    if not any(answers):
        body = '<p class="empty">no data</p>'
    elif panel["type"] == "stat":
        body = "".join(draw_stat(panel, answer) for answer in answers)
    elif panel["type"] == "table":
        body = "".join(draw_table(panel, answers))
    else:
        body = draw_graph(panel, answers)
    about = html.escape(panel.get("description", ""))
    heading = f'<h3 title="{about}">{html.escape(panel["title"])}</h3>'
    return f'<section style="{style}">{heading}{body}</section>'


def draw_stat(panel: dict[str, Any], answer: list[Series]) -> str:
    """Return one large number."""
    defaults = panel["fieldConfig"]["defaults"]
    text = with_unit(answer[0].last, defaults["unit"]) if answer else defaults["noValue"]
    return f'<b class="stat">{html.escape(text)}</b>'


def draw_table(panel: dict[str, Any], answers: list[list[Series]]) -> Iterator[str]:
    """Yield a table: a line for equal labels, a column for each query."""
    steps = {one["id"]: one["options"] for one in panel["transformations"]}
    hidden = set(steps["organize"]["excludeByName"])
    renamed = list(steps["organize"]["renameByName"].values())
    units = {
        one["matcher"]["options"]: {p["id"]: p["value"] for p in one["properties"]}
        for one in panel["fieldConfig"]["overrides"]
    }
    rows: dict[tuple[tuple[str, str], ...], dict[int, float]] = {}
    for column, answer in enumerate(answers):
        for series in answer:
            rows.setdefault(tuple(sorted(series.labels.items())), {})[column] = series.last
    order = steps["organize"]["indexByName"]
    labels = {label for key in rows for label, _ in key} - hidden - {"__name__"}
    names = sorted(labels, key=lambda name: (order.get(name, len(order)), name))
    columns = [name for name in renamed if not ("Value" in hidden and len(renamed) == 1)]
    yield f"<table><tr>{''.join(f'<th>{html.escape(one)}</th>' for one in (*names, *columns))}"
    lines = [([dict(key).get(name, "") for name in names], values) for key, values in rows.items()]
    for cells, values in sorted(lines, key=itemgetter(0))[:SHOWN_ROWS]:
        cells += [cell_text(values.get(number), units[name]) for number, name in enumerate(columns)]
        yield f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}"
    yield "</table>"
    if len(rows) > SHOWN_ROWS:
        yield f"<small>and {len(rows) - SHOWN_ROWS} more</small>"


def cell_text(value: float | None, properties: dict[str, Any]) -> str:
    """Return a value with its unit, or the text that stands for it."""
    if value is None:
        return ""
    for mapping in properties.get("mappings", ()):
        shown = mapping["options"].get(f"{value:g}")
        if shown is not None:
            return str(shown["text"])
    return with_unit(value, properties["unit"])


def draw_graph(panel: dict[str, Any], answers: list[list[Series]]) -> str:
    """Return lines over time, and the last values."""
    defaults = panel["fieldConfig"]["defaults"]
    legends = [target["legendFormat"] for target in panel["targets"]]
    lines = [
        (name_of(series, legend), series)
        for legend, answer in zip(legends, answers, strict=True)
        for series in answer
    ][:SHOWN_SERIES]
    values = [value for _, series in lines for _, value in series.points if not math.isnan(value)]
    if not values:
        return '<p class="empty">no values</p>'
    low = min([*values, defaults.get("min", math.inf)])
    high = max(values)
    height = (high - low) or 1.0
    times = [at for _, series in lines for at, _ in series.points]
    first, span = min(times), (max(times) - min(times)) or 1.0
    paths = []
    for number, (_, series) in enumerate(lines):
        points = " ".join(
            f"{600 * (at - first) / span:.1f},{116 - 112 * (value - low) / height:.1f}"
            for at, value in series.points
            if not math.isnan(value)
        )
        colour = COLOURS[number % len(COLOURS)]
        paths.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
    shown = "".join(
        f'<li><span style="color:{COLOURS[number % len(COLOURS)]}">■</span> '
        f"{html.escape(name)}: {html.escape(with_unit(series.last, defaults['unit']))}</li>"
        for number, (name, series) in enumerate(lines[:LEGEND_ROWS])
    )
    rest = f"<small>and {len(lines) - LEGEND_ROWS} more</small>" if len(lines) > LEGEND_ROWS else ""
    bounds = f"{with_unit(low, defaults['unit'])} … {with_unit(high, defaults['unit'])}"
    picture = f'<svg viewBox="0 0 600 120" preserveAspectRatio="none">{"".join(paths)}</svg>'
    return f"<small>{html.escape(bounds)}</small>{picture}<ul>{shown}</ul>{rest}"


def name_of(series: Series, legend: str) -> str:
    """Return the legend of a line."""
    if legend == "__auto":
        return " ".join(series.labels.values()) or "value"
    text = legend
    for label, value in series.labels.items():
        text = text.replace(f"{{{{{label}}}}}", value)
    return text


def with_unit(value: float, unit: str) -> str:
    """Return a value for people."""
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "dateTimeFromNow":
        return f"{(time.time() - value / 1000) / 60:.3g} minutes ago"
    if unit in ("bytes", "Bps"):
        prefixes: Iterable[tuple[str, float]] = (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))
        for prefix, factor in prefixes:
            if abs(value) >= factor:
                return f"{value / factor:.4g} {prefix}B{'/s' if unit == 'Bps' else ''}"
    names = {"none": "", "short": "", "bytes": "B", "Bps": "B/s", "cps": "/s", "reqps": "/s"}
    return f"{value:.4g} {names.get(unit, unit)}".strip()


def main() -> int:
    """Write the pages; list the queries without data."""
    parser = argparse.ArgumentParser(prog="preview", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--url", default="", help="a Prometheus that runs")
    parser.add_argument("--minutes", type=float, default=1.0, help="that graphs show")
    arguments = parser.parse_args()
    window_s = 60 * arguments.minutes

    def look(server: Prometheus) -> None:
        if not arguments.url:
            time.sleep(window_s)  # the graphs' time
        for name, places in write_pages(server, arguments.out, window_s).items():
            for place in places:
                sys.stderr.write(f"no data: {name} / {place}\n")

    if arguments.url:
        look(Prometheus(None, arguments.url))
        return 0
    from tests.prometheus.fleet import run_fleet

    with tempfile.TemporaryDirectory(prefix="x", dir="/tmp") as folder:
        run_fleet(Path(folder), look)
    return 0


if __name__ == "__main__":
    sys.exit(main())
