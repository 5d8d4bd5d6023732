"""CPU sets and NUMA nodes in the cluster's state, in decisions, and in what bindings write."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest

from agent.wire_formats.kernel_text import parse_cpu_list
from agent.wire_formats.resource_status import RESOURCE_STATUS, parse_resource_status
from plugins.scheduler.cluster_state import AssignedPod, ClusterState
from plugins.scheduler.decisions import DecisionMaker
from plugins.scheduler.devices.allocator import NodeRefused, Rules
from plugins.scheduler.numa.alignment import PodPlacement
from plugins.scheduler.numa.cpu_choice import NumaPod
from plugins.scheduler.numa.cpu_request import RESOURCE_SPEC, PodRequest, pod_request
from plugins.scheduler.numa.node_cpus import (
    CpuCapacity,
    NodeCpus,
    cpu_capacity,
    decode_node_cpus,
)
from plugins.scheduler.numa.status_annotation import recorded_numa, status_annotations
from plugins.scheduler.pod_object import PodKey, SchedulerPod
from plugins.scheduler.server.binding import pod_annotations
from tests.unit.scheduler.vectors import NODES

GIB = 1 << 30
POLICY = "node.koordinator.sh/numa-topology-policy"
BIND_POLICY = "node.koordinator.sh/cpu-bind-policy"
RATIO = "node.koordinator.sh/resource-amplification-ratio"


def topology(name: str, annotations: dict[str, str] | None = None, **changes: Any) -> NodeCpus:
    """Return a machine of two NUMA nodes with four cores of two threads each, and 32 GiB each."""
    detail = [
        {"id": cpu, "core": cpu // 2, "socket": cpu // 8, "node": cpu // 8} for cpu in range(16)
    ]
    zones = [
        {
            "name": f"node-{number}",
            "type": "Node",
            "resources": [
                {"name": "cpu", "capacity": "8", "allocatable": "8", "available": "8"},
                {"name": "memory", "capacity": "32Gi", "allocatable": "32Gi", "available": "0"},
            ],
        }
        for number in (0, 1)
    ]
    texts = {"node.koordinator.sh/cpu-topology": json.dumps({"detail": detail})}
    document = {
        "metadata": {"name": name, "annotations": {**texts, **(annotations or {})}},
        "zones": zones,
        **changes,
    }
    return decode_node_cpus(json.dumps(document).encode())


def cluster(*names: str, labels: dict[str, str] | None = None) -> ClusterState:
    state = ClusterState()
    for name in names:
        state.set_node(name, labels or {})
        state.set_cpus(topology(name))
    return state


def request(
    cpus: float = 4,
    memory_gib: int = 4,
    qos: str = "LSR",
    policy: str = "",
    annotations: dict[str, str] | None = None,
) -> PodRequest:
    spec = {"scheduling.koordinator.sh/numa-topology-spec": f'{{"numaTopologyPolicy":"{policy}"}}'}
    pod = SchedulerPod(
        key=PodKey("u", "default", "p"),
        labels={"koordinator.sh/qosClass": qos},
        annotations={**(spec if policy else {}), **(annotations or {})},
        amounts={"cpu": int(cpus * 1000), "memory": memory_gib * GIB},
    )
    return pod_request(pod)


def put(state: ClusterState, uid: str, node: str, desired: PodRequest, grant: PodPlacement) -> None:
    annotations = status_annotations(grant.cpus, grant.amounts)
    state.set_pod(
        AssignedPod(
            key=PodKey(uid, "default", uid),
            node=node,
            numa=recorded_numa(annotations),
            amounts=desired.amounts,
        )
    )


def test_a_cpu_set_is_whole_cores_of_one_numa_node_and_is_given_once() -> None:
    state = cluster("a")
    maker = DecisionMaker(state)
    inputs: set[int] = set()
    for uid in "1234":
        grant = maker.allocate(request(), "a")
        assert len(grant.cpus) == 4
        assert {cpu // 8 for cpu in grant.cpus} in ({0}, {1})
        assert {cpu ^ 1 for cpu in grant.cpus} == grant.cpus
        assert inputs.isdisjoint(grant.cpus)
        inputs |= grant.cpus
        put(state, uid, "a", request(), grant)
    with pytest.raises(NodeRefused, match="not enough cpus available"):
        maker.allocate(request(), "a")
    answer = maker.decide(request(), ["a"])
    assert dict(answer.reasons()) == {"not enough cpus available to satisfy request": 1}
    state.remove_pod("1")
    assert maker.decide(request(), ["a"]).fitting() == ["a"]


def test_the_annotation_is_what_the_agent_and_the_scheduler_read() -> None:
    grant = DecisionMaker(cluster("a")).allocate(request(policy="SingleNUMANode"), "a")
    annotations = status_annotations(grant.cpus, grant.amounts)
    assert json.loads(annotations[RESOURCE_STATUS]) == {
        "cpuset": "0-3",
        "numaNodeResources": [{"node": 0, "resources": {"cpu": "4", "memory": "4Gi"}}],
    }
    status = parse_resource_status(annotations[RESOURCE_STATUS])
    assert status.cpus == parse_cpu_list("0-3")
    assert status.numa_nodes == {0}
    assert recorded_numa(annotations) == NumaPod(
        cpus=grant.cpus, amounts={0: {"cpu": 4000, "memory": 4 * GIB}}
    )


SPREAD, FULL, ANY = "SpreadByPCPUs", "FullPCPUs", "Default"


@pytest.mark.parametrize(
    ("own", "node_policy", "written"),
    [
        ({"preferred": SPREAD}, "", None),
        ({"preferred": ANY}, "", {"preferred": FULL}),
        ({"required": SPREAD}, "", None),
        ({"required": SPREAD, "preferred": ANY}, "", {"required": SPREAD, "preferred": SPREAD}),
        (
            {"required": ANY, "preferred": SPREAD, "exclusive": "PCPULevel"},
            "",
            {"required": FULL, "preferred": SPREAD, "exclusive": "PCPULevel"},
        ),
        ({}, "", {"preferred": FULL}),
        ({}, "FullPCPUsOnly", {"required": FULL}),
        ({"preferred": SPREAD}, "FullPCPUsOnly", {"required": FULL, "preferred": SPREAD}),
    ],
)
def test_the_bind_policy_in_force_is_written_where_the_pod_does_not_name_it(
    own: dict[str, str], node_policy: str, written: dict[str, str] | None
) -> None:
    names = {
        "required": "requiredCPUBindPolicy",
        "preferred": "preferredCPUBindPolicy",
        "exclusive": "preferredCPUExclusivePolicy",
    }

    def text(spec: dict[str, str]) -> str:
        return json.dumps({names[name]: value for name, value in spec.items()})

    annotations = {RESOURCE_SPEC: text(own)} if own else {}
    state = cluster("a", labels={BIND_POLICY: node_policy} if node_policy else None)
    grant = DecisionMaker(state).allocate(request(annotations=annotations), "a")
    result = pod_annotations(grant, annotations).get(RESOURCE_SPEC)
    assert (result is None) is (written is None)
    if result is not None and written is not None:
        assert json.loads(result) == json.loads(text(written))


def test_pods_without_cpus_of_their_own_get_no_bind_policy() -> None:
    grant = DecisionMaker(cluster("a")).allocate(request(qos="LS", policy="BestEffort"), "a")
    assert grant.amounts
    assert RESOURCE_SPEC not in pod_annotations(grant, {})


@pytest.mark.parametrize("text", ["", "[]", "{", '{"cpuset":"x"}', '{"cpuset":3}', "null"])
def test_a_record_that_cannot_be_read_counts_for_nothing(text: str) -> None:
    assert recorded_numa({RESOURCE_STATUS: text}) == NumaPod()


def test_pods_that_share_cpus_are_decided_without_numa_on_nodes_without_a_policy() -> None:
    state = cluster("a")
    maker = DecisionMaker(state)
    assert maker.allocate(request(qos="LS"), "a") == PodPlacement()
    assert not state.nodes_with_numa_policy()


def test_the_policy_of_a_node_holds_for_every_pod() -> None:
    state = cluster("a", labels={BIND_POLICY: "FullPCPUsOnly"})
    state.set_node("b", {POLICY: "SingleNUMANode"})
    state.set_cpus(topology("b"))
    assert state.nodes_with_numa_policy() == {"a", "b"}
    maker = DecisionMaker(state)
    assert len(maker.allocate(request(cpus=2, qos="LS"), "a").cpus) == 2
    refused = maker.decide(request(cpus=3, qos="LS"), ["a"])
    assert dict(refused.reasons()) == {"node(s) requested cpus not multiple cpus per core": 1}
    assert dict(maker.decide(request(cpus=0.5, qos="LS"), ["a"]).reasons()) == {
        "the requested CPUs must be integer": 1
    }
    large = request(memory_gib=40, qos="LS")
    assert "Unaligned NUMA Hint" in maker.decide(large, ["b"]).reasons()[0][0]
    assert maker.allocate(request(qos="LS"), "b").amounts == {0: {"cpu": 4000, "memory": 4 * GIB}}


def test_pods_of_one_device_request_share_answers_of_nodes_without_a_policy_alone() -> None:
    state = cluster("plain", "bound")
    state.set_node("bound", {POLICY: "SingleNUMANode"})
    for name in ("plain", "bound"):
        state.set_devices(msgspec.structs.replace(NODES["A"], node=name))
    maker = DecisionMaker(state)
    devices = pod_request(
        SchedulerPod(key=PodKey("u", "n", "p"), amounts={"nvidia.com/gpu": 1})
    ).devices
    small, large = (
        PodRequest(devices=devices, amounts={"cpu": cpus}, numa=request(cpus / 1000, 1, "LS").numa)
        for cpus in (1000, 12000)
    )
    assert maker.decide(small, ["plain", "bound"]).fitting() == ["plain", "bound"]
    assert maker.decide(large, ["plain", "bound"]).fitting() == ["plain"]


def test_devices_and_cpus_are_of_one_numa_node() -> None:
    state = cluster("a", labels={POLICY: "SingleNUMANode"})
    state.set_devices(msgspec.structs.replace(NODES["A"], node="a"))
    maker = DecisionMaker(state)
    pod = SchedulerPod(
        key=PodKey("u", "n", "p"),
        labels={"koordinator.sh/qosClass": "LSR"},
        amounts={"nvidia.com/gpu": 4, "cpu": 8000, "memory": GIB},
    )
    for expected in ({0}, {1}):
        grant = maker.allocate(pod_request(pod), "a")
        assert set(grant.amounts) == expected
        assert {cpu // 8 for cpu in grant.cpus} == expected
        assert {device.device.numa_node for device in grant.devices} == expected
        state.set_pod(
            AssignedPod(
                key=PodKey(str(expected), "n", "p"),
                node="a",
                allocation=tuple(device.as_allocated() for device in grant.devices),
                numa=NumaPod(cpus=grant.cpus, amounts=grant.amounts),
            )
        )
    assert not maker.decide(pod_request(pod), ["a"]).fitting()


def test_devices_that_are_not_aligned_may_be_on_another_numa_node_than_the_cpus() -> None:
    state = cluster("a", labels={POLICY: "SingleNUMANode"})
    state.set_devices(msgspec.structs.replace(NODES["A"], node="a"))
    pod = SchedulerPod(
        key=PodKey("u", "n", "p"), amounts={"nvidia.com/gpu": 6, "cpu": 4000, "memory": GIB}
    )
    request = pod_request(pod)
    assert not DecisionMaker(state).decide(request, ["a"]).fitting()
    grant = DecisionMaker(state, Rules(aligns_devices=False)).allocate(request, "a")
    assert len(grant.amounts) == 1
    assert {device.device.numa_node for device in grant.devices} == {0, 1}


def test_pods_without_a_record_count_evenly_on_all_numa_nodes_unless_compatible() -> None:
    state = cluster("a", labels={POLICY: "SingleNUMANode"})
    state.set_pod(
        AssignedPod(key=PodKey("1", "n", "p"), node="a", amounts={"cpu": 6000, "memory": GIB})
    )
    desired = request(cpus=6, qos="LS")
    assert not DecisionMaker(state).decide(desired, ["a"]).fitting()
    compatible = Rules(upstream_compatible=True)
    assert DecisionMaker(state, compatible).decide(desired, ["a"]).fitting() == ["a"]


def test_cpus_of_pods_that_the_kubelet_pins_are_not_counted_twice() -> None:
    allocs = '[{"uid":"1","cpuset":"0-3","managedByKubelet":true}]'
    state = cluster("a", labels={POLICY: "SingleNUMANode"})
    state.set_cpus(topology("a", {"node.koordinator.sh/pod-cpu-allocs": allocs}))
    state.set_pod(AssignedPod(key=PodKey("1", "n", "p"), node="a", amounts={"cpu": 4000}))
    grant = DecisionMaker(state).allocate(request(cpus=8), "a")
    assert grant.cpus == parse_cpu_list("8-15")


def test_reserved_cpus_are_given_to_no_pod() -> None:
    state = cluster("a")
    state.set_cpus(topology("a", {"node.koordinator.sh/reservation": '{"reservedCPUs":"0-3"}'}))
    maker = DecisionMaker(state)
    assert maker.allocate(request(cpus=12), "a").cpus == parse_cpu_list("4-15")
    assert not maker.decide(request(cpus=14), ["a"]).fitting()


def test_reserved_cpus_lower_what_a_numa_node_has() -> None:
    cpus = topology(
        "a",
        {
            "kubelet.koordinator.sh/cpu-manager-policy": '{"policy":"static","reservedCPUs":"0-1"}',
            "node.koordinator.sh/reservation": '{"reservedCPUs":"8"}',
            "node.koordinator.sh/system-qos-resource": '{"cpuset":"9"}',
        },
        topologyPolicies=["SingleNUMANodePodLevel"],
    )
    assert cpus.reserved == {0, 1, 8, 9}
    assert [zone["cpu"] for zone in cpus.zones.values()] == [6000, 6000]
    assert cpus.kubelet_numa_policy == "SingleNUMANode"


def test_amplified_cpu_counts_cpu_sets_as_often_as_the_node_offers_them() -> None:
    state = cluster("a")
    state.set_node("a", {}, cpu_capacity({RATIO: '{"cpu":1.5}'}, "24"))
    maker = DecisionMaker(state)
    for uid in ("1", "2"):  # 2 x 8 CPUs are the whole machine
        put(state, uid, "a", request(cpus=4), maker.allocate(request(cpus=4), "a"))
    assert maker.decide(request(cpus=8), ["a"]).fitting() == ["a"]
    assert maker.decide(request(cpus=12, qos="LS"), ["a"]).fitting() == ["a"]
    refused = maker.decide(request(cpus=13, qos="LS"), ["a"])
    assert dict(refused.reasons()) == {"Insufficient amplified cpu": 1}


@pytest.mark.parametrize("text", ['{"cpu":0.5}', "x", '{"cpu":"2"}', "[]", '{"cpu":1e9}'])
def test_a_ratio_that_cannot_be_one_keeps_pods_from_the_node(text: str) -> None:
    assert cpu_capacity({RATIO: text}, "24").ratio is None
    state = cluster("a")
    state.set_node("a", {}, cpu_capacity({RATIO: text}, "24"))
    reasons = DecisionMaker(state).decide(request(qos="LS"), ["a"]).reasons()
    assert reasons == (("node(s) invalid CPU amplification ratio", 1),)


def test_a_node_without_a_ratio_offers_what_it_has() -> None:
    assert cpu_capacity({}, "24") == CpuCapacity(allocatable_milli=24000)
    assert cpu_capacity({RATIO: '{"memory":2}'}, "1500m").ratio == 1


def test_equal_nodes_share_an_answer_until_cpus_differ_and_a_deleted_topology_has_none() -> None:
    state = cluster("a", "b")
    first, second = state.signatures(["a", "b"], with_numa=True)
    assert first == second
    put(state, "1", "a", request(), DecisionMaker(state).allocate(request(), "a"))
    first, second = state.signatures(["a", "b"], with_numa=True)
    assert first != second
    first, second = state.signatures(["a", "b"])
    assert first == second
    state.remove_cpus("b")
    reasons = DecisionMaker(state).decide(request(), ["a", "b"]).reasons()
    assert reasons == (("node(s) invalid CPU Topology", 1),)


def test_a_node_fits_without_the_pods_that_hold_its_cpus() -> None:
    state = cluster("a")
    maker = DecisionMaker(state)
    put(state, "1", "a", request(cpus=16), maker.allocate(request(cpus=16), "a"))
    assert not maker.decide(request(), ["a"]).fitting()
    assert maker.fits_without(request(), "a", ["1"])
    assert not maker.fits_without(request(), "a", ["2"])


@pytest.mark.parametrize("seed", range(12))
def test_over_any_sequence_no_cpu_is_given_twice_and_no_numa_node_gives_more_than_it_has(
    seed: int,
) -> None:
    random = Random(seed)
    labels = {POLICY: random.choice(("", "BestEffort", "Restricted", "SingleNUMANode"))}
    state = cluster("a", labels=labels)
    maker = DecisionMaker(state, Rules(upstream_compatible=random.random() < 0.3))
    bound: dict[str, tuple[PodRequest, PodPlacement]] = {}
    for number in range(60):
        if bound and random.random() < 0.4:
            uid = random.choice(sorted(bound))
            state.remove_pod(uid)
            del bound[uid]
            continue
        desired = request(
            cpus=random.randint(1, 9),
            memory_gib=random.randint(1, 20),
            qos=random.choice(("LS", "LSR", "LSE")),
            policy=labels[POLICY] and random.choice(("", labels[POLICY])),
            annotations={
                "scheduling.koordinator.sh/resource-spec": json.dumps(
                    {
                        random.choice(("requiredCPUBindPolicy", "preferredCPUBindPolicy")): (
                            random.choice(("FullPCPUs", "SpreadByPCPUs"))
                        ),
                        "preferredCPUExclusivePolicy": random.choice(("None", "PCPULevel")),
                    }
                )
            },
        )
        fits = bool(maker.decide(desired, ["a"]).fitting())
        try:
            grant = maker.allocate(desired, "a")
        except NodeRefused:
            assert not fits
            continue
        assert fits
        if labels[POLICY] or grant.cpus:
            bound[str(number)] = desired, grant
            put(state, str(number), "a", desired, grant)
        check_grants(list(bound.values()))


def check_grants(bound: list[tuple[PodRequest, PodPlacement]]) -> None:
    inputs = [cpu for _, grant in bound for cpu in grant.cpus]
    assert len(inputs) == len(set(inputs))
    for desired, grant in bound:
        if grant.cpus:
            assert len(grant.cpus) * 1000 == desired.amounts["cpu"]
        if grant.amounts:
            for name, amount in desired.amounts.items():
                assert sum(one.get(name, 0) for one in grant.amounts.values()) == amount
        if grant.cpus and grant.amounts:
            of_node = Counter(cpu // 8 for cpu in grant.cpus)
            assert of_node == {
                node: one["cpu"] // 1000 for node, one in grant.amounts.items() if one.get("cpu")
            }
    for node in (0, 1):
        assert sum(grant.amounts.get(node, {}).get("cpu", 0) for _, grant in bound) <= 8000
        memory = sum(grant.amounts.get(node, {}).get("memory", 0) for _, grant in bound)
        assert memory <= 32 * GIB
