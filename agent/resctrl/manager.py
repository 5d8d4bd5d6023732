"""Partitions cache and memory bandwidth once a cycle, as the NodeSLO and pods ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import ChangeLedger
from agent.clock import Clock
from agent.config.containers import ResctrlSettings
from agent.errors import HostFileError
from agent.resctrl.executor import ExecutionReport, ResctrlExecutor, audit_record
from agent.resctrl.files import (
    KernelResctrlFiles,
    ResctrlContent,
    ResctrlFiles,
    ResctrlMount,
    ResctrlReader,
    mount_resctrl,
)
from agent.resctrl.group_writer import OWNER, GroupWriter
from agent.resctrl.plan import PlanInputs, ResctrlPlan, ResctrlPod, build_plan, missing_message
from agent.resctrl.pods import TaskReader, resctrl_pods, starting_pod, without_class
from agent.resctrl.refusals import RefusalMemory
from agent.resctrl.schemata import flatten
from agent.slo.status import is_frozen
from agent.snapshot.container import HookRequest
from agent.snapshot.inventory import Problem
from agent.snapshot.node import NodeSnapshot, SnapshotMemo
from agent.snapshot.publications import AuditRecord
from agent.snapshot.self_check import (
    ResctrlAction,
    ResctrlActionKind,
    ResctrlGroup,
    ResctrlView,
    StrategyState,
    StrategyStatus,
)
from agent.snapshot.slo import NodeSlo, ResctrlQos
from agent.usage.resctrl_monitor import ROOT as MOUNT_POINT

OFF, PLAN, ON = "off", "plan", "on"
ALL_TASKS_S = 30.0  # between two readings of all tasks
IDLE_S = 30.0  # between two readings while nobody asks for a partition
STARTING_S = 60.0  # until a pod whose sandbox was created must be listed
MOUNT_RETRY_S = 60.0
NOT_MOUNTED = "no resctrl file system is mounted: mount it, or set resctrl.mount"
NOT_CONFIRMED = "the NodeSLO is not confirmed: the groups of its classes stay as they are"
UNREADABLE, NOT_MOUNTABLE = "ResctrlUnreadable", "ResctrlNotMounted"


class ResctrlReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one cycle."""

    view: ResctrlView
    audits: tuple[AuditRecord, ...] = ()


class ResctrlManager:
    """Reads, plans and executes. Belongs to the collector thread; raises nothing but bugs."""

    def __init__(
        self,
        *,
        ledger: ChangeLedger,
        clock: Clock,
        mode: str,
        settings: ResctrlSettings,
        slo_stale_s: float,
        files: ResctrlFiles | None = None,
        mount: Callable[[str], None] = mount_resctrl,
        protected_namespaces: tuple[str, ...] = (),
    ) -> None:
        """Read and write nothing yet; `ledger` is loaded before the first cycle.

        Pods in `protected_namespaces` are in no group of a class.
        """
        self._files = KernelResctrlFiles() if files is None else files
        self._clock = clock
        self._mode = mode
        self._settings = settings
        self._slo_stale_s = slo_stale_s
        self._mount = mount
        self._protected_namespaces = protected_namespaces
        self._reader = ResctrlReader(self._files, settings)
        self._writer = GroupWriter(self._files, ledger)
        self._refusals = RefusalMemory()
        self._executor = ResctrlExecutor(self._writer, self._reader, self._refusals, clock)
        self._tasks = TaskReader(self._files)
        self._pods = SnapshotMemo(
            lambda snapshot: (snapshot.pods.value, snapshot.runtime.value.sandboxes),
            partial(resctrl_pods, protected_namespaces=self._protected_namespaces),
        )
        self._classes: Mapping[str, ResctrlQos] | None = None  # of the last confirmed NodeSLO
        self._classes_of: NodeSlo | None = None
        self._starting_pods: dict[str, tuple[ResctrlPod, float]] = {}  # pods that start, by uid
        self._pod_groups: Mapping[str, str] = {}  # as planned last
        self._next_all_tasks_s = self._next_idle_s = self._next_mount_s = float("-inf")
        # of the last cycle: whether anything was requested, and whether the NodeSLO was frozen
        self._last_request = (False, False)
        self._planned: tuple[ResctrlAction, ...] = ()  # reported in plan mode
        self._mount_problem = ""
        self.view = ResctrlView(mode=mode, protected_namespaces=protected_namespaces)

    def cycle(self, snapshot: NodeSnapshot, layout: CgroupLayout | None) -> ResctrlReport:
        """Bring the groups one step nearer to the plan."""
        now_s = self._clock.monotonic()
        pods, pod_problems = self._current_pods(snapshot, now_s)
        is_slo_frozen = self._follow_slo(snapshot, now_s)
        is_requested = self._is_requested(pods)
        if not (self._mode == ON and is_requested) and not self._writer.has_entries():
            is_unchanged = not is_requested and (is_requested, is_slo_frozen) == self._last_request
            if self._mode == OFF or (is_unchanged and now_s < self._next_idle_s):
                return self._report(msgspec.structs.replace(self.view, planned=()))
            self._next_idle_s = now_s + IDLE_S
        self._last_request = is_requested, is_slo_frozen
        mount = self._find_mount(now_s, is_requested=is_requested)
        if mount is None:
            return self._report(self._absent_view(is_requested=is_requested))
        try:
            return self._partition(
                mount, snapshot, layout, pods, pod_problems, is_slo_frozen=is_slo_frozen
            )
        except HostFileError as error:
            self._reader.forget_mount()
            problem = Problem(reason=UNREADABLE, message=str(error))
            view = self._empty_view(StrategyState.WAITING, str(error), (problem,))
            return self._report(view)

    def prepare_pod(
        self, request: HookRequest, snapshot: NodeSnapshot, layout: CgroupLayout | None
    ) -> ResctrlReport | None:
        """Make the group of a pod whose sandbox is created, so that its containers start in it.

        `None`: it asks for none.
        """
        pod = without_class(starting_pod(request.pod, []), self._protected_namespaces)
        if self._mode != ON or not pod.uid or not pod.request.is_set:
            return None
        self._starting_pods[pod.uid] = pod, self._clock.monotonic() + STARTING_S
        return self.cycle(snapshot, layout)

    @property
    def refusal_count(self) -> int:
        """Return how many changes the kernel refused since the start."""
        return sum(self._refusals.counts.values())

    def status(self) -> StrategyStatus:
        """Return the state of the strategy beside the others."""
        view = self.view
        figures: list[tuple[str, float]] = [("groups", float(len(view.groups)))]
        if view.closids is not None:
            figures.append(("groups_allowed", float(view.closids)))
        figures.append(("refusals", float(self.refusal_count)))
        reasons = [f"{problem.reason}: {problem.message}" for problem in view.problems]
        return StrategyStatus(
            name=OWNER,
            mode=self._mode,
            state=view.state,
            message=view.message or "; ".join(reasons[:3]),
            values=len(view.groups),
            figures=tuple(figures),
        )

    def _current_pods(
        self, snapshot: NodeSnapshot, now_s: float
    ) -> tuple[tuple[ResctrlPod, ...], tuple[Problem, ...]]:
        """Return the listed pods, and those whose sandbox was created a short while ago."""
        pods, problems = self._pods(snapshot)
        if self._starting_pods:
            listed = {pod.uid for pod in pods}
            self._starting_pods = {
                uid: (pod, until_s)
                for uid, (pod, until_s) in self._starting_pods.items()
                if uid not in listed and now_s < until_s
            }
            pods = (*pods, *(pod for pod, _ in self._starting_pods.values()))
        return pods, problems

    def _follow_slo(self, snapshot: NodeSnapshot, now_s: float) -> bool:
        """Take the classes of a confirmed NodeSLO; return whether it is frozen."""
        part = snapshot.cluster.slo
        if is_frozen(part, now_s, self._slo_stale_s):
            return True
        slo = part.value.slo
        if slo is not self._classes_of:
            qos = slo.resource_qos
            classes = {"BE": qos.be_class, "LS": qos.ls_class, "LSR": qos.lsr_class}
            enabled = {name: one.resctrl for name, one in classes.items() if one.resctrl.enable}
            self._classes, self._classes_of = enabled, slo
        return False

    def _is_requested(self, pods: tuple[ResctrlPod, ...]) -> bool:
        if self._mode == OFF:
            return False
        if self._classes or self._settings.monitor_pods:
            return True
        return any(pod.request.is_set for pod in pods)

    def _find_mount(self, now_s: float, *, is_requested: bool) -> ResctrlMount | None:
        """Return the mount; mount the file system if the settings allow it and it is needed."""
        mount = self._reader.mount(now_s)
        wants_mount = self._settings.mount and self._mode == ON and is_requested
        if mount is not None or not wants_mount or now_s < self._next_mount_s:
            return mount
        self._next_mount_s = now_s + MOUNT_RETRY_S
        try:
            self._mount(MOUNT_POINT)
        except OSError as error:
            self._mount_problem = f"{MOUNT_POINT}: {error.strerror}"
            return None
        self._mount_problem = ""
        self._reader.forget_mount()
        return self._reader.mount(now_s)

    def _partition(
        self,
        mount: ResctrlMount,
        snapshot: NodeSnapshot,
        layout: CgroupLayout | None,
        pods: tuple[ResctrlPod, ...],
        pod_problems: tuple[Problem, ...],
        *,
        is_slo_frozen: bool,
    ) -> ResctrlReport:
        content = self._read(mount, snapshot, with_tasks=False)
        is_enforced = self._mode == ON
        inputs = self._inputs(content, snapshot, pods if is_enforced else (), is_enforced)
        plan = build_plan(inputs)
        if is_enforced:
            whole_inputs, content = self._add_tasks(inputs, content, plan, snapshot, layout)
            if whole_inputs is not inputs:
                plan = build_plan(whole_inputs)
        self._refusals.retain(plan)
        execution = self._executor.apply(content, plan)
        if not is_enforced:  # the groups that are removed now are no part of what `on` would do
            return self._planned_report(content, snapshot, pods, pod_problems)
        after = self._read(mount, snapshot, with_tasks=False) if plan.actions else content
        return self._enforced_report(after, plan, execution, pod_problems, is_slo_frozen)

    def _read(
        self, mount: ResctrlMount, snapshot: NodeSnapshot, *, with_tasks: bool
    ) -> ResctrlContent:
        vendor = snapshot.cpus.value.info.vendor
        inodes = self._writer.own_inodes(mount)
        content = self._reader.read(mount, inodes, vendor, with_tasks=with_tasks)
        self._refusals.follow(content)
        self._writer.drop_missing(content)
        groups = {
            name: self._refusals.as_written(name, group) for name, group in content.groups.items()
        }
        return msgspec.structs.replace(content, groups=groups)

    def _inputs(
        self,
        content: ResctrlContent,
        snapshot: NodeSnapshot,
        pods: tuple[ResctrlPod, ...],
        is_enforced: bool,
    ) -> PlanInputs:
        is_listed = snapshot.pods.taken_s is not None
        return PlanInputs(
            capabilities=content.capabilities,
            classes=self._classes if is_enforced else {},
            pods=pods,
            is_pod_list_complete=is_listed or not is_enforced,
            groups=content.groups,
            refused_lines=self._refusals.lines,
            refused_groups=self._refusals.groups(self._clock.monotonic()),
            monitors_pods=self._settings.monitor_pods and is_enforced,
        )

    def _add_tasks(
        self,
        inputs: PlanInputs,
        content: ResctrlContent,
        plan: ResctrlPlan,
        snapshot: NodeSnapshot,
        layout: CgroupLayout | None,
    ) -> tuple[PlanInputs, ResctrlContent]:
        """Add the tasks of pods and groups, where one may not be in its place."""
        now_s = self._clock.monotonic()
        is_new = any(action.kind is ResctrlActionKind.MAKE for action in plan.actions)
        is_due = now_s >= self._next_all_tasks_s
        reads_all = is_new or is_due or plan.pod_groups != self._pod_groups
        if reads_all:
            self._next_all_tasks_s = now_s + ALL_TASKS_S
            self._pod_groups = plan.pod_groups
        pod_tasks = self._tasks.read(snapshot.pods.value, layout, all_of_them=reads_all)
        if not pod_tasks:
            return inputs, content
        content = self._read(content.mount, snapshot, with_tasks=True)
        changed = msgspec.structs.replace(inputs, pod_tasks=pod_tasks, groups=content.groups)
        return changed, content

    def _enforced_report(
        self,
        content: ResctrlContent,
        plan: ResctrlPlan,
        execution: ExecutionReport,
        pod_problems: tuple[Problem, ...],
        is_slo_frozen: bool,
    ) -> ResctrlReport:
        if execution.remaining:
            self._next_all_tasks_s = float("-inf")
        unready = {
            action.path
            for action in execution.remaining
            if action.kind in (ResctrlActionKind.MAKE, ResctrlActionKind.WRITE)
        }
        own = {name for name, group in content.groups.items() if group.is_own and name}
        lasting = self._refusals.problems(self._clock.monotonic())
        problems = (*plan.problems, *pod_problems, *execution.problems, *lasting)
        view = self._view(content, plan, problems, is_active=bool(own or problems))
        view = msgspec.structs.replace(
            view,
            state=StrategyState.FROZEN if is_slo_frozen and self._classes is None else view.state,
            message=NOT_CONFIRMED if is_slo_frozen else view.message,
            ready_groups=tuple(sorted(own - unready)),
            planned=execution.remaining,
        )
        return self._report(view, execution.audits)

    def _planned_report(
        self,
        content: ResctrlContent,
        snapshot: NodeSnapshot,
        pods: tuple[ResctrlPod, ...],
        pod_problems: tuple[Problem, ...],
    ) -> ResctrlReport:
        """Return what mode `on` would do; in mode `off`, nothing."""
        if self._mode == OFF:
            return self._report(self._empty_view(StrategyState.OFF, "", ()))
        inputs = self._inputs(content, snapshot, pods, is_enforced=True)
        plan = build_plan(inputs)
        problems = (*plan.problems, *pod_problems)
        view = self._view(content, plan, problems, is_active=bool(plan.actions))
        view = msgspec.structs.replace(view, planned=plan.actions, class_groups=())
        new = [action for action in plan.actions if action not in self._planned]
        self._planned = plan.actions
        wall_s = self._clock.wall()
        point = content.mount.point
        audits = tuple(audit_record(point, action, wall_s, planned=True) for action in new)
        return self._report(view, audits)

    def _view(
        self,
        content: ResctrlContent,
        plan: ResctrlPlan,
        problems: tuple[Problem, ...],
        *,
        is_active: bool,
    ) -> ResctrlView:
        """Return the view; a request without effect makes no group, and is not supported."""
        idle = StrategyState.UNSUPPORTED if plan.missing_parts else StrategyState.IDLE
        view = self._empty_view(
            StrategyState.ACTIVE if is_active else idle,
            "" if problems else missing_message(plan),
            tuple(dict.fromkeys(problems)),
        )
        planned = {group.name: group for group in plan.groups}
        groups = []
        for name, existing in sorted(content.groups.items()):
            if name and existing.is_own:
                group = planned.get(name)
                groups.append(
                    ResctrlGroup(
                        name=name,
                        classes=group.classes if group is not None else (),
                        pod_uid=group.pod_uid if group is not None else "",
                        values=flatten(existing.values),
                    )
                )
        foreign = [name for name, one in content.groups.items() if name and not one.is_own]
        return msgspec.structs.replace(
            view,
            mount_options=tuple(sorted(content.mount.options)),
            closids=plan.closids,
            foreign_groups=tuple(sorted(foreign)),
            groups=tuple(groups),
            class_groups=tuple(sorted(plan.class_groups.items())),
            monitored_pods=plan.monitored_pods,
        )

    def _absent_view(self, *, is_requested: bool) -> ResctrlView:
        if not is_requested:
            state = StrategyState.OFF if self._mode == OFF else StrategyState.IDLE
            return self._empty_view(state, "", ())
        problem = self._mount_problem
        problems = (Problem(reason=NOT_MOUNTABLE, message=problem),) if problem else ()
        return self._empty_view(StrategyState.UNSUPPORTED, problem or NOT_MOUNTED, problems)

    def _empty_view(
        self, state: StrategyState, message: str, problems: tuple[Problem, ...]
    ) -> ResctrlView:
        writer = self._writer
        return ResctrlView(
            mode=self._mode,
            state=state,
            message=message,
            problems=problems,
            protected_namespaces=self._protected_namespaces,
            groups_made=writer.groups_made,
            groups_removed=writer.groups_removed,
            schemata_written=writer.schemata_written,
            tasks_moved=writer.tasks_moved,
            refusals=tuple(sorted(self._refusals.counts.items())),
        )

    def _report(self, view: ResctrlView, audits: tuple[AuditRecord, ...] = ()) -> ResctrlReport:
        """Return the report; an equal view stays the same object."""
        if view != self.view:
            self.view = view
        return ResctrlReport(view=self.view, audits=audits)
