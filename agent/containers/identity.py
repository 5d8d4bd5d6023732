"""Group identity: which tasks run first on a CPU, on kernels derived from Anolis.

Values of `cpu.bvt_warp_ns`: 2 and 1 run first, 0 is neutral, -1 runs last.
"""

from __future__ import annotations

import msgspec

from agent.cgroup.ledger import CORE_SWITCH, IDENTITY_SWITCH
from agent.containers.qos_class import kube_qos, qos_label
from agent.snapshot.container import NO_ADJUSTMENT, Adjustment, HookRequest, HookStage, PodSandbox
from agent.snapshot.host_devices import KernelFeatures
from agent.snapshot.node import NodeSnapshot, SnapshotMemo
from agent.snapshot.pod import KubeQos
from agent.snapshot.slo import NodeSlo
from agent.wire_formats.annotations import AnnotationError, parse_json_object

CPU_QOS = "koordinator.sh/cpuQOS"
POLICY = "groupIdentity"
LOW, HIGH = -1, 2


class IdentityRule(msgspec.Struct, frozen=True, kw_only=True):
    """The value of each class; a disabled rule has only 0."""

    enabled: bool = False
    lsr: int = 0
    ls: int = 0
    be: int = 0
    system: int = 0
    guaranteed: int = 0  # for a pod without a label


DISABLED_RULE = IdentityRule()


def identity_rule(slo: NodeSlo) -> IdentityRule:
    """Return the rule; with another policy all values are neutral."""
    qos = slo.resource_qos
    lsr, ls, be = qos.lsr_class.cpu, qos.ls_class.cpu, qos.be_class.cpu
    system = qos.system_class.cpu
    if qos.policies.cpu_policy != POLICY or not (lsr.enable or ls.enable or be.enable):
        return DISABLED_RULE
    values = [cpu.group_identity if cpu.enable else 0 for cpu in (lsr, ls, be, system)]
    return IdentityRule(
        enabled=True,
        lsr=values[0],
        ls=values[1],
        be=values[2],
        system=values[3],
        guaranteed=values[0] if lsr.enable else values[1],
    )


def pod_identity(rule: IdentityRule, pod: PodSandbox) -> int | None:
    """Return a pod's value; `None` if neither label nor cgroup path gives its class.

    Its annotation applies with the label LS only. Raises `AnnotationError` for an invalid one.
    """
    qos = qos_label(pod)
    if qos == "LS" and rule.enabled and (text := pod.annotation(CPU_QOS)) is not None:
        return _annotated_identity(rule, text)
    if qos:
        return _class_identity(rule, qos)
    match kube_qos(pod):
        case KubeQos.GUARANTEED:
            return rule.guaranteed
        case KubeQos.BURSTABLE:
            return rule.ls
        case KubeQos.BEST_EFFORT:
            return rule.be
    return None


_CLASS_FIELDS = {
    "LSE": "lsrClass",
    "LSR": "lsrClass",
    "LS": "lsClass",
    "BE": "beClass",
    "SYSTEM": "systemClass",
    KubeQos.GUARANTEED: "lsrClass",
    KubeQos.BURSTABLE: "lsClass",
    KubeQos.BEST_EFFORT: "beClass",
}


def identity_class(pod: PodSandbox) -> str:
    """Return the field of the NodeSLO that has a pod's class."""
    qos = kube_qos(pod)
    return _CLASS_FIELDS.get(qos_label(pod) or qos or "", "")


def directory_identity(rule: IdentityRule, qos: KubeQos) -> int:
    """Return the value of a QoS directory; the directory of all pods is neutral."""
    return {KubeQos.BURSTABLE: rule.ls, KubeQos.BEST_EFFORT: rule.be}.get(qos, 0)


def application_identity(rule: IdentityRule, qos: str) -> int:
    """Return the value of a host application by its QoS class; one without a class is neutral."""
    return _class_identity(rule, qos)


def is_applicable(rule: IdentityRule, kernel: KernelFeatures) -> bool:
    """Return whether there is a value to set.

    There is none on a kernel without the feature, while both the rule and the kernel's switch are
    off, and if the switch cannot be read. A kernel without a switch always applies values.
    """
    if not kernel.identity_switch_present:
        return kernel.bvt_file
    return kernel.identity_switch is not None and (rule.enabled or kernel.identity_switch != 0)


def identity_switches(rule: IdentityRule, kernel: KernelFeatures) -> tuple[tuple[str, str], ...]:
    """Return the switches to write before any value, in order; none if they are right already.

    Core scheduling comes first: both together lock up these kernels.
    """
    if not rule.enabled or not kernel.identity_switch_present or kernel.identity_switch is None:
        return ()
    core_files = ((CORE_SWITCH, "0"),) if kernel.core_switch else ()
    identity_files = ((IDENTITY_SWITCH, "1"),) if kernel.identity_switch != 1 else ()
    return (*core_files, *identity_files)


def _class_identity(rule: IdentityRule, qos: str) -> int:
    values = {"LSE": rule.lsr, "LSR": rule.lsr, "LS": rule.ls, "BE": rule.be, "SYSTEM": rule.system}
    return values.get(qos, 0)


def _annotated_identity(rule: IdentityRule, text: str) -> int:
    """Return the annotated value of a pod; a disabled annotation is neutral."""
    try:
        members = parse_json_object(text)
    except AnnotationError as error:
        raise AnnotationError(f"{CPU_QOS}: {error}") from error
    enable, value = members.get("enable", False), members.get("groupIdentity")
    if enable is not None and not isinstance(enable, bool):
        raise AnnotationError(f"{CPU_QOS}: enable is neither true nor false")
    if value is not None and (type(value) is not int or not LOW <= value <= HIGH):
        raise AnnotationError(f"{CPU_QOS}: groupIdentity is no number from {LOW} to {HIGH}")
    if not enable:
        return 0
    return rule.ls if value is None else int(value)


class IdentityHook:
    """Sets the group identity of a pod; its containers inherit it."""

    name = "group_identity"
    stages = frozenset({HookStage.RUN_POD, HookStage.RECONCILE})
    required = False

    def __init__(self) -> None:
        self._rule = SnapshotMemo(
            lambda now: (now.cluster.slo.value,),
            lambda now: identity_rule(now.cluster.slo.value.slo),
        )

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return the pod's value; nothing before the NodeSLO is known."""
        if request.container is not None or snapshot.cluster.slo.taken_s is None:
            return NO_ADJUSTMENT
        rule = self._rule(snapshot)
        if not is_applicable(rule, snapshot.host_devices.value.kernel):
            return NO_ADJUSTMENT
        value = pod_identity(rule, request.pod)
        return NO_ADJUSTMENT if value is None else Adjustment(bvt_warp_ns=value)
