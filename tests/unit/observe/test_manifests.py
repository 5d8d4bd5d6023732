"""What `kubectl apply -k daemonset/observe` makes, with and without an operator of Prometheus."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.patience import PATIENCE_S
from tests.prometheus.observed import OBSERVE, RULES, alerts, dashboards, records
from tests.unit.daemonset.manifests import ROOT, built

MAX_ANNOTATION = 262_144  # bytes; `kubectl apply` keeps the whole object in one
WRITER = ROOT / ".ci" / "write_observe.py"


def write(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the writer of dashboards and rules."""
    return subprocess.run(
        [sys.executable, str(WRITER), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def test_files_are_those_that_the_sources_make() -> None:
    run = write("--check")
    assert (run.returncode, run.stderr) == (0, "")


def test_a_file_that_somebody_changed_is_reported(tmp_path: Path) -> None:
    assert write("--out", str(tmp_path)).returncode == 0
    assert write("--check", "--out", str(tmp_path)).returncode == 0
    (tmp_path / "dashboards" / "node.json").write_text("{}")
    run = write("--check", "--out", str(tmp_path))
    assert run.returncode == 1
    assert "node.json: not up to date" in run.stderr


def test_the_address_of_the_runbook_can_be_chosen(tmp_path: Path) -> None:
    assert write("--out", str(tmp_path), "--runbook", "https://wiki/xpu").returncode == 0
    rules = yaml.safe_load((tmp_path / RULES.name).read_text())
    links = [
        rule["annotations"]["runbook_url"]
        for group in rules["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    own = [alert["annotations"]["runbook_url"].partition("#")[2] for alert in alerts()]
    assert links == [f"https://wiki/xpu#{anchor}" for anchor in own]


def test_without_an_operator_dashboards_and_rules_are_configmaps() -> None:
    objects = built(OBSERVE)
    assert {item["kind"] for item in objects} == {"ConfigMap"}
    shown = [item for item in objects if item["metadata"]["labels"].get("grafana_dashboard") == "1"]
    files = {name: text for item in shown for name, text in item["data"].items()}
    assert {name: json.loads(text) for name, text in files.items()} == {
        f"{name}.json": dashboard for name, dashboard in dashboards().items()
    }
    (rules,) = (item for item in objects if item not in shown)
    assert rules["data"] == {RULES.name: RULES.read_text()}
    assert all(len(json.dumps(item)) < MAX_ANNOTATION for item in objects)


def test_with_an_operator_the_same_rules_are_objects() -> None:
    objects = built(OBSERVE / "prometheus-operator")
    assert {(item["apiVersion"], item["kind"]) for item in objects} == {
        ("monitoring.coreos.com/v1", "PrometheusRule")
    }
    # kustomize orders objects by name
    by_name = {item["metadata"]["name"]: item["spec"]["groups"] for item in objects}
    own, others = by_name["xpu-agent-alerts"], by_name["xpu-agent-records"]
    assert [rule for group in own for rule in group["rules"]] == list(alerts())
    assert [rule for group in others for rule in group["rules"]] == list(records())
    assert [*others, *own] == yaml.safe_load(RULES.read_text())["groups"]


@pytest.mark.parametrize("parts", [("",), ("prometheus-operator",), ("", "prometheus-operator")])
def test_an_overlay_takes_it_as_a_component(tmp_path: Path, parts: tuple[str, ...]) -> None:
    root = tmp_path.resolve()
    kustomization = {
        "namespace": "monitoring",
        "components": [os.path.relpath(OBSERVE / part, root) for part in parts],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    objects = built(tmp_path)
    assert {item["metadata"]["namespace"] for item in objects} == {"monitoring"}
    assert len(objects) == sum(2 if part else len(dashboards()) + 1 for part in parts)


def test_the_pod_monitor_leaves_the_labels_of_series_as_the_queries_need_them() -> None:
    objects = yaml.safe_load_all(
        (ROOT / "daemonset/components/pod-monitor/pod-monitor.yaml").read_text()
    )
    (endpoint,) = next(iter(objects))["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True
    dropped = [one["regex"] for one in endpoint["relabelings"] if one.get("action") == "labeldrop"]
    assert {"namespace", "pod", "container"} <= set("|".join(dropped).split("|"))


def test_an_overlay_sets_the_address_of_the_runbook(tmp_path: Path) -> None:
    """As docs/observe.md shows it."""
    document = (ROOT / "docs" / "observe.md").read_text()
    shown = document.partition("```yaml\n# runbook")[2].partition("```")[0]
    text = f"# runbook{shown}".replace(
        "daemonset/observe", os.path.relpath(OBSERVE, tmp_path.resolve())
    )
    (tmp_path / "kustomization.yaml").write_text(text)
    rules = [
        rule
        for item in built(tmp_path)
        if item["kind"] == "PrometheusRule"
        for group in item["spec"]["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    assert len(rules) == len(alerts())
    assert all(
        rule["annotations"]["runbook_url"].startswith("https://wiki.example.org/xpu/runbook#")
        for rule in rules
    )
