"""The CPUs that a pod runs on: its own, or those shared by its kind."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.allocation.cpus import CpuPool, NodeCpus, node_cpus
from agent.containers.cpu_quota import PERIOD_US
from agent.containers.qos_class import kube_qos, qos_label
from agent.snapshot.container import (
    NO_ADJUSTMENT,
    UNLIMITED,
    Adjustment,
    HookRequest,
    HookStage,
    LinuxResources,
)
from agent.snapshot.cpu import CpuSet
from agent.snapshot.node import NodeSnapshot, SnapshotMemo
from agent.snapshot.pod import KubeQos
from agent.wire_formats.annotations import AnnotationError, parse_cpus
from agent.wire_formats.kernel_text import format_cpu_list
from agent.wire_formats.resource_status import (
    NO_STATUS,
    RESOURCE_STATUS,
    ResourceStatus,
    parse_resource_status,
)

EMPTY_SET: CpuSet = frozenset()  # as told: the set is to be emptied


class SharedCpuRule(msgspec.Struct, frozen=True, kw_only=True):
    """What the node says of shared CPUs; `be` is `None` where best-effort pods are not managed."""

    ls: tuple[CpuPool, ...]
    be: tuple[CpuPool, ...] | None
    system: CpuSet
    static: bool | None  # the kubelet gives CPUs away itself; None: it has not told
    machine: CpuSet = frozenset()  # all there are


def shared_cpu_rule(known: NodeCpus, machine: CpuSet, *, manages_be: bool) -> SharedCpuRule | None:
    """Return the rule; `None` while it cannot be told who holds CPUs."""
    if known.pools is None:
        return None
    system = known.annotations.system_qos
    return SharedCpuRule(
        ls=known.pools.ls,
        be=known.pools.be if manages_be else None,
        system=system.cpus if system is not None else frozenset(),
        static=known.is_static,
        machine=machine,
    )


def select_cpus(
    status: ResourceStatus, qos: str, kube: KubeQos | None, rule: SharedCpuRule | None
) -> CpuSet | None:
    """Return the CPUs of each of a pod's containers; `None`: nothing is said, `CLEAR`: none.

    The first that holds: its own CPUs; the pools of the memory nodes it was placed on; the
    system's; the shared pool of its class. Where the kubelet pins containers itself, or may, and
    for a pod without a known place, what nobody asked for is left to it. So is it while nobody
    holds CPUs: a pool of all of them takes nothing away, and to name it would only contradict
    other plug-ins of the runtime, which refuses the container then.
    """
    if status.cpus:
        return status.cpus
    if rule is None:
        return None
    if status.is_numa_aware and qos != "BE":
        return _pool_cpus(rule.ls, status.numa_nodes)
    if status.is_numa_aware and rule.be is not None:
        return _pool_cpus(rule.be, status.numa_nodes)
    if qos == "SYSTEM" and rule.system:
        return rule.system
    if qos == "LS":
        return _pool_cpus(rule.ls)
    return _cpus_by_cgroup(kube, rule)


def _cpus_by_cgroup(kube: KubeQos | None, rule: SharedCpuRule) -> CpuSet | None:
    if kube is KubeQos.BEST_EFFORT:
        return EMPTY_SET
    if kube is None or rule.static is not False:
        return None
    shared = _pool_cpus(rule.ls)
    return None if shared == rule.machine else shared


def _pool_cpus(pools: Iterable[CpuPool], nodes: frozenset[int] | None = None) -> CpuSet | None:
    chosen = (pool.cpus for pool in pools if nodes is None or pool.node in nodes)
    return frozenset[int]().union(*chosen) or None


class CpusetHook:
    """Sets CPUs, and takes the limit from pods that have CPUs of their own.

    The pinned are throttled by a limit although nobody else wants their CPUs. `reads_kubelet` says
    whether the kubelet is asked; `manages_be` places best-effort pods too.
    """

    name = "cpuset"
    stages = frozenset({HookStage.RUN_POD, HookStage.CREATE, HookStage.UPDATE, HookStage.RECONCILE})
    required = False

    def __init__(
        self, *, reads_kubelet: bool, manages_be: bool = False, unsets_quota: bool = True
    ) -> None:
        self._unsets_quota = unsets_quota
        self._rule = SnapshotMemo(
            _rule_inputs,
            lambda now, _: shared_cpu_rule(
                node_cpus(now, reads_kubelet=reads_kubelet),
                frozenset(cpu.id for cpu in now.cpus.value.cpus),
                manages_be=manages_be,
            ),
        )

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return CPUs of a container, and the limit of it or of its pod."""
        text = request.pod.annotation(RESOURCE_STATUS)
        status = NO_STATUS if text is None else parse_resource_status(text)
        if status.cpus:
            status = msgspec.structs.replace(status, cpus=_online_cpus(status.cpus, snapshot))
        unlimited = self._unsets_quota and bool(status.cpus)
        cpus = None
        if request.container is not None:
            cpus = self._cpus(status, request, snapshot)
        if cpus is None and not unlimited:
            return NO_ADJUSTMENT
        period_us = request.resources.period_us or PERIOD_US
        return Adjustment(
            resources=LinuxResources(
                cpus=None if cpus is None else format_cpu_list(cpus),
                quota_us=UNLIMITED if unlimited else None,
                period_us=period_us if unlimited else None,
            )
        )

    def _cpus(
        self, status: ResourceStatus, request: HookRequest, snapshot: NodeSnapshot
    ) -> CpuSet | None:
        """Return the CPUs to set. A running container's set is never emptied: v1 refuses that."""
        kube = kube_qos(request.pod)
        found = select_cpus(status, qos_label(request.pod), kube, self._rule(snapshot))
        kernel = snapshot.means.value.kernel
        squeezed = kernel.besteffort_cpus if kernel.cgroup_version == 1 else None
        if request.stage is HookStage.RECONCILE or kube is not KubeQos.BEST_EFFORT or not squeezed:
            return found or None
        if snapshot.cpus.taken_s is not None and squeezed >= snapshot.cpus.value.usable:
            return found or None
        # cgroup v1 refuses a set that is wider than the class's directory, which may be squeezed
        wanted = found or parse_cpus(request.resources.cpus or "")
        return wanted & squeezed or squeezed


def _online_cpus(cpus: CpuSet, snapshot: NodeSnapshot) -> CpuSet:
    """Return those of a pod's CPUs that there are; without any its set stays as it is."""
    if snapshot.cpus.taken_s is None:
        return cpus
    found = cpus & snapshot.cpus.value.usable
    if not found:
        raise AnnotationError(f"{RESOURCE_STATUS}: none of the CPUs named is online")
    return found


def _rule_inputs(snapshot: NodeSnapshot) -> tuple[object, ...]:
    """Return what shared CPUs are computed of."""
    cluster = snapshot.cluster
    pods = snapshot.pods
    return (
        snapshot.cpus.value,
        cluster.is_clustered,
        cluster.node.value,
        cluster.kubelet.value,
        pods.value,
        pods.taken_s is None,
    )
