"""The NodeResourceTopology object beside the one that upstream's agent published."""

from __future__ import annotations

import json
from typing import cast

import pytest

from agent.host.cpu import read_cpu_numa
from agent.objects.node_resource_topology import ANNOTATIONS
from agent.snapshot.cluster import NodeView
from tests.captures import SHARED, needs_shared
from tests.nrt import Body, annotation, rendered
from tests.small_host import CPU, NODE, small_host

pytestmark = needs_shared


def oracle() -> Body:
    objects = json.loads((SHARED / "oracle" / "koordlet-objects.json").read_text())
    return cast(Body, objects["noderesourcetopology"])


def two_cpus() -> Body:
    """What we say of the machine that upstream's agent described: two CPUs in one socket."""
    cpus, numa = read_cpu_numa(
        small_host(
            {
                **{f"{CPU}/cpu{n}/topology/core_cpus": f"{1 << n}" for n in range(2)},
                f"{CPU}/online": "0-1",
                f"{NODE}/node1": None,
                f"{NODE}/node0/distance": None,
                f"{NODE}/node0/meminfo": "Node 0 MemTotal: 8874188 kB\n",
                "/proc/cpuinfo": "vendor_id : GenuineIntel\n"
                "model name : Intel(R) Xeon(R) Processor\n",
            }
        )
    )
    uid = "03020590-ccef-4772-a84a-b62eba2c6a36"
    # as Nodes have: the attach-detach controller writes one to each
    annotations = (("volumes.kubernetes.io/controller-managed-attach-detach", "true"),)
    node = NodeView(name="node-0", uid=uid, annotations=annotations)
    return rendered(cpus, numa, node, uid=uid)


def test_a_two_cpu_machine_equals_the_upstream_object() -> None:
    own_values, theirs = two_cpus(), oracle()
    for field in ("kind", "topologyPolicies", "zones"):
        assert own_values[field] == theirs[field]
    for field in ("name", "labels"):
        assert own_values["metadata"][field] == theirs["metadata"][field]
    (owner,) = cast(list[dict[str, object]], own_values["metadata"]["ownerReferences"])
    # upstream blocks the deletion of the Node, which asks for a right that ours does without
    assert [{**owner, "blockOwnerDeletion": True}] == theirs["metadata"]["ownerReferences"]


@pytest.mark.parametrize("key", [key for key in ANNOTATIONS if "shared-pools" not in key])
def test_annotations_equal_upstreams_after_decoding(key: str) -> None:
    name = key.rpartition("/")[2]
    assert annotation(two_cpus(), name) == annotation(oracle(), name)


def test_pools_have_upstreams_shape() -> None:
    (pool,) = cast(list[dict[str, object]], annotation(two_cpus(), "be-cpu-shared-pools"))
    (theirs,) = cast(list[dict[str, object]], annotation(oracle(), "be-cpu-shared-pools"))
    assert list(pool) == list(theirs)
    assert pool == {**theirs, "cpuset": "0-1"}  # on that machine a pod held CPU 0
