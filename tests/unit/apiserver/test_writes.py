"""POST, PUT, patches and DELETE."""

from __future__ import annotations

from typing import Any

import pytest

from tests.apiserver import ApiServer
from tests.unit.apiserver.client import (
    DEVICES,
    NODE_METRICS,
    PODS,
    Client,
    device,
    metric,
    pod,
)

Object = dict[str, Any]
NODE_A = f"{DEVICES}/node-a"


def test_a_post_creates_once(client: Client) -> None:
    status, body = client.call("POST", DEVICES, device())
    assert status == 201
    assert body["metadata"]["generation"] == 1
    assert body["metadata"]["uid"]
    status, body = client.call("POST", DEVICES, device())
    assert (status, body["reason"]) == (409, "AlreadyExists")


def test_a_post_may_leave_the_name_to_the_server(client: Client) -> None:
    body = device()
    body["metadata"] = {"generateName": "node-"}
    names = {client.call("POST", DEVICES, body)[1]["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3


def test_a_namespace_must_be_there(client: Client) -> None:
    lost = pod("p")
    lost["metadata"]["namespace"] = "nowhere"
    status, body = client.call("POST", "/api/v1/namespaces/nowhere/pods", lost)
    assert (status, body["message"]) == (404, 'namespaces "nowhere" not found')


def test_a_put_needs_the_current_version(client: Client) -> None:
    first = client.call("POST", DEVICES, device())[1]
    second = {**first, "spec": {"devices": []}}
    body = client.call("PUT", NODE_A, second)[1]
    assert body["metadata"]["generation"] == 2
    status, body = client.call("PUT", NODE_A, second)
    assert (status, body["reason"]) == (409, "Conflict")
    del second["metadata"]["resourceVersion"]
    status, body = client.call("PUT", NODE_A, second)
    assert status == 422
    assert "metadata.resourceVersion" in body["message"]


def test_a_put_of_what_is_not_there_is_404_and_of_another_uid_409(client: Client) -> None:
    assert client.call("PUT", NODE_A, device())[0] == 404
    body = client.call("POST", DEVICES, device())[1]
    body["metadata"]["uid"] = "other"
    assert client.call("PUT", NODE_A, body)[0] == 409


def test_a_put_of_what_is_there_writes_nothing(client: Client) -> None:
    body = client.call("POST", DEVICES, device())[1]
    assert client.call("PUT", NODE_A, body)[1] == body


def test_spec_and_status_are_written_apart_where_there_is_a_status(
    api: ApiServer, client: Client
) -> None:
    path = f"{NODE_METRICS}/node-a"
    body = client.call("POST", NODE_METRICS, {**metric(), "status": {"podsMetric": []}})[1]
    assert "status" not in body
    body["status"] = {"updateTime": "2026-01-02T03:04:05Z"}
    body["spec"] = {}
    body["metadata"]["labels"] = {"a": "b"}
    body = client.call("PUT", f"{path}/status", body)[1]
    assert body["spec"] == metric()["spec"]
    assert body["metadata"]["generation"] == 1
    assert "labels" not in body["metadata"]
    body = client.merge(path, {"spec": None, "status": None})[1]
    assert "spec" not in body
    assert body["status"] == {"updateTime": "2026-01-02T03:04:05Z"}
    assert body["metadata"]["generation"] == 2
    assert api.requests(subresource="status")[0].resource_path == "nodemetrics/status"


def test_a_device_has_no_status_of_its_own(client: Client) -> None:
    body = client.call("POST", DEVICES, {**device(), "status": {"allocations": []}})[1]
    assert body["status"] == {"allocations": []}
    assert client.call("PUT", f"{NODE_A}/status", body)[0] == 404


def test_a_merge_patch_deletes_by_null_and_replaces_lists(client: Client) -> None:
    client.call("POST", DEVICES, device(count=2, labels={"a": "1", "b": "1"}))
    patch = {"metadata": {"labels": {"a": None}}, "spec": {"devices": [{"minor": 7}]}}
    body = client.merge(NODE_A, patch)[1]
    assert body["metadata"]["labels"] == {"b": "1"}
    assert body["spec"]["devices"] == [{"minor": 7, "health": False}]
    assert client.merge(f"{DEVICES}/node-b", patch)[0] == 404


def test_a_version_in_a_merge_patch_is_a_lock(client: Client) -> None:
    old = client.call("POST", DEVICES, device())[1]["metadata"]["resourceVersion"]
    client.merge(NODE_A, {"metadata": {"labels": {"a": "1"}}})
    patch = {"metadata": {"labels": {"a": "2"}, "resourceVersion": old}}
    assert client.merge(NODE_A, patch)[0] == 409


def test_a_json_patch_tests_before_it_changes(client: Client) -> None:
    client.call("POST", DEVICES, device())
    operations = [
        {"op": "test", "path": "/spec/devices/0/minor", "value": 0},
        {"op": "replace", "path": "/spec/devices/0/minor", "value": 5},
        {"op": "add", "path": "/metadata/labels", "value": {"a/b": "c"}},
        {"op": "remove", "path": "/spec/devices/0/id"},
    ]
    query = {"content_type": "application/json-patch+json"}
    body = client.call("PATCH", NODE_A, operations, **query)[1]
    assert body["spec"]["devices"][0] == {"type": "gpu", "minor": 5, "health": True}
    assert body["metadata"]["labels"] == {"a/b": "c"}
    assert client.call("PATCH", NODE_A, operations, **query)[0] == 422


def test_a_strategic_patch_merges_conditions_of_built_in_kinds_only(client: Client) -> None:
    query = {"content_type": "application/strategic-merge-patch+json"}
    patch = {"status": {"conditions": [{"type": "Extra", "status": "True"}]}}
    body = client.call("PATCH", "/api/v1/nodes/node-a/status", patch, **query)[1]
    assert [item["type"] for item in body["status"]["conditions"]] == ["Ready", "Extra"]
    patch = {"status": {"conditions": [{"type": "Extra", "$patch": "delete"}]}}
    body = client.call("PATCH", "/api/v1/nodes/node-a/status", patch, **query)[1]
    assert [item["type"] for item in body["status"]["conditions"]] == ["Ready"]
    client.call("POST", DEVICES, device())
    assert client.call("PATCH", NODE_A, patch, **query)[0] == 415


def test_a_delete_says_what_went_and_keeps_to_its_preconditions(client: Client) -> None:
    body = client.call("POST", DEVICES, device())[1]
    for wrong in ({"uid": "other"}, {"resourceVersion": "1"}):
        assert client.call("DELETE", NODE_A, {"preconditions": wrong})[0] == 409
    right = {"uid": body["metadata"]["uid"]}
    status, answer = client.call("DELETE", NODE_A, {"preconditions": right})
    assert status == 200
    assert answer["details"]["uid"] == body["metadata"]["uid"]
    assert client.call("DELETE", NODE_A)[0] == 404


def test_what_a_node_owns_goes_with_it(api: ApiServer, client: Client) -> None:
    uid = (api.get("nodes", "node-a") or {})["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": uid}
    client.call("POST", DEVICES, device(ownerReferences=[owner]))
    client.call("POST", DEVICES, device("node-b"))
    api.delete("nodes", "node-a")
    assert [body["metadata"]["name"] for body in api.list("devices")] == ["node-b"]


def test_what_names_a_node_that_is_no_more_does_not_stay(api: ApiServer, client: Client) -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "of-before"}
    assert client.call("POST", DEVICES, device(ownerReferences=[owner]))[0] == 201
    assert api.get("devices", "node-a") is None


def test_a_dry_run_changes_nothing(api: ApiServer, client: Client) -> None:
    assert client.call("POST", DEVICES, device(), dryRun="All")[0] == 201
    assert client.apply(NODE_A, device(), dryRun="All")[0] == 201
    assert api.list("devices") == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/apis/scheduling.koordinator.sh/v1beta9/devices"),
        ("GET", "/api/v1/devices"),
        ("GET", "/api/v1/pods/p"),
        ("GET", "/nonsense"),
        ("PATCH", f"{DEVICES}/node-a/scale"),
        ("GET", DEVICES.replace("devices", "namespaces/default/devices")),
    ],
)
def test_what_is_not_served_is_not_found(client: Client, method: str, path: str) -> None:
    answer = client.call(method, path, {} if method == "PATCH" else None)
    assert answer == (404, "404 page not found\n")  # and no Status


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", NODE_A),
        ("PUT", DEVICES),
        ("PATCH", DEVICES),
        ("DELETE", DEVICES),
        ("DELETE", f"{NODE_METRICS}/node-a/status"),
    ],
)
def test_a_method_that_has_no_sense_there_is_not_allowed(
    client: Client, method: str, path: str
) -> None:
    status, body = client.call(method, path, device())
    assert (status, body["reason"]) == (405, "MethodNotAllowed")


def test_a_body_that_is_too_large_is_413() -> None:
    with ApiServer(max_body_bytes=1000) as api:
        status, body = Client(api).call("POST", PODS, pod("p" * 1000))
    assert (status, body["reason"]) == (413, "RequestEntityTooLarge")


@pytest.mark.parametrize("payload", [b"{", b"[]", b"3", b'{"metadata": 3}', b"\xff\xfe", b"null"])
def test_a_body_that_is_no_object_is_a_bad_request(client: Client, payload: bytes) -> None:
    assert client.call("POST", DEVICES, payload)[0] == 400
    assert client.apply(NODE_A, payload)[0] == 400
