"""The NodeResourceTopology object: what upstream's readers accept, and what ours does better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest
from msgspec.structs import replace

from agent.host.cpu import read_cpu_numa
from agent.objects.node_resource_topology import ANNOTATIONS, TopologyPublisher
from agent.objects.numa_zones import numa_zones
from agent.snapshot.cpu import CpuInfo, CpuTopology, NumaNode, NumaNodeKind, NumaTopology
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from tests.captures import capture, needs_shared
from tests.nrt import annotation, rendered, small, snapshot
from tests.small_host import CPU, NODE, small_host


def resources(zone: Mapping[str, object]) -> dict[str, str]:
    listed = cast(list[dict[str, str]], zone["resources"])
    assert all(r["capacity"] == r["allocatable"] == r["available"] for r in listed)
    assert [r["name"] for r in listed] == sorted(r["name"] for r in listed)
    return {r["name"]: r["capacity"] for r in listed}


def test_every_managed_annotation_is_there() -> None:
    (desired,) = TopologyPublisher().render(snapshot(*read_cpu_numa(small_host({}))), 0.0)
    metadata = cast(Mapping[str, Mapping[str, str]], desired.body["metadata"])
    assert metadata["annotations"].keys() == set(ANNOTATIONS)
    assert metadata["labels"] == {"app.kubernetes.io/managed-by": "Koordinator"}
    assert desired.file_name == "noderesourcetopology.yaml"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpu-manager-policy", {}),
        ("pod-cpu-allocs", None),
        ("reservation", {}),
        ("system-qos-resource", None),
    ],
)
def test_facts_of_a_cluster_are_as_empty_as_upstream_writes_them(name: str, value: object) -> None:
    assert annotation(small(), name) == value


def test_the_cpu_topology_lists_every_usable_cpu() -> None:
    assert annotation(small({f"{CPU}/online": "0-2"}), "cpu-topology") == {
        "detail": [
            {"id": 0, "core": 0, "socket": 0, "node": 0},
            {"id": 1, "core": 0, "socket": 0, "node": 0},
            {"id": 2, "core": 1, "socket": 0, "node": 1},
        ]
    }


@pytest.mark.parametrize("name", ["cpu-shared-pools", "be-cpu-shared-pools"])
def test_pools_hold_all_cpus_by_socket_and_node(name: str) -> None:
    assert annotation(small(), name) == [
        {"socket": 0, "node": 0, "cpuset": "0-1"},
        {"socket": 0, "node": 1, "cpuset": "2-3"},
    ]


@pytest.mark.parametrize(
    ("info", "smt", "published"),
    [
        (CpuInfo(), False, {}),
        (
            CpuInfo(model="Xeon", vendor="GenuineIntel", turbo=True, l3_cbm_mask="7fff"),
            True,
            {
                "cpuModel": "Xeon",
                "hyperThreadEnabled": True,
                "turboEnabled": True,
                "catL3CbmMask": "7fff",
                "vendorID": "GenuineIntel",
            },
        ),
        (CpuInfo(turbo=False), False, {}),
    ],
)
def test_basic_info_leaves_out_what_is_false_or_unknown(
    info: CpuInfo, smt: bool, published: dict[str, object]
) -> None:
    cpus, numa = read_cpu_numa(small_host({}))
    body = rendered(replace(cpus, info=info, smt_active=smt), numa)
    assert annotation(body, "cpu-basic-info") == published


def test_memory_is_without_huge_pages() -> None:
    pool = f"{NODE}/node0/hugepages/hugepages-2048kB/nr_hugepages"
    body = small({f"{NODE}/node0/meminfo": "Node 0 MemTotal: 8193 kB\n", pool: "3"})
    assert resources(cast(list[Mapping[str, object]], body["zones"])[0]) == {
        "cpu": "2",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "6Mi",
        "memory": "2049Ki",
    }


def zone_of(**fields: object) -> Mapping[str, object]:
    node = NumaNode(id=0, cpus=frozenset(range(2)), memory_bytes=1 << 30, near=0)
    (zone,) = numa_zones(NumaTopology(nodes=(replace(node, **fields),)))
    return zone


def test_other_page_sizes_are_listed_where_there_are_pages() -> None:
    amounts = resources(zone_of(hugepages=((64 << 10, 0), (16 << 20, 2))))
    assert (amounts["hugepages-16Mi"], "hugepages-64Ki" in amounts, amounts["memory"]) == (
        "32Mi",
        False,
        "992Mi",
    )


@pytest.mark.parametrize(
    ("fields", "memory"),
    [({"memory_bytes": None}, None), ({"memory_bytes": 0, "hugepages": ((2 << 20, 1),)}, "0")],
)
def test_unknown_memory_is_no_resource(fields: dict[str, object], memory: str | None) -> None:
    assert resources(zone_of(**fields)).get("memory") == memory


def test_a_zone_without_cpus_has_cpu_zero() -> None:
    assert resources(zone_of(cpus=frozenset(), kind=NumaNodeKind.MEMORY))["cpu"] == "0"


def test_costs_are_the_distances_between_zones() -> None:
    zone = cast(list[Mapping[str, object]], small()["zones"])[1]
    assert zone["costs"] == [{"name": "node-0", "value": 21}, {"name": "node-1", "value": 10}]


def test_zones_stand_in_the_order_of_their_names() -> None:
    nodes = tuple(NumaNode(id=n, cpus=frozenset((n,)), memory_bytes=0) for n in (2, 10))
    assert [zone["name"] for zone in numa_zones(NumaTopology(nodes=nodes))] == ["node-10", "node-2"]


def test_the_owner_is_named_only_when_the_node_is_known() -> None:
    cpus, numa = read_cpu_numa(small_host({}))
    assert "ownerReferences" not in rendered(cpus, numa)["metadata"]
    assert rendered(cpus, numa, uid="u-1")["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "name": "node-0",
            "uid": "u-1",
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]


def test_nothing_is_published_before_cpus_were_read_or_without_any() -> None:
    cpus, numa = read_cpu_numa(small_host({}))
    unread = NodeSnapshot(
        node=NodeIdentity(name="node-0"), cpus=SnapshotPart(cpus), numa=SnapshotPart(numa, 1.0)
    )
    assert TopologyPublisher().render(unread, 0.0) == ()
    assert TopologyPublisher().render(snapshot(CpuTopology(), numa), 0.0) == ()


@needs_shared
@pytest.mark.parametrize(
    ("name", "names"),
    [
        pytest.param("nvidiagpunumanodes", ["node-0", "node-8"], id="vector 24"),
        ("qemu", ["node-0", "node-1", "node-2", "node-3"]),
        ("16amd64", [f"node-{n}" for n in range(8)]),
        ("2pa", ["node-0"]),
    ],
)
def test_captured_machines_publish_their_zones(name: str, names: list[str]) -> None:
    body = rendered(*read_cpu_numa(capture(name)))
    assert [zone["name"] for zone in cast(list[Mapping[str, object]], body["zones"])] == names
