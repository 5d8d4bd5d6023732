"""The NodeResourceTopology object: zones, and what the scheduler must know of the CPUs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from agent.model import quantity
from agent.model.snapshot import NodeIdentity, NodeSnapshot
from agent.publish.base import Desired, Json
from agent.topology.cpu import CpuTopology
from agent.topology.numa import NumaNode, NumaTopology
from agent.topology.text import format_cpu_list

API_VERSION = "topology.node.k8s.io/v1alpha1"  # what Koordinator reads and writes
KIND = "NodeResourceTopology"
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "Koordinator"

CPU_BASIC_INFO = "node.koordinator.sh/cpu-basic-info"
CPU_TOPOLOGY = "node.koordinator.sh/cpu-topology"
SHARED_POOLS = "node.koordinator.sh/cpu-shared-pools"
BE_SHARED_POOLS = "node.koordinator.sh/be-cpu-shared-pools"
CPU_MANAGER_POLICY = "kubelet.koordinator.sh/cpu-manager-policy"
POD_CPU_ALLOCS = "node.koordinator.sh/pod-cpu-allocs"
RESERVATION = "node.koordinator.sh/reservation"
SYSTEM_QOS = "node.koordinator.sh/system-qos-resource"
ANNOTATIONS = (
    CPU_MANAGER_POLICY,
    BE_SHARED_POOLS,
    CPU_BASIC_INFO,
    SHARED_POOLS,
    CPU_TOPOLOGY,
    POD_CPU_ALLOCS,
    RESERVATION,
    SYSTEM_QOS,
)
NO_POLICY = "None"  # the kubelet's topology manager was not asked
PAGE_SIZES = (2 << 20, 1 << 30)  # bytes; reported even where the machine has no such pool


class TopologyPublisher(msgspec.Struct, frozen=True):
    """Publishes CPUs and memory nodes of this node, as far as it knows them without a cluster."""

    interval_s: float = 3.0
    name: str = "topology"

    def render(self, snapshot: NodeSnapshot, now_s: float) -> tuple[Desired, ...]:  # noqa: ARG002 - see Publisher
        """Return the object; nothing before the CPUs were read, or if none could be."""
        cpus, numa = snapshot.cpus, snapshot.numa
        if cpus.taken_s is None or numa.taken_s is None or not cpus.value.usable:
            return ()
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": snapshot.node.name,
                "labels": {MANAGED_BY: MANAGER},
                "annotations": managed_annotations(cpus.value),
                **_owner(snapshot.node),
            },
            "topologyPolicies": [NO_POLICY],
            "zones": zones(numa.value),
        }
        return (
            Desired(
                file_name="noderesourcetopology.yaml",
                api_version=API_VERSION,
                kind=KIND,
                name=snapshot.node.name,
                body=body,
                owned_annotations=ANNOTATIONS,
                owned_labels=(MANAGED_BY,),
            ),
        )


def _owner(node: NodeIdentity) -> Json:
    if not node.uid:
        return {}
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
    return {"ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}]}


def managed_annotations(cpus: CpuTopology) -> dict[str, str]:
    """Return every managed annotation. Without a cluster no pod holds CPUs, nothing is reserved.

    Both pools are then all CPUs, and what the kubelet was not asked for is an empty object.
    """
    pools = _pools(cpus)
    values: dict[str, object] = {
        CPU_MANAGER_POLICY: {},
        BE_SHARED_POOLS: pools,
        CPU_BASIC_INFO: _basic_info(cpus),
        SHARED_POOLS: pools,
        CPU_TOPOLOGY: {
            "detail": [
                {"id": cpu.id, "core": cpu.core, "socket": cpu.socket, "node": cpu.node}
                for cpu in cpus.cpus
            ]
        },
        POD_CPU_ALLOCS: None,  # upstream writes `null` where there are none
        RESERVATION: {},
        SYSTEM_QOS: {},
    }
    return {
        key: json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        for key, value in values.items()
    }


def _basic_info(cpus: CpuTopology) -> Json:
    """Return what the processor says of itself; what is false or unknown is left out."""
    info = cpus.info
    told = {
        "cpuModel": info.model,
        "hyperThreadEnabled": cpus.smt_active,
        "turboEnabled": info.turbo,
        "catL3CbmMask": info.l3_cbm_mask,
        "vendorID": info.vendor,
    }
    return {key: value for key, value in told.items() if value}


def _pools(cpus: CpuTopology) -> list[Json] | None:
    groups: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for cpu in cpus.cpus:
        groups[cpu.socket, cpu.node].add(cpu.id)
    pools: list[Json] = [
        {"socket": socket, "node": node, "cpuset": format_cpu_list(members)}
        for (socket, node), members in sorted(groups.items())
    ]
    return pools or None


def zones(numa: NumaTopology) -> list[Json]:
    """Return one zone for each memory node that pods may use, in the order of their names."""
    nodes = sorted((node for node in numa.nodes if node.zoned), key=_zone_name)
    return [_zone(node, nodes, numa) for node in nodes]


def _zone_name(node: NumaNode) -> str:
    return f"node-{node.id}"


def _zone(node: NumaNode, nodes: Sequence[NumaNode], numa: NumaTopology) -> Json:
    distances = {_zone_name(other): numa.distance(node.id, other.id) for other in nodes}
    costs = [
        {"name": name, "value": value} for name, value in distances.items() if value is not None
    ]
    zone: dict[str, object] = {
        "name": _zone_name(node),
        "type": "Node",
        "resources": [
            {"name": name, "capacity": amount, "allocatable": amount, "available": amount}
            for name, amount in sorted(_resources(node).items())
        ],
    }
    return {**zone, "costs": costs} if costs else zone


def _resources(node: NumaNode) -> dict[str, str]:
    """Return canonical quantities; memory that cannot be told is no resource at all."""
    pools = dict.fromkeys(PAGE_SIZES, 0) | dict(node.hugepages)
    amounts = {
        f"hugepages-{quantity.binary(size)}": quantity.binary(size * pages)
        for size, pages in pools.items()
        if pages or size in PAGE_SIZES
    }
    amounts["cpu"] = quantity.decimal(len(node.cpus))
    if node.memory_bytes is not None:
        huge_bytes = sum(size * pages for size, pages in node.hugepages)
        amounts["memory"] = quantity.binary(max(0, node.memory_bytes - huge_bytes))
    return amounts
