"""The desired files and process attributes of one pod, computed from the answers of the hooks.

Adjustments as values of files. Pure; conversions to the host's version happen here.

One pod as the hooks saw it last: what its files are to hold. Pure, and made anew when asked.
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
from agent.containers.dispatch import QUOTA_PRECEDENCE, Answers, HookFailure, adjust, merge_answers
from agent.containers.hooks import Hook
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
)
from agent.snapshot.edits import ContainerNote
from agent.snapshot.node import NodeSnapshot
from agent.wire_formats.kernel_text import parse_cpu_list


class HookAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to one question: of hooks that are on, as one, and of those in plan mode."""

    answers: Answers = ()
    adjustment: Adjustment = NO_ADJUSTMENT
    planned: Answers = ()
    failures: tuple[HookFailure, ...] = ()

    @property
    def notes(self) -> tuple[ContainerNote, ...]:
        """Return what the hooks have to say to people."""
        refused = self.adjustment.failed
        said = self.adjustment.edits.notes
        return (
            (*said, ContainerNote(reason=self.adjustment.reason, message=refused))
            if refused
            else said
        )

    def as_planned(self) -> HookAnswers:
        """Return the answers of hooks in plan mode as if they were on."""
        return HookAnswers(answers=self.planned, adjustment=merge_answers(self.planned)[0])

    def owner_of(self, field: Callable[[Adjustment], object]) -> str:
        """Return the hook whose value of a field is in the whole."""
        value = field(self.adjustment)
        names = [name for name, answer in self.answers if field(answer) == value]
        winner = next((name for name in QUOTA_PRECEDENCE if name in names), None)
        return winner or next(iter(names), "")


def ask_hooks(
    hooks: Iterable[Hook],
    request: HookRequest,
    snapshot: NodeSnapshot,
    modes: Mapping[str, str],
    now_s: Callable[[], float],
) -> HookAnswers:
    """Ask the hooks of the stage; the answer of each can be told from the others'."""
    said = adjust(hooks, request, snapshot, modes, now_s)
    return HookAnswers(
        answers=said.answers,
        adjustment=said.adjustment,
        planned=said.planned,
        failures=said.failures,
    )


POD, CONTAINER, SANDBOX = "pod", "container", "sandbox"

PlannedValue = tuple[
    CgroupKey, CgroupValue, tuple[CgroupValue, ...], str, str
]  # key, value, equals, message, owner


def desired_writes(
    cgroup: str, level: str, asked: HookAnswers, version: int, formula: WeightFormula
) -> tuple[tuple[DesiredValue, ...], tuple[ContainerNote, ...]]:
    """Return the wishes for one cgroup, and notes on values that the kernel could only refuse.

    The path is checked again: a container's must lie in a pod's, or nothing is written at all.
    """
    try:
        if level == POD:
            from_cgroup_parent(cgroup)
        else:
            from_cgroups_path(cgroup)
    except CgroupPathError as error:
        return (), (ContainerNote(reason="BadCgroupPath", message=str(error)),)
    wishes: list[DesiredValue] = []
    notes: list[ContainerNote] = []
    try:
        found = tuple(_desired_values(asked, level, version, formula))
    except ParseError as error:  # a hook's own text
        return (), (ContainerNote(reason="ValueOutOfRange", message=str(error)),)
    for key, raw, also, what, owner in found:
        try:
            value = key.check(version, raw)
        except ParseError as error:
            notes.append(ContainerNote(reason="ValueOutOfRange", message=f"{owner}: {error}"))
            continue
        wishes.append(
            DesiredValue(
                cgroup=cgroup,
                key=key,
                value=value,
                equivalents=also,
                owner=owner,
                message=f"set {level} {what}",
            )
        )
    return tuple(wishes), tuple(notes)


def _desired_values(
    asked: HookAnswers, level: str, version: int, formula: WeightFormula
) -> Iterator[PlannedValue]:
    whole = asked.adjustment
    wanted = whole.resources
    if wanted.cpus:  # an empty set is never written: version 1 refuses it while tasks are inside
        owner = asked.owner_of(lambda one: one.resources.cpus)
        yield keys.CPUS, parse_cpu_list(wanted.cpus), (), f"cpuset to {wanted.cpus}", owner
    if level == SANDBOX:
        return
    if wanted.shares is not None:
        owner = asked.owner_of(lambda one: one.resources.shares)
        value, also = _weight(wanted.shares, version, formula)
        yield keys.SHARES, value, also, f"cpu share to {wanted.shares}", owner
    if wanted.quota_us is not None:
        owner = asked.owner_of(lambda one: one.resources.quota_us)
        value = Bandwidth(wanted.quota_us, wanted.period_us or cpu.PERIOD_US)
        yield keys.QUOTA, value, (), f"cfs quota to {wanted.quota_us}", owner
    if wanted.memory_bytes is not None:
        owner = asked.owner_of(lambda one: one.resources.memory_bytes)
        limit = wanted.memory_bytes
        yield keys.MEMORY, limit, (), f"memory limit to {limit}", owner
    if level == POD and whole.bvt_warp_ns is not None:
        owner = asked.owner_of(lambda one: one.bvt_warp_ns)
        yield keys.BVT, whole.bvt_warp_ns, (), f"bvt to {whole.bvt_warp_ns}", owner


def _weight(
    wanted: int, version: int, formula: WeightFormula
) -> tuple[CgroupValue, tuple[CgroupValue, ...]]:
    """Return what is written for shares, and what else stands for them in a file."""
    held = min(max(wanted, cpu.MIN_SHARES), cpu.MAX_SHARES)
    if version == 1:
        return held, ()
    both = (cpu.linear_weight(held), cpu.quadratic_weight(held))
    return cpu.weight_of_shares(held, formula), both


def creation_only_changes(whole: Adjustment) -> tuple[str, ...]:
    """Return what of an adjustment no file of a running container can give."""
    edits = whole.edits
    parts = (
        ("environment", edits.env),
        ("mounts", edits.mounts),
        ("devices", edits.nodes or edits.cdi),
        ("limits", edits.rlimits),
    )
    return tuple(name for name, there in parts if there)


NEEDS_RESTART = "ChangeNeedsNewContainer"


class DesiredOomScore(msgspec.Struct, frozen=True, kw_only=True):
    """The `oom_score_adj` of one container's processes."""

    cgroup: str
    value: int
    owner: str


class DesiredCoreGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Whose core-scheduling cookie one container's processes have."""

    cgroup: str
    group: CoreSchedulingGroup


class DesiredState(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of one pod."""

    managed_pod: ManagedPod
    writes: tuple[DesiredValue, ...] = ()  # outermost first
    planned_writes: tuple[DesiredValue, ...] = ()  # of hooks in plan mode: compared, not written
    oom_scores: tuple[DesiredOomScore, ...] = ()
    core_groups: tuple[DesiredCoreGroup, ...] = ()
    notes: tuple[ContainerNote, ...] = ()
    failures: tuple[HookFailure, ...] = ()


class CycleInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What all questions of one cycle have in common."""

    hooks: tuple[Hook, ...]
    modes: Mapping[str, str]
    snapshot: NodeSnapshot
    cgroup_version: int
    formulas: Mapping[str, WeightFormula]  # by level
    requested_quota: Callable[
        [str], LinuxResources
    ]  # cgroup to what was asked for it, before any hook
    now_s: Callable[[], float]


def desired_state_of(place: ManagedPod, asking: CycleInputs) -> DesiredState:
    """Ask the hooks about the pod, its sandbox and each container."""
    found = _DesiredStateBuilder(asking)
    found.add(place, None)
    for container in place.containers:
        found.add(place, container)
    return DesiredState(
        managed_pod=place,
        writes=tuple(found.writes),
        planned_writes=tuple(found.planned_writes),
        oom_scores=tuple(found.oom_scores),
        core_groups=tuple(found.core_groups),
        notes=tuple(dict.fromkeys(found.notes)),
        failures=tuple(found.failures),
    )


class _DesiredStateBuilder:
    def __init__(self, asking: CycleInputs) -> None:
        self.inputs = asking
        self.writes: list[DesiredValue] = []
        self.planned_writes: list[DesiredValue] = []
        self.oom_scores: list[DesiredOomScore] = []
        self.core_groups: list[DesiredCoreGroup] = []
        self.notes: list[ContainerNote] = []
        self.failures: list[HookFailure] = []

    def add(self, place: ManagedPod, container: ManagedContainer | None) -> None:
        """Ask about one cgroup and add what is wanted of it."""
        cgroup = place.cgroup if container is None else container.cgroup
        level = POD if container is None else CONTAINER if container.name else SANDBOX
        asked = ask_hooks(
            self.inputs.hooks,
            _hook_request(place, container, self.inputs.requested_quota(cgroup)),
            self.inputs.snapshot,
            self.inputs.modes,
            self.inputs.now_s,
        )
        self._files(cgroup, level, asked, self.writes)
        if asked.planned:
            self._files(cgroup, level, asked.as_planned(), self.planned_writes)
        self.failures += asked.failures
        self.notes += asked.notes
        if container is not None:
            self._processes(container, asked)

    def _files(
        self, cgroup: str, level: str, asked: HookAnswers, wishes: list[DesiredValue]
    ) -> None:
        formula = self.inputs.formulas.get(level, WeightFormula.LINEAR)
        found, notes = desired_writes(cgroup, level, asked, self.inputs.cgroup_version, formula)
        wishes += found
        self.notes += notes

    def _processes(self, container: ManagedContainer, asked: HookAnswers) -> None:
        whole = asked.adjustment
        missing = creation_only_changes(whole)
        if missing:
            message = f"container {container.name}: {', '.join(missing)} come at its creation only"
            self.notes.append(ContainerNote(reason=NEEDS_RESTART, message=message))
        if whole.core_group is not None:
            self.core_groups.append(
                DesiredCoreGroup(cgroup=container.cgroup, group=whole.core_group)
            )
        if whole.oom_score_adj is not None and container.name:
            owner = asked.owner_of(lambda one: one.oom_score_adj)
            self.oom_scores.append(
                DesiredOomScore(cgroup=container.cgroup, value=whole.oom_score_adj, owner=owner)
            )


def _hook_request(
    place: ManagedPod, container: ManagedContainer | None, base: LinuxResources
) -> HookRequest:
    pod = place.pod
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


def compared_targets(all_of: Iterable[DesiredState]) -> frozenset[tuple[str, str]]:
    """Return what any of these pods wants written or compared."""
    return frozenset(
        wish.target for looked in all_of for wish in (*looked.writes, *looked.planned_writes)
    )


def enforced_targets(all_of: Iterable[DesiredState]) -> frozenset[tuple[str, str]]:
    """Return what hooks that are on want: files, and what processes have."""
    return frozenset(
        target
        for one in all_of
        for target in (
            *(wish.target for wish in one.writes),
            *((wish.cgroup, OOM_SCORE_ADJ) for wish in one.oom_scores),
            *((wish.cgroup, CORE_COOKIE) for wish in one.core_groups if wish.group.enabled),
        )
    )
