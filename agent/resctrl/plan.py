"""Which groups should exist with which values, and the changes that lead there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.containers.resctrl import CLASS_OF_QOS, NO_REQUEST, ResctrlRequest, group_name
from agent.resctrl.capabilities import Capabilities
from agent.resctrl.schemata import Schemata, difference, format_line, format_schemata, overlay
from agent.resctrl.values import (
    MaskError,
    class_values,
    missing_parts,
    needs_bandwidth,
    pod_values,
)
from agent.snapshot.inventory import Problem
from agent.snapshot.self_check import ResctrlAction, ResctrlActionKind
from agent.snapshot.slo import ResctrlQos
from agent.usage.resctrl_monitor import MONITOR_FOLDER, MONITOR_PREFIX

CLASSES = ("BE", "LS", "LSR")  # by priority; pods with an annotation come after the first
FIRST_CLASSES, LAST_CLASSES = CLASSES[:1], CLASSES[1:]
ROOT = ""  # path of the root group

# reasons of problems
EXHAUSTED = "ResctrlExhausted"
FOREIGN = "ResctrlForeignGroup"
REFUSED = "ResctrlRefused"
BANDWIDTH_UNKNOWN = "ResctrlBandwidthUnknown"
BAD_RANGE = "ResctrlMaskInvalid"
NO_RMID = "ResctrlMonitorExhausted"

RefusedLine = tuple[str, str]  # group, and the line of schemata that the kernel refused


class ResctrlPod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod that runs here."""

    uid: str
    namespace: str = ""
    name: str = ""  # namespace/name
    qos: str = ""  # Koordinator's class
    request: ResctrlRequest = NO_REQUEST
    created: str = ""  # as the API server wrote it


class ExistingGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One control group, as it was read; the values of foreign groups are not."""

    is_own: bool
    values: Schemata = {}
    tasks: frozenset[int] = frozenset()
    # tasks of the agent's monitoring groups in it, by name
    monitored: Mapping[str, frozenset[int]] = {}
    foreign_monitored: int = 0  # number of other monitoring groups in it


class PlanInputs(msgspec.Struct, frozen=True, kw_only=True):
    """All that a plan depends on. `groups` has the root group under an empty name."""

    capabilities: Capabilities
    # enabled classes only; `None`: unknown, the groups of classes stay as they are
    classes: Mapping[str, ResctrlQos] | None
    pods: tuple[ResctrlPod, ...]
    is_pod_list_complete: bool = True  # otherwise no group of a pod is removed
    pod_tasks: Mapping[str, frozenset[int]] = {}  # by uid; a pod that was not read is absent
    groups: Mapping[str, ExistingGroup]
    refused_lines: frozenset[RefusedLine] = frozenset()
    refused_groups: frozenset[str] = frozenset()  # paths that could not be made a short while ago
    monitors_pods: bool = False


class PlannedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that should exist."""

    name: str
    values: Schemata
    classes: tuple[str, ...] = ()
    pod_uid: str = ""
    reason: str


class ResctrlPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The desired groups and the changes that lead there, in the order of their execution."""

    groups: tuple[PlannedGroup, ...] = ()
    class_groups: Mapping[str, str] = {}  # of each enabled class; empty: the root group
    pod_groups: Mapping[str, str] = {}  # by uid: the group of each pod that has one to be in
    actions: tuple[ResctrlAction, ...] = ()
    problems: tuple[Problem, ...] = ()
    refused_lines: frozenset[RefusedLine] = frozenset()  # those of the inputs that are desired
    missing_parts: tuple[str, ...] = ()  # that someone asks for, and that cannot be divided here
    closids: int = 0  # that the agent may use
    monitored_pods: int = 0


def build_plan(inputs: PlanInputs) -> ResctrlPlan:
    """Return the plan; equal inputs give an equal plan."""
    choice = _GroupChoice(inputs)
    groups = choice.groups()
    by_class = {name: group.name for group in groups for name in group.classes}
    class_groups = {name: by_class.get(name, ROOT) for name in inputs.classes or {}}
    by_pod = {group.pod_uid: group.name for group in groups if group.pod_uid}
    pod_groups = {
        pod.uid: by_pod.get(pod.uid, class_groups.get(CLASS_OF_QOS.get(pod.qos, ""), ROOT))
        for pod in inputs.pods
        if pod.uid in by_pod or inputs.classes is not None
    }
    monitors = _monitors(inputs, groups, pod_groups, choice.problems)
    actions = (
        *_removals(inputs, groups, monitors),
        *_group_changes(inputs, groups),
        *_moves(inputs, pod_groups),
        *_monitor_changes(inputs, monitors),
    )
    return ResctrlPlan(
        groups=tuple(groups),
        class_groups=class_groups,
        pod_groups=pod_groups,
        actions=actions,
        problems=tuple(choice.problems),
        refused_lines=frozenset(choice.refused_lines),
        missing_parts=tuple(sorted(choice.missing_parts)),
        closids=choice.closids,
        monitored_pods=len(monitors),
    )


def missing_message(plan: ResctrlPlan) -> str:
    """Return for people what is requested without effect here; empty for nothing."""
    if not plan.missing_parts:
        return ""
    parts = " and ".join(plan.missing_parts)
    return f"hardware or kernel do not divide {parts}: what is requested of it has no effect"


class _GroupChoice:
    """The groups that should exist, and why others do not."""

    def __init__(self, inputs: PlanInputs) -> None:
        self._inputs = inputs
        self._root = inputs.groups[ROOT].values
        foreign = sum(not group.is_own for name, group in inputs.groups.items() if name)
        self.closids = max(0, inputs.capabilities.closids - 1 - foreign)
        self.problems = list(inputs.capabilities.problems)
        self.refused_lines: set[RefusedLine] = set()  # desired, and refused by the kernel
        self.missing_parts: set[str] = set()

    def groups(self) -> list[PlannedGroup]:
        """Return the groups for which the hardware suffices, those that matter most first."""
        groups = self._unknown_groups()
        for group in self._candidates():
            existing = self._inputs.groups.get(group.name)
            if existing is not None and not existing.is_own:
                message = f"{group.reason}: the group {group.name} belongs to another program"
                self.problems.append(Problem(reason=FOREIGN, message=message))
            elif len(groups) >= self.closids or (
                existing is None and group.name in self._inputs.refused_groups
            ):
                message = f"{group.reason}: no control group is free of the {self.closids}"
                self.problems.append(Problem(reason=EXHAUSTED, message=message))
            else:
                groups.append(group)
        return groups

    def _candidates(self) -> Iterator[PlannedGroup]:
        """Yield the groups that somebody asks for, in the order of their priority."""
        classes = list(self._classes())
        yield from (group for group in classes if group.classes[0] in FIRST_CLASSES)
        requests = [pod for pod in self._inputs.pods if pod.request.is_set]
        for pod in sorted(requests, key=_age):
            name = group_name(pod.uid)
            reason = f"annotation of pod {pod.name or pod.uid}"
            values = self._values(name, reason, pod.request) if name is not None else None
            if name is not None and values is not None:
                yield PlannedGroup(name=name, values=values, pod_uid=pod.uid, reason=reason)
        yield from (group for group in classes if group.classes[0] in LAST_CLASSES)

    def _classes(self) -> Iterator[PlannedGroup]:
        """Yield one group for all classes of equal values, named after the first of them."""
        names: dict[str, list[str]] = {}
        planned: dict[str, Schemata] = {}
        for name in CLASSES:
            qos = (self._inputs.classes or {}).get(name)
            values = None if qos is None else self._values(name, f"NodeSLO class {name}", qos)
            if values is not None:
                text = format_schemata(values)
                planned[text] = values
                names.setdefault(text, []).append(name)
        for text, sharing in names.items():
            yield PlannedGroup(
                name=sharing[0],
                values=planned[text],
                classes=tuple(sharing),
                reason=f"NodeSLO class {', '.join(sharing)}",
            )

    def _values(
        self, group: str, reason: str, request: ResctrlQos | ResctrlRequest
    ) -> Schemata | None:
        """Return the values of a group; `None` if they are those of the root group."""
        capabilities = self._inputs.capabilities
        try:
            if isinstance(request, ResctrlQos):
                values = class_values(capabilities, request)
                percents: tuple[int, ...] = (request.mba_percent,)
            else:
                values = pod_values(capabilities, request)
                each = tuple(percent for _, percent in request.bandwidths_percent)
                percents = (request.bandwidth_percent or 0, *each)
        except MaskError as error:
            self.problems.append(Problem(reason=BAD_RANGE, message=f"{reason}: {error}"))
            return None
        if not capabilities.problems:  # else it is not known what the hardware has
            self.missing_parts.update(missing_parts(capabilities, request))
        if needs_bandwidth(capabilities.bandwidth, percents):
            message = f"{reason}: resctrl is mounted with mba_MBps; set resctrl.domain_mbps"
            self.problems.append(Problem(reason=BANDWIDTH_UNKNOWN, message=message))
        accepted: dict[str, Mapping[int, int]] = {}
        for line, domains in overlay(self._root, values).items():
            refused = (group, format_line(line, domains))
            if refused in self._inputs.refused_lines:
                self.refused_lines.add(refused)
            else:
                accepted[line] = domains
        effective = overlay(self._root, accepted)
        return effective if difference(self._root, effective) else None

    def _unknown_groups(self) -> list[PlannedGroup]:
        """Return the groups that stay as they are: of classes or pods of which nothing is known."""
        requested = {group_name(pod.uid) for pod in self._inputs.pods if pod.request.is_set}
        groups = []
        for name, existing in self._inputs.groups.items():
            if name in CLASSES:
                is_unknown = self._inputs.classes is None
            else:
                is_unknown = not self._inputs.is_pod_list_complete and name not in requested
            if name and existing.is_own and is_unknown:
                reason = "nothing new is known"
                groups.append(PlannedGroup(name=name, values=existing.values, reason=reason))
        return groups


def _age(pod: ResctrlPod) -> tuple[str, str]:
    """Return the key that sorts pods by age; those of an unknown age are the youngest."""
    return pod.created or "~", pod.uid


def _removals(
    inputs: PlanInputs, groups: Iterable[PlannedGroup], monitors: Mapping[str, str]
) -> Iterator[ResctrlAction]:
    names = {ROOT, *(group.name for group in groups)}
    paths = set(monitors.values())
    for name, existing in sorted(inputs.groups.items()):
        for monitor in sorted(existing.monitored):
            path = monitor_path(name, monitor)
            if path not in paths and name in names:
                yield _action(ResctrlActionKind.REMOVE, path, reason="the pod is not monitored")
    for name, existing in sorted(inputs.groups.items()):
        if existing.is_own and name not in names:
            yield _action(ResctrlActionKind.REMOVE, name, reason="no class and no pod asks for it")


def _group_changes(inputs: PlanInputs, groups: Iterable[PlannedGroup]) -> Iterator[ResctrlAction]:
    for group in groups:
        existing = inputs.groups.get(group.name)
        current = inputs.groups[ROOT].values if existing is None else existing.values
        if existing is None:
            yield _action(ResctrlActionKind.MAKE, group.name, reason=group.reason)
        text = format_schemata(difference(current, group.values))
        if text:
            yield _action(ResctrlActionKind.WRITE, group.name, text, group.reason)


def _moves(inputs: PlanInputs, pod_groups: Mapping[str, str]) -> Iterator[ResctrlAction]:
    """Yield the moves of tasks that are not in the group of their pod.

    Tasks in groups of other programs stay there.
    """
    foreign: set[int] = set()
    for name, existing in inputs.groups.items():
        if name and not existing.is_own:
            foreign |= existing.tasks
    own_tasks = {
        task: name
        for name, existing in inputs.groups.items()
        if name and existing.is_own
        for task in existing.tasks
    }
    for pod in inputs.pods:
        target = pod_groups.get(pod.uid)
        tasks = inputs.pod_tasks.get(pod.uid)
        if target is None or tasks is None:
            continue
        for task in sorted(tasks - foreign):
            if own_tasks.get(task, ROOT) != target:
                reason = f"pod {pod.name or pod.uid}"
                yield _action(ResctrlActionKind.MOVE, target, str(task), reason)


def monitor_path(group: str, monitor: str) -> str:
    """Return the path of a monitoring group below the mount."""
    return "/".join(filter(None, (group, MONITOR_FOLDER, monitor)))


def _monitors(
    inputs: PlanInputs,
    groups: Iterable[PlannedGroup],
    pod_groups: Mapping[str, str],
    problems: list[Problem],
) -> dict[str, str]:
    """Return the monitoring group of each pod by uid, as far as there are monitoring ids.

    A pod with a group of its own needs none.
    """
    if not inputs.monitors_pods or not inputs.capabilities.rmids:
        return {}
    names = {group.name for group in groups}
    foreign = [name for name, one in inputs.groups.items() if name and not one.is_own]
    used = 1 + len(names) + len(foreign)
    used += sum(existing.foreign_monitored for existing in inputs.groups.values())
    free = inputs.capabilities.rmids - used
    pods = [
        pod
        for pod in inputs.pods
        if group_name(pod.uid) is not None
        and pod_groups.get(pod.uid, "") not in (None, group_name(pod.uid))
    ]
    monitors: dict[str, str] = {}
    for pod in sorted(pods, key=_age):
        path = monitor_path(pod_groups.get(pod.uid, ROOT), f"{MONITOR_PREFIX}{pod.uid}")
        if len(monitors) < free and path not in inputs.refused_groups:
            monitors[pod.uid] = path
    if len(monitors) < len(pods):
        message = f"{len(monitors)} of {len(pods)} pods are monitored: no monitoring id is free"
        problems.append(Problem(reason=NO_RMID, message=message))
    return monitors


def _monitor_changes(inputs: PlanInputs, monitors: Mapping[str, str]) -> Iterator[ResctrlAction]:
    current = {
        monitor_path(name, monitor): tasks
        for name, existing in inputs.groups.items()
        for monitor, tasks in existing.monitored.items()
    }
    for uid, path in monitors.items():
        if path not in current:
            yield _action(ResctrlActionKind.MAKE, path, reason=f"pod {uid} is monitored")
        for task in sorted(inputs.pod_tasks.get(uid, frozenset()) - current.get(path, frozenset())):
            yield _action(ResctrlActionKind.MOVE, path, str(task), f"pod {uid} is monitored")


def _action(kind: ResctrlActionKind, path: str, text: str = "", reason: str = "") -> ResctrlAction:
    return ResctrlAction(kind=kind, path=path, text=text, reason=reason)
