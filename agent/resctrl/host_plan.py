"""Which changes of resctrl groups a host would get now. Writes nothing.

The host may be a recording: only reads are made.
"""

from __future__ import annotations

import errno
from collections.abc import Collection

import msgspec

from agent.cgroup.ledger import ChangeLedger
from agent.config.containers import ResctrlSettings
from agent.errors import HostFileError
from agent.resctrl.files import (
    FILE_SYSTEM,
    MOUNT_TABLE,
    ResctrlContent,
    ResctrlFiles,
    ResctrlReader,
)
from agent.resctrl.group_writer import OWNER, GroupWriter
from agent.resctrl.manager import NOT_MOUNTED, OFF
from agent.resctrl.plan import CLASSES, PlanInputs, ResctrlPlan, build_plan, missing_message
from agent.resctrl.pods import resctrl_pods
from agent.resctrl.schemata import format_schemata
from agent.snapshot.host_files import MAX_READ, HostFiles
from agent.snapshot.inventory import Problem
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.self_check import (
    ResctrlAction,
    ResctrlActionKind,
    StrategyState,
    StrategyStatus,
)
from agent.usage.resctrl_monitor import ROOT as MOUNT_POINT

MOUNT_LINE = f"1 0 0:0 / {MOUNT_POINT} ro - {FILE_SYSTEM} {FILE_SYSTEM} ro\n"


class ReadOnlyResctrlFiles:
    """The files of a recorded host; implements `agent.resctrl.files.ResctrlFiles`."""

    def __init__(self, files: HostFiles) -> None:
        self._files = files
        self.names, self.link = files.names, files.link
        self.exists, self.device_number = files.exists, files.device_number

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        """Read a file; a recording has no table of mounts, but files of what was mounted."""
        if path == MOUNT_TABLE and self._files.exists(f"{MOUNT_POINT}/schemata"):
            return MOUNT_LINE.encode()
        return self._files.read(path, limit)

    def write(self, path: str, text: str) -> None:  # noqa: ARG002 - as its Protocol
        """Refuse the write."""
        raise HostFileError(path, errno.EROFS)

    def make(self, path: str) -> None:
        """Refuse to make a folder."""
        raise HostFileError(path, errno.EROFS)

    def remove(self, path: str) -> None:
        """Refuse to remove a folder."""
        raise HostFileError(path, errno.EROFS)

    def inode(self, path: str) -> int:
        """Return a number for an existing folder: a recording has no inodes."""
        if not self._files.exists(path):
            raise HostFileError(path, errno.ENOENT)
        return 1

    def device(self, path: str) -> int:
        """Return the same number for all folders."""
        return self.inode(path)

    def folders(self, path: str) -> tuple[str, ...]:
        """Return the paths of the groups in a folder."""
        paths = (f"{path}/{name}" for name in self._files.names(path))
        return tuple(one for one in paths if self._files.exists(f"{one}/schemata"))


class PlannedGroupChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change, with the path of its file or folder and the present content."""

    action: ResctrlAction
    path: str
    current: str | None  # schemata; None: the group does not exist, or a folder is made or removed


class HostResctrlPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The changes in their order, and the state of the strategy."""

    status: StrategyStatus
    changes: tuple[PlannedGroupChange, ...] = ()
    problems: tuple[Problem, ...] = ()


class HostResctrlPlanner:
    """Compares the desired groups of one host with those that exist; tasks are not read."""

    def __init__(
        self,
        files: ResctrlFiles,
        ledger: ChangeLedger,
        settings: ResctrlSettings,
        mode: str,
        protected_namespaces: Collection[str] = (),
    ) -> None:
        """`ledger` has the groups of the agent on this host; it is read only.

        Pods in `protected_namespaces` are in no group of a class.
        """
        self._reader = ResctrlReader(files, settings)
        self._writer = GroupWriter(files, ledger)
        self._settings = settings
        self._mode = mode
        self._protected_namespaces = protected_namespaces

    def plan(self, snapshot: NodeSnapshot, now_s: float) -> HostResctrlPlan:
        """Return what would be changed now; of a strategy that is off, what it removes."""
        if self._mode == OFF and not self._writer.has_entries():
            return self._nothing(StrategyState.OFF)
        qos = snapshot.cluster.slo.value.slo.resource_qos
        classes = dict(zip(CLASSES, (qos.be_class, qos.ls_class, qos.lsr_class), strict=True))
        enabled = {name: one.resctrl for name, one in classes.items() if one.resctrl.enable}
        pods, problems = resctrl_pods(snapshot, self._protected_namespaces)
        if self._mode == OFF:
            enabled, pods, problems = {}, (), ()
        mount = self._reader.mount(now_s)
        if mount is None:
            is_requested = bool(enabled) or any(pod.request.is_set for pod in pods)
            if is_requested:
                return self._nothing(StrategyState.UNSUPPORTED, NOT_MOUNTED)
            return self._nothing(StrategyState.OFF if self._mode == OFF else StrategyState.IDLE)
        try:
            vendor = snapshot.cpus.value.info.vendor
            inodes = self._writer.own_inodes(mount)
            content = self._reader.read(mount, inodes, vendor, with_tasks=False)
        except HostFileError as error:
            return self._nothing(StrategyState.WAITING, str(error))
        plan = build_plan(
            PlanInputs(
                capabilities=content.capabilities,
                classes=enabled,
                pods=pods,
                is_pod_list_complete=snapshot.cluster.has_pod_list or self._mode == OFF,
                groups=content.groups,
                monitors_pods=self._settings.monitor_pods and self._mode != OFF,
            )
        )
        reasons = "; ".join(f"{problem.reason}: {problem.message}" for problem in plan.problems[:3])
        return HostResctrlPlan(
            status=StrategyStatus(
                name=OWNER,
                mode=self._mode,
                state=self._state(plan),
                message=reasons or missing_message(plan),
                values=len(plan.groups),
            ),
            changes=tuple(_change(content, action) for action in plan.actions),
            problems=(*plan.problems, *problems),
        )

    def _state(self, plan: ResctrlPlan) -> StrategyState:
        if self._mode == OFF:
            return StrategyState.OFF
        if plan.groups or plan.actions:
            return StrategyState.ACTIVE
        return StrategyState.UNSUPPORTED if plan.missing_parts else StrategyState.IDLE

    def _nothing(self, state: StrategyState, message: str = "") -> HostResctrlPlan:
        status = StrategyStatus(name=OWNER, mode=self._mode, state=state, message=message)
        return HostResctrlPlan(status=status)


def _change(content: ResctrlContent, action: ResctrlAction) -> PlannedGroupChange:
    path = f"{content.mount.point}/{action.path}"
    group = content.groups.get(action.path)
    if action.kind is ResctrlActionKind.WRITE:
        current = None if group is None else format_schemata(group.values).strip()
        return PlannedGroupChange(action=action, path=f"{path}/schemata", current=current)
    return PlannedGroupChange(action=action, path=path, current=None)
