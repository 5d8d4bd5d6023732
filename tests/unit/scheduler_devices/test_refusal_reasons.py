"""Each reason for which a node is refused, and whether removing pods from it could help."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from agent.snapshot.allocation import AllocatedDevice
from plugins.scheduler.cluster_state import AssignedPod, ClusterState
from plugins.scheduler.decisions import DecisionMaker
from plugins.scheduler.devices.allocator import NodeState, Rules
from plugins.scheduler.devices.device_table import (
    GPU,
    GPU_CORE,
    GPU_MEMORY_RATIO,
    MODEL_LABEL,
    RDMA,
    VENDOR_LABEL,
    DeviceTable,
)
from plugins.scheduler.devices.requests import device_request
from plugins.scheduler.devices.scores import ScoringStrategy, node_score
from plugins.scheduler.numa.cpu_request import pod_request
from plugins.scheduler.pod_object import PodKey, SchedulerPod
from plugins.scheduler.reasons import explain_reason
from tests.unit.scheduler.test_numa_cluster import BIND_POLICY, GIB, POLICY, topology
from tests.unit.scheduler.vectors import NODES, RDMA_NAME, gpu, holding, nic

HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
PARTITION = "scheduling.koordinator.sh/gpu-partition-spec"
NUMA_SPEC = "scheduling.koordinator.sh/numa-topology-spec"
CPU_SPEC = "scheduling.koordinator.sh/resource-spec"
SHARED = "koordinator.sh/gpu.shared"
HALF = {GPU_CORE: 50, GPU_MEMORY_RATIO: 50}
MODEL = {VENDOR_LABEL: "nvidia", MODEL_LABEL: "A10"}
UNSHARED = Rules(unshared_models=frozenset({("nvidia", "A10")}))
NO_RULES = Rules()


def pod(
    amounts: dict[str, int],
    annotations: dict[str, object] | None = None,
    labels: dict[str, str] | None = None,
) -> SchedulerPod:
    return SchedulerPod(
        key=PodKey("p", "ns", "p"),
        amounts=amounts,
        labels=labels or {},
        annotations={
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in (annotations or {}).items()
        },
    )


def refusal(
    scheduler_pod: SchedulerPod,
    table: DeviceTable | None,
    labels: dict[str, str] | None = None,
    allocated_devices: tuple[AllocatedDevice, ...] = (),
    rules: Rules = NO_RULES,
    **cpus: Any,
) -> tuple[str, bool]:
    """Return the reason of a node, and whether it is final."""
    state = ClusterState()
    state.set_node("a", labels or {})
    if table is not None:
        state.set_devices(msgspec.structs.replace(table, node="a"))
    if cpus:
        state.set_cpus(topology("a", **cpus))
    if allocated_devices:
        state.set_pod(
            AssignedPod(key=PodKey("h", "ns", "h"), node="a", allocation=allocated_devices)
        )
    answer = DecisionMaker(state, rules).decide(pod_request(scheduler_pod), ["a"]).of("a")
    assert answer.fits or explain_reason(answer.reason), "people are told what it means"
    return answer.reason, answer.is_final


def scoped(scope: str) -> dict[str, object]:
    return {HINT: {"gpu": {"requiredTopologyScope": scope}}}


CARDS = DeviceTable(node="n", devices={GPU: NODES["A0"].of(GPU)})
NICS = DeviceTable(node="n", devices={RDMA: NODES["A0"].of(RDMA)})
ALL_CARDS, ALL_NICS = holding(NODES["A"], gpus=range(8)), holding(NODES["A"], nics=range(1, 5))
SAME_PCIE: dict[str, object] = {
    JOINT: {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}
}
FOR_ALL = {"rdma": {"allocateStrategy": "ApplyForAll", "selector": {"matchLabels": {"a": "b"}}}}

DEVICE_REASONS: list[tuple[str, bool, tuple[Any, ...]]] = [
    ("Insufficient gpu devices", False, (pod({"nvidia.com/gpu": 9}), CARDS)),
    ("Insufficient gpu devices", False, (pod(HALF), CARDS, {}, ALL_CARDS)),
    ("Insufficient gpu devices", True, (pod({"nvidia.com/gpu": 1}), NICS)),
    ("Insufficient rdma devices", False, (pod({RDMA_NAME: 100}), NODES["A"], {}, ALL_NICS)),
    ("Insufficient rdma devices", True, (pod({RDMA_NAME: 100}), CARDS)),
    ("Insufficient rdma devices", True, (pod({RDMA_NAME: 1}, {HINT: FOR_ALL}), NODES["A"])),
    ("Insufficient fpga devices", True, (pod({"koordinator.sh/fpga": 100}), NODES["A"])),
    (
        "GPUIsolationProviderHAMICore not found on the node",
        True,
        (pod(HALF, {}, {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}), CARDS),
    ),
    (
        'model "A10" of vendor "nvidia" does not support GPU Share',
        True,
        (pod(HALF), CARDS, MODEL, (), UNSHARED),
    ),
    ("node(s) missing Device", True, (pod(HALF), None)),
    ("Insufficient GPU Devices", False, (pod({"nvidia.com/gpu": 1}), NODES["A"], {}, ALL_CARDS)),
    (
        "Insufficient Topology Scoped GPU Devices",
        False,
        (pod({"nvidia.com/gpu": 3}, scoped("PCIe")), NODES["A"]),
    ),
    (
        "Insufficient Partitioned GPU Devices",
        False,
        (pod({"nvidia.com/gpu": 8}, {PARTITION: {}}), NODES["H"], {MODEL_LABEL: "H800"},
         holding(NODES["H"], gpus=[0])),
    ),
    (
        "Insufficient rdma VirtualFunctions",
        True,
        (pod({RDMA_NAME: 1}, {HINT: {"rdma": {"vfSelector": {}}}}), NODES["F"]),
    ),
    (
        "node(s) Device Joint-Allocate rules violation",
        False,
        (pod({"nvidia.com/gpu": 3, RDMA_NAME: 100}, SAME_PCIE), NODES["A"], {},
         holding(NODES["A"], gpus=[0], nics=[1])),
    ),
    (
        "node(s) missing GPU Partition Table",
        True,
        (pod({"nvidia.com/gpu": 2}, {PARTITION: {}}), NODES["A"]),
    ),
    (
        "node(s) Unsupported number of GPU requests",
        True,
        (pod({"nvidia.com/gpu": 3}, {PARTITION: {}}), NODES["H"], {MODEL_LABEL: "H800"}),
    ),
    (
        "node(s) missing GPU Device Topology Tree",
        True,
        (pod({"nvidia.com/gpu": 2}, scoped("NUMANode")), NODES["A0"]),
    ),
    (
        "node(s) Unsupported Multi-Shared GPU",
        True,
        (pod({SHARED: 2, GPU_MEMORY_RATIO: 100}, scoped("NUMANode")), NODES["A"]),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "is_final", "arguments"), DEVICE_REASONS, ids=[row[0] for row in DEVICE_REASONS]
)
def test_devices(reason: str, is_final: bool, arguments: tuple[Any, ...]) -> None:
    assert refusal(*arguments) == (reason, is_final)


def test_fewer_devices_on_all_numa_nodes_than_the_pod_wants() -> None:
    # half of the cards have no place: the pod fits, but not on NUMA nodes
    cards = tuple(gpu(minor, "0", 0, placed=minor < 4) for minor in range(8))
    table = DeviceTable(node="n", devices={GPU: cards})
    amounts = {"nvidia.com/gpu": 6, "cpu": 1000}
    assert refusal(pod(amounts), table) == ("", False)
    desired = pod(amounts, {NUMA_SPEC: {"numaTopologyPolicy": "Restricted"}})
    assert refusal(desired, table, annotations={}) == ("Insufficient NUMA Scoped Devices", True)


def lsr(
    cpus: int, memory_gib: int = 1, annotations: dict[str, object] | None = None
) -> SchedulerPod:
    amounts = {"cpu": cpus * 1000, "memory": memory_gib * GIB}
    return pod(amounts, annotations, {"koordinator.sh/qosClass": "LSR"})


def numa(policy: str, cpus: int = 4, memory_gib: int = 1) -> SchedulerPod:
    return lsr(cpus, memory_gib, {NUMA_SPEC: {"numaTopologyPolicy": policy}})


def bind_policy(policy: str, cpus: int) -> SchedulerPod:
    return lsr(cpus, 1, {CPU_SPEC: {"requiredCPUBindPolicy": policy}})


NUMA_REASONS: list[tuple[str, bool, SchedulerPod, dict[str, str]]] = [
    (
        "node(s) NUMA Topology policy not match",
        True,
        numa("Restricted"),
        {POLICY: "BestEffort"},
    ),
    ("Unsatisfied NUMA cpu; Unsatisfied NUMA memory", False, numa("Restricted", 4, 80), {}),
    ("Insufficient NUMA memory", False, numa("BestEffort", 4, 80), {}),
    (
        "node(s) cpu bind policy conflicts with pod's required cpu bind policy",
        True,
        bind_policy("SpreadByPCPUs", 4),
        {BIND_POLICY: "FullPCPUsOnly"},
    ),
    (
        "node(s) requested cpus not multiple cpus per core",
        True,
        lsr(3),
        {BIND_POLICY: "FullPCPUsOnly"},
    ),
    ("not enough cpus available to satisfy request", False, bind_policy("SpreadByPCPUs", 9), {}),
]


@pytest.mark.parametrize(
    ("reason", "is_final", "wanted", "labels"), NUMA_REASONS, ids=[row[0] for row in NUMA_REASONS]
)
def test_cpus_and_numa_nodes(
    reason: str,
    is_final: bool,
    wanted: SchedulerPod,
    labels: dict[str, str],
) -> None:
    assert refusal(wanted, None, labels, annotations={}) == (reason, is_final)


def test_a_policy_needs_numa_zones_and_a_cpu_set_needs_cpus() -> None:
    amounts = {"cpu": 1000, "memory": GIB}
    aligned = pod(amounts, {NUMA_SPEC: {"numaTopologyPolicy": "BestEffort"}})
    assert refusal(aligned, None) == ("node(s) missing NUMA resources", True)
    assert refusal(lsr(1), None) == ("node(s) invalid CPU Topology", True)


def test_s01_a_node_without_cards_has_no_score_and_is_refused() -> None:
    request = device_request({GPU_CORE: 100, GPU_MEMORY_RATIO: 100})
    assert request is not None
    empty = DeviceTable(node="n", devices={})
    state = NodeState(name="n", table=empty)
    assert node_score(empty, state.usage, request, ScoringStrategy()) == 0
    desired = pod({GPU_CORE: 100, GPU_MEMORY_RATIO: 100})
    assert refusal(desired, empty) == ("Insufficient gpu devices", True)


def granted_without(
    table: DeviceTable, scheduler_pod: SchedulerPod, allocated_devices: tuple[AllocatedDevice, ...]
) -> list[tuple[int, dict[str, int]]]:
    """Return what the pod would get once the pod that holds these devices was evicted."""
    state = ClusterState()
    state.set_node("a", {})
    state.set_devices(msgspec.structs.replace(table, node="a"))
    state.set_pod(AssignedPod(key=PodKey("h", "ns", "h"), node="a", allocation=allocated_devices))
    maker, request = DecisionMaker(state), pod_request(scheduler_pod)
    assert not maker.decide(request, ["a"]).fitting()
    assert maker.fits_without(request, "a", ["h"])
    state.remove_pod("h")
    grant = maker.allocate(request, "a")
    return [(device.device.minor, dict(device.amounts)) for device in grant.devices]


def test_a45_half_a_card_of_a_pod_that_may_be_evicted() -> None:
    total = {GPU_CORE: 100, "koordinator.sh/gpu-memory": 8 * GIB, GPU_MEMORY_RATIO: 100}
    cards = tuple(gpu(minor, "", 0, total, placed=False) for minor in (1, 2))
    entries = tuple(
        AllocatedDevice(type=GPU, minor=minor, resources=tuple(total.items())) for minor in (1, 2)
    )
    table = DeviceTable(node="n", devices={GPU: cards})
    expected = {GPU_CORE: 50, "koordinator.sh/gpu-memory": 4 * GIB, GPU_MEMORY_RATIO: 50}
    assert granted_without(table, pod(HALF), entries) == [(1, expected)]


def test_a49_half_a_nic_of_a_pod_that_may_be_evicted() -> None:
    nics = (nic(1, "a", "", 0), nic(2, "b", "", 0))
    table = DeviceTable(node="n", devices={RDMA: nics})
    entries = holding(table, nics=(1, 2))
    assert granted_without(table, pod({RDMA_NAME: 50}), entries) == [(1, {RDMA_NAME: 50})]
