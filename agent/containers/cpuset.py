"""The CPUs of a pod: its own, or the shared ones of its class."""

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

EMPTY_SET: CpuSet = frozenset()  # as an answer: the set is to be emptied


class SharedCpuRule(msgspec.Struct, frozen=True, kw_only=True):
    """The node's shared CPUs; `be` is `None` if best-effort pods are not managed."""

    ls: tuple[CpuPool, ...]
    be: tuple[CpuPool, ...] | None
    system: CpuSet
    static: bool | None  # the kubelet assigns CPUs itself; None: unknown
    machine: CpuSet = frozenset()  # all CPUs of the machine


def shared_cpu_rule(
    node_cpus: NodeCpus, machine: CpuSet, *, manages_be: bool
) -> SharedCpuRule | None:
    """Return the rule; `None` while it is unknown which pods have CPUs of their own."""
    if node_cpus.pools is None:
        return None
    system = node_cpus.annotations.system_qos
    return SharedCpuRule(
        ls=node_cpus.pools.ls,
        be=node_cpus.pools.be if manages_be else None,
        system=system.cpus if system is not None else frozenset(),
        static=node_cpus.is_static,
        machine=machine,
    )


def select_cpus(
    status: ResourceStatus, qos: str, kube: KubeQos | None, rule: SharedCpuRule | None
) -> CpuSet | None:
    """Return the CPUs of each container of a pod; `None`: no change, `EMPTY_SET`: empty the set.

    The first of these that applies: the pod's own CPUs; the pools of the NUMA nodes that it is
    placed on; the CPUs for SYSTEM; the shared pool of its class. The kubelet's choice stays where
    the kubelet pins containers, or may pin them, and for a pod without a known cgroup. It also
    stays while no pod has CPUs of its own: a pool of all CPUs restricts nothing, and setting it
    would only conflict with other plug-ins of the runtime, which then refuses the container.
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
    pool_cpus = _pool_cpus(rule.ls)
    return None if pool_cpus == rule.machine else pool_cpus


def _pool_cpus(pools: Iterable[CpuPool], nodes: frozenset[int] | None = None) -> CpuSet | None:
    cpu_sets = (pool.cpus for pool in pools if nodes is None or pool.node in nodes)
    return frozenset[int]().union(*cpu_sets) or None


class CpusetHook:
    """Sets CPUs, and removes the CPU quota of pods that have CPUs of their own.

    A quota throttles pinned pods although no other pod uses their CPUs. `reads_kubelet` says
    whether the agent reads the kubelet's settings; with `manages_be` best-effort pods
    are placed too.
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
            lambda now: shared_cpu_rule(
                node_cpus(now, reads_kubelet=reads_kubelet),
                frozenset(cpu.id for cpu in now.cpus.value.cpus),
                manages_be=manages_be,
            ),
        )

        self._application_cpus = SnapshotMemo(_rule_inputs, self._read_application_cpus)

    def application_cpus(self, snapshot: NodeSnapshot) -> CpuSet | None:
        """Return the CPUs of host applications of the class LS; `None`: no change.

        Other classes of host applications have no CPUs of their own.
        """
        return self._application_cpus(snapshot)

    def _read_application_cpus(self, snapshot: NodeSnapshot) -> CpuSet | None:
        rule = self._rule(snapshot)
        return None if rule is None else _pool_cpus(rule.ls)

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return the CPUs of a container, and the quota of the container or of its pod."""
        text = request.pod.annotation(RESOURCE_STATUS)
        status = NO_STATUS if text is None else parse_resource_status(text)
        if status.cpus:
            status = msgspec.structs.replace(status, cpus=_online_cpus(status.cpus, snapshot))
        removes_quota = self._unsets_quota and bool(status.cpus)
        cpus = None
        if request.container is not None:
            cpus = self._cpus(status, request, snapshot)
        if cpus is None and not removes_quota:
            return NO_ADJUSTMENT
        period_us = request.resources.period_us or PERIOD_US
        return Adjustment(
            resources=LinuxResources(
                cpus=None if cpus is None else format_cpu_list(cpus),
                quota_us=UNLIMITED if removes_quota else None,
                period_us=period_us if removes_quota else None,
            )
        )

    def _cpus(
        self, status: ResourceStatus, request: HookRequest, snapshot: NodeSnapshot
    ) -> CpuSet | None:
        """Return the CPUs to set.

        The set of a running container is never emptied: v1 refuses that.
        """
        kube = kube_qos(request.pod)
        cpus = select_cpus(status, qos_label(request.pod), kube, self._rule(snapshot))
        kernel = snapshot.host_devices.value.kernel
        suppressed_cpus = kernel.besteffort_cpus if kernel.cgroup_version == 1 else None
        if (
            request.stage is HookStage.RECONCILE
            or kube is not KubeQos.BEST_EFFORT
            or not suppressed_cpus
        ):
            return cpus or None
        if snapshot.cpus.taken_s is not None and suppressed_cpus >= snapshot.cpus.value.usable:
            return cpus or None
        # cgroup v1 refuses a set wider than the class's directory, which may be suppressed
        desired = cpus or parse_cpus(request.resources.cpus or "")
        return desired & suppressed_cpus or suppressed_cpus


def _online_cpus(cpus: CpuSet, snapshot: NodeSnapshot) -> CpuSet:
    """Return the CPUs of a pod that are online; raises `AnnotationError` if none is."""
    if snapshot.cpus.taken_s is None:
        return cpus
    online = cpus & snapshot.cpus.value.usable
    if not online:
        raise AnnotationError(f"{RESOURCE_STATUS}: none of the CPUs named is online")
    return online


def _rule_inputs(snapshot: NodeSnapshot) -> tuple[object, ...]:
    """Return the inputs of the rule for shared CPUs."""
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
