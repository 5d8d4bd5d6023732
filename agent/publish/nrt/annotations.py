"""Annotations of a NodeResourceTopology: what the scheduler must know of the CPUs."""

from __future__ import annotations

import json
from collections.abc import Iterable

from agent.kubelet.reserved import kubelet_choice
from agent.model.cluster.facts import KubeletFacts
from agent.model.cluster.node_wishes import (
    RESERVATION,
    SYSTEM_QOS,
    Reservation,
    SystemQos,
    Wishes,
    wishes,
)
from agent.model.cluster.pod_cpus import PodCpus, kubelet_cpus, scheduled_cpus
from agent.model.cluster.shared_pools import Pool, shared_pools
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


def kubelet_facts(snapshot: NodeSnapshot, *, asked: bool) -> KubeletFacts | None:
    """Return the kubelet's facts, empty ones where nobody asks for them, `None` before it told."""
    told = snapshot.cluster.kubelet.value
    return told if told is not None or (asked and snapshot.cluster.clustered) else KubeletFacts()


def knows_settings(kubelet: KubeletFacts | None) -> bool:
    """Say whether the kubelet told its settings, or is not asked; its checkpoint has few."""
    asked_for_nothing = kubelet == KubeletFacts()
    return kubelet is not None and (asked_for_nothing or kubelet.topology_policy is not None)


def told(snapshot: NodeSnapshot, *, asked: bool) -> dict[str, str]:
    """Return the annotations; `asked` says whether the kubelet is asked at all.

    A managed one that is missing cannot be told now: what was said last holds. One of ours names
    what people and other programs wrote that is not used.

    Pools are told when it is known who holds CPUs. Without a cluster that is nobody, nothing is
    reserved, and what the kubelet was not asked for is an empty object.
    """
    cpus = snapshot.cpus.value
    kubelet = kubelet_facts(snapshot, asked=asked)
    named = wishes(snapshot.cluster.node.value, cpus.usable)
    scheduled, bad = scheduled_cpus(snapshot.pods.value)
    kept = _chosen(named, cpus)
    values: dict[str, object] = {
        CPU_BASIC_INFO: _basic_info(cpus),
        CPU_TOPOLOGY: _detail(cpus),
        RESERVATION: _reservation(named.reservation, kept),
        SYSTEM_QOS: _system_qos(named.system_qos),
    }
    if kubelet is not None:
        own = kubelet_cpus(kubelet, snapshot.pods.value, scheduled)
        values[POD_CPU_ALLOCS] = _allocations(own)
        if knows_settings(kubelet):
            values[CPU_MANAGER_POLICY] = _policy(kubelet)
        if knows_pods(snapshot):
            services = named.system_qos.withheld if named.system_qos else frozenset()
            pools = shared_pools(cpus.cpus, scheduled, own, kept | services)
            values |= {SHARED_POOLS: _pools(pools.ls), BE_SHARED_POOLS: _pools(pools.be)}
    if refused := (*named.refused, *bad)[:MAX_REFUSED]:
        values[REFUSED] = [{"of": r.of[:MAX_NAMED], "path": r.path, "why": r.why} for r in refused]
    return {key: _compact(value) for key, value in sorted(values.items())}


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def knows_pods(snapshot: NodeSnapshot) -> bool:
    """Say whether the pods' annotations were read: a cgroup shows that a pod is there, no more."""
    if not snapshot.cluster.clustered:
        return True
    pods = snapshot.pods
    return pods.taken_s is not None and (not pods.value or any(pod.name for pod in pods.value))


def _chosen(named: Wishes, cpus: CpuTopology) -> CpuSet:
    """Return the reserved CPUs: those named, or as many as are wanted, chosen as a kubelet does."""
    reservation = named.reservation
    return reservation.cpus or kubelet_choice(cpus, reservation.count * 1000, {}) or frozenset()


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
