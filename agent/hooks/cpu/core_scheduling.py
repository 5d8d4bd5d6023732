"""Core scheduling: whose tasks may run on the two threads of one core at a time."""

from __future__ import annotations

import msgspec

from agent.cgroup.ledger.entry import CORE_SWITCH, IDENTITY_SWITCH
from agent.grants.remember import Remembered
from agent.hooks.classes import kube_qos, qos_label
from agent.model.grant.kernel import KernelMeans
from agent.model.pod import KubeQos
from agent.model.runtime.adjustment import NOTHING, Adjustment, CoreGroup
from agent.model.runtime.request import HookRequest, Stage
from agent.model.runtime.seen import SandboxSeen
from agent.model.slo.qos import CpuQos
from agent.model.slo.spec import NodeSlo
from agent.model.snapshot import NodeSnapshot

GROUP_LABEL = "koordinator.sh/core-sched-group-id"
POLICY_LABEL = "koordinator.sh/core-sched-policy"
POLICY = "coreSched"
EXCLUSIVE, NEVER = "exclusive", "none"
EXPELLER = "-expeller"
ALONE = CoreGroup()  # the kernel's default: with all that has none
MAX_GROUP = 63  # characters of a label


class CoreClass(msgspec.Struct, frozen=True):
    """One class."""

    enabled: bool = False
    expels: bool = False  # its groups are apart from those of classes that do not
    idle: bool = False


class CoreRule(msgspec.Struct, frozen=True, kw_only=True):
    """Each class; `enabled` is the policy's."""

    enabled: bool = False
    lsr: CoreClass = CoreClass()
    ls: CoreClass = CoreClass()
    be: CoreClass = CoreClass()

    def of(self, qos: str, kube: KubeQos | None) -> CoreClass:
        """Return a pod's class; of SYSTEM and of one with neither label nor place: none."""
        if qos:
            labelled = {"LSE": self.lsr, "LSR": self.lsr, "LS": self.ls, "BE": self.be}
            return labelled.get(qos, CoreClass())
        if kube is KubeQos.GUARANTEED:
            return self.lsr if self.lsr.enabled else self.ls
        placed = {KubeQos.BURSTABLE: self.ls, KubeQos.BEST_EFFORT: self.be}
        return CoreClass() if kube is None else placed[kube]


def core_rule(slo: NodeSlo) -> CoreRule:
    """Return the rule; another policy than this one switches all of it off."""
    qos = slo.resource_qos
    if qos.policies.cpu_policy != POLICY:
        return CoreRule()
    return CoreRule(
        enabled=True,
        lsr=_class(qos.lsr_class.cpu),
        ls=_class(qos.ls_class.cpu),
        be=_class(qos.be_class.cpu),
    )


def core_group(rule: CoreRule, pod: SandboxSeen) -> CoreGroup:
    """Return the group that a pod's processes belong to."""
    found = rule.of(qos_label(pod), kube_qos(pod))
    policy = pod.label(POLICY_LABEL) or ""
    if not rule.enabled or not found.enabled or policy == NEVER:
        return ALONE
    name = pod.uid if policy == EXCLUSIVE else (pod.label(GROUP_LABEL) or "")[:MAX_GROUP]
    return CoreGroup(enabled=True, id=f"{name}{EXPELLER}" if found.expels else name)


def directory_idle(rule: CoreRule, qos: KubeQos) -> int | None:
    """Return `cpu.idle` of a QoS directory; `None` where the policy is another."""
    return int(rule.of("", qos).idle) if rule.enabled else None


def core_switches(rule: CoreRule, kernel: KernelMeans) -> tuple[tuple[str, str], ...]:
    """Return the files to write before any cookie, in order: none where all is as it must be.

    Group identity goes first: both together lock up kernels that have it.
    """
    if not rule.enabled or not kernel.core_scheduling:
        return ()
    identity = kernel.identity_switch_present and kernel.identity_switch != 0
    other = ((IDENTITY_SWITCH, "0"),) if identity else ()
    own = ((CORE_SWITCH, "1"),) if kernel.core_switch == 0 else ()
    return (*other, *own)


def _class(cpu: CpuQos) -> CoreClass:
    enabled = cpu.enable
    return CoreClass(enabled, enabled and cpu.core_expeller, enabled and cpu.sched_idle == 1)


class CoreSchedulingHook:
    """Says whose cookie a container's processes have, once they run."""

    name = "core_scheduling"
    stages = frozenset({Stage.RECONCILE})
    required = False

    def __init__(self) -> None:
        self._rule = Remembered(
            lambda now: (now.cluster.slo.value,),
            lambda now, _: core_rule(now.cluster.slo.value.slo),
        )

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return the group of a container, or of the sandbox. SYSTEM pods are left alone."""
        known = snapshot.cluster.slo.taken_s is not None
        if request.container is None or not known or qos_label(request.pod) == "SYSTEM":
            return NOTHING
        if not snapshot.means.value.kernel.core_scheduling:
            return NOTHING
        return Adjustment(core_group=core_group(self._rule(snapshot), request.pod))
