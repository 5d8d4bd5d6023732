"""Annotations of a NodeResourceTopology: what the scheduler must know of the CPUs."""

from __future__ import annotations

import json
from collections.abc import Iterable

from agent.model.cluster.facts import KubeletFacts
from agent.model.cluster.node_cpus import knows_settings, node_cpus
from agent.model.cluster.node_wishes import (
    RESERVATION,
    SYSTEM_QOS,
    Reservation,
    SystemQos,
)
from agent.model.cluster.pod_cpus import PodCpus
from agent.model.cluster.shared_pools import Pool
from agent.model.snapshot import NodeSnapshot
from agent.publish.base import Json
from agent.topology.cpu import CpuSet, CpuTopology
from agent.topology.text import format_cpu_list

CPU_BASIC_INFO = "node.koordinator.sh/cpu-basic-info"
CPU_TOPOLOGY = "node.koordinator.sh/cpu-topology"
SHARED_POOLS = "node.koordinator.sh/cpu-shared-pools"
BE_SHARED_POOLS = "node.koordinator.sh/be-cpu-shared-pools"
CPU_MANAGER_POLICY = "kubelet.koordinator.sh/cpu-manager-policy"
POD_CPU_ALLOCS = "node.koordinator.sh/pod-cpu-allocs"
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
REFUSED = "xpu-agent.io/refused"  # what of the Node's and the pods' annotations is not used
MAX_REFUSED = 16
MAX_NAMED = 200  # characters of a name of somebody else's


def told(snapshot: NodeSnapshot, *, asked: bool) -> dict[str, str]:
    """Return the annotations; `asked` says whether the kubelet is asked at all.

    A managed one that is missing cannot be told now: what was said last holds. One of ours names
    what people and other programs wrote that is not used.

    Pools are told when it is known who holds CPUs. Without a cluster that is nobody, nothing is
    reserved, and what the kubelet was not asked for is an empty object.
    """
    cpus = snapshot.cpus.value
    known = node_cpus(snapshot, asked=asked)
    values: dict[str, object] = {
        CPU_BASIC_INFO: _basic_info(cpus),
        CPU_TOPOLOGY: _detail(cpus),
        RESERVATION: _reservation(known.wishes.reservation, known.kept),
        SYSTEM_QOS: _system_qos(known.wishes.system_qos),
    }
    if known.of_kubelet is not None:
        values[POD_CPU_ALLOCS] = _allocations(known.of_kubelet)
    if known.kubelet is not None and knows_settings(known.kubelet):
        values[CPU_MANAGER_POLICY] = _policy(known.kubelet)
    if known.pools is not None:
        values |= {SHARED_POOLS: _pools(known.pools.ls), BE_SHARED_POOLS: _pools(known.pools.be)}
    if refused := (*known.wishes.refused, *known.refused)[:MAX_REFUSED]:
        values[REFUSED] = [{"of": r.of[:MAX_NAMED], "path": r.path, "why": r.why} for r in refused]
    return {key: _compact(value) for key, value in sorted(values.items())}


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _basic_info(cpus: CpuTopology) -> Json:
    """Return what the processor says of itself; what is false or unknown is left out."""
    info = cpus.info
    known = {
        "cpuModel": info.model,
        "hyperThreadEnabled": cpus.smt_active,
        "turboEnabled": info.turbo,
        "catL3CbmMask": info.l3_cbm_mask,
        "vendorID": info.vendor,
    }
    return {key: value for key, value in known.items() if value}


def _detail(cpus: CpuTopology) -> Json:
    return {
        "detail": [
            {"id": cpu.id, "core": cpu.core, "socket": cpu.socket, "node": cpu.node}
            for cpu in cpus.cpus
        ]
    }


def _policy(kubelet: KubeletFacts) -> Json:
    known = {
        "policy": kubelet.cpu_manager_policy,
        "options": dict(sorted(kubelet.cpu_manager_options)),
        "reservedCPUs": format_cpu_list(kubelet.reserved_cpus or ()),
    }
    return {key: value for key, value in known.items() if value}


def _allocations(pods: Iterable[PodCpus]) -> list[Json] | None:
    """Return what the kubelet gave away; upstream writes `null` where that is nothing."""
    found: list[Json] = []
    for pod in pods:
        names = {"namespace": pod.namespace, "name": pod.name}
        known = {key: value for key, value in names.items() if value}
        cpus = format_cpu_list(pod.cpus)
        found.append({**known, "uid": pod.uid, "cpuset": cpus, "managedByKubelet": True})
    return found or None


def _reservation(wished: Reservation, cpus: CpuSet) -> Json:
    known = {
        "resources": dict(wished.resources),
        "reservedCPUs": format_cpu_list(cpus),
        "applyPolicy": wished.policy,
    }
    return {key: value for key, value in known.items() if value}


def _system_qos(wished: SystemQos | None) -> Json | None:
    """Return the CPUs of system services; `null` of a Node without any annotation, as upstream."""
    if wished is None:
        return None
    found: dict[str, object] = {"cpuset": format_cpu_list(wished.cpus)} if wished.cpus else {}
    if wished.exclusive is not None:
        found["cpusetExclusive"] = wished.exclusive
    return found


def _pools(pools: Iterable[Pool]) -> list[Json]:
    return [
        {"socket": pool.socket, "node": pool.node, "cpuset": format_cpu_list(pool.cpus)}
        for pool in pools
    ]
