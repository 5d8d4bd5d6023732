"""What would be changed is printed with who wants it and why; no file is changed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.app.composition import create_inputs
from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import BURST, CPUS, QUOTA
from agent.cgroup.write_plan import DesiredValue
from agent.cli import plan as command
from agent.cli.parser import build_parser
from agent.clock import SystemClock
from agent.config.settings import NodeSettings, Settings
from agent.errors import BadConfig
from agent.qos.strategy import QosInputs, StrategyPlan
from agent.recording.host_source import open_host
from agent.snapshot.pod import EvictionRequest, PodRef
from agent.snapshot.self_check import StrategyState
from tests.cgroups import CgroupHost, container_id
from tests.process.agent import run_agent

UID = "11111111-2222-3333-4444-555555555555"
POD = f"/besteffort/pod{UID}"
SOURCE = "NodeSLO spec.cpuBurstStrategy.policy"
SLO = {
    "apiVersion": "slo.koordinator.sh/v1alpha1",
    "kind": "NodeSLO",
    "metadata": {"name": "node"},
    "spec": {"cpuBurstStrategy": {"policy": "auto"}},
}
BATCH = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "1Gi"}
PODS = {
    "apiVersion": "v1",
    "kind": "PodList",
    "items": [
        {
            "metadata": {
                "name": "batch",
                "namespace": "default",
                "uid": UID,
                "labels": {"koordinator.sh/qosClass": "BE"},
                "annotations": {
                    "node.koordinator.sh/extended-resource-spec": json.dumps(
                        {"containers": {"main": {"requests": BATCH, "limits": BATCH}}}
                    )
                },
            },
            "spec": {
                "containers": [
                    {
                        "name": "main",
                        "resources": {"requests": BATCH, "limits": BATCH},
                    }
                ]
            },
            "status": {
                "phase": "Running",
                "containerStatuses": [
                    {"name": "main", "containerID": f"containerd://{container_id(1)}"}
                ],
            },
        }
    ],
}


class WantedBurst:
    """Wants a burst for each pod while the NodeSLO asks for it."""

    name = "cpu_burst"

    def start(self) -> None:
        return None

    def plan(self, inputs: QosInputs, state: None) -> tuple[StrategyPlan, None]:
        if inputs.slo.cpu_burst.policy == "none":
            return StrategyPlan(state=StrategyState.IDLE), state
        values = tuple(
            DesiredValue(cgroup=pod.cgroup, key=key, value=value, owner=self.name, source=SOURCE)
            for pod in inputs.pods
            for key, value in ((QUOTA, Bandwidth(70_000)), (BURST, 30_000), (CPUS, frozenset({1})))
        )
        victims = tuple(
            EvictionRequest(
                pod=PodRef(namespace=pod.view.namespace, name=pod.view.name), feature="F"
            )
            for pod in inputs.pods
        )
        figures = (("bursting_pods", len(inputs.pods)),)
        return StrategyPlan(values=values, evictions=victims, figures=figures), state


@pytest.fixture
def host(tmp_path: Path) -> CgroupHost:
    cgroup_host = CgroupHost(tmp_path / "host")
    for cgroup in (POD, f"{POD}/{container_id(1)}"):
        cgroup_host.group(cgroup)
        for name, text in (
            ("cpu.max", "max 100000\n"),
            ("cpu.weight", "1\n"),
            ("cpuset.cpus", "\n"),
            ("memory.max", "max\n"),
        ):
            cgroup_host.write(f"/sys/fs/cgroup/kubepods{cgroup}/{name}", text)
    return cgroup_host


@pytest.fixture(autouse=True)
def strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "strategies", lambda *_, **__: (WantedBurst(),))


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    slo, pods = tmp_path / "slo.yaml", tmp_path / "pods.json"
    slo.write_text(yaml.safe_dump(SLO))
    pods.write_text(json.dumps(PODS))
    return "--slo", str(slo), "--pods", str(pods)


def planned(host: CgroupHost, *arguments: str) -> int:
    options = ["plan", "--host", str(host.root), *arguments]
    return command.plan(build_parser().parse_args(options))


def contents(host: CgroupHost) -> dict[str, str]:
    return {str(path): path.read_text() for path in sorted(host.root.rglob("*")) if path.is_file()}


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    return shown


def test_each_change_has_its_file_both_values_owner_and_source_and_nothing_is_written(
    host: CgroupHost, files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(host)
    assert planned(host, *files, "-o", "json") == 0
    assert contents(host) == before
    shown = document(capsys)
    rows = {(row["path"], row["owner"]): row for row in shown["changes"]}
    quota = rows[f"/sys/fs/cgroup/kubepods{POD}/cpu.max", "cpu_burst"]
    assert (quota["current"], quota["desired"]) == ("-1 100000", "70000 100000")
    assert (quota["source"], quota["mode"], quota["action"]) == (SOURCE, "on", "write")
    cpus = rows[f"/sys/fs/cgroup/kubepods{POD}/cpuset.cpus", "cpu_burst"]
    assert (cpus["current"], cpus["desired"]) == ("", "1")
    strategy, resctrl = shown["strategies"]
    assert (strategy["state"], resctrl["strategy"]) == ("active", "resctrl")
    assert strategy["figures"] == {"bursting_pods": 1}
    assert shown["cgroups"] == {"version": 2, "driver": "cgroupfs", "root": "/kubepods"}


def test_a_strategys_value_replaces_that_of_a_hook_for_the_same_file(
    host: CgroupHost, files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    planned(host, *files, "-o", "json")
    of_quota = [row for row in document(capsys)["changes"] if row["path"].endswith("cpu.max")]
    owners = {row["path"].split("/")[-2][:4]: row["owner"] for row in of_quota}
    assert owners == {"pod1": "cpu_burst", "0000": "batch_resources"}
    assert len(of_quota) == 2


def test_a_file_that_the_kernel_lacks_is_named(
    host: CgroupHost, files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    planned(host, *files, "-o", "json")
    (missing,) = document(capsys)["missing"]
    assert missing["path"] == f"/sys/fs/cgroup/kubepods{POD}/cpu.max.burst"
    assert (missing["current"], missing["owner"]) == (None, "cpu_burst")
    planned(host, *files)
    assert "not on this host: /sys/fs/cgroup/kubepods" in capsys.readouterr().out


def test_a_strategy_in_plan_mode_is_planned_and_a_disabled_one_desires_nothing(
    host: CgroupHost,
    files: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XPU_AGENT_ENFORCE__STRATEGIES__CPU_BURST", "plan")
    planned(host, *files, "-o", "json")
    modes = {(row["owner"], row["mode"]) for row in document(capsys)["changes"]}
    assert ("cpu_burst", "plan") in modes
    assert ("batch_resources", "on") in modes
    monkeypatch.setenv("XPU_AGENT_ENFORCE__MODE", "off")
    planned(host, *files, "-o", "json")
    shown = document(capsys)
    assert shown["changes"] == []
    assert shown["strategies"][0]["state"] == "off"


def test_without_a_node_slo_strategies_are_idle(
    host: CgroupHost, files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert planned(host, *files[2:]) == 0
    text = capsys.readouterr().out
    assert "no NodeSLO" in text
    assert "idle" in text


def test_a_table_for_people_has_the_same(
    host: CgroupHost, files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert planned(host, *files) == 0
    text = capsys.readouterr().out
    for words in ("70000 100000", "-1 100000", SOURCE, "(empty)", "changes; "):
        assert words in text


def test_a_wrong_field_of_the_node_slo_is_bad_news_and_named(
    host: CgroupHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / "odd.yaml"
    odd.write_text(yaml.safe_dump({**SLO, "spec": {"cpuBurstStrategy": {"policy": "wild"}}}))
    assert planned(host, "--slo", str(odd)) == 1
    assert "spec.cpuBurstStrategy.policy" in capsys.readouterr().out


def test_pods_that_would_be_evicted_are_named_with_the_rule(
    host: CgroupHost, files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    planned(host, *files, "-o", "json")
    (victim,) = document(capsys)["evictions"]
    assert (victim["pod"], victim["rule"], victim["mode"]) == ("default/batch", "F", "on")
    planned(host, *files)
    assert "default/batch" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["[", "a: 1", "- 1", "spec: []", "\0", "kind: PodList\nitems: []"])
def test_a_file_that_is_no_node_slo_is_wrong_use(tmp_path: Path, text: str) -> None:
    file = tmp_path / "slo.yaml"
    file.write_text(text)
    with pytest.raises(BadConfig, match=str(file)):
        command.read_slo_file(str(file))


def test_a_node_slo_that_is_too_large_is_refused_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "slo.yaml"
    file.write_bytes(b" " * (command.MAX_SLO_BYTES + 1))
    with pytest.raises(BadConfig) as refused:
        command.read_slo_file(str(file))
    assert str(refused.value) == f"--slo {file}: more than {command.MAX_SLO_BYTES} bytes"


def test_a_bug_of_a_strategy_is_bad_news(
    host: CgroupHost,
    files: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("oops")

    monkeypatch.setattr(WantedBurst, "plan", fail)
    assert planned(host, *files) == 1
    assert "ValueError: oops" in capsys.readouterr().out


def test_the_command_works_on_a_host_without_cgroups_of_pods(tmp_path: Path) -> None:
    host = CgroupHost(tmp_path)
    for folder in ("burstable", "besteffort", ""):
        host.path(f"/sys/fs/cgroup/kubepods/{folder}").rmdir()
    process = run_agent("plan", "--host", str(tmp_path))
    assert process.returncode == 0
    assert "there is nothing to plan for" in process.stdout
    (tmp_path / "other" / "sys").mkdir(parents=True)
    none = run_agent("plan", "--host", str(tmp_path / "other"))
    assert none.returncode == 3
    assert "no cgroup file system" in none.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed, which only root can become")
def test_without_root_the_plan_lacks_restores_and_says_so(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.log"
    ledger.write_text("")
    ledger.chmod(0o600)
    tmp_path.chmod(0o755)
    inputs = create_inputs(
        Settings(node=NodeSettings(state_dir=str(tmp_path))), open_host(None), SystemClock()
    )
    pid = os.fork()
    if pid == 0:
        os.setuid(65534)
        os._exit(bool(command._ledger(inputs, "/nonexistent").entries))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_without_an_agent_the_requests_of_the_cluster_are_not_known(tmp_path: Path) -> None:
    slo = tmp_path / "slo.json"
    slo.write_text(json.dumps(SLO))
    for arguments, options in (((), "--slo and --pods"), (("--slo", str(slo)), "--pods")):
        process = run_agent("plan", *arguments, XPU_AGENT_METRICS__LISTEN="127.0.0.1:1")
        (line,) = [one for one in process.stderr.splitlines() if one.startswith("xpu-agent: none")]
        assert line.endswith(f"is not known; name it with {options}")


def test_wrong_files_are_wrong_use(tmp_path: Path) -> None:
    process = run_agent("plan", "--slo", str(tmp_path / "none"))
    assert process.returncode == 2
    assert process.stderr.startswith("xpu-agent: --slo ")
