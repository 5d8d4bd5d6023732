"""Each check: a state in which it warns or fails, and one in which all is well."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.config.containers import HookSettings
from agent.config.settings import Settings
from agent.doctor.check import CheckResult, CheckStatus
from agent.doctor.facts import ApiReply
from agent.doctor.host_checks import CHECKED_TEXTS
from agent.doctor.kubelet_checks import kubelet_checkpoints
from agent.doctor.report import CHECKS, REASONS, check_rows, find_all, result_rows
from agent.doctor.rights import BASE_RIGHTS, COMPONENTS, KUBELET_PROXY, Right
from agent.runbook.entry import anchor_of
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.workers.abilities import build_runbook
from agent.workers.load import load_vendors
from tests.apiserver.rbac import read_roles
from tests.unit.doctor.inputs import api, facts
from tests.unit.doctor.states import NO_REPLY, NVIDIA, STATES, UNKNOWN

ROOT = Path(__file__).parents[3]
BAD = (CheckStatus.WARN, CheckStatus.FAIL)


def results_of(check: str, inputs: object) -> list[CheckResult]:
    findings = find_all(inputs)  # type: ignore[arg-type]
    return [finding.result for finding in findings if finding.check.id == check]


def test_there_are_at_least_forty_checks_and_each_has_both_states() -> None:
    names = [check.id for check in CHECKS]
    assert len(names) == len(set(names)) >= 40
    assert set(names) == STATES.keys()
    assert all(check.question.endswith("?") for check in CHECKS)


@pytest.mark.parametrize("check", STATES)
def test_a_check_finds_what_is_wrong_and_says_why_and_what_to_do(check: str) -> None:
    bad = [one for one in results_of(check, STATES[check].bad) if one.status in BAD]
    assert bad
    assert any(STATES[check].words in one.observation for one in bad), bad
    assert all(one.observation and one.impact and one.remedy for one in bad)


@pytest.mark.parametrize("check", STATES)
def test_a_check_is_ok_where_all_is_well(check: str) -> None:
    assert {one.status for one in results_of(check, STATES[check].good)} == {CheckStatus.OK}


def test_where_nothing_is_known_every_check_is_skipped_with_a_reason() -> None:
    empty = NodeSnapshot(node=NodeIdentity(name="n"))
    findings = find_all(facts(empty, **UNKNOWN))
    results = [finding.result for finding in findings]
    known = {"vendors", "protobuf"}  # that there is no device, and what this command itself has
    told = {one.id for one in results if one.status is not CheckStatus.SKIP}
    assert told == known
    assert all(one.observation for one in results)


API_CHECKS = (
    *("crds", "crd-status", "rights", "excess-rights", "node", "node-identity", "node-ready"),
    *("node-resources", "other-writers", "node-metric", "agent-restarts"),
)


@pytest.mark.parametrize("check", API_CHECKS)
def test_an_api_server_that_answers_only_its_version_makes_no_check_ok(check: str) -> None:
    well = api()
    late = dict.fromkeys(well.replies, NO_REPLY) | {"version": well.replies["version"]}
    for replies in (late, {"version": well.replies["version"]}):
        inputs = facts(api=replace(well, replies=replies))
        assert {one.status for one in results_of(check, inputs)} == {CheckStatus.SKIP}


ODD: tuple[Any, ...] = (None, 3, "x", [], [None, 3], {"items": 3}, {"items": [3]},
       {"items": [{"status": 3}]},
       {"items": [{"status": {"containerStatuses": [1, {"restartCount": "x", "lastState": 1}],
                              "conditions": [7], "nodeInfo": []}, "spec": 1, "metadata": 2}]},
       {"resources": 3}, {"resources": [3]}, {"gitVersion": 7}, {"gitVersion": "v1.99999999"},
       {"metadata": {"managedFields": [3, {"manager": 4}]}}, {"metadata": 3},
       {"status": {"allowed": "yes", "updateTime": "9999-99-99"},
        "spec": {"metricCollectPolicy": 1}},
       {"status": {"updateTime": "0001-01-01T00:00:00+00:00"}})  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_odd_answers_of_the_api_server_break_no_check(odd: object) -> None:
    well = api()
    inputs = facts(api=replace(well, replies=dict.fromkeys(well.replies, ApiReply(body=odd))))
    assert len(find_all(inputs)) >= len(CHECKS)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["slo", "kubelet", "node"])
def test_odd_parts_of_an_agents_snapshot_break_no_check(name: str, odd: object) -> None:
    for agent in ({"cluster": {name: {"value": odd, "age_s": odd}}}, {"cluster": {name: odd}}):
        assert len(find_all(facts(agent=agent))) >= len(CHECKS)


@pytest.mark.parametrize("text", ["", "\0", "9" * 5000, "\u0663", "a b\n" * 99, "{" * 5000])
def test_odd_files_of_a_host_break_no_check(text: str) -> None:
    texts = dict.fromkeys(STATES["resctrl-groups"].good.texts, text)
    texts |= dict.fromkeys(CHECKED_TEXTS, text)
    texts |= dict.fromkeys(kubelet_checkpoints("/var/lib/kubelet"), text)
    inputs = facts(texts=texts, resctrl="mounted", resctrl_groups=1, kubelet="k")
    assert len(find_all(inputs)) >= len(CHECKS)


PODS = {
    "parts": {"pods": {"value": [{"uid": "u", "namespace": "kube-system", "name": "exporter"}]}}
}
HANDLER = STATES["image-devices"].bad.snapshot


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"snapshot": HANDLER, "agent": PODS}, "ok", "none without an allocation"),
        (
            {
                "snapshot": HANDLER,
                "agent": PODS,
                "settings": Settings(hooks=HookSettings(protected_namespaces=())),
            },
            "warn",
            "in kube-system/exporter",
        ),
        ({}, "ok", "the default runtime gives nothing"),
        ({"requests": None, "vendors": {"nvidia": NVIDIA}}, "skip", "cannot be read"),
        (
            {"requests": None, "vendors": {"nvidia": NVIDIA}, "cgroup_driver": None},
            "skip",
            "no cgroup of pods",
        ),
        ({"requests": None}, "skip", "no accelerator and no RDMA device"),
        (
            {"requests": None, "vendors": {"nvidia": NVIDIA}, "is_live": False},
            "skip",
            "a recorded host",
        ),
    ],
)
def test_an_image_that_asks_for_all_devices_matters_where_the_runtime_gives_them(
    changes: dict[str, Any], status: str, words: str
) -> None:
    inputs = facts(**{"requests": STATES["image-devices"].bad.requests, **changes})
    (one,) = results_of("image-devices", inputs)
    assert (one.status.value, words in one.observation) == (status, True)


@pytest.mark.parametrize("check", ["hami-core", "cdi-names", "char-links"])
def test_files_that_no_recording_has_are_not_called_absent(check: str) -> None:
    (one,) = results_of(check, facts(is_live=False))
    assert (one.status, one.observation) == (CheckStatus.SKIP, "a recorded host")


LOCK = STATES["lock"].good.lock


@pytest.mark.parametrize(
    ("locked", "agent", "status"),
    [
        (True, None, "warn"),  # it hangs, or listens elsewhere
        (False, {}, "skip"),  # a standalone agent answers
        (False, None, "warn"),  # it crashed
        (None, None, "skip"),
    ],
)
def test_a_lock_is_judged_with_the_agent_that_answers(
    locked: bool | None, agent: dict[str, Any] | None, status: str
) -> None:
    assert LOCK is not None
    inputs = facts(lock=replace(LOCK, is_locked=locked), agent=agent)
    assert [one.status.value for one in results_of("lock", inputs)] == [status]
    left = facts(lock=replace(LOCK, is_locked=False, has_left=True), agent=None)
    assert [one.status.value for one in results_of("lock", left)] == ["ok"]


def test_old_kubelets_need_another_right_in_place_of_two() -> None:
    changes = {f"right {KUBELET_PROXY}": api().replies["right list nodes"]}
    for resource in ("nodes/pods", "nodes/configz"):
        changes[f"right {Right('get', '', resource)}"] = api().replies["right get secrets"]
    found = {one.status for one in results_of("rights", facts(api=api(None, **changes)))}
    assert found == {CheckStatus.OK}


def test_the_rights_are_those_of_the_manifests() -> None:
    def rights(path: Path) -> set[Right]:
        return {
            Right(verb, group, resource)
            for rule in read_roles(path)
            for group in rule.api_groups
            for resource in rule.resources
            for verb in rule.verbs
        }

    assert rights(ROOT / "daemonset/base/rbac.yaml") == set(BASE_RIGHTS)
    known = {one.component: set(one.rights) for one in COMPONENTS}
    known["kubelet-proxy"] = {KUBELET_PROXY}
    files = sorted((ROOT / "daemonset/components").glob("*/rbac.yaml"))
    assert {file.parent.name: own for file in files if (own := rights(file))} == known


def test_the_page_lists_every_check_with_its_group() -> None:
    text = (ROOT / "docs/doctor.md").read_text()
    rows = re.findall(r"^\| ([a-z-]+) \| `([a-z-]+)` \| (.*?) \|$", text, re.MULTILINE)
    assert [{"group": group, "id": name, "question": words} for group, name, words in rows] == (
        check_rows()
    )


@pytest.mark.parametrize(
    "check", ["devices", "vendors", "unmanaged", "enforcement-conditions", *REASONS]
)
def test_a_finding_about_a_reason_names_its_entry_in_the_runbook(check: str) -> None:
    inputs = replace(STATES[check].bad, runbook=build_runbook(load_vendors()))
    rows = [row for row in result_rows(find_all(inputs)) if row["check"] == check]
    anchors = [str(row["runbook"]) for row in rows if row["result"] in ("warn", "fail")]
    headings = re.findall(r"^#+ (.*)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    assert anchors
    assert set(anchors) <= {anchor_of(heading) for heading in headings}
    well = [row for row in result_rows(find_all(STATES[check].good)) if row["check"] == check]
    assert all(row["runbook"] is None for row in well)
