"""The comparison of rights used with rights granted."""

from __future__ import annotations

from tests.apiserver.log import Logged
from tests.apiserver.rbac import Rule
from tests.unit.daemonset.rights import Right, compare, verbs_granted, verbs_used

AGENT, OTHER = "agent", "administrator"


def logged_request(verb: str, resource: str, **more: object) -> Logged:
    fields: dict[str, object] = {"group": "", "user": AGENT, "status": 200, **more}
    return Logged(
        time_s=0.0,
        method="",
        path="",
        query={},
        verb=verb,
        resource=resource,
        **fields,  # type: ignore[arg-type]  # of the struct
    )


def test_each_verb_on_each_resource_is_one_right() -> None:
    requests = [
        logged_request("list", "nodes"),
        logged_request("watch", "nodes"),
        logged_request("watch", "nodes"),
        logged_request("patch", "nodemetrics", group="slo.koordinator.sh", subresource="status"),
    ]
    assert verbs_used(requests, AGENT) == {
        Right("", "nodes", "list"),
        Right("", "nodes", "watch"),
        Right("slo.koordinator.sh", "nodemetrics/status", "patch"),
    }


def test_requests_of_others_and_requests_without_a_resource_do_not_count() -> None:
    requests = [logged_request("list", "secrets", user=OTHER), logged_request("get", "")]
    assert verbs_used(requests, AGENT) == frozenset()


def test_a_request_that_was_refused_was_needed_all_the_same() -> None:
    assert verbs_used([logged_request("list", "secrets", status=403)], AGENT) == {
        Right("", "secrets", "list")
    }


def test_a_patch_that_makes_the_object_needs_the_right_to_create() -> None:
    used = verbs_used([logged_request("patch", "devices", status=201)], AGENT)
    assert used == {Right("", "devices", "patch"), Right("", "devices", "create")}


def test_too_few_and_too_many_rights_are_both_named() -> None:
    rules = [Rule(api_groups=("", "apps"), resources=("pods",), verbs=("list", "delete"))]
    used = verbs_used([logged_request("list", "pods"), logged_request("get", "secrets")], AGENT)
    result = compare(used, verbs_granted(rules))
    assert result.missing == (Right("", "secrets", "get"),)
    assert result.unused == (
        Right("", "pods", "delete"),
        Right("apps", "pods", "delete"),
        Right("apps", "pods", "list"),
    )


def test_a_wildcard_is_more_than_was_used() -> None:
    rules = [Rule(api_groups=("",), resources=("*",), verbs=("list",))]
    result = compare(verbs_used([logged_request("list", "pods")], AGENT), verbs_granted(rules))
    assert result.unused == (Right("", "*", "list"),)
