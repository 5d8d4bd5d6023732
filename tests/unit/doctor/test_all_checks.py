"""Each check: a state in which it warns or fails, and one in which all is well."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.doctor.check import CheckResult, CheckStatus
from agent.doctor.report import CHECKS, check_rows, find_all, result_rows
from agent.doctor.rights import BASE_RIGHTS, COMPONENTS, KUBELET_PROXY, Right
from agent.runbook.entry import anchor_of
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.workers.abilities import build_runbook
from agent.workers.load import load_vendors
from tests.apiserver.rbac import read_roles
from tests.unit.doctor.inputs import api, facts
from tests.unit.doctor.states import NO_REPLY, STATES, UNKNOWN

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


@pytest.mark.parametrize("check", ["devices", "vendors", "unmanaged", "enforcement-conditions"])
def test_a_finding_about_a_reason_names_its_entry_in_the_runbook(check: str) -> None:
    inputs = replace(STATES[check].bad, runbook=build_runbook(load_vendors()))
    rows = [row for row in result_rows(find_all(inputs)) if row["check"] == check]
    anchors = [str(row["runbook"]) for row in rows if row["result"] in ("warn", "fail")]
    headings = re.findall(r"^#+ (.*)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    assert anchors
    assert set(anchors) <= {anchor_of(heading) for heading in headings}
    well = [row for row in result_rows(find_all(STATES[check].good)) if row["check"] == check]
    assert all(row["runbook"] is None for row in well)
