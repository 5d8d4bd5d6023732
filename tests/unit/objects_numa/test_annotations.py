"""Annotations of NodeResourceTopology in a cluster: who holds which CPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from agent.objects.node_resource_topology import (
    BE_SHARED_POOLS,
    CPU_MANAGER_POLICY,
    POD_CPU_ALLOCS,
    REFUSED_ANNOTATION,
    SHARED_POOLS,
    cpu_annotations,
)
from agent.snapshot.cluster import KubeletView
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView
from tests.clustered import RESOURCE_STATUS, machine, node, pod, snapshot

RESERVATION = "node.koordinator.sh/reservation"
SYSTEM_QOS = "node.koordinator.sh/system-qos-resource"
STATIC = KubeletView(
    cpu_manager_policy="static",
    cpu_manager_options=(("full-pcpus-only", "true"),),
    reserved_cpus=frozenset((0, 4)),
    topology_policy="none",
    topology_scope="container",
)


def values(now: NodeSnapshot) -> dict[str, object]:
    annotations = cpu_annotations(now, reads_kubelet=True)
    return {key: json.loads(value) for key, value in annotations.items()}


def pool(now: NodeSnapshot, key: str = SHARED_POOLS) -> list[str]:
    listed = values(now)[key]
    assert isinstance(listed, list)
    return [f"{p['socket']}/{p['node']}:{p['cpuset']}" for p in listed]


def gave(*pairs: tuple[str, frozenset[int]]) -> KubeletView:
    return replace(STATIC, pod_cpus=pairs)


def test_the_worked_example_of_two_sockets_with_one_pinned_pod() -> None:
    now = snapshot(machine(2, 2, 2), pods=(pod("pinned", "1,5", "LSR"),))
    assert pool(now) == ["0/0:0,4", "1/1:2-3,6-7"]
    assert pool(now, BE_SHARED_POOLS) == ["0/0:0-1,4-5", "1/1:2-3,6-7"]


@pytest.mark.parametrize(
    ("qos", "best_effort"),
    [("LSE", ["0/0:0,4", "1/1:2-3,6-7"]), ("LSR", ["0/0:0-1,4-5", "1/1:2-3,6-7"])],
)
def test_only_a_pod_with_exclusive_cpus_takes_them_from_best_effort_pods(
    qos: str, best_effort: list[str]
) -> None:
    assert pool(snapshot(pods=(pod("p", "1,5", qos),)), BE_SHARED_POOLS) == best_effort


@pytest.mark.parametrize(
    ("phase", "holds"), [("Running", True), ("Succeeded", False), ("Failed", False)]
)
def test_a_pod_that_has_ended_holds_no_cpus(phase: str, holds: bool) -> None:
    now = snapshot(pods=(pod("p", "1,5", "LSR", phase=phase),))
    assert pool(now)[0] == ("0/0:0,4" if holds else "0/0:0-1,4-5")


def test_a_memory_node_whose_cpus_are_all_held_has_no_pool() -> None:
    now = snapshot(pods=(pod("a", "0-1,4-5", "LSE"),))
    assert pool(now) == pool(now, BE_SHARED_POOLS) == ["1/1:2-3,6-7"]
    assert values(snapshot(pods=(pod("a", "0-7", "LSR"),)))[SHARED_POOLS] == []


@pytest.mark.parametrize(
    ("kubelet", "published"),
    [
        (KubeletView(cpu_manager_policy="none", topology_policy="none"), {"policy": "none"}),
        (
            STATIC,
            {
                "policy": "static",
                "options": {"full-pcpus-only": "true"},
                "reservedCPUs": "0,4",
            },
        ),
    ],
)
def test_the_kubelets_policy_is_published_without_what_is_empty(
    kubelet: KubeletView, published: Mapping[str, object]
) -> None:
    assert values(snapshot(kubelet=kubelet))[CPU_MANAGER_POLICY] == published


def test_cpus_that_the_kubelet_reserves_stay_in_the_pools() -> None:
    assert pool(snapshot(kubelet=STATIC)) == ["0/0:0-1,4-5", "1/1:2-3,6-7"]


def test_cpus_that_the_kubelet_gave_a_pod_are_listed_and_shared_by_nobody() -> None:
    mine = pod("mine")
    kubelet = gave(("uid-z", frozenset((3,))), (mine.uid, frozenset((2, 6))))
    now = snapshot(kubelet=kubelet, pods=(mine,))
    assert values(now)[POD_CPU_ALLOCS] == [
        {
            "namespace": "d",
            "name": "mine",
            "uid": "uid-mine",
            "cpuset": "2,6",
            "managedByKubelet": True,
        },
        {"uid": "uid-z", "cpuset": "3", "managedByKubelet": True},
    ]
    assert pool(now) == pool(now, BE_SHARED_POOLS) == ["0/0:0-1,4-5", "1/1:7"]


@pytest.mark.parametrize(
    "skipped", [pod("p", qos="LS"), pod("p", qos="BE"), pod("p", "1", "LSR"), pod("p", "1")]
)
def test_the_kubelets_gift_to_a_pod_that_the_scheduler_placed_does_not_hold(
    skipped: PodView,
) -> None:
    now = snapshot(kubelet=gave(("uid-p", frozenset((2, 6)))), pods=(skipped,))
    assert values(now)[POD_CPU_ALLOCS] is None
    assert "1/1:2-3,6-7" in pool(now)


def test_a_checkpoint_counts_under_the_static_policy_only() -> None:
    kubelet = replace(gave(("uid-p", frozenset((2,)))), cpu_manager_policy="none")
    assert values(snapshot(kubelet=kubelet))[POD_CPU_ALLOCS] is None


@pytest.mark.parametrize(
    ("text", "published", "pools"),
    [
        ('{"reservedCPUs":"0-1"}', {"reservedCPUs": "0-1"}, ["0/0:4-5", "1/1:2-3,6-7"]),
        (
            '{"resources":{"cpu":"1500m","memory":"2048Mi"},"applyPolicy":"ReservedCPUsOnly"}',
            {
                "resources": {"cpu": "1500m", "memory": "2Gi"},
                "reservedCPUs": "0,4",
                "applyPolicy": "ReservedCPUsOnly",
            },
            ["0/0:1,5", "1/1:2-3,6-7"],
        ),
        (
            '{"resources":{"cpu":4}}',
            {"resources": {"cpu": "4"}, "reservedCPUs": "0-1,4-5"},
            ["1/1:2-3,6-7"],
        ),
        (
            '{"resources":{"cpu":"6"},"reservedCPUs":"7"}',
            {"resources": {"cpu": "6"}, "reservedCPUs": "7"},
            ["0/0:0-1,4-5", "1/1:2-3,6"],
        ),
        ("{}", {}, ["0/0:0-1,4-5", "1/1:2-3,6-7"]),
        ("", {}, ["0/0:0-1,4-5", "1/1:2-3,6-7"]),
    ],
)
def test_a_reservation_is_by_name_or_by_as_many_cpus_as_a_kubelet_would_choose(
    text: str, published: object, pools: list[str]
) -> None:
    now = snapshot(owner=node({RESERVATION: text}))
    assert values(now)[RESERVATION] == published
    assert pool(now) == pool(now, BE_SHARED_POOLS) == pools
    assert REFUSED_ANNOTATION not in values(now)


@pytest.mark.parametrize(
    ("text", "published", "withheld"),
    [
        ('{"cpuset":"6-7"}', {"cpuset": "6-7"}, True),
        ('{"cpuset":"6-7","cpusetExclusive":true}', None, True),
        ('{"cpuset":"6-7","cpusetExclusive":false}', None, False),
    ],
)
def test_cpus_of_system_services_are_withheld_unless_they_may_be_shared(
    text: str, published: object, withheld: bool
) -> None:
    now = snapshot(owner=node({SYSTEM_QOS: text}))
    assert values(now)[SYSTEM_QOS] == (published or json.loads(text))
    assert pool(now)[1] == ("1/1:2-3" if withheld else "1/1:2-3,6-7")


def test_a_node_without_any_annotation_has_null_and_one_with_others_an_empty_object() -> None:
    bare, other = snapshot(owner=node({})), snapshot(owner=node({"a": "b"}))
    assert (values(bare)[RESERVATION], values(bare)[SYSTEM_QOS]) == ({}, None)
    assert (values(other)[RESERVATION], values(other)[SYSTEM_QOS]) == ({}, {})


def test_invalid_annotations_affect_only_themselves_and_are_reported() -> None:
    spoilt = pod("spoilt", annotations=((RESOURCE_STATUS, "{"),))
    owner = node({RESERVATION: "[1]", SYSTEM_QOS: '{"cpuset":"all","cpusetExclusive":"no"}'})
    now = snapshot(owner=owner, pods=(spoilt, pod("pinned", "1", "LSR")))
    annotations = values(now)
    assert (annotations[RESERVATION], annotations[SYSTEM_QOS]) == ({}, {})
    assert pool(now) == ["0/0:0,4-5", "1/1:2-3,6-7"]
    refused = annotations[REFUSED_ANNOTATION]
    assert isinstance(refused, list)
    assert [(r["of"], r["path"]) for r in refused] == [
        ("Node", RESERVATION),
        ("Node", f"{SYSTEM_QOS}.cpusetExclusive"),
        ("Node", f"{SYSTEM_QOS}.cpuset"),
        ("Pod d/spoilt", RESOURCE_STATUS),
    ]
    assert all(r["why"] and "all" not in r["why"].split() for r in refused)


def test_refusals_are_reported_up_to_a_bound() -> None:
    pods = tuple(pod(f"p{n}", annotations=((RESOURCE_STATUS, "no"),)) for n in range(100))
    listed = values(snapshot(pods=pods))[REFUSED_ANNOTATION]
    assert isinstance(listed, list)
    assert len(listed) == 16


KUBELETS = {CPU_MANAGER_POLICY, POD_CPU_ALLOCS}
POOLS = {SHARED_POOLS, BE_SHARED_POOLS}


def test_before_the_kubelets_answer_its_part_is_left_out() -> None:
    assert not (KUBELETS | POOLS) & values(snapshot(kubelet=None)).keys()


def test_without_polling_the_kubelets_part_is_empty_as_upstream() -> None:
    annotations = cpu_annotations(snapshot(kubelet=None), reads_kubelet=False)
    assert (annotations[CPU_MANAGER_POLICY], annotations[POD_CPU_ALLOCS]) == ("{}", "null")
    assert annotations.keys() >= POOLS


def test_a_checkpoint_without_settings_has_pods_but_not_the_policy() -> None:
    kubelet = KubeletView(cpu_manager_policy="static", pod_cpus=(("u", frozenset((1,))),))
    annotations = values(snapshot(kubelet=kubelet))
    assert CPU_MANAGER_POLICY not in annotations
    assert annotations.keys() >= POOLS | {POD_CPU_ALLOCS}


def test_pools_wait_for_the_list_of_pods_that_the_cgroups_show() -> None:
    nameless = replace(pod("p"), name="", namespace="")
    assert not POOLS & values(snapshot(pods=(nameless,))).keys()
    unread = snapshot()
    assert not POOLS & values(replace(unread, pods=SnapshotPart(()))).keys()
    assert values(snapshot(pods=(nameless, pod("q")))).keys() >= POOLS


def test_equal_snapshots_give_equal_annotations_in_any_order_of_pods() -> None:
    pods = tuple(pod(f"p{n}", str(n), "LSR") for n in range(4))
    assert cpu_annotations(snapshot(pods=pods), reads_kubelet=True) == cpu_annotations(
        snapshot(pods=pods[::-1]), reads_kubelet=True
    )
