"""Our part of a NodeResourceTopology beside the parts of other writers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.objects.node_resource_topology import (
    CPU_MANAGER_POLICY,
    POD_CPU_ALLOCS,
    SHARED_POOLS,
    merge_topology,
    merge_without_policies,
    render_topology,
)
from agent.snapshot.publications import Json
from tests.clustered import KUBELET, snapshot

Tree = Any  # JSON of an object


def desired_object(version: str = "v1alpha2", *, asked_and_silent: bool = False) -> Tree:
    now = snapshot(kubelet=None if asked_and_silent else KUBELET)
    return json.loads(json.dumps(render_topology(now, version, reads_kubelet=True).body))


def nfd(**changes: object) -> Tree:
    """The object as NFD's topology-updater leaves it: device resources, costs, attributes."""
    own = desired_object()
    gpu = {"name": "nvidia.com/gpu", "capacity": "4", "allocatable": "4", "available": "1"}
    for zone in own["zones"]:
        zone["resources"] = [gpu, *zone["resources"]]
        zone["attributes"] = [{"name": "a", "value": "b"}]
        zone["parent"] = "socket-0"
    own["zones"][0]["costs"] = [{"name": "node-7", "value": 40}, {"name": "node-1", "value": 99}]
    own["attributes"] = [
        {"name": "topologyManagerScope", "value": "pod"},
        {"name": "nodeTopologyPodsFingerprint", "value": "pfp0v001"},
        {"name": "topologyManagerPolicy", "value": "restricted"},
    ]
    return {**own, **changes}


def names(entries: list[Tree]) -> list[str]:
    return [entry["name"] for entry in entries]


def test_what_others_count_in_a_zone_stays_as_they_count_it() -> None:
    zone = merged(nfd())["zones"][0]
    (gpu,) = [r for r in zone["resources"] if r["name"] == "nvidia.com/gpu"]
    assert (gpu["capacity"], gpu["allocatable"], gpu["available"]) == ("4", "4", "1")
    assert names(zone["resources"]) == sorted(names(zone["resources"]))


def merged(live: Tree, version: str = "v1alpha2") -> Tree:
    return merge_topology(live, desired_object(version))


def test_our_resources_are_written_in_all_three_values() -> None:
    live = nfd()
    for resource in live["zones"][0]["resources"]:
        resource["capacity"] = resource["allocatable"]
        resource["allocatable"] = "1"
    cpu = next(r for r in merged(live)["zones"][0]["resources"] if r["name"] == "cpu")
    assert cpu == {"name": "cpu", "capacity": "4", "allocatable": "4", "available": "4"}


def test_a_pool_of_huge_pages_that_is_gone_goes() -> None:
    live = nfd()
    live["zones"][0]["resources"].append({"name": "hugepages-64Ki", "capacity": "1"})
    assert "hugepages-64Ki" not in names(merged(live)["zones"][0]["resources"])


def test_parent_attributes_and_costs_of_others_stay() -> None:
    zone = merged(nfd())["zones"][0]
    assert zone["parent"] == "socket-0"
    assert zone["attributes"] == [{"name": "a", "value": "b"}]
    assert zone["costs"] == [
        {"name": "node-7", "value": 40},
        {"name": "node-1", "value": 21},
        {"name": "node-0", "value": 10},
    ]


def test_top_level_attributes_stay_at_their_position() -> None:
    assert merged(nfd())["attributes"] == [
        {"name": "topologyManagerScope", "value": "container"},
        {"name": "nodeTopologyPodsFingerprint", "value": "pfp0v001"},
        {"name": "topologyManagerPolicy", "value": "none"},
    ]


def test_the_older_version_has_no_attributes() -> None:
    assert "attributes" not in merged(nfd(), "v1alpha1")


def test_a_list_without_entries_of_the_agent_is_left_to_its_writer() -> None:
    now = snapshot(kubelet=None)
    own_body = render_topology(now, "v1alpha2", reads_kubelet=False).body
    assert "attributes" not in merge_topology(nfd(), own_body)


def test_zones_that_are_no_memory_node_stay_and_nodes_that_are_gone_go() -> None:
    cache = {"name": "l3-0", "type": "Cache", "resources": []}
    other = {"name": "rack", "type": "Node"}
    removed_zone = {"name": "node-17", "type": "Node"}
    live = nfd()
    live["zones"] = [cache, removed_zone, *live["zones"], other]
    assert names(merged(live)["zones"]) == ["node-0", "node-1", "l3-0", "rack"]


def test_while_the_kubelet_is_silent_what_stands_of_it_stays() -> None:
    stood = nfd(topologyPolicies=["RestrictedPodLevel"])
    annotations = stood["metadata"]["annotations"]
    annotations[CPU_MANAGER_POLICY] = '{"policy":"static","reservedCPUs":"0"}'
    annotations["somebody/else"] = "x"
    desired = render_topology(snapshot(kubelet=None), "v1alpha2", reads_kubelet=True)
    assert desired.merge is merge_without_policies
    merged_json: Tree = desired.merge(stood, desired.body)
    assert merged_json["topologyPolicies"] == ["RestrictedPodLevel"]
    assert merged_json["attributes"] == stood["attributes"]
    for key in (CPU_MANAGER_POLICY, POD_CPU_ALLOCS, SHARED_POOLS):
        assert merged_json["metadata"]["annotations"][key] == annotations[key]
        assert key not in desired.body["metadata"]["annotations"]  # type: ignore[index] # as built
    assert "somebody/else" not in merged_json["metadata"]["annotations"]


@pytest.mark.parametrize("policies", [None, "None", [], [1], {}])
def test_a_first_object_has_a_policy_before_the_kubelet_reported_one(policies: object) -> None:
    silent = desired_object(asked_and_silent=True)
    assert merge_without_policies({"topologyPolicies": policies}, silent)["topologyPolicies"] == [
        "None"
    ]


NAMES = st.sampled_from(["node-0", "node-1", "node-9", "cpu", "memory", "x", "hugepages-2Mi"])
ENTRY = st.fixed_dictionaries({}, optional={"name": NAMES | st.integers(), "value": st.text()})
ENTRIES = st.lists(ENTRY, max_size=4) | st.none() | st.text(max_size=3)
ZONE = st.fixed_dictionaries(
    {},
    optional={
        "name": NAMES | st.none(),
        "type": st.sampled_from(["Node", "Cache", 3]),
        "costs": ENTRIES,
        "attributes": ENTRIES,
        "resources": ENTRIES,
        "parent": st.text(max_size=3),
    },
)
LIVE = st.fixed_dictionaries(
    {},
    optional={
        "zones": st.lists(ZONE | st.none(), max_size=4) | st.integers(),
        "attributes": ENTRIES,
        "topologyPolicies": st.lists(st.text(max_size=3), max_size=2) | st.none(),
        "metadata": st.fixed_dictionaries(
            {},
            optional={"annotations": st.dictionaries(st.text(max_size=3), st.text()) | st.none()},
        )
        | st.none(),
    },
)


@pytest.mark.parametrize("how", [merge_topology, merge_without_policies])
@given(live=LIVE)
def test_whatever_stands_there_merging_its_own_result_changes_nothing(
    how: Callable[[Json, Json], Json], live: Mapping[str, object]
) -> None:
    own_values = desired_object(asked_and_silent=how is merge_without_policies)
    once: Tree = how(live, own_values)
    assert how(once, own_values) == once
    assert [zone["name"] for zone in once["zones"][:2]] == ["node-0", "node-1"]
