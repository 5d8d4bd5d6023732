"""The binding subresource, as Kubernetes answers it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.apiserver import ApiServer
from tests.unit.apiserver.client import Client, pod

PATH = "/api/v1/namespaces/default/pods/p/binding"
Object = dict[str, Any]


def binding(node: str = "node-a", **metadata: object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "namespace": "default", **metadata},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


@pytest.fixture
def pending(api: ApiServer) -> Object:
    body = pod("p")
    body["spec"].pop("nodeName", None)
    body["metadata"]["annotations"] = {"kept": "1"}
    return api.put(body)


def test_node_and_annotations_are_written_together(
    api: ApiServer, client: Client, pending: Object
) -> None:
    version = pending["metadata"]["resourceVersion"]
    sent = binding(annotations={"a": "b"}, uid=pending["metadata"]["uid"], resourceVersion=version)
    status, _ = client.call("POST", PATH, sent)
    assert status == 201
    bound = api.get("pod", "p", "default")
    assert bound is not None
    assert bound["spec"]["nodeName"] == "node-a"
    assert bound["metadata"]["annotations"] == {"kept": "1", "a": "b"}
    assert bound["status"]["conditions"][-1]["type"] == "PodScheduled"


def test_a_second_binding_is_a_conflict(client: Client, pending: Object) -> None:
    assert pending
    assert client.call("POST", PATH, binding())[0] == 201
    status, body = client.call("POST", PATH, binding("node-b"))
    assert status == 409
    assert 'pod p is already assigned to node "node-a"' in body["message"]


@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
def test_preconditions_hold(client: Client, pending: Object, field: str) -> None:
    assert pending
    status, body = client.call("POST", PATH, binding(**{field: "1"}))
    assert status == 409
    assert "Precondition failed" in body["message"]


def test_a_pod_that_ends_or_is_gated_is_not_bound(api: ApiServer, client: Client) -> None:
    body = pod("p")
    body["spec"].pop("nodeName", None)
    body["spec"]["schedulingGates"] = [{"name": "g"}]
    api.put(body)
    status, answer = client.call("POST", PATH, binding())
    assert (status, "schedulingGates" in answer["message"]) == (409, True)
    del body["spec"]["schedulingGates"]
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    api.put(body)
    status, answer = client.call("POST", PATH, binding())
    assert (status, "is being deleted" in answer["message"]) == (409, True)


def test_wrong_bodies_are_refused(client: Client, pending: Object) -> None:
    assert pending
    assert client.call("POST", PATH, {**binding(), "target": {"kind": "Node"}})[0] == 422
    assert client.call("POST", PATH, {**binding(), "kind": "Pod"})[0] == 400
    other = PATH.replace("/p/", "/q/")
    assert client.call("POST", other, binding())[0] == 400
    unknown = {**binding(), "metadata": {"name": "q"}}
    assert client.call("POST", other, unknown)[0] == 404
