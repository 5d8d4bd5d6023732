"""The desired files and process attributes of one pod, computed from the answers of the hooks.

Pure: adjustments become values of files, in the format of the host's cgroup version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from agent.cgroup import cpu, keys
from agent.cgroup.cpu import Bandwidth, WeightFormula
from agent.cgroup.keys import CgroupKey, CgroupValue
from agent.cgroup.paths import CgroupPathError, from_cgroup_parent, from_cgroups_path
from agent.cgroup.processes import CORE_COOKIE, OOM_SCORE_ADJ
from agent.cgroup.write_plan import DesiredValue
from agent.clock import Clock
from agent.containers.cpu_quota import RATIO
from agent.containers.dispatch import QUOTA_PRECEDENCE, Answers, HookFailure, adjust, merge_answers
from agent.containers.hooks import Hook
from agent.containers.identity import CPU_QOS, identity_class
from agent.containers.qos_class import qos_label
from agent.errors import ParseError
from agent.reconcile.managed_pods import ManagedContainer, ManagedPod
from agent.snapshot.container import (
    NO_ADJUSTMENT,
    Adjustment,
    ContainerSpec,
    CoreSchedulingGroup,
    HookRequest,
    HookStage,
    LinuxResources,
    PodSandbox,
)
from agent.snapshot.edits import ContainerNote
from agent.snapshot.node import NodeSnapshot
from agent.wire_formats.kernel_text import parse_cpu_list
from agent.wire_formats.resource_status import RESOURCE_STATUS

IDENTITY_SOURCE = "NodeSLO spec.resourceQOSStrategy"


class HookAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to one request: merged for the hooks that are on, and those in plan mode."""

    answers: Answers = ()
    adjustment: Adjustment = NO_ADJUSTMENT
    planned: Answers = ()
    failures: tuple[HookFailure, ...] = ()

    @property
    def notes(self) -> tuple[ContainerNote, ...]:
        """Return the notes of the hooks for people, with the refusal if there is one."""
        refusal = self.adjustment.failed
        notes = self.adjustment.edits.notes
        return (
            (*notes, ContainerNote(reason=self.adjustment.reason, message=refusal))
            if refusal
            else notes
        )

    def as_planned(self) -> HookAnswers:
        """Return the answers of hooks in plan mode as if they were on."""
        return HookAnswers(answers=self.planned, adjustment=merge_answers(self.planned)[0])

    def owner_of(self, field: Callable[[Adjustment], object]) -> str:
        """Return the hook whose value of a field is in the merged adjustment."""
        value = field(self.adjustment)
        names = [name for name, answer in self.answers if field(answer) == value]
        winner = next((name for name in QUOTA_PRECEDENCE if name in names), None)
        return winner or next(iter(names), "")


def call_hooks(
    hooks: Iterable[Hook],
    request: HookRequest,
    snapshot: NodeSnapshot,
    modes: Mapping[str, str],
    now_s: Callable[[], float],
) -> HookAnswers:
    """Call the hooks of the stage; keep each hook's answer beside the merged one."""
    result = adjust(hooks, request, snapshot, modes, now_s)
    return HookAnswers(
        answers=result.answers,
        adjustment=result.adjustment,
        planned=result.planned,
        failures=result.failures,
    )


POD, CONTAINER, SANDBOX = "pod", "container", "sandbox"

PlannedValue = tuple[
    CgroupKey, CgroupValue, tuple[CgroupValue, ...], str, str
]  # key, value, equals, message, owner


def desired_writes(
    cgroup: str, level: str, answers: HookAnswers, version: int, formula: WeightFormula
) -> tuple[tuple[DesiredValue, ...], tuple[ContainerNote, ...]]:
    """Return the desired values of one cgroup, and notes on values that the kernel would refuse.

    The path is checked again: if a container's path is not inside a pod's, nothing is written.
    """
    try:
        if level == POD:
            from_cgroup_parent(cgroup)
        else:
            from_cgroups_path(cgroup)
    except CgroupPathError as error:
        return (), (ContainerNote(reason="BadCgroupPath", message=str(error)),)
    desired: list[DesiredValue] = []
    notes: list[ContainerNote] = []
    try:
        values = tuple(_desired_values(answers, level, version, formula))
    except ParseError as error:  # a hook returned an invalid text
        return (), (ContainerNote(reason="ValueOutOfRange", message=str(error)),)
    for key, raw, equivalents, description, owner in values:
        try:
            value = key.check(version, raw)
        except ParseError as error:
            notes.append(ContainerNote(reason="ValueOutOfRange", message=f"{owner}: {error}"))
            continue
        desired.append(
            DesiredValue(
                cgroup=cgroup,
                key=key,
                value=value,
                equivalents=equivalents,
                owner=owner,
                message=f"set {level} {description}",
            )
        )
    return tuple(desired), tuple(notes)


def _desired_values(
    answers: HookAnswers, level: str, version: int, formula: WeightFormula
) -> Iterator[PlannedValue]:
    adjustment = answers.adjustment
    resources = adjustment.resources
    if resources.cpus:  # never write an empty set: version 1 refuses it while the group has tasks
        owner = answers.owner_of(lambda one: one.resources.cpus)
        yield keys.CPUS, parse_cpu_list(resources.cpus), (), f"cpuset to {resources.cpus}", owner
    if level == SANDBOX:
        return
    if resources.shares is not None:
        owner = answers.owner_of(lambda one: one.resources.shares)
        value, equivalents = _weight(resources.shares, version, formula)
        yield keys.SHARES, value, equivalents, f"cpu share to {resources.shares}", owner
    if resources.quota_us is not None:
        owner = answers.owner_of(lambda one: one.resources.quota_us)
        value = Bandwidth(resources.quota_us, resources.period_us or cpu.PERIOD_US)
        yield keys.QUOTA, value, (), f"cfs quota to {resources.quota_us}", owner
    if resources.memory_bytes is not None:
        owner = answers.owner_of(lambda one: one.resources.memory_bytes)
        limit = resources.memory_bytes
        yield keys.MEMORY, limit, (), f"memory limit to {limit}", owner
    if level == POD and adjustment.bvt_warp_ns is not None:
        owner = answers.owner_of(lambda one: one.bvt_warp_ns)
        yield keys.BVT, adjustment.bvt_warp_ns, (), f"bvt to {adjustment.bvt_warp_ns}", owner


def _weight(
    shares: int, version: int, formula: WeightFormula
) -> tuple[CgroupValue, tuple[CgroupValue, ...]]:
    """Return the value to write for shares, and other values of the file that mean the same."""
    bounded = min(max(shares, cpu.MIN_SHARES), cpu.MAX_SHARES)
    if version == 1:
        return bounded, ()
    both = (cpu.linear_weight(bounded), cpu.quadratic_weight(bounded))
    return cpu.weight_of_shares(bounded, formula), both


def creation_only_changes(adjustment: Adjustment) -> tuple[str, ...]:
    """Return the parts of an adjustment that cannot be given to a running container."""
    edits = adjustment.edits
    changes = (
        ("environment", edits.env),
        ("mounts", edits.mounts),
        ("devices", edits.nodes or edits.cdi),
        ("limits", edits.rlimits),
    )
    return tuple(name for name, is_changed in changes if is_changed)


NEEDS_RESTART = "ChangeNeedsNewContainer"


class DesiredOomScore(msgspec.Struct, frozen=True, kw_only=True):
    """The `oom_score_adj` of one container's processes."""

    cgroup: str
    value: int
    owner: str


class DesiredCoreGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The core-scheduling group of one container's processes."""

    cgroup: str
    group: CoreSchedulingGroup


class DesiredState(msgspec.Struct, frozen=True, kw_only=True):
    """The desired writes and process attributes of one pod."""

    managed_pod: ManagedPod
    writes: tuple[DesiredValue, ...] = ()  # outermost first
    planned_writes: tuple[DesiredValue, ...] = ()  # of hooks in plan mode: compared, not written
    oom_scores: tuple[DesiredOomScore, ...] = ()
    core_groups: tuple[DesiredCoreGroup, ...] = ()
    notes: tuple[ContainerNote, ...] = ()
    failures: tuple[HookFailure, ...] = ()


def value_source(hook: str, pod: PodSandbox) -> str:
    """Return the field that asks for the values of a hook; empty for a hook without one field."""
    name = f"Pod {pod.namespace}/{pod.name}"
    if hook == "cpuset":
        if pod.annotation(RESOURCE_STATUS) is not None:
            return f"{name} annotation {RESOURCE_STATUS}"
        return "the CPUs of the node that no pod owns"
    if hook == "batch_resources":
        return f"{name} requests of kubernetes.io/batch-cpu and batch-memory"
    if hook == "cpu_normalization":
        return f"Node annotation {RATIO}"
    if hook == "group_identity":
        if qos_label(pod) == "LS" and pod.annotation(CPU_QOS) is not None:
            return f"{name} annotation {CPU_QOS}"
        return f"{IDENTITY_SOURCE}.{identity_class(pod)}.cpuQOS.groupIdentity"
    return ""


# the quota that a pod or a container requests, without hooks
RequestedQuota = Callable[[ManagedPod, ManagedContainer | None], LinuxResources]


class CycleInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs that all hook requests of one cycle share."""

    hooks: tuple[Hook, ...]
    modes: Mapping[str, str]
    snapshot: NodeSnapshot
    cgroup_version: int
    formulas: Mapping[str, WeightFormula]  # by level
    requested_quota: RequestedQuota
    clock: Clock


def desired_state_of(managed_pod: ManagedPod, inputs: CycleInputs) -> DesiredState:
    """Call the hooks for the pod, its sandbox and each container."""
    builder = _DesiredStateBuilder(inputs)
    builder.add(managed_pod, None)
    for container in managed_pod.containers:
        builder.add(managed_pod, container)
    return DesiredState(
        managed_pod=managed_pod,
        writes=tuple(builder.writes),
        planned_writes=tuple(builder.planned_writes),
        oom_scores=tuple(builder.oom_scores),
        core_groups=tuple(builder.core_groups),
        notes=tuple(dict.fromkeys(builder.notes)),
        failures=tuple(builder.failures),
    )


class _DesiredStateBuilder:
    def __init__(self, inputs: CycleInputs) -> None:
        self.inputs = inputs
        self.writes: list[DesiredValue] = []
        self.planned_writes: list[DesiredValue] = []
        self.oom_scores: list[DesiredOomScore] = []
        self.core_groups: list[DesiredCoreGroup] = []
        self.notes: list[ContainerNote] = []
        self.failures: list[HookFailure] = []

    def add(self, managed_pod: ManagedPod, container: ManagedContainer | None) -> None:
        """Call the hooks for one cgroup and add the desired values."""
        cgroup = managed_pod.cgroup if container is None else container.cgroup
        level = POD if container is None else CONTAINER if container.name else SANDBOX
        answers = call_hooks(
            self.inputs.hooks,
            _hook_request(
                managed_pod, container, self.inputs.requested_quota(managed_pod, container)
            ),
            self.inputs.snapshot,
            self.inputs.modes,
            self.inputs.clock.monotonic,
        )
        pod = managed_pod.pod
        self._files(cgroup, level, answers, pod, self.writes)
        if answers.planned:
            self._files(cgroup, level, answers.as_planned(), pod, self.planned_writes)
        self.failures += answers.failures
        self.notes += answers.notes
        if container is not None:
            self._processes(container, answers)

    def _files(
        self,
        cgroup: str,
        level: str,
        answers: HookAnswers,
        pod: PodSandbox,
        target: list[DesiredValue],
    ) -> None:
        formula = self.inputs.formulas.get(level, WeightFormula.LINEAR)
        writes, notes = desired_writes(cgroup, level, answers, self.inputs.cgroup_version, formula)
        target += (
            msgspec.structs.replace(write, source=value_source(write.owner, pod))
            for write in writes
        )
        self.notes += notes

    def _processes(self, container: ManagedContainer, answers: HookAnswers) -> None:
        adjustment = answers.adjustment
        missing = creation_only_changes(adjustment)
        if missing:
            message = f"container {container.name}: {', '.join(missing)} come at its creation only"
            self.notes.append(ContainerNote(reason=NEEDS_RESTART, message=message))
        if adjustment.core_group is not None:
            self.core_groups.append(
                DesiredCoreGroup(cgroup=container.cgroup, group=adjustment.core_group)
            )
        if adjustment.oom_score_adj is not None and container.name:
            owner = answers.owner_of(lambda one: one.oom_score_adj)
            self.oom_scores.append(
                DesiredOomScore(
                    cgroup=container.cgroup, value=adjustment.oom_score_adj, owner=owner
                )
            )


def _hook_request(
    managed_pod: ManagedPod, container: ManagedContainer | None, base: LinuxResources
) -> HookRequest:
    pod = managed_pod.pod
    return HookRequest(
        stage=HookStage.RECONCILE,
        pod=pod,
        container=None
        if container is None
        else ContainerSpec(
            name=container.name,
            pod_uid=pod.uid,
            runtime_handler=pod.runtime_handler,
            host_network=pod.host_network,
            labels=pod.labels,
            annotations=pod.annotations,
        ),
        resources=base,
    )


def compared_targets(states: Iterable[DesiredState]) -> frozenset[tuple[str, str]]:
    """Return the files of these pods that are written or compared."""
    return frozenset(
        write.target for state in states for write in (*state.writes, *state.planned_writes)
    )


def enforced_targets(states: Iterable[DesiredState]) -> frozenset[tuple[str, str]]:
    """Return the files and process attributes that hooks which are on set."""
    return frozenset(
        target
        for state in states
        for target in (
            *(desired.target for desired in state.writes),
            *((desired.cgroup, OOM_SCORE_ADJ) for desired in state.oom_scores),
            *(
                (desired.cgroup, CORE_COOKIE)
                for desired in state.core_groups
                if desired.group.enabled
            ),
        )
    )
