"""The admission policies against golden requests, their expressions evaluated as CEL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.daemonset.admission import denials
from tests.unit.daemonset.cel import CelError, evaluate
from tests.unit.daemonset.manifests import DAEMONSET, built, the

GOLDEN = yaml.safe_load(Path(__file__).with_name("golden_requests.yaml").read_text())
REQUESTS: list[dict[str, Any]] = GOLDEN["requests"]
BASE = built(DAEMONSET / "base")
ANNOTATION = "scheduling.koordinator.sh/device-allocated"


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: one["why"])
def test_a_request_passes_or_is_denied_with_its_reason(request_: dict[str, Any]) -> None:
    expected = [request_["message"]] if "message" in request_ else []
    assert denials(BASE, request_) == expected


def test_every_rule_of_the_policies_has_a_request_that_passes_and_one_that_does_not() -> None:
    rules = {
        (operation, group, resource)
        for item in BASE
        if item["kind"] == "ValidatingAdmissionPolicy"
        for rule in item["spec"]["matchConstraints"]["resourceRules"]
        for operation in rule["operations"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    outcomes: dict[tuple[str, str, str], set[bool]] = {rule: set() for rule in rules}
    for one in REQUESTS:
        where, subresource = one["resource"], one.get("subResource", "")
        resource = f"{where['resource']}/{subresource}" if subresource else where["resource"]
        key = (one["operation"], where["group"], resource)
        if key in outcomes and one["user"]["username"] == REQUESTS[0]["user"]["username"]:
            outcomes[key].add("message" in one)
    assert {rule for rule, seen in outcomes.items() if seen != {True, False}} == set()


def test_in_a_cluster_without_the_account_nobody_is_denied() -> None:
    policies = [item for item in BASE if item["kind"].startswith("Validating")]
    assert all(denials(policies, one) == [] for one in REQUESTS)


def test_an_expression_that_fails_denies() -> None:
    policy = the(BASE, "ValidatingAdmissionPolicy", "xpu-agent-own-objects")
    broken = {**policy, "spec": {**policy["spec"], "variables": []}}
    broken["spec"] |= {"validations": [{"expression": "request.nothing == 1", "message": "m"}]}
    others = [item for item in BASE if item["metadata"]["name"] != policy["metadata"]["name"]]
    binding = the(BASE, "ValidatingAdmissionPolicyBinding", "xpu-agent-own-objects")
    (message,) = denials([*others, broken, binding], REQUESTS[0])
    assert message.startswith("error: ")


@pytest.mark.parametrize(
    ("user", "before", "after", "allowed"),
    [
        ("system:kube-scheduler", None, "{}", True),
        ("system:serviceaccount:kube-system:xpu-scheduler", "{}", '{"gpu": []}', True),
        ("alice", None, "{}", False),
        ("alice", "{}", '{"gpu": []}', False),
        ("alice", "{}", None, False),
        ("alice", "{}", "{}", True),
        ("alice", None, None, True),
        ("system:serviceaccount:xpu-agent:xpu-agent", None, "{}", False),
    ],
)
def test_only_schedulers_change_an_allocation(
    user: str, before: str | None, after: str | None, allowed: bool
) -> None:
    def pod(value: str | None) -> dict[str, Any]:
        more = {} if value is None else {"annotations": {ANNOTATION: value}}
        return {"metadata": {"name": "p", **more}}

    request = {
        "user": {"username": user},
        "operation": "UPDATE",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "object": pod(after),
        "oldObject": pod(before),
    }
    assert (denials(built(DAEMONSET / "policy/grants"), request) == []) is allowed


def test_the_evaluator_is_one_of_cel() -> None:
    assert evaluate("[1, 2].exists(n, n == 2) && 'ab'.startsWith('a')", {}) is True
    with pytest.raises(CelError):
        evaluate("no_such_name", {})
