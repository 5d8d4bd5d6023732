"""Limits the CPU of best-effort pods to what latency-sensitive pods and the system leave.

The budget and the rules of both policies are Koordinator's
(`pkg/koordlet/qosmanager/plugins/cpusuppress`); `docs/qos.md` lists the differences.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from agent.allocation.cpus import EXCLUSIVE_CLASS, STATIC_POLICY, annotated_cpus, scheduled_cpus
from agent.cgroup.cpu import PERIOD_US, UNLIMITED_QUOTA, Bandwidth
from agent.cgroup.keys import CPUS, IDLE, IDLE_WEIGHTS, QUOTA, SHARES, CgroupValue
from agent.cgroup.write_plan import DesiredValue
from agent.config.containers import CpuSuppressionSettings
from agent.qos.cpu_budget import (
    BEST_EFFORT_BASE,
    NO_CUT,
    STEP_S,
    OutsideUse,
    PressureCut,
    budget_milli,
    measured_use,
    next_quota_us,
    quota_us,
    react_to_stall,
    reserved_cores,
    without_unmeasured_pods,
)
from agent.qos.cpu_choice import (
    CandidateCpus,
    candidate_cpus,
    choose_cpu_count,
    growth_step,
    select_cpus,
)
from agent.qos.strategy import NOT_REQUESTED, QosInputs, StrategyPlan
from agent.snapshot.cpu import CpuSet, CpuTopology
from agent.snapshot.node import are_same_objects
from agent.snapshot.pod import PodView
from agent.snapshot.self_check import StrategyState
from agent.usage.host_applications import base_cgroup
from agent.wire_formats.annotations import AnnotationError, parse_node_annotations
from agent.wire_formats.kernel_text import format_cpu_list
from agent.wire_formats.quantities import parse_amount
from agent.wire_formats.resource_status import RESOURCE_STATUS, parse_resource_status

NAME = "cpu_suppression"
SECTION = "NodeSLO spec.resourceUsedThresholdWithBE"
QUOTA_POLICY = "cfsQuota"
KUBELET_ANSWER_S = 10.0  # until then the kubelet may still say whether it allocates CPUs
NO_LIMIT = Bandwidth(UNLIMITED_QUOTA, PERIOD_US)
LSR_CLASS = "LSR"
EVERY_CPU_IS_TAKEN = (
    "BENoCandidates: every CPU is reserved, isolated, or belongs to a pod of class LSE"
)
QUOTA_FOR_STATIC = "quota instead of CPUs: the kubelet allocates CPUs itself (static policy)"
STALLS_IGNORED = "stalls are ignored: pods wait although best-effort pods have nearly no CPU"
NO_IDLE = "the kernel has no cpu.idle"


class ChildGroup(msgspec.Struct, frozen=True):
    """A group of a best-effort pod or of one of its containers."""

    cgroup: str
    is_pod: bool
    placed: CpuSet = frozenset()  # CPUs that the scheduler chose for the pod; empty: none


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What best-effort pods may use; `None` is no limit of this kind."""

    cpus: CpuSet | None = None
    quota_us: int | None = None


class StepBase(msgspec.Struct, frozen=True, kw_only=True):
    """The limits in force at the start of a step, from which growth is limited."""

    taken_s: float = float("-inf")
    cpu_count: int = 0
    quota: Bandwidth = NO_LIMIT


class SuppressionState(msgspec.Struct, frozen=True, kw_only=True):
    """What one cycle remembers for the next."""

    inputs: tuple[object, ...] = ()  # of the last decision, compared by identity
    begun_s: float | None = None  # monotonic, the agent's first cycle
    decided_s: float = float("-inf")
    plan: StrategyPlan = StrategyPlan()
    limits: Limits = Limits()
    base: StepBase = StepBase()
    outside: OutsideUse | None = None
    cut: PressureCut = NO_CUT
    stalls: int | None = None  # that were reacted to; None: none counts yet
    candidates: CandidateCpus = CandidateCpus()
    children: tuple[ChildGroup, ...] = ()
    planned_children: tuple[ChildGroup, ...] | None = None  # those that the plan is for


START = SuppressionState()


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one decision reads of the node, its groups and its load."""

    group: str  # of best-effort pods
    capacity_milli: int
    budget_milli: int
    protected_pods_cores: float
    cpus: CpuSet | None  # in force
    quota: Bandwidth  # in force
    uses_quota: bool
    outside: OutsideUse | None
    message: str = ""

    @property
    def cpu_count(self) -> int:
        """Return the node's capacity in whole CPUs."""
        return -(-self.capacity_milli // 1000)


class CpuSuppression:
    """The strategy `cpu_suppression`."""

    name = NAME

    def __init__(self, settings: CpuSuppressionSettings) -> None:
        self._settings = settings

    def start(self) -> SuppressionState:
        """Return the state before the first cycle."""
        return START

    def plan(
        self, inputs: QosInputs, state: SuppressionState
    ) -> tuple[StrategyPlan, SuppressionState]:
        """Return the limits of best-effort pods."""
        if state.begun_s is None:
            state = msgspec.structs.replace(state, begun_s=inputs.now_s)
        if not inputs.slo.thresholds.enable:
            return NOT_REQUESTED, msgspec.structs.replace(START, begun_s=state.begun_s)
        if inputs.has_pods and not inputs.pods:
            plan = StrategyPlan(state=StrategyState.IDLE, message="no pod is listed")
            return plan, msgspec.structs.replace(START, begun_s=state.begun_s)
        if state.stalls is None:
            state = msgspec.structs.replace(state, stalls=inputs.pressure.stalls)
        compared = _compared_inputs(inputs)
        if are_same_objects(compared, state.inputs) and inputs.now_s - state.decided_s < STEP_S:
            return state.plan, state
        facts = _read_facts(inputs, state)
        if isinstance(facts, str):
            return _wait(state, facts)
        if not are_same_objects(compared[:_PLACES], state.inputs[:_PLACES]):
            children = _children(inputs, facts.group)
            state = msgspec.structs.replace(
                state,
                candidates=_candidates(inputs),
                children=state.children if children == state.children else children,
            )
        base = _step_base(inputs.now_s, state.base, facts)
        state = msgspec.structs.replace(state, base=base, outside=facts.outside)
        limits = _formula_limits(inputs, state, facts)
        if limits is None:
            return _wait(state, EVERY_CPU_IS_TAKEN)
        if self._settings.pressure:
            limits, state = _cut_limits(inputs, state, facts, limits)
        plan = self._plan(inputs, state, facts, limits)
        return plan, msgspec.structs.replace(
            state,
            inputs=compared,
            decided_s=inputs.now_s,
            plan=plan,
            planned_children=state.children,
            limits=limits,
        )

    def _plan(
        self, inputs: QosInputs, state: SuppressionState, facts: NodeFacts, limits: Limits
    ) -> StrategyPlan:
        values = state.plan.values
        if limits != state.limits or state.children is not state.planned_children:
            desired = _desired_values(inputs, state, facts, limits)
            values = (*desired, *self._idle_values(inputs, state, facts))
        return StrategyPlan(
            values=values,
            message="; ".join(filter(None, (facts.message, *self._notes(inputs, state, facts)))),
            figures=_figures(inputs, state, facts, limits),
        )

    def _notes(self, inputs: QosInputs, state: SuppressionState, facts: NodeFacts) -> Iterator[str]:
        """Yield which options do not work here as they do elsewhere."""
        if self._settings.idle != "off" and inputs.current.value(facts.group, IDLE) is None:
            yield NO_IDLE
        pressure = inputs.pressure
        if self._settings.pressure and pressure.reason:
            yield f"CPU pressure, {pressure.method}: {pressure.reason}"
        if inputs.now_s < state.cut.ignored_until_s:
            yield STALLS_IGNORED

    def _idle_values(
        self, inputs: QosInputs, state: SuppressionState, facts: NodeFacts
    ) -> Iterator[DesiredValue]:
        if self._settings.idle == "off":
            return
        cgroups = [child.cgroup for child in state.children if child.is_pod]
        if self._settings.idle == "class":
            cgroups.append(facts.group)
        for cgroup in cgroups:
            yield from _idle_group(inputs, cgroup)


_PLACES = 5  # of the compared inputs: those that candidates and children follow from


def _compared_inputs(inputs: QosInputs) -> tuple[object, ...]:
    cluster = inputs.cluster
    return (
        inputs.pod_views,
        inputs.pods,
        inputs.cpus,
        cluster.node.value,
        inputs.layout,
        cluster.kubelet.value,
        inputs.slo,
        inputs.usage,
        inputs.node,
        inputs.pressure,
    )


def _wait(state: SuppressionState, reason: str) -> tuple[StrategyPlan, SuppressionState]:
    """Return the last values: an input is missing."""
    plan = StrategyPlan(values=state.plan.values, state=StrategyState.WAITING, message=reason)
    return plan, msgspec.structs.replace(state, inputs=())


def _read_facts(inputs: QosInputs, state: SuppressionState) -> NodeFacts | str:
    """Return the facts, or which of them is missing."""
    group = base_cgroup(inputs.layout, BEST_EFFORT_BASE)
    quota = None if group is None else inputs.current.value(group, QUOTA)
    if not inputs.has_pods:
        return "the pods of the node are not read yet"
    if group is None or not isinstance(quota, Bandwidth):
        return "the group of best-effort pods has no CPU quota, or does not exist"
    if inputs.node.cpu_milli is None:
        return "the node's CPU capacity is not known"
    wants_quota = inputs.slo.thresholds.cpu_suppress_policy == QUOTA_POLICY
    if not wants_quota and _may_be_static(inputs, state):
        return "the kubelet has not said yet whether it allocates CPUs"
    use = None
    if inputs.usage is not None:
        annotated = _annotated_cores(inputs)
        reserved = reserved_cores(inputs.node, annotated)
        use = measured_use(inputs.usage, inputs.pods, inputs.slo.host_applications, reserved)
    if use is None or inputs.usage is None or inputs.usage_taken_s is None:
        return "the node's CPU usage is not measured"
    use, outside = without_unmeasured_pods(
        use, inputs.usage, inputs.usage_taken_s, inputs.pods, state.outside
    )
    kubelet = inputs.cluster.kubelet.value
    is_static = kubelet is not None and kubelet.cpu_manager_policy == STATIC_POLICY
    uses_quota = is_static or wants_quota
    cpus = inputs.current.effective_cpus(group)
    if not uses_quota and (not inputs.cpus.cpus or cpus is None):
        return "the node's CPUs, or those of best-effort pods, are not known"
    return NodeFacts(
        group=group,
        capacity_milli=inputs.node.cpu_milli,
        budget_milli=budget_milli(inputs.node.cpu_milli, inputs.slo.thresholds, use),
        protected_pods_cores=use.protected_pods_cores,
        cpus=cpus,
        quota=quota,
        uses_quota=uses_quota,
        outside=outside,
        message=QUOTA_FOR_STATIC if is_static else "",
    )


def _may_be_static(inputs: QosInputs, state: SuppressionState) -> bool:
    kubelet = inputs.cluster.kubelet
    is_unread = inputs.cluster.is_clustered and kubelet.value is None and not kubelet.error
    begun_s = inputs.now_s if state.begun_s is None else state.begun_s
    return is_unread and inputs.now_s - begun_s < KUBELET_ANSWER_S


def _annotated_cores(inputs: QosInputs) -> float:
    """Return the cores that an annotation of the Node reserves; named CPUs count instead."""
    annotations = parse_node_annotations(inputs.cluster.node.value, inputs.cpus.usable)
    reservation = annotations.reservation
    if reservation.cpus:
        return len(reservation.cpus)
    amount = parse_amount(dict(reservation.resources).get("cpu", "0"))
    return 0.0 if amount is None else max(float(amount), 0.0)


def _candidates(inputs: QosInputs) -> CandidateCpus:
    """Return the CPUs that best-effort pods may use at all."""
    annotations = parse_node_annotations(inputs.cluster.node.value, inputs.cpus.usable)
    owners, _ = scheduled_cpus(inputs.pod_views)
    services = annotations.system_qos
    excluded = annotated_cpus(annotations, inputs.cpus).union(
        services.exclusive_cpus if services is not None else frozenset(),
        inputs.cpus.isolated,  # the kernel would leave all threads on the first of them
        *(pod.cpus for pod in owners if pod.label == EXCLUSIVE_CLASS),
    )
    lsr = frozenset[int]().union(*(pod.cpus for pod in owners if pod.label == LSR_CLASS))
    return candidate_cpus(inputs.cpus.cpus, excluded, lsr)


def _children(inputs: QosInputs, group: str) -> tuple[ChildGroup, ...]:
    """Return the groups below that of best-effort pods; only version 1 needs those of containers.

    There each group has a list of CPUs of its own, within the list of the group above. On
    version 2, a group without a list has the CPUs of the group above.
    """
    children: list[ChildGroup] = []
    for pod in inputs.pod_views:
        if not pod.cgroup.startswith(f"{group}/"):
            continue
        children.append(ChildGroup(pod.cgroup, is_pod=True))
        if inputs.layout.version == 1:
            placed = _placed_cpus(pod, inputs.cpus)
            children += (
                ChildGroup(container.cgroup, is_pod=False, placed=placed)
                for container in pod.containers
                if container.cgroup
            )
    return tuple(children)


def _placed_cpus(pod: PodView, cpus: CpuTopology) -> CpuSet:
    """Return the CPUs of the scheduler's choice; none without its annotation."""
    text = pod.annotation(RESOURCE_STATUS)
    if text is None:
        return frozenset()
    try:
        status = parse_resource_status(text)
    except AnnotationError:
        return frozenset()
    if status.cpus or not status.is_numa_aware:
        return status.cpus
    return frozenset(cpu.id for cpu in cpus.cpus if cpu.node in status.numa_nodes)


def _step_base(now_s: float, base: StepBase, facts: NodeFacts) -> StepBase:
    """Return the base of growth; within one step it does not grow with the limits in force."""
    count = len(facts.cpus or ())
    if now_s - base.taken_s >= STEP_S:
        return StepBase(taken_s=now_s, cpu_count=count, quota=facts.quota)
    is_lower = base.quota.is_looser(facts.quota)
    return StepBase(
        taken_s=base.taken_s,
        cpu_count=min(base.cpu_count, count),
        quota=facts.quota if is_lower else base.quota,
    )


def _formula_limits(inputs: QosInputs, state: SuppressionState, facts: NodeFacts) -> Limits | None:
    """Return the limits by the formulas of the policy; `None`: no CPU may be used."""
    if facts.uses_quota:
        quota = next_quota_us(
            facts.budget_milli, facts.capacity_milli, state.base.quota, facts.quota
        )
        return Limits(quota_us=quota)
    candidates = _within(state.candidates, inputs.current.effective_cpus(inputs.layout.root or ""))
    largest = state.base.cpu_count + growth_step(len(inputs.cpus.cpus))
    count = choose_cpu_count(facts.budget_milli, largest, candidates.count)
    return (
        Limits(cpus=select_cpus(candidates, count, state.limits.cpus or frozenset()))
        if count
        else None
    )


def _within(candidates: CandidateCpus, allowed: CpuSet | None) -> CandidateCpus:
    """Return the candidates that the group above allows; an empty list allows all."""
    if not allowed:
        return candidates
    return CandidateCpus(
        lsr=tuple(cpu for cpu in candidates.lsr if cpu.id in allowed),
        shared=tuple(cpu for cpu in candidates.shared if cpu.id in allowed),
    )


def _cut_limits(
    inputs: QosInputs, state: SuppressionState, facts: NodeFacts, limits: Limits
) -> tuple[Limits, SuppressionState]:
    """Return the limits after a stall of latency-sensitive pods."""
    count = facts.cpu_count if facts.cpus is None else min(len(facts.cpus), facts.cpu_count)
    now_us = quota_us(facts.quota)
    effective_us = (
        count * PERIOD_US if now_us == UNLIMITED_QUOTA else min(now_us, count * PERIOD_US)
    )
    cut = react_to_stall(
        state.cut,
        effective_us,
        facts.cpu_count,
        inputs.now_s,
        is_stalled=inputs.pressure.stalls != state.stalls,
    )
    largest_us = limits.quota_us
    if largest_us is None and limits.cpus is not None:
        largest_us = len(limits.cpus) * PERIOD_US
    if cut.quota_us is not None and largest_us is not None and cut.quota_us >= largest_us:
        cut = msgspec.structs.replace(cut, quota_us=None)
    state = msgspec.structs.replace(state, cut=cut, stalls=inputs.pressure.stalls)
    if cut.quota_us is None:
        return limits, state
    return msgspec.structs.replace(limits, quota_us=cut.quota_us), state


def _desired_values(
    inputs: QosInputs, state: SuppressionState, facts: NodeFacts, limits: Limits
) -> Iterator[DesiredValue]:
    if limits.cpus is not None:
        yield _cpus_value(facts.group, limits.cpus)
        if inputs.layout.version == 1:
            original = inputs.current.original(facts.group, CPUS)
            for child in state.children:
                cpus = (child.placed & limits.cpus) or limits.cpus
                inherited = (
                    None if child.placed else _inherited(inputs, state, facts, child, original)
                )
                yield _cpus_value(child.cgroup, cpus, inherited)
    if limits.quota_us is not None:
        is_cut = state.cut.quota_us is not None
        source = (
            "setting enforce.cpu_suppression.pressure"
            if is_cut
            else f"{SECTION}.cpuSuppressThresholdPercent"
        )
        yield _quota_value(facts.group, limits.quota_us, source)
        if inputs.layout.version == 1:  # which refuses a quota below that of a group below
            for child in state.children:
                yield _quota_value(child.cgroup, UNLIMITED_QUOTA, source)


def _idle_group(inputs: QosInputs, cgroup: str) -> Iterator[DesiredValue]:
    """Yield the values of an idle group; its weight, which the kernel forgets, is restored."""
    source = "setting enforce.cpu_suppression.idle"
    yield DesiredValue(
        cgroup=cgroup,
        key=IDLE,
        value=1,
        owner=NAME,
        message="update BE group to cpu.idle: 1",
        source=source,
    )
    weight = inputs.current.original(cgroup, SHARES) or inputs.current.value(cgroup, SHARES)
    if weight is not None:
        idle_weight = IDLE_WEIGHTS[inputs.layout.version]
        yield DesiredValue(
            cgroup=cgroup,
            key=SHARES,
            value=weight,
            equivalents=(idle_weight,),
            owner=NAME,
            source=source,
        )


def _inherited(
    inputs: QosInputs,
    state: SuppressionState,
    facts: NodeFacts,
    child: ChildGroup,
    original: CgroupValue | None,
) -> CgroupValue | None:
    """Return the CPUs to restore for a group that was created while its class was suppressed.

    On version 1 such a group begins with a copy of the suppressed list, which is not its own.
    """
    if not original or inputs.current.original(child.cgroup, CPUS) is not None:
        return None
    current = inputs.current.value(child.cgroup, CPUS)
    is_copy = current in (facts.cpus, state.limits.cpus) and current != original
    return original if is_copy else None


def _cpus_value(cgroup: str, cpus: CpuSet, original: CgroupValue | None = None) -> DesiredValue:
    return DesiredValue(
        cgroup=cgroup,
        key=CPUS,
        value=cpus,
        owner=NAME,
        message=f"update BE group to cpuset: {format_cpu_list(cpus)}",
        source=f"{SECTION}.cpuSuppressThresholdPercent",
        original=original,
    )


def _quota_value(cgroup: str, quota: int, source: str) -> DesiredValue:
    return DesiredValue(
        cgroup=cgroup,
        key=QUOTA,
        value=Bandwidth(quota, PERIOD_US),
        owner=NAME,
        message=f"update BE group to cfs_quota: {quota}",
        source=source,
    )


def _figures(
    inputs: QosInputs, state: SuppressionState, facts: NodeFacts, limits: Limits
) -> tuple[tuple[str, float], ...]:
    figures = [
        ("budget_cores", facts.budget_milli / 1000),
        ("protected_pods_cores", facts.protected_pods_cores),
    ]
    if limits.cpus is not None:
        figures.append(("cpuset_cpus", float(len(limits.cpus))))
    if limits.quota_us is not None:
        figures.append(("quota_cores", limits.quota_us / PERIOD_US))
    if state.cut.quota_us is not None:
        figures.append(("pressure_cut_cores", state.cut.quota_us / PERIOD_US))
    if inputs.pressure.method != "off":
        figures.append(("pressure_stalls", float(inputs.pressure.stalls)))
    return tuple(figures)
