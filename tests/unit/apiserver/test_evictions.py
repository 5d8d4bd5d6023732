"""The eviction subresource, as Kubernetes answers it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.apiserver import ApiServer
from tests.unit.apiserver.client import Client, pod

PATH = "/api/v1/namespaces/default/pods/p/eviction"
Object = dict[str, Any]


def eviction(name: str = "p", **options: object) -> Object:
    body: Object = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": "default"},
    }
    return {**body, "deleteOptions": options} if options else body


def put_pod(
    api: ApiServer, *, ready: bool = True, phase: str = "Running", **changes: Any
) -> Object:
    body = pod("p", app="web")
    status = [{"type": "Ready", "status": str(ready)}]
    body["status"] = {"phase": phase, "conditions": status}
    body["spec"].update(changes)
    return api.put(body)


def put_budget(api: ApiServer, name: str = "b", **status: int) -> Object:
    return api.put(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
            "status": {"observedGeneration": 1, **status},
        }
    )


def allowed(api: ApiServer, name: str = "b") -> int:
    budget = api.get("pdb", name, "default")
    assert budget is not None
    return int(budget["status"]["disruptionsAllowed"])


def test_a_pod_of_a_node_terminates_with_its_own_grace_period(
    api: ApiServer, client: Client
) -> None:
    put_pod(api, terminationGracePeriodSeconds=7)
    status, body = client.call("POST", PATH, eviction())
    assert (status, body["status"]) == (201, "Success")
    remaining = api.get("pod", "p", "default")
    assert remaining is not None
    assert remaining["metadata"]["deletionGracePeriodSeconds"] == 7
    assert remaining["metadata"]["deletionTimestamp"]
    assert remaining["status"]["conditions"][-1]["reason"] == "EvictionByEvictionAPI"


@pytest.mark.parametrize(
    ("phase", "changes"),
    [("Succeeded", {}), ("Running", {"nodeName": ""}),
     ("Running", {"terminationGracePeriodSeconds": 0})],
)  # fmt: skip
def test_a_pod_that_nobody_runs_is_gone_at_once(
    api: ApiServer, client: Client, phase: str, changes: Object
) -> None:
    put_pod(api, phase=phase, **changes)
    assert client.call("POST", PATH, eviction())[0] == 201
    assert api.get("pod", "p", "default") is None


def test_an_unknown_pod_is_a_404(client: Client) -> None:
    status, body = client.call("POST", PATH, eviction())
    assert (status, body["message"]) == (404, 'pods "p" not found')


def test_another_uid_is_a_conflict(api: ApiServer, client: Client) -> None:
    uid = put_pod(api)["metadata"]["uid"]
    status, body = client.call("POST", PATH, eviction(preconditions={"uid": "other"}))
    assert (status, body["reason"]) == (409, "Conflict")
    assert body["message"].endswith(
        f"Precondition failed: UID in precondition: other, UID in object meta: {uid}"
    )
    assert client.call("POST", PATH, eviction(preconditions={"uid": uid}))[0] == 201


def test_a_budget_that_is_used_up_is_a_429_with_its_cause(api: ApiServer, client: Client) -> None:
    put_pod(api)
    put_budget(api, disruptionsAllowed=0, desiredHealthy=2, currentHealthy=2)
    with client.open("POST", PATH, eviction()) as answer:
        assert answer.status == 429
        assert answer.headers["Retry-After"] is None
    status, body = client.call("POST", PATH, eviction())
    assert (status, body["reason"]) == (429, "TooManyRequests")
    assert body["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    assert body["details"]["causes"] == [
        {
            "reason": "DisruptionBudget",
            "message": "The disruption budget b needs 2 healthy pods and has 2 currently",
        }
    ]


def test_a_budget_that_its_controller_has_not_processed_is_a_429_with_a_wait(
    api: ApiServer, client: Client
) -> None:
    put_pod(api)
    put_budget(api, observedGeneration=0, disruptionsAllowed=1)
    with client.open("POST", PATH, eviction()) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (429, "10")


def test_each_eviction_uses_up_one_disruption(api: ApiServer, client: Client) -> None:
    put_pod(api)
    put_budget(api, disruptionsAllowed=2)
    assert client.call("POST", PATH, eviction())[0] == 201
    assert allowed(api) == 1


def test_two_budgets_are_a_201_that_failed(api: ApiServer, client: Client) -> None:
    put_pod(api)
    put_budget(api, "b", disruptionsAllowed=1)
    put_budget(api, "c", disruptionsAllowed=1)
    status, body = client.call("POST", PATH, eviction())
    assert (status, body["status"], body["code"]) == (201, "Failure", 500)
    assert "more than one PodDisruptionBudget" in body["message"]
    remaining = api.get("pod", "p", "default")
    assert remaining is not None
    assert "deletionTimestamp" not in remaining["metadata"]


@pytest.mark.parametrize("phase", ["Pending", "Failed"])
def test_a_budget_does_not_keep_a_pod_that_does_not_run(
    api: ApiServer, client: Client, phase: str
) -> None:
    put_pod(api, phase=phase)
    put_budget(api, disruptionsAllowed=0)
    assert client.call("POST", PATH, eviction())[0] == 201


def test_a_pod_that_is_not_ready_costs_a_healthy_budget_nothing(
    api: ApiServer, client: Client
) -> None:
    put_pod(api, ready=False)
    put_budget(api, disruptionsAllowed=0, desiredHealthy=1, currentHealthy=1)
    assert client.call("POST", PATH, eviction())[0] == 201
    assert allowed(api) == 0


@pytest.mark.parametrize("in_body", [True, False])
def test_a_dry_run_changes_nothing(api: ApiServer, client: Client, in_body: bool) -> None:
    put_pod(api)
    put_budget(api, disruptionsAllowed=1)
    if in_body:
        status, _ = client.call("POST", PATH, eviction(dryRun=["All"]))
    else:
        status, _ = client.call("POST", PATH, eviction(), dryRun="All")
    assert (status, allowed(api)) == (201, 1)
    remaining = api.get("pod", "p", "default")
    assert remaining is not None
    assert "deletionTimestamp" not in remaining["metadata"]


@pytest.mark.parametrize(
    "body",
    [
        {**eviction(), "apiVersion": "v1"},
        {**eviction(), "kind": "Pod"},
        eviction("other"),
        {**eviction(), "metadata": {"name": "p", "namespace": "elsewhere"}},
        [],
    ],
)
def test_a_body_that_is_no_eviction_of_this_pod_is_a_400(
    api: ApiServer, client: Client, body: object
) -> None:
    put_pod(api)
    assert client.call("POST", PATH, body)[0] == 400


def test_the_subresource_can_only_be_created(api: ApiServer, client: Client) -> None:
    put_pod(api)
    assert client.get(PATH)[0] == 405
    assert client.call("DELETE", PATH)[0] == 405


def test_discovery_names_the_version_of_an_eviction(client: Client) -> None:
    resources = client.get("/api/v1")[1]["resources"]
    (entry,) = (resource for resource in resources if resource["name"] == "pods/eviction")
    assert (entry["group"], entry["version"], entry["verbs"]) == ("policy", "v1", ["create"])
