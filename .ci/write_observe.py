"""Write dashboards and rules of daemonset/observe, and their lists in docs/observe.md.

With `--check` nothing is written: the exit status is 1 if a file differs. `--runbook URL` is where
docs/runbook.md can be read, and `--out FOLDER` another folder for the files.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
OBSERVE = ROOT / "daemonset" / "observe"
SOURCES = OBSERVE / "source"
DASHBOARDS = ("node", "devices", "colocation", "agent", "scheduler")
RULES = "xpu-agent.rules.yaml"  # for a Prometheus without an operator
RULE_OBJECTS = "prometheus-operator/prometheusrules.yaml"
DOCUMENT = ROOT / "docs" / "observe.md"
MARK = "<!-- generated below this line: make docs -->"
HEAD = "# Written by .ci/write_observe.py from daemonset/observe/source: make docs\n"

Json = dict[str, Any]

# Grafana's revision of the format that 10.0 has; later ones read it
SCHEMA_VERSION = 38
COLUMNS = 24  # of a dashboard
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
UID_PREFIX = "xpu-agent-"
TAG = "xpu-agent"
# a word in braces stands for matchers that each variable of a dashboard selects
MATCHERS = {
    "CLUSTER": ("cluster",),
    "NODE": ("cluster", "node"),
    "VENDOR": ("cluster", "node", "vendor"),
    "DEVICE": ("cluster", "node", "vendor", "namespace"),
    "POD": ("cluster", "node", "namespace"),
}
# columns of tables come in this order, then the values
LABEL_ORDER = (
    *("node", "vendor", "minor", "model", "bus_id", "namespace", "pod", "rdma", "port"),
    *("resource", "strategy", "mode", "state", "reason", "check", "collector", "publisher"),
)
_MATCHERS = re.compile(rf"\{{({'|'.join(MATCHERS)})\b")
_VARIABLES: Mapping[str, tuple[str, str]] = {  # name of a variable: title, metric that has values
    "cluster": ("Cluster", "{metric}"),
    "node": ("Node", 'xpu_agent_build_info{{cluster=~"$cluster"}}'),
    "vendor": ("Vendor", 'xpu_device_healthy{{cluster=~"$cluster", node=~"$node"}}'),
    "namespace": ("Namespace", '{namespaced}{{cluster=~"$cluster", node=~"$node"}}'),
}


def expand(expression: str) -> str:
    """Return an expression with the matchers that its words in braces stand for."""

    def matchers(match: re.Match[str]) -> str:
        return "{" + ", ".join(f'{name}=~"${name}"' for name in MATCHERS[match[1]])

    return _MATCHERS.sub(matchers, " ".join(expression.split()))


def dashboard(name: str, source: Json) -> Json:
    """Return a dashboard in Grafana's format."""
    return {
        "uid": f"{UID_PREFIX}{name}",
        "title": source["title"],
        "description": source["description"],
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one crosshair for all panels
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "annotations": {"list": []},
        "links": [
            {
                "type": "dashboards",
                "title": "xpu-agent",
                "tags": [TAG],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
                "targetBlank": False,
                "icon": "external link",
                "tooltip": "",
                "url": "",
            }
        ],
        "templating": {"list": list(variables(source))},
        "panels": list(panels(source["rows"])),
    }


def variables(source: Json) -> Iterator[Json]:
    """Yield the data source and the variables of a dashboard."""
    yield {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "regex": "",
    }
    metric = source.get("metric", "xpu_agent_build_info")
    namespaced = source.get("namespaced", "xpu_device_info")
    for name in source["variables"]:
        label, text = _VARIABLES[name]
        values = text.format(metric=metric, namespaced=namespaced)
        query = f"label_values({values}, {name})"
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": DATASOURCE,
            "definition": query,
            "query": {"query": query, "refId": f"Variable-{name}"},
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
            "includeAll": True,
            "allValue": ".*",  # also series without the label
            "multi": True,
            "hide": 0,
            "options": [],
            "refresh": 2,  # when the time range changes
            "regex": "",
            "sort": 1,
        }


def panels(rows: list[Json]) -> Iterator[Json]:
    """Yield rows and panels with their places: from the left, a new line where one is full."""
    number = top = 0
    for row in rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row["row"],
            "collapsed": False,
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": top},
            "panels": [],
        }
        top += 1
        left = height = 0
        for source in row["panels"]:
            number += 1
            width, own_height = source.get("w", 8), source.get("h", 8)
            if left + width > COLUMNS:
                left, top, height = 0, top + height, 0
            place = {"h": own_height, "w": width, "x": left, "y": top}
            yield {"id": number, "gridPos": place, **panel(source)}
            left, height = left + width, max(height, own_height)
        top += height


def panel(source: Json) -> Json:
    """Return one panel without number and place."""
    kind = source.get("type", "timeseries")
    queries = source.get("queries") or [
        {key: source[key] for key in ("expr", "legend") if key in source}
    ]
    defaults: Json = {
        "unit": source.get("unit", "none"),
        "thresholds": {"mode": "absolute", "steps": thresholds(source.get("thresholds", ()))},
        "mappings": mappings(source.get("values", {})),
    }
    for bound in ("min", "max", "decimals"):
        if bound in source:
            defaults[bound] = source[bound]
    if kind == "stat":
        # Grafana writes "No data" without it, which looks like a fault
        defaults["noValue"] = str(source.get("without", "–"))
        defaults["color"] = {"mode": "thresholds"}
    if kind == "timeseries":
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 20 if source.get("stack") else 5,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if source.get("stack") else "none", "group": "A"},
        }
    result: Json = {
        "type": kind,
        "title": source["title"],
        "description": source.get("description", ""),
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options(kind),
        "targets": [
            target(letter, query, is_instant=kind in ("table", "stat"), is_table=kind == "table")
            for letter, query in zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", queries, strict=False)
        ],
    }
    if kind == "table":
        result["transformations"] = table_steps(queries, source.get("hide", ()))
        result["fieldConfig"]["overrides"] = table_columns(queries)
    return result


def target(letter: str, query: Json, *, is_instant: bool, is_table: bool) -> Json:
    """Return one query of a panel."""
    return {
        "refId": letter,
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": expand(query["expr"]),
        "legendFormat": query.get("legend", "__auto"),
        "instant": is_instant,
        "range": not is_instant,
        "format": "table" if is_table else "time_series",
    }


def thresholds(bounds: Iterable[tuple[float, str]]) -> list[Json]:
    """Return the colours of values; `bounds` are pairs of a least value and a colour."""
    return [
        {"color": "green", "value": None},
        *({"color": colour, "value": least} for least, colour in bounds),
    ]


def mappings(values: Mapping[Any, Any]) -> list[Json]:
    """Return texts for values; a value's text may come with a colour."""
    shown = {
        str(value): {"text": text, "index": number}
        if isinstance(text, str)
        else {"text": text[0], "color": text[1], "index": number}
        for number, (value, text) in enumerate(values.items())
    }
    return [{"type": "value", "options": shown}] if shown else []


def options(kind: str) -> Json:
    """Return the options of a kind of panel."""
    if kind == "stat":
        return {
            "colorMode": "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "auto",
        }
    if kind == "table":
        return {"cellHeight": "sm", "showHeader": True, "footer": {"show": False, "reducer": []}}
    return {
        "legend": {"calcs": ["lastNotNull"], "displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def table_steps(queries: list[Json], hidden: Iterable[str]) -> list[Json]:
    """Return the steps that make one table: a line for equal labels, a column for each query."""
    values = {f"Value #{letter}": query["column"] for letter, query in _lettered(queries)}
    if len(queries) == 1:
        values = {"Value": queries[0]["column"]}
    return [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": dict.fromkeys(("Time", *hidden), True),
                "indexByName": {name: number for number, name in enumerate(LABEL_ORDER)},
                "renameByName": values,
            },
        },
    ]


def table_columns(queries: list[Json]) -> list[Json]:
    """Return unit and texts of the columns."""
    return [
        {
            "matcher": {"id": "byName", "options": query["column"]},
            "properties": [
                {"id": "unit", "value": query.get("unit", "none")},
                *(
                    [{"id": "mappings", "value": mappings(query["values"])}]
                    if "values" in query
                    else []
                ),
            ],
        }
        for query in queries
    ]


def _lettered(queries: list[Json]) -> Iterator[tuple[str, Json]]:
    return zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", queries, strict=False)


def alert(source: Json, runbook: str) -> Json:
    """Return an alerting rule in Prometheus' format."""
    return {
        "alert": source["alert"],
        "expr": source["expr"],
        "for": source["for"],
        "labels": {"severity": source["severity"]},
        "annotations": {
            "summary": " ".join(source["summary"].split()),
            "description": " ".join(source["description"].split()),
            "runbook_url": f"{runbook}#{source['anchor']}",
        },
    }


def record(source: Json) -> Json:
    """Return a recording rule in Prometheus' format."""
    return {"record": source["record"], "expr": source["expr"]}


def rule_groups(runbook: str) -> tuple[list[Json], list[Json]]:
    """Return the groups of recording rules, and those of alerts."""
    records = _load("records.yaml")
    alerts = _load("alerts.yaml")
    base = runbook or alerts["runbook"]
    return (
        [
            {"name": group["group"], "rules": [record(one) for one in group["records"]]}
            for group in records["groups"]
        ],
        [
            {"name": group["group"], "rules": [alert(one, base) for one in group["alerts"]]}
            for group in alerts["groups"]
        ],
    )


def rule_object(name: str, groups: list[Json]) -> Json:
    """Return an object for the operator of Prometheus."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "xpu-agent"}},
        "spec": {"groups": groups},
    }


def files(runbook: str = "") -> Iterator[tuple[str, str]]:
    """Yield name and text of each file; `runbook` replaces the address in the source."""
    for name in DASHBOARDS:
        text = json.dumps(dashboard(name, _load(f"{name}.yaml")), indent=1, ensure_ascii=False)
        yield f"dashboards/{name}.json", f"{text}\n"
    records, alerts = rule_groups(runbook)
    yield RULES, HEAD + _dump({"groups": [*records, *alerts]})
    objects = (rule_object("xpu-agent-records", records), rule_object("xpu-agent-alerts", alerts))
    yield RULE_OBJECTS, HEAD + "---\n".join(map(_dump, objects))


def document(text: str) -> str:
    """Return docs/observe.md with the present lists of dashboards, alerts and recording rules."""
    records, alerts = rule_groups("")
    lines = ["| dashboard | uid | shows |", "|---|---|---|"]
    for name in DASHBOARDS:
        source = _load(f"{name}.yaml")
        shown = " ".join(source["description"].split())
        lines.append(f"| {source['title']} | `{UID_PREFIX}{name}` | {shown} |")
    lines += ["", "| alert | severity | for | fires when |", "|---|---|---|---|"]
    for rule in (rule for group in alerts for rule in group["rules"]):
        link = rule["annotations"]["runbook_url"].partition("#")[2]
        severity, summary = rule["labels"]["severity"], _without_labels(rule)
        lines.append(
            f"| [{rule['alert']}](runbook.md#{link}) | {severity} | {rule['for']} | {summary} |"
        )
    lines += ["", "| recording rule | expression |", "|---|---|"]
    for rule in (rule for group in records for rule in group["rules"]):
        lines.append(f"| `{rule['record']}` | `{' '.join(rule['expr'].split())}` |")
    return text[: text.index(MARK) + len(MARK)] + "\n\n" + "\n".join(lines) + "\n"


def _without_labels(rule: Json) -> str:
    """Return the summary of an alert with words for its labels."""
    summary = re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"*\1*", rule["annotations"]["summary"])
    text: str = re.sub(r"\{\{ \$value \}\}", "several", summary)
    return text


def _load(name: str) -> Json:
    source: Json = yaml.safe_load((SOURCES / name).read_text(encoding="utf-8"))
    return source


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, "|" if "\n" in text else None)


_Dumper.add_representer(str, _represent)


def _dump(value: object) -> str:
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
    return text


def main() -> int:
    """Write or check the files."""
    parser = argparse.ArgumentParser(prog="write_observe.py", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a file differs")
    parser.add_argument("--runbook", default="", metavar="URL", help="where docs/runbook.md is")
    parser.add_argument("--out", type=Path, default=OBSERVE, metavar="FOLDER")
    arguments = parser.parse_args()
    written = {arguments.out / name: text for name, text in files(arguments.runbook)}
    if arguments.out == OBSERVE and not arguments.runbook:
        written[DOCUMENT] = document(DOCUMENT.read_text(encoding="utf-8"))
    is_current = True
    for path, text in written.items():
        if not arguments.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path}: not up to date: run `make docs`", file=sys.stderr)
            is_current = False
    return 0 if is_current else 1


if __name__ == "__main__":
    sys.exit(main())
