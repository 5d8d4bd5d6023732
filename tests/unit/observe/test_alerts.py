"""Each alert fires when it should and only then, as Prometheus' own engine evaluates it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from agent.runbook.entries.alerts import ALERT_ENTRIES
from agent.workers.abilities import build_runbook
from agent.workers.load import load_vendors
from tests.patience import PATIENCE_S
from tests.prometheus.observed import RULES, alerts, records
from tests.prometheus.promql import parse
from tests.prometheus.promtool import needs_promtool
from tests.unit.daemonset.manifests import ROOT, built, the

CASES = Path(__file__).with_name("alerts.yaml")
DEVICE = 'node="n1",vendor="nvidia",minor="0",uuid="GPU-1",model="H100",bus_id="0000:01:00.0"'
ABOUT_ALL_CLUSTERS = {"XpuAgentAbsent"}
SEVERITIES = {"critical", "warning", "info"}
DURATION = re.compile(r"([0-9]+)m")
# at once: their expressions count over a window, which is what keeps them from flapping
WITHOUT_DELAY = re.compile(r"increase\(|changes\(")

Case = dict[str, Any]


@cache
def cases() -> dict[str, dict[str, Case]]:
    """Return the cases by alert."""
    result: dict[str, dict[str, Case]] = yaml.safe_load(CASES.read_text())
    return result


def with_device(text: str) -> str:
    """Return a text with the labels of the device in it."""
    return re.sub(r"\bDEV\b", lambda _: DEVICE, text)


def promtool_series(case: Case, cluster: str) -> Iterator[dict[str, str]]:
    """Yield the series of a case in promtool's format, in a cluster of their own."""
    for series, values in case["series"].items():
        name, _, labels = with_device(series).rstrip("}").partition("{")
        own = f'cluster="{cluster}"' if cluster else ""
        pairs = ",".join(one for one in (labels, own) if one)
        yield {"series": f"{name}{{{pairs}}}", "values": values}


def labels_of(case: Case) -> list[str]:
    """Return the own labels of each alert that fires."""
    labels = case["labels"]
    return [with_device(one) for one in ([labels] if isinstance(labels, str) else labels)]


def promtool_check(alert: dict[str, Any], case: Case, cluster: str) -> dict[str, Any]:
    """Return what the alert does in a case, in promtool's format."""
    selected = [f'alertname="{alert["alert"]}"', 'alertstate="firing"', f'cluster="{cluster}"']
    expected: list[dict[str, object]] = []
    fixed = [*selected, *(f'{key}="{text}"' for key, text in alert["labels"].items())]
    for own in labels_of(case) if "labels" in case else ():
        labels = ",".join([*fixed, *([own] if own else [])])
        expected.append({"labels": f"ALERTS{{{labels}}}", "value": 1})
    return {
        "expr": f"ALERTS{{{','.join(selected)}}}",
        "eval_time": case["at"],
        "exp_samples": expected,
    }


def promtool_test(chosen: Iterable[tuple[dict[str, Any], Case, str]]) -> dict[str, Any]:
    """Return a test of alerts with their cases, each in the cluster of that name."""
    chosen = tuple(chosen)
    return {
        "interval": "1m",
        "input_series": [
            series for _, case, cluster in chosen for series in promtool_series(case, cluster)
        ],
        "promql_expr_test": [promtool_check(*one) for one in chosen],
    }


def promtool(folder: Path, tests: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """Run tests against the rules."""
    file = folder / "tests.yaml"
    file.write_text(
        yaml.safe_dump(
            {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests},
            sort_keys=False,
        )
    )
    return subprocess.run(
        ["promtool", "test", "rules", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    assert set(cases()) == {alert["alert"] for alert in alerts()}
    for case in cases().values():
        assert set(case) == {"fires", "silent"}
        assert set(case["fires"]) == {"series", "at", "labels"}
        assert set(case["silent"]) == {"series", "at"}


@needs_promtool
def test_alerts_fire_in_their_cases_and_stay_silent_in_the_others(tmp_path: Path) -> None:
    together = [
        (alert, cases()[alert["alert"]][name], f"{alert['alert']}-{name}")
        for alert in alerts()
        for name in ("fires", "silent")
        if alert["alert"] not in ABOUT_ALL_CLUSTERS
    ]
    alone = [
        promtool_test([(alert, cases()[alert["alert"]][name], "")])
        for alert in alerts()
        for name in ("fires", "silent")
        if alert["alert"] in ABOUT_ALL_CLUSTERS
    ]
    run = promtool(tmp_path, [promtool_test(together), *alone])
    assert run.returncode == 0, run.stdout + run.stderr


@needs_promtool
def test_a_case_that_is_wrong_is_reported(tmp_path: Path) -> None:
    (alert,) = (one for one in alerts() if one["alert"] == "XpuDeviceFailed")
    fires, silent = (cases()["XpuDeviceFailed"][name] for name in ("fires", "silent"))
    for wrong in ({**silent, "labels": fires["labels"]}, {**fires, "at": "0m"}):
        assert promtool(tmp_path, [promtool_test([(alert, wrong, "c")])]).returncode == 1


def test_a_silent_case_has_data_for_its_alert() -> None:
    sources = {rule["record"]: parse(rule["expr"]).selectors for rule in records()}
    for alert in alerts():
        metrics = {one.metric for one in parse(alert["expr"]).selectors}
        metrics |= {one.metric for name in metrics & sources.keys() for one in sources[name]}
        for case in cases()[alert["alert"]].values():
            names = {series.partition("{")[0] for series in case["series"]}
            assert names & metrics, alert["alert"]


def test_texts_of_an_alert_name_labels_that_it_has() -> None:
    for alert in alerts():
        own = labels_of(cases()[alert["alert"]]["fires"])
        labels = set(re.findall(r"(\w+)=", own[0]))
        text = " ".join(alert["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels, alert["alert"]


def test_every_alert_says_how_bad_it_is_and_what_to_read() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len(set(names)) == len(names) >= 15
    for alert in alerts():
        assert alert["labels"]["severity"] in SEVERITIES, alert["alert"]
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
        assert "{{" not in alert["annotations"]["runbook_url"]
        minutes = DURATION.fullmatch(alert["for"])
        assert minutes is not None, alert["alert"]
        if int(minutes[1]) == 0:
            assert WITHOUT_DELAY.search(alert["expr"]), alert["alert"]


def test_every_runbook_link_leads_to_an_entry_of_the_runbook() -> None:
    anchors = {entry.anchor for entry in build_runbook(load_vendors()).entries()}
    links = [alert["annotations"]["runbook_url"].partition("#") for alert in alerts()]
    assert [anchor for _, _, anchor in links if anchor not in anchors] == []
    assert all(base.endswith("/docs/runbook.md") for base, _, _ in links)
    # entries that only alerts have
    assert {entry.anchor for entry in ALERT_ENTRIES} <= {anchor for _, _, anchor in links}


def test_the_memory_alert_is_about_the_limit_of_the_manifests() -> None:
    (alert,) = (one for one in alerts() if one["alert"] == "XpuAgentMemoryHigh")
    daemonset = the(built(ROOT / "daemonset" / "base"), "DaemonSet")
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    limit = container["resources"]["limits"]["memory"]
    assert alert["expr"].endswith(f"* {int(limit.removesuffix('Mi')) << 20}")


@needs_promtool
def test_promtool_finds_nothing_to_complain_about() -> None:
    run = subprocess.run(
        ["promtool", "check", "rules", "--lint=all", "--lint-fatal", str(RULES)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"SUCCESS: {len(alerts()) + len(records())} rules found" in run.stdout
