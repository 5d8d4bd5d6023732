from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ParseError
from agent.snapshot.cluster import NodeView
from agent.wire_formats.cluster_objects import NodeObject, node_facts

JsonObject = dict[str, object]

NODE: JsonObject = {
    "metadata": {
        "name": "n",
        "uid": "8f0c3a52-6a1e-4a3c-9a84-0a5b9c0c3d7e",
        "resourceVersion": "12",
        "labels": {"b": "2", "a": "1"},
        "annotations": {"k": "v"},
        "creationTimestamp": None,
    },
    "spec": {"podCIDR": "10.0.0.0/24"},
    "status": {
        "capacity": {"cpu": "128", "memory": "1056Gi"},
        "allocatable": {"cpu": "127500m"},
        "addresses": [
            {"type": "InternalIP", "address": "192.0.2.7"},
            {"type": "Hostname", "address": "n"},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {"machineID": "m1", "bootID": "b1", "kernelVersion": "6.1"},
        "images": [{"names": ["x"], "sizeBytes": 1}] * 50,
    },
}


def facts(**changes: object) -> NodeView:
    return node_facts(msgspec.json.decode(json.dumps({**NODE, **changes}), type=NodeObject))


def test_a_node_is_read_with_what_is_needed_of_it() -> None:
    assert facts() == NodeView(
        name="n",
        uid="8f0c3a52-6a1e-4a3c-9a84-0a5b9c0c3d7e",
        resource_version="12",
        labels=(("a", "1"), ("b", "2")),
        annotations=(("k", "v"),),
        capacity={"cpu": "128", "memory": "1056Gi"},
        allocatable={"cpu": "127500m"},
        addresses=(("InternalIP", "192.0.2.7"), ("Hostname", "n")),
        kubelet_port=10250,
        machine_id="m1",
        boot_id="b1",
    )


@pytest.mark.parametrize("status", [None, {}, {"capacity": None, "addresses": None}])
def test_a_node_without_facts_of_the_kubelet_is_a_node(status: object) -> None:
    result = facts(status=status)
    assert (result.kubelet_port, result.capacity, result.addresses) == (None, {}, ())


@pytest.mark.parametrize("port", [0, -1, 65536, 10**9])
def test_a_port_that_is_none_is_not_known(port: int) -> None:
    status = {"daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
    assert facts(status=status).kubelet_port is None


@pytest.mark.parametrize("uid", ["", "../x", "a b", "x" * 200])
def test_a_node_whose_uid_is_none_is_refused(uid: str) -> None:
    with pytest.raises(ParseError):
        facts(metadata={"name": "n", "uid": uid})


def test_annotations_beyond_all_limits_are_refused() -> None:
    with pytest.raises(ParseError, match="annotations"):
        facts(metadata={"name": "n", "uid": "u", "annotations": {"k": "v" * 600_000}})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@given(st.sampled_from(["metadata", "spec", "status"]), json_values)
def test_no_part_of_a_node_raises_anything_unexpected(part: str, value: object) -> None:
    try:
        facts(**{part: value})
    except (ParseError, msgspec.ValidationError):
        return
