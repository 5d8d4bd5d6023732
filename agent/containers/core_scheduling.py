"""Core scheduling: which pods' tasks may run on the two threads of one core at the same time."""

from __future__ import annotations

import msgspec

from agent.cgroup.ledger import CORE_SWITCH, IDENTITY_SWITCH
from agent.containers.qos_class import kube_qos, qos_label
from agent.snapshot.container import (
    NO_ADJUSTMENT,
    Adjustment,
    CoreSchedulingGroup,
    HookRequest,
    HookStage,
    PodSandbox,
)
from agent.snapshot.host_devices import KernelFeatures
from agent.snapshot.node import NodeSnapshot, SnapshotMemo
from agent.snapshot.pod import KubeQos
from agent.snapshot.slo import CpuQos, NodeSlo

GROUP_LABEL = "koordinator.sh/core-sched-group-id"
POLICY_LABEL = "koordinator.sh/core-sched-policy"
POLICY = "coreSched"
EXCLUSIVE, NEVER = "exclusive", "none"
EXPELLER = "-expeller"
NO_GROUP = CoreSchedulingGroup()  # the kernel's default: the group of all tasks without one
MAX_GROUP = 63  # characters of a label


class CoreSchedulingClass(msgspec.Struct, frozen=True):
    """Core scheduling of one QoS class."""

    enabled: bool = False
    is_expeller: bool = False  # its groups are separate from those of classes that do not expel
    is_idle: bool = False


class CoreSchedulingRule(msgspec.Struct, frozen=True, kw_only=True):
    """The classes; `enabled` is that of the policy."""

    enabled: bool = False
    lsr: CoreSchedulingClass = CoreSchedulingClass()
    ls: CoreSchedulingClass = CoreSchedulingClass()
    be: CoreSchedulingClass = CoreSchedulingClass()

    def class_of(self, qos: str, kube: KubeQos | None) -> CoreSchedulingClass:
        """Return a pod's class; an empty one for SYSTEM, and without both label and cgroup path."""
        if qos:
            by_label = {"LSE": self.lsr, "LSR": self.lsr, "LS": self.ls, "BE": self.be}
            return by_label.get(qos, CoreSchedulingClass())
        if kube is KubeQos.GUARANTEED:
            return self.lsr if self.lsr.enabled else self.ls
        by_kube_qos = {KubeQos.BURSTABLE: self.ls, KubeQos.BEST_EFFORT: self.be}
        return CoreSchedulingClass() if kube is None else by_kube_qos[kube]


def core_scheduling_rule(slo: NodeSlo) -> CoreSchedulingRule:
    """Return the rule; with another policy all of it is disabled."""
    qos = slo.resource_qos
    if qos.policies.cpu_policy != POLICY:
        return CoreSchedulingRule()
    return CoreSchedulingRule(
        enabled=True,
        lsr=_core_class(qos.lsr_class.cpu),
        ls=_core_class(qos.ls_class.cpu),
        be=_core_class(qos.be_class.cpu),
    )


def core_group(rule: CoreSchedulingRule, pod: PodSandbox) -> CoreSchedulingGroup:
    """Return the group of a pod's processes."""
    core_class = rule.class_of(qos_label(pod), kube_qos(pod))
    policy = pod.label(POLICY_LABEL) or ""
    if not rule.enabled or not core_class.enabled or policy == NEVER:
        return NO_GROUP
    name = pod.uid if policy == EXCLUSIVE else (pod.label(GROUP_LABEL) or "")[:MAX_GROUP]
    return CoreSchedulingGroup(
        enabled=True, id=f"{name}{EXPELLER}" if core_class.is_expeller else name
    )


def directory_idle(rule: CoreSchedulingRule, qos: KubeQos) -> int | None:
    """Return `cpu.idle` of a QoS directory; `None` with another policy."""
    return int(rule.class_of("", qos).is_idle) if rule.enabled else None


def core_switches(rule: CoreSchedulingRule, kernel: KernelFeatures) -> tuple[tuple[str, str], ...]:
    """Return the switches to write before any cookie, in order; none if they are right already.

    Group identity comes first: both together lock up kernels that have it.
    """
    if not rule.enabled or not kernel.core_scheduling:
        return ()
    identity = kernel.identity_switch_present and kernel.identity_switch != 0
    identity_files = ((IDENTITY_SWITCH, "0"),) if identity else ()
    core_files = ((CORE_SWITCH, "1"),) if kernel.core_switch == 0 else ()
    return (*identity_files, *core_files)


def _core_class(cpu: CpuQos) -> CoreSchedulingClass:
    enabled = cpu.enable
    return CoreSchedulingClass(
        enabled, enabled and cpu.core_expeller, enabled and cpu.sched_idle == 1
    )


class CoreSchedulingHook:
    """Returns the core scheduling group of a container's processes, once they run."""

    name = "core_scheduling"
    stages = frozenset({HookStage.RECONCILE})
    required = False

    def __init__(self) -> None:
        self._rule = SnapshotMemo(
            lambda now: (now.cluster.slo.value,),
            lambda now: core_scheduling_rule(now.cluster.slo.value.slo),
        )

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return the group of a container, or of the sandbox. SYSTEM pods are not changed."""
        is_known = snapshot.cluster.slo.taken_s is not None
        if request.container is None or not is_known or qos_label(request.pod) == "SYSTEM":
            return NO_ADJUSTMENT
        if not snapshot.host_devices.value.kernel.core_scheduling:
            return NO_ADJUSTMENT
        return Adjustment(core_group=core_group(self._rule(snapshot), request.pod))
