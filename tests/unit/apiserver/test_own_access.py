"""SelfSubjectAccessReview: an account asks what it may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.apiserver import ApiServer
from tests.unit.apiserver.client import Client
from tests.unit.apiserver.test_access import ROLE

PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def review(**attributes: str) -> dict[str, Any]:
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }


METRICS = "slo.koordinator.sh"


@pytest.mark.parametrize(
    ("attributes", "allowed"),
    [
        ({"verb": "list", "resource": "nodes"}, True),
        ({"verb": "patch", "resource": "nodes"}, False),
        (
            {
                "verb": "patch",
                "group": METRICS,
                "resource": "nodemetrics",
                "subresource": "status",
            },
            True,
        ),
        ({"verb": "patch", "group": METRICS, "resource": "nodemetrics"}, False),
        (
            {
                "verb": "get",
                "group": "scheduling.koordinator.sh",
                "resource": "devices",
                "name": "node-a",
            },
            True,
        ),
        ({"verb": "get", "group": "scheduling.koordinator.sh", "resource": "devices"}, False),
    ],
)
def test_a_review_answers_by_the_rules_that_refuse_requests(
    attributes: dict[str, str], allowed: bool, tmp_path: Path
) -> None:
    roles = tmp_path / "roles.yaml"
    roles.write_text(ROLE)
    with ApiServer(nodes=("node-a",), roles=roles) as api:
        status, body = Client(api).call("POST", PATH, review(**attributes))
        assert (status, body["status"]["allowed"]) == (201, allowed)
        assert "denied" not in body["status"]
        admin = Client(api, api.access.admin_token).call("POST", PATH, review(**attributes))
        assert admin[1]["status"]["allowed"] is True
        assert Client(api, "wrong").call("POST", PATH, review(**attributes))[0] == 401


def test_a_review_that_asks_nothing_or_too_much_is_invalid(client: Client) -> None:
    empty = {**review(), "spec": {}}
    both = {**review(), "spec": {"resourceAttributes": {}, "nonResourceAttributes": {}}}
    for body in (empty, both):
        status, answer = client.call("POST", PATH, body)
        assert (status, answer["reason"]) == (422, "Invalid")
        assert "exactly one of" in answer["message"]
    assert client.call("POST", PATH, {**review(verb="get"), "kind": "Pod"})[0] == 400
    assert client.get(PATH)[0] == 405


def test_a_review_is_listed_among_what_the_server_has(client: Client) -> None:
    resources = client.get("/apis/authorization.k8s.io/v1")[1]["resources"]
    assert [(one["name"], one["verbs"]) for one in resources] == [
        ("selfsubjectaccessreviews", ["create"])
    ]
