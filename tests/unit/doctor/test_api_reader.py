"""The questions to the API server, asked of the strict one with the roles of the manifests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.clock import SystemClock
from agent.config.cluster import ApiSettings
from agent.config.settings import Settings
from agent.doctor.api_reader import REVIEW_PATH, ApiReader
from agent.doctor.check import CheckStatus
from agent.doctor.facts import ApiFacts
from agent.doctor.report import find_all
from agent.kube.endpoint import InClusterTarget, KubeconfigTarget
from tests.apiserver import ApiServer, Fault
from tests.patience import PATIENCE_S
from tests.unit.doctor.inputs import facts

ROOT = Path(__file__).parents[3]
ROLES = ROOT / "daemonset/base/rbac.yaml"
NODE = "node-a"


def read(
    api: ApiServer, settings: Settings | None = None, deadline_s: float = PATIENCE_S
) -> ApiFacts:
    target = InClusterTarget(url=api.url, folder=str(api.serviceaccount_dir))
    reader = ApiReader(target, settings or Settings(), NODE, SystemClock())
    asyncio.run(reader.read({}, deadline_s))
    return reader.facts


def findings(answers: ApiFacts, *checks: str, settings: Settings | None = None) -> dict[str, str]:
    inputs = facts(api=answers, settings=settings or Settings())
    return {
        finding.result.id: finding.result.status.value
        for finding in find_all(inputs)
        if finding.check.id in checks
    }


def test_the_roles_of_the_base_give_all_rights_that_it_needs_and_no_others() -> None:
    with ApiServer(nodes=(NODE,), roles=ROLES) as api:
        answers = read(api)
        checks = findings(answers, "api-server", "rights", "excess-rights", "crds", "crd-status",
                       "node", "clock-skew")  # fmt: skip
        assert set(checks.values()) == {"ok"}, checks
        assert answers.namespace == "xpu-agent"
        # each request of the doctor is one that the role allows, or one that every user may make
        assert {one.status for one in api.requests()} <= {200, 201, 404}
        assert {one.verb for one in api.requests() if one.path != REVIEW_PATH} <= {
            "get",
            "list",
            "",
        }


def test_a_missing_right_is_named_with_what_it_costs() -> None:
    with ApiServer(nodes=(NODE,), roles=ROLES) as api:
        rule = next(one for one in api.app.rules if "pods" in one.resources)
        api.revoke(rule)
        answers = read(api)
    (bad,) = [
        finding.result
        for finding in find_all(facts(api=answers))
        if finding.check.id == "rights" and finding.result.status is CheckStatus.FAIL
    ]
    assert "list pods, watch pods" in bad.observation
    assert "containers get no device" in bad.impact


def test_an_administrators_rights_are_not_taken_for_the_agents() -> None:
    with ApiServer(nodes=(NODE,), roles=ROLES) as api:
        target = KubeconfigTarget(paths=str(api.kubeconfig))
        reader = ApiReader(target, Settings(), NODE, SystemClock())
        asyncio.run(reader.read({}, PATIENCE_S))
    assert findings(reader.facts, "rights", "excess-rights") == {
        "rights": "ok",
        "excess-rights": "skip",
    }


def test_a_component_that_settings_switch_on_is_asked_for() -> None:
    settings = Settings(api=ApiSettings(node_condition=True))
    with ApiServer(nodes=(NODE,), roles=ROLES) as api:
        answers = read(api, settings)
    checks = findings(answers, "component-rights", settings=settings)
    assert checks == {"component-rights:get nodes": "fail"}


def test_a_crd_that_is_absent_is_named() -> None:
    with ApiServer(nodes=(NODE,), roles=ROLES) as api:
        api.remove_crd("devices")
        checks = findings(read(api), "crds", "other-writers")
    assert checks == {"crds:Device": "warn", "other-writers": "skip"}


@pytest.mark.parametrize("versions", [("v1alpha1",), ("v1alpha2",), ("v1alpha1", "v1alpha2")])
def test_either_version_of_the_topology_will_do(versions: tuple[str, ...]) -> None:
    with ApiServer(nodes=(NODE,), roles=ROLES, topology_versions=versions) as api:
        assert findings(read(api), "crds") == {"crds": "ok"}


def test_another_writer_of_the_device_is_seen_in_its_managed_fields() -> None:
    device = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": NODE},
        "spec": {"devices": []},
    }
    with ApiServer(nodes=(NODE,), roles=ROLES) as api:
        api.put(device, manager="koordlet")
        answers = read(api)
    (bad,) = [one.result for one in find_all(facts(api=answers)) if one.check.id == "other-writers"]
    assert bad.observation == "Device by koordlet"


@pytest.mark.parametrize("versions", [("v1alpha1",), ("v1alpha2",)])
def test_the_topology_is_read_in_the_version_that_is_there(versions: tuple[str, ...]) -> None:
    topology = {
        "apiVersion": f"topology.node.k8s.io/{versions[0]}",
        "kind": "NodeResourceTopology",
        "metadata": {"name": NODE},
        "zones": [],
    }
    with ApiServer(nodes=(NODE,), roles=ROLES, topology_versions=versions) as api:
        api.put({**topology, "topologyPolicies": []}, manager="nfd-master", checked=False)
        answers = read(api)
    (bad,) = [one.result for one in find_all(facts(api=answers)) if one.check.id == "other-writers"]
    assert bad.observation == "NodeResourceTopology by nfd-master"


@pytest.mark.parametrize("path", ["/version", REVIEW_PATH])
def test_a_server_that_hangs_makes_checks_skipped_or_failed_and_never_ok(path: str) -> None:
    with ApiServer(nodes=(NODE,), roles=ROLES) as api:
        api.faults.add(Fault(path=path, hang=True, times=0))
        answers = read(api, deadline_s=0.5)
        checks = findings(answers, "api-server", "rights", "excess-rights")
    reached = path != "/version"
    assert checks["api-server"] == ("ok" if reached else "fail")
    assert {checks["rights"], checks["excess-rights"]} == {"skip"}


def test_an_account_that_the_server_does_not_know_is_a_failure_with_its_cause() -> None:
    with ApiServer(nodes=(NODE,), roles=ROLES) as api:
        api.access.users.clear()
        answers = read(api)
    assert "401" in answers.problem
    assert findings(answers, "api-server", "rights") == {"api-server": "fail", "rights": "skip"}


def test_a_server_that_is_away_is_a_failure() -> None:
    with ApiServer(nodes=(NODE,)) as api:
        api.stop()
        answers = read(api)
        assert findings(answers, "api-server", "node") == {"api-server": "fail", "node": "skip"}
