"""Every query of dashboards and rules reads what is exported."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.patience import PATIENCE_S
from tests.prometheus.observed import (
    TARGET_LABELS,
    exported_labels,
    fill_variables,
    panel_queries,
    rules,
)
from tests.prometheus.promql import BadQuery, Matcher, parse
from tests.prometheus.promtool import needs_promtool


def expressions() -> Iterator[tuple[str, str]]:
    """Yield place and text of every expression."""
    for query in panel_queries():
        yield str(query), fill_variables(query.expression)
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]


@pytest.mark.parametrize(
    ("expression", "selectors", "grouped"),
    [
        ("up", [("up", ())], set()),
        ('sum by (a, b) (rate(x_total{c=~"d{}", e!="f"}[5m]))', [("x_total", ("c", "e"))], "ab"),
        ("x offset 5m > bool 1e3 # y", [("x", ())], set()),
        ("a:b:c * on (i) group_left (n) d", [("a:b:c", ()), ("d", ())], "in"),
        ("topk(3, x) unless sum without (l) (y)", [("x", ()), ("y", ())], "l"),
        ("histogram_quantile(0.9, sum(h_bucket) by (le))", [("h_bucket", ())], {"le"}),
    ],
)
def test_an_expression_is_read_as_prometheus_does(
    expression: str, selectors: list[tuple[str, tuple[str, ...]]], grouped: object
) -> None:
    query = parse(expression)
    assert [(one.metric, one.labels) for one in query.selectors] == selectors
    assert query.grouped == set(grouped)  # type: ignore[call-overload]  # letters are names


def test_matchers_have_their_values() -> None:
    (selector,) = parse('x{a="b", c=~"d|e", f!="g"}').selectors
    assert selector.matchers == (
        Matcher("a", "=", "b"),
        Matcher("c", "=~", "d|e"),
        Matcher("f", "!=", "g"),
    )
    assert selector.matchers[1].values == ("d", "e")


@pytest.mark.parametrize("expression", ['{job="x"}', "a ; b", 'x{a="b"', "x{a}", "sum by (a"])
def test_what_is_not_understood_is_refused(expression: str) -> None:
    with pytest.raises(BadQuery):
        parse(expression)


def test_every_metric_and_label_of_a_query_is_exported() -> None:
    labels = exported_labels()
    unknown = []
    for place, expression in expressions():
        query = parse(expression)
        assert query.selectors, place
        exported = {label for one in query.selectors for label in labels.get(one.metric, ())}
        unknown += [(place, one.metric) for one in query.selectors if one.metric not in labels]
        unknown += [
            (place, f"{one.metric}{{{label}}}")
            for one in query.selectors
            for label in one.labels
            if label not in labels.get(one.metric, ()) and label not in TARGET_LABELS
        ]
        unknown += [(place, label) for label in query.grouped - exported - TARGET_LABELS]
    assert unknown == []


def test_dashboards_ask_for_no_other_exporters_names() -> None:
    for place, expression in expressions():
        for selector in parse(expression).selectors:
            assert selector.metric == "up" or re.match(
                r"(?:[a-z_]+:)?(xpu|process)_", selector.metric
            ), place


def test_legends_name_labels_that_results_have() -> None:
    for query in panel_queries():
        used = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
        assert used <= parse(fill_variables(query.expression)).outputs, str(query)


@needs_promtool
def test_promtool_accepts_every_query_of_the_dashboards(tmp_path: Path) -> None:
    recorded = [
        {
            "record": f"panel:{number}",
            "expr": fill_variables(query.expression),
            "labels": {"place": str(query)},
        }
        for number, query in enumerate(panel_queries())
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    run = subprocess.run(
        ["promtool", "check", "rules", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 0, run.stdout + run.stderr
