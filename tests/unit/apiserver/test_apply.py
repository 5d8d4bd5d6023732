"""Server-side apply: the rules that the Kubernetes documentation gives, and the CRDs' own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.apiserver import ApiServer, Refusal, node
from tests.unit.apiserver.client import DEVICES, NODE_METRICS, Client, device, metric

Object = dict[str, Any]
NODE_A = f"{DEVICES}/node-a"


def managers(body: Object) -> dict[tuple[str, str], Object]:
    entries = body["metadata"]["managedFields"]
    return {(entry["manager"], entry["operation"]): entry["fieldsV1"] for entry in entries}


def test_an_apply_creates_and_owns_what_it_says(client: Client) -> None:
    status, body = client.apply(NODE_A, device(labels={"a": "b"}))
    assert status == 201
    assert managers(body) == {
        ("xpu-agent", "Apply"): {
            "f:metadata": {"f:labels": {"f:a": {}}},
            "f:spec": {"f:devices": {}},
        }
    }
    assert client.apply(NODE_A, device(labels={"a": "b"}))[0] == 200


def test_an_apply_that_changes_nothing_writes_nothing(api: ApiServer, client: Client) -> None:
    before = client.apply(NODE_A, device())[1]
    watch = client.watch(DEVICES, resourceVersion=before["metadata"]["resourceVersion"])
    assert client.apply(NODE_A, device())[1] == before
    api.put(device("node-b"))
    assert watch.types(1) == [("ADDED", "node-b")]
    watch.close()
    assert not api.requests(verb="patch")[-1].changed


def test_what_is_left_out_of_the_next_apply_goes_if_nobody_else_owns_it(client: Client) -> None:
    client.apply(NODE_A, device(labels={"mine": "1", "shared": "1"}, annotations={"n": "1"}))
    client.apply(NODE_A, device(labels={"shared": "1"}), fieldManager="other", force="true")
    client.merge(NODE_A, {"metadata": {"annotations": {"theirs": "1"}}})
    body = client.apply(NODE_A, device())[1]
    assert body["metadata"]["labels"] == {"shared": "1"}
    assert body["metadata"]["annotations"] == {"theirs": "1"}


def test_a_map_of_one_owner_is_removed_with_its_last_key(client: Client) -> None:
    client.apply(NODE_A, device(labels={"mine": "1"}))
    assert "labels" not in client.apply(NODE_A, device())[1]["metadata"]


def test_another_managers_value_is_a_conflict_that_names_field_manager_and_operation(
    api: ApiServer, client: Client
) -> None:
    api.put(device(count=2, labels={"a": "b"}), manager="koordlet")
    status, body = client.apply(NODE_A, device(labels={"a": "c"}))
    assert (status, body["reason"]) == (409, "Conflict")
    assert [cause["field"] for cause in body["details"]["causes"]] == [
        ".metadata.labels.a",
        ".spec.devices",
    ]
    assert {cause["reason"] for cause in body["details"]["causes"]} == {"FieldManagerConflict"}
    assert body["message"].startswith(
        'Apply failed with 2 conflicts: conflicts with "koordlet" using '
        "scheduling.koordinator.sh/v1alpha1 at "
    )
    assert api.get("devices", "node-a") == api.put(device(count=2, labels={"a": "b"}))


def test_the_same_value_is_shared_without_a_conflict(client: Client) -> None:
    client.apply(NODE_A, device(), fieldManager="first")
    status, body = client.apply(NODE_A, device(), fieldManager="second")
    assert status == 200
    assert set(managers(body)) == {("first", "Apply"), ("second", "Apply")}


def test_force_takes_the_fields_from_their_owner(client: Client) -> None:
    client.apply(NODE_A, device(count=2, labels={"a": "b"}), fieldManager="first")
    body = client.apply(NODE_A, device(count=1), force="true")[1]
    assert len(body["spec"]["devices"]) == 1
    assert managers(body)["first", "Apply"] == {"f:metadata": {"f:labels": {"f:a": {}}}}
    status, refusal = client.apply(NODE_A, device(count=3), fieldManager="first")
    assert status == 409
    assert refusal["message"] == (
        'Apply failed with 1 conflict: conflict with "xpu-agent": .spec.devices'
    )


def test_an_update_owns_what_it_changed_and_keeps_the_rest_with_its_owners(client: Client) -> None:
    body = client.apply(NODE_A, device(labels={"a": "1", "b": "1"}))[1]
    body["metadata"]["labels"]["a"] = "2"
    body = client.call("PUT", NODE_A, body)[1]
    assert managers(body) == {
        ("xpu-agent", "Apply"): {
            "f:metadata": {"f:labels": {"f:b": {}}},
            "f:spec": {"f:devices": {}},
        },
        ("plain", "Update"): {"f:metadata": {"f:labels": {"f:a": {}}}},
    }


def test_an_empty_list_of_managers_in_a_put_forgets_them(client: Client) -> None:
    body = client.apply(NODE_A, device())[1]
    body["metadata"]["managedFields"] = [{}]
    assert "managedFields" not in client.call("PUT", NODE_A, body)[1]["metadata"]
    status, refusal = client.apply(NODE_A, device(count=2))
    assert status == 409
    assert '"before-first-apply"' in refusal["message"]


def test_items_with_keys_are_owned_one_by_one(api: ApiServer, client: Client) -> None:
    path = "/api/v1/nodes/node-a/status"
    own_values = {"type": "AcceleratorsHealthy", "status": "True", "reason": "AllHealthy"}
    config = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-a"},
        "status": {"conditions": [own_values]},
    }
    status, body = client.apply(path, config)
    assert status == 200
    assert [item["type"] for item in body["status"]["conditions"]] == [
        "Ready",
        "AcceleratorsHealthy",
    ]
    assert managers(body)["xpu-agent", "Apply"] == {
        "f:status": {
            "f:conditions": {
                'k:{"type":"AcceleratorsHealthy"}': {
                    ".": {},
                    "f:type": {},
                    "f:status": {},
                    "f:reason": {},
                }
            }
        }
    }
    empty = {**config, "status": {}}
    body = client.apply(path, empty)[1]
    assert [item["type"] for item in body["status"]["conditions"]] == ["Ready"]
    there = api.get("nodes", "node-a")
    assert there is not None
    assert there["status"]["capacity"] == {"cpu": "8", "memory": "32Gi", "pods": "110"}


def test_an_owner_of_another_uid_replaces_the_agents(api: ApiServer, client: Client) -> None:
    def owned_by(uid: str) -> Object:
        owner = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": uid}
        return device(ownerReferences=[{**owner, "controller": True}])

    first, other = (api.put(node(name))["metadata"]["uid"] for name in ("node-a", "node-b"))
    client.apply(NODE_A, owned_by(first))
    body = client.apply(NODE_A, owned_by(other))[1]
    assert [owner["uid"] for owner in body["metadata"]["ownerReferences"]] == [other]


def test_a_status_is_applied_where_the_object_is_and_nowhere_else(
    api: ApiServer, client: Client
) -> None:
    path = f"{NODE_METRICS}/node-a"
    report = {**metric(), "spec": {}, "status": {"updateTime": "2026-01-02T03:04:05Z"}}
    assert client.apply(f"{path}/status", report)[0] == 404
    api.put(metric(), manager="koord-manager")
    status, body = client.apply(f"{path}/status", report)
    assert status == 200
    assert body["spec"] == metric()["spec"]
    assert body["status"] == report["status"]
    assert managers(body)["xpu-agent", "Apply"] == {"f:status": {"f:updateTime": {}}}
    body = client.apply(path, {**report, "status": {"updateTime": "2027-01-02T03:04:05Z"}})[1]
    assert body["status"] == report["status"]


def test_a_resource_version_in_an_apply_is_a_lock(client: Client) -> None:
    old = client.apply(NODE_A, device())[1]["metadata"]["resourceVersion"]
    client.apply(NODE_A, device(count=2))
    status, body = client.apply(NODE_A, device(count=3, resourceVersion=old))
    assert (status, body["reason"]) == (409, "Conflict")
    assert body["message"].endswith("try again")


@pytest.mark.parametrize(
    ("change", "query", "code", "words"),
    [
        ({}, {"fieldManager": ""}, 422, "is required for apply patch"),
        ({}, {"fieldManager": "m" * 129}, 422, "may not be more than 128 bytes"),
        ({"kind": ""}, {}, 400, "apiVersion and kind"),
        ({"metadata": {"name": "x"}}, {}, 400, "does not match the name on the URL"),
        ({"metadata": {"managedFields": []}}, {}, 400, "metadata.managedFields must be nil"),
        ({"spec": {"x": 1}}, {}, 500, ".spec.x: field not declared in schema"),
        ({"spec": {"devices": {}}}, {}, 500, ".spec.devices: expected list, got map"),
        ({"metadata": {"labels": {"a": "b c"}}}, {}, 422, "metadata.labels: Invalid value"),
    ],
)
def test_an_apply_that_makes_no_sense_is_refused_as_a_real_server_does(
    client: Client, change: Object, query: Object, code: int, words: str
) -> None:
    status, body = client.apply(NODE_A, {**device(), **change}, **query)
    assert (status, body["code"]) == (code, code)
    assert words in body["message"]


def test_a_server_without_server_side_apply_says_what_it_takes() -> None:
    with ApiServer(server_side_apply=False) as api:
        status, body = Client(api).apply(NODE_A, device())
    assert (status, body["reason"]) == (415, "UnsupportedMediaType")
    assert "application/merge-patch+json" in body["message"]


def test_another_writer_of_a_test_meets_the_same_rules(api: ApiServer) -> None:
    api.apply(device(), manager="first")
    with pytest.raises(Refusal, match="conflict with") as caught:
        api.apply(device(count=2), manager="second")
    assert caught.value.code == 409
