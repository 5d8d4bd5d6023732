"""What the doctor says of strategies: asked for and not done, by settings, kernel or others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.config.containers import EnforceStrategiesSettings
from agent.config.settings import Settings
from agent.doctor.check import CheckResult, CheckStatus
from agent.doctor.inputs import read_inputs
from agent.doctor.report import run_checks
from agent.slo.requests import requested_strategies
from agent.slo.status import build_slo_view
from agent.snapshot.slo import NodeSloView
from agent.wire_formats.snapshot_json import to_json_data
from tests.cgroups import CgroupHost
from tests.unit.doctor.inputs import facts, node

ALL_PARTS: dict[str, Any] = {
    "resourceUsedThresholdWithBE": {
        "enable": True,
        "cpuEvictThresholdPercent": 80,
        "memoryEvictLowerPercent": 60,
    },
    "cpuBurstStrategy": {"policy": "auto"},
    "systemStrategy": {"watermarkScaleFactor": 100},
    "resourceQOSStrategy": {
        "lsClass": {"memoryQOS": {"enable": True}},
        "beClass": {"resctrlQOS": {"enable": True}, "blkioQOS": {"enable": True}},
    },
}


def view_of(spec: dict[str, Any]) -> NodeSloView:
    view = build_slo_view({"metadata": {}, "spec": spec}, NodeSloView())
    assert not view.refused
    return view


def agent(spec: dict[str, Any] | None, *strategies: dict[str, Any], **part: Any) -> dict[str, Any]:
    """Return the snapshot of a running agent with this NodeSLO and these strategies."""
    value = {"strategies": list(strategies), "is_frozen": False, "brake": "", "conditions": []}
    slo = {} if spec is None else {"slo": {"value": to_json_data(view_of(spec))}}
    return {"containers": {"enforcement": {"value": {**value, **part}}}, "cluster": slo}


def strategy(name: str, mode: str = "on", state: str = "active", message: str = "") -> Any:
    return {"name": name, "mode": mode, "state": state, "message": message, "values": 1}


def results(snapshot: dict[str, Any], **changes: Any) -> dict[str, CheckResult]:
    """Return what the doctor says of enforcement: of strategies, and what is bad."""
    every = run_checks(facts(agent=snapshot, **changes))
    own = [one for one in every if one.id.startswith("enforcement")]
    return {
        one.id: one
        for one in own
        if one.status is not CheckStatus.SKIP
        and (one.id == "enforcement" or one.status is not CheckStatus.OK)
    }


def test_each_strategy_that_a_node_slo_requests_is_returned_with_its_field() -> None:
    requests = requested_strategies(view_of(ALL_PARTS).slo)
    # memory is reclaimed before an eviction, and no field of its own asks for it
    assert {*requests, "memory_reclaim"} == set(EnforceStrategiesSettings.__struct_fields__)
    assert requests["cpu_eviction"] == "spec.resourceUsedThresholdWithBE.cpuEvictThresholdPercent"
    assert requested_strategies(NodeSloView().slo) == {}


def test_a_threshold_with_a_default_does_not_request_evictions() -> None:
    enabled = {"resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 70}}
    assert set(requested_strategies(view_of(enabled).slo)) == {"cpu_suppression"}


def test_what_works_is_one_line() -> None:
    result = results(agent(ALL_PARTS, strategy("cpu_burst"), strategy("resctrl", state="idle")))
    assert {name: one.status for name, one in result.items()} == {"enforcement": CheckStatus.OK}
    assert "cpu_burst" in result["enforcement"].observation


@pytest.mark.parametrize(("mode", "words"), [("off", "is off"), ("plan", "writes nothing")])
def test_a_mode_that_prevents_a_requested_strategy_is_a_warning(mode: str, words: str) -> None:
    one = strategy("cpu_burst", mode, "off" if mode == "off" else "active")
    result = results(agent(ALL_PARTS, one))["enforcement:cpu_burst"]
    assert result.status is CheckStatus.WARN
    assert "spec.cpuBurstStrategy.policy" in result.observation
    assert words in result.observation
    assert "enforce.strategies.cpu_burst" in result.remedy
    assert "enforcement" in results(agent({}, one)), "nobody asks for it"


def test_an_unsupporting_kernel_and_a_bug_are_distinguished() -> None:
    lacking = strategy("memory_qos", state="unsupported", message="there is no memory.high")
    broken = strategy("cpu_burst", state="failed", message="ValueError: oops")
    result = results(agent(ALL_PARTS, lacking, broken))
    assert result["enforcement:memory_qos"].status is CheckStatus.WARN
    assert "there is no memory.high" in result["enforcement:memory_qos"].observation
    assert result["enforcement:cpu_burst"].status is CheckStatus.FAIL
    assert "ValueError: oops" in result["enforcement:cpu_burst"].observation


@pytest.mark.parametrize(
    "reason", ["ForeignWriter", "WritesStopped", "EnforcementFrozen", "EnforcementStopped", "New"]
)
def test_problems_that_last_have_a_remedy(reason: str) -> None:
    condition = {"reason": reason, "message": "cpu.max is written by others"}
    result = results(agent(None, conditions=[condition]))[f"enforcement:{reason}"]
    assert result.status is CheckStatus.WARN
    assert result.observation == "cpu.max is written by others"
    assert result.remedy


def test_a_missing_controller_is_named_with_the_strategies_that_need_it() -> None:
    snapshot = agent(ALL_PARTS, strategy("cpu_burst"))
    result = results(snapshot, controllers=frozenset({"cpu", "memory"}))
    assert set(result) == {
        "enforcement",
        "enforcement:controller:cpuset",
        "enforcement:controller:io",
    }
    assert "cpu_suppression" in result["enforcement:controller:cpuset"].observation
    both = frozenset({"cpu", "memory", "cpuset", "blkio"})
    assert "enforcement:controller:blkio" not in results(
        snapshot, controllers=both, cgroup_version=1
    )
    assert set(results(snapshot, controllers=None)) == {"enforcement"}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("unmounted", "is not mounted"),
        ("unsupported", "has no resctrl"),
        ("mounted", ""),
        ("", ""),
    ],
)
def test_resctrl_that_is_requested_and_not_mounted_is_a_warning(state: str, words: str) -> None:
    result = results(agent(ALL_PARTS), resctrl=state).get("enforcement:resctrl-mount")
    assert (result.observation.rpartition(", and ")[2] if result is not None else "").find(
        words
    ) >= 0
    assert (result is not None) == bool(words)
    assert "enforcement:resctrl-mount" not in results(agent({}), resctrl=state)


def reason(check: str, **inputs: Any) -> str:
    """Return why a check is skipped; empty if it is not."""
    result = next(one for one in run_checks(facts(**inputs)) if one.id == check)
    return result.observation if result.status is CheckStatus.SKIP else ""


def test_resctrl_that_cannot_be_read_is_neither_unrequested_nor_unmounted() -> None:
    field = requested_strategies(view_of(ALL_PARTS).slo)["resctrl"]
    text = reason("resctrl", agent=agent(ALL_PARTS), resctrl="")
    assert text == f"NodeSLO {field} asks for it, and /proc/filesystems cannot be read"
    groups = reason("resctrl-groups", agent=agent(ALL_PARTS), resctrl="")
    assert groups == "/proc/filesystems cannot be read"
    assert reason("resctrl-groups", is_live=False, resctrl="") == "a recorded host"
    assert "is not mounted" in reason("resctrl-groups", resctrl="unmounted")


@pytest.mark.parametrize("check", ["resctrl", "enforcement-controllers", "cpu-burst"])
def test_without_an_agent_nothing_is_known_about_requests(check: str) -> None:
    assert "no agent answers" in reason(check, has_burst_file=False)


def test_controllers_that_cannot_be_read_are_not_an_absent_cgroup() -> None:
    text = reason("enforcement-controllers", agent=agent(ALL_PARTS), cgroup_driver="cgroupfs")
    assert text == "the controllers of the cgroups of pods cannot be read"
    absent = reason("enforcement-controllers", agent=agent(ALL_PARTS), cgroup_driver=None)
    assert "no cgroup of pods" in absent


@pytest.mark.parametrize("odd", [7, "x", [], {"strategies": 7}, {"strategies": [{"state": "new"}]}])
def test_an_odd_answer_of_an_agent_breaks_no_check(odd: object) -> None:
    assert results({"containers": {"enforcement": {"value": odd}}, "cluster": 7}) == {}


@pytest.mark.parametrize("version", [1, 2])
def test_controllers_are_read_where_the_agent_reads_them(version: int, tmp_path: Path) -> None:
    host = CgroupHost(tmp_path, version)
    if version == 2:
        host.write("/sys/fs/cgroup/kubepods/cgroup.subtree_control", "cpuset cpu io\n")
    host.write("/proc/filesystems", "nodev\tsysfs\nnodev\tresctrl\n")
    inputs = read_inputs(Settings(), node(), host.files, live=False, own=host.files)
    desired = {"cpu", "memory", "cpuacct"} if version == 1 else {"cpuset", "cpu", "io"}
    assert inputs.controllers is not None
    assert desired <= inputs.controllers
    live = read_inputs(Settings(), node(), host.files, live=True, own=host.files)
    assert live.resctrl == "unmounted"
