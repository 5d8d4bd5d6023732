"""What one look prints, where it is told, and how it ends."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from agent.workers.load import load_vendors
from tests.cgroups import CgroupHost
from tests.patience import PATIENCE_S
from tests.process.agent import EIGHT_CARDS, ROOT, command, run_agent


def test_the_reference_holds_the_metrics_of_all_vendors() -> None:
    process = run_agent("metrics", "reference", "-o", "json")
    names = {row["name"] for row in json.loads(process.stdout)["metrics"]}
    declared = {
        family.name for vendor in load_vendors().values() for family in vendor.description.families
    }
    assert declared
    assert declared <= names
    assert "xpu_node_cpus" in names


def test_rendered_metrics_are_those_of_the_settings(tmp_path: Path) -> None:
    CgroupHost(tmp_path).group("/poda", anon=3)
    reports = ("render", "metrics", "--host", str(tmp_path))
    assert "xpu_pod_" in run_agent(*reports).stdout
    assert "xpu_pod_" not in run_agent(*reports, XPU_AGENT_METRICS__PODS="false").stdout


def test_a_host_without_cpus_is_a_problem_of_its_topology(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    process = run_agent("render", "topology", "--host", str(tmp_path))
    assert (process.returncode, process.stdout) == (1, "")
    (line,) = process.stderr.splitlines()
    assert line.startswith("xpu-agent: no topology would be published: ")


def test_an_output_that_is_full_is_one_line_and_status_3() -> None:
    with Path("/dev/full").open("w") as full:
        outcome = subprocess.run(
            command("topology", "--host", str(EIGHT_CARDS)),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            cwd=ROOT,
            check=False,
        )
    assert outcome.returncode == 3
    assert outcome.stderr == "xpu-agent: standard output: No space left on device\n"


def test_a_vendor_that_is_switched_on_is_queried_as_run_does(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    reports = ("snapshot", "--host", str(tmp_path))
    process = run_agent(*reports, XPU_AGENT_DISCOVERY__VENDORS__RDMA="on")
    assert [vendor["vendor"] for vendor in json.loads(process.stdout)["vendors"]] == ["rdma"]
    assert json.loads(run_agent(*reports).stdout)["vendors"] == []


def test_a_vendor_that_does_not_answer_is_reported_beside_the_devices_of_sysfs(
    tmp_path: Path,
) -> None:
    (tmp_path / "sys").mkdir()
    cards = tmp_path / "cards.yaml"
    cards.write_text("devices: [{uuid: g0}]\nmisbehave: [{in: discover, do: exit}]\n")
    process = run_agent(
        *("devices", "-o", "json", "--host", str(tmp_path)),
        XPU_AGENT_DISCOVERY__FAKE__FILE=str(cards),
    )
    assert process.returncode == 1
    assert [d["health"]["state"] for d in json.loads(process.stdout)["devices"]] == ["suspect"]
    assert process.stderr.splitlines()[-1].startswith("worker fake: Closed: ")


@pytest.mark.parametrize(
    "arguments",
    [("render", "device"), ("render", "metrics"), ("topology",), ("topology", "-o", "json")],
    ids=" ".join,
)
def test_what_is_printed_without_a_vendor_names_it_and_ends_with_status_3(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    cards = tmp_path / "cards.yaml"
    cards.write_text("devices: [{uuid: g0}]\nmisbehave: [{in: discover, do: exit}]\n")
    requests = (*arguments, "--host", str(EIGHT_CARDS))
    whole = run_agent(*requests)
    process = run_agent(*requests, XPU_AGENT_DISCOVERY__FAKE__FILE=str(cards))
    assert (whole.returncode, whole.stderr) == (0, "")
    assert process.returncode == 3
    assert process.stdout
    (line,) = process.stderr.splitlines()
    assert line.startswith("xpu-agent: vendor fake did not answer: worker fake: Closed: ")
