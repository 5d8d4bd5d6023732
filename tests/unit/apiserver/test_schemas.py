"""What the schemas of the CRDs do to what is written."""

from __future__ import annotations

from typing import Any

import pytest

from tests.apiserver import ApiServer
from tests.unit.apiserver.client import DEVICES, NODE_METRICS, Client, device, metric

Object = dict[str, Any]
TOPOLOGIES = "/apis/topology.node.k8s.io/{}/noderesourcetopologies"


def with_card(**fields: object) -> Object:
    body = device()
    body["spec"]["devices"] = [{"health": True, **fields}]
    return body


@pytest.mark.parametrize(
    ("fields", "reason", "message"),
    [
        (
            {"minor": "0"},
            "FieldValueTypeInvalid",
            'Invalid value: "0": spec.devices[0].minor in body must be of type integer: "0"',
        ),
        ({"minor": 1 << 31}, "FieldValueInvalid", "must be of type int32"),
        ({"health": 1}, "FieldValueTypeInvalid", "must be of type boolean"),
        ({"topology": {"nodeID": 0, "socketID": 0}}, "FieldValueRequired", "Required value"),
        ({"resources": {"a": "1x"}}, "FieldValueInvalid", "in body should match"),
        ({"resources": {"a": 1.5}}, "FieldValueTypeInvalid", "in body must be of type"),
        ({"labels": {"a": 1}}, "FieldValueTypeInvalid", "must be of type string"),
        ({"vfGroups": [None]}, "FieldValueTypeInvalid", "must be of type object"),
        (
            {
                "conditions": [
                    {
                        "type": "Healthy",
                        "status": "Maybe",
                        "reason": "Ok",
                        "message": "",
                        "lastTransitionTime": "2026-01-02T03:04:05Z",
                    }
                ]
            },
            "FieldValueNotSupported",
            'supported values: "True", "False", "Unknown"',
        ),
    ],
)
def test_what_breaks_the_schema_is_refused_with_its_cause(
    client: Client, fields: Object, reason: str, message: str
) -> None:
    status, body = client.call("POST", DEVICES, with_card(**fields))
    assert (status, body["reason"], body["code"]) == (422, "Invalid", 422)
    assert body["message"].startswith('Device.scheduling.koordinator.sh "node-a" is invalid: ')
    (cause,) = body["details"]["causes"]
    assert cause["field"].startswith("spec.devices[0].")
    assert cause["reason"] == reason
    assert message in cause["message"]


def test_a_condition_without_required_fields_is_reported_completely(client: Client) -> None:
    card = with_card(conditions=[{"type": "a b", "reason": "chip error"}])
    causes = client.call("POST", DEVICES, card)[1]["details"]["causes"]
    assert [cause["field"].rpartition(".")[2] for cause in causes] == [
        "type",
        "reason",
        "lastTransitionTime",
        "message",
        "status",
    ]


def test_unknown_fields_are_dropped_and_reported(api: ApiServer, client: Client) -> None:
    body = with_card(uuid="GPU-1")
    body["spec"]["x"] = 1
    with client.open("POST", DEVICES, body) as answer:
        assert answer.status == 201
        assert answer.headers["Warning"] == (
            '299 - "unknown field \\"spec.devices[0].uuid\\"; unknown field \\"spec.x\\""'
        )
    assert api.requests()[-1].dropped == ("spec.devices[0].uuid", "spec.x")
    assert (api.get("devices", "node-a") or {})["spec"] == {"devices": [{"health": True}]}


def test_unknown_fields_are_refused_if_the_client_requests_strict_validation(
    client: Client,
) -> None:
    status, body = client.call("POST", DEVICES, with_card(uuid="x"), fieldValidation="Strict")
    assert status == 400
    assert 'unknown field "spec.devices[0].uuid"' in body["message"]


def test_defaults_are_filled_in_and_nulls_taken_for_absent(client: Client) -> None:
    card = with_card(health=None, minor=None, labels=None)
    body = client.call("POST", DEVICES, card)[1]
    assert body["spec"]["devices"] == [{"health": False}]


def test_an_older_release_lacks_a_field(api: ApiServer, client: Client) -> None:
    api.add_crd("devices", without=("spec.devices.conditions",))
    status, body = client.apply(f"{DEVICES}/node-a", with_card(conditions=[]))
    assert (status, body.get("reason")) == (500, None)
    assert body["message"] == (
        "failed to create typed patch object (/node-a; scheduling.koordinator.sh/v1alpha1, "
        "Kind=Device): .spec.devices[0].conditions: field not declared in schema"
    )
    assert client.call("POST", DEVICES, with_card(conditions=[]))[0] == 201
    assert api.requests()[-1].dropped == ("spec.devices[0].conditions",)


def test_a_crd_goes_and_comes_back(api: ApiServer, client: Client) -> None:
    api.put(device())
    api.remove_crd("devices")
    assert client.get(DEVICES) == (404, "404 page not found\n")
    api.add_crd("devices")
    assert client.get(DEVICES)[1]["items"] == []


def test_enumerations_and_free_fields_of_a_node_metric(client: Client) -> None:
    body = metric()
    body["spec"]["metricCollectPolicy"]["nodeMemoryCollectPolicy"] = "whatever"
    status, refusal = client.call("POST", NODE_METRICS, body)
    assert status == 422
    assert refusal["details"]["causes"][0]["reason"] == "FieldValueNotSupported"
    client.call("POST", NODE_METRICS, metric())
    pods = [{"name": "p", "namespace": "default", "podUsage": {}, "extensions": {"any": [1]}}]
    path = f"{NODE_METRICS}/node-a/status"
    status, body = client.apply(path, {**metric(), "status": {"podsMetric": pods}})
    assert status == 200
    assert body["status"]["podsMetric"] == pods


def topology(version: str, **fields: object) -> Object:
    return {
        "apiVersion": f"topology.node.k8s.io/{version}",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "node-a"},
        "zones": [{"name": "node-0", "type": "Node", "costs": [{"name": "node-0", "value": 10}]}],
        **fields,
    }


def test_both_versions_of_a_topology_show_the_same_object(client: Client) -> None:
    attributes = [{"name": "topologyManagerPolicy", "value": "none"}]
    body = topology("v1alpha2", attributes=attributes, topologyPolicies=["None"])
    assert client.apply(f"{TOPOLOGIES.format('v1alpha2')}/node-a", body)[0] == 201
    old = client.get(f"{TOPOLOGIES.format('v1alpha1')}/node-a")[1]
    assert old["apiVersion"] == "topology.node.k8s.io/v1alpha1"
    assert "attributes" not in old
    assert old["topologyPolicies"] == ["None"]


def test_a_write_in_the_old_version_loses_what_only_the_new_one_has(client: Client) -> None:
    attributes = [{"name": "topologyManagerPolicy", "value": "none"}]
    body = topology("v1alpha2", attributes=attributes)
    client.apply(f"{TOPOLOGIES.format('v1alpha2')}/node-a", body, fieldManager="other")
    body = topology("v1alpha1", topologyPolicies=["None"])
    assert client.apply(f"{TOPOLOGIES.format('v1alpha1')}/node-a", body)[0] == 200
    assert "attributes" not in client.get(f"{TOPOLOGIES.format('v1alpha2')}/node-a")[1]


def test_the_old_version_of_a_topology_needs_policies(client: Client) -> None:
    path = f"{TOPOLOGIES.format('v1alpha1')}/node-a"
    status, body = client.apply(path, topology("v1alpha1"))
    assert status == 422
    assert body["details"]["causes"][0]["field"] == "topologyPolicies"


def test_a_cluster_may_serve_the_old_version_alone() -> None:
    with ApiServer(topology_versions=("v1alpha1",)) as api:
        client = Client(api)
        assert client.get(TOPOLOGIES.format("v1alpha1"))[0] == 200
        assert client.get(TOPOLOGIES.format("v1alpha2"))[0] == 404


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"name": "Node A"}, "metadata.name"),
        ({"labels": {"a": "x" * 64}}, "metadata.labels"),
        ({"labels": {"a/b/c": ""}}, "metadata.labels"),
        ({"annotations": {"-a": ""}}, "metadata.annotations"),
        ({"annotations": {"a": "x" * (257 << 10)}}, "metadata.annotations"),
        ({"ownerReferences": [{"kind": "Node", "name": "n", "uid": "u"}]}, "apiVersion"),
    ],
)
def test_metadata_has_rules_of_its_own(client: Client, metadata: Object, field: str) -> None:
    body = device()
    body["metadata"] = {"name": "node-a", **metadata}
    status, refusal = client.call("POST", DEVICES, body)
    assert status == 422
    assert field in refusal["details"]["causes"][0]["field"]


def test_without_validation_all_is_taken() -> None:
    with ApiServer(validation=False) as api:
        assert Client(api).call("POST", DEVICES, with_card(minor="0", x=1))[0] == 201


def test_an_administrator_may_store_what_breaks_every_rule(api: ApiServer, client: Client) -> None:
    hostile = {**device(), "spec": {"devices": [None, {"minor": "x"}, 7]}}
    api.put(hostile, checked=False)
    assert client.get(f"{DEVICES}/node-a")[1]["spec"] == hostile["spec"]
    assert client.get(DEVICES)[1]["items"][0]["spec"] == hostile["spec"]


def test_an_administrators_write_without_a_status_keeps_the_existing_one(api: ApiServer) -> None:
    status = {"updateTime": "2026-01-02T03:04:05Z"}
    api.put({**metric(), "status": status})
    assert api.put({**metric(), "spec": {}})["status"] == status
