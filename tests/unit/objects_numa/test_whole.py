"""The NodeResourceTopology object of a cluster: its owner, its versions, the kubelet's policies."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agent.objects.node_resource_topology import (
    V1ALPHA1,
    V1ALPHA2,
    TopologyPublisher,
    topology_policy,
)
from agent.snapshot.cluster import KubeletView
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from tests.clustered import NAME, UID, node, snapshot

Tree = Any
BOTH = (V1ALPHA1, V1ALPHA2)


def body(now: NodeSnapshot) -> Tree:
    (desired,) = TopologyPublisher().render(now, 0.0)
    assert desired.api_version == desired.body["apiVersion"]
    return desired.body


@pytest.mark.parametrize(
    ("policy", "container", "of_pod"),
    [
        ("single-numa-node", "SingleNUMANodeContainerLevel", "SingleNUMANodePodLevel"),
        ("restricted", "RestrictedContainerLevel", "RestrictedPodLevel"),
        ("best-effort", "BestEffortContainerLevel", "BestEffortPodLevel"),
        ("none", "None", "None"),
        ("", "None", "None"),
        ("newest-kind", "None", "None"),
    ],
)
def test_policy_and_scope_are_in_koordinators_words(
    policy: str, container: str, of_pod: str
) -> None:
    for scope, word in (("container", container), ("pod", of_pod), ("", "None"), ("x", "None")):
        facts = KubeletView(topology_policy=policy, topology_scope=scope)
        assert topology_policy(facts) == word


def test_the_newer_version_has_policy_and_scope_as_attributes_too() -> None:
    facts = KubeletView(
        cpu_manager_policy="none", topology_policy="restricted", topology_scope="pod"
    )
    older, newer = (body(snapshot(kubelet=facts, versions=v)) for v in ((V1ALPHA1,), BOTH))
    assert newer["attributes"] == [
        {"name": "topologyManagerPolicy", "value": "restricted"},
        {"name": "topologyManagerScope", "value": "pod"},
    ]
    assert newer["apiVersion"] == "topology.node.k8s.io/v1alpha2"
    assert older["topologyPolicies"] == ["RestrictedPodLevel"]
    rest = {key: value for key, value in newer.items() if key != "attributes"}
    assert rest == {**older, "apiVersion": newer["apiVersion"]}


@pytest.mark.parametrize(
    ("served", "version"),
    [
        (BOTH, "v1alpha2"),
        ((V1ALPHA2, "v1"), "v1alpha2"),
        ((V1ALPHA1,), "v1alpha1"),
        ((), "v1alpha1"),
    ],
)
def test_the_newer_version_is_written_where_it_is_served(
    served: tuple[str, ...], version: str
) -> None:
    document = body(snapshot(versions=served))
    assert document["apiVersion"] == f"topology.node.k8s.io/{version}"


def test_nothing_is_written_before_the_servers_versions_are_known() -> None:
    assert TopologyPublisher().render(snapshot(versions=None), 0.0) == ()


def test_without_polling_there_are_no_attributes_of_the_kubelet() -> None:
    publisher = TopologyPublisher(is_kubelet_enabled=False)
    (desired,) = publisher.render(snapshot(kubelet=None), 0.0)
    assert "attributes" not in desired.body
    assert desired.body["topologyPolicies"] == ["None"]


def test_the_node_owns_the_object_and_its_deletion_waits_for_nobody() -> None:
    assert body(snapshot())["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "name": NAME,
            "uid": UID,
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]


def test_a_recreated_node_owns_it_with_its_new_uid() -> None:
    again = snapshot(owner=node(uid="another"))
    assert body(again)["metadata"]["ownerReferences"][0]["uid"] == "another"


def test_nothing_is_published_for_a_node_that_is_not_known_or_was_deleted() -> None:
    with_node = snapshot()
    for part in (SnapshotPart(None), SnapshotPart(None, 5.0)):
        without_node = replace(with_node, cluster=replace(with_node.cluster, node=part))
        stale = replace(without_node, node=replace(with_node.node, uid=UID))
        assert TopologyPublisher().render(without_node, 0.0) == ()
        assert TopologyPublisher().render(stale, 0.0) == ()


def test_equal_snapshots_give_equal_objects_at_any_time() -> None:
    publisher = TopologyPublisher()
    assert publisher.render(snapshot(), 1.0) == publisher.render(snapshot(), 9999.0)
