"""State of the agent's own loops, strategies and named checks of one moment."""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec

from agent.snapshot.inventory import Problem
from agent.snapshot.part import Histogram
from agent.snapshot.publications import AuditRecord


class SelfCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `/healthz?verbose`. `gates_ready`: a failure makes the agent not ready."""

    name: str
    ok: bool
    message: str = ""
    gates_ready: bool = True
    reason: str = ""  # CamelCase, of a failure: it has an entry in the runbook


class SelfCheckReport(msgspec.Struct, frozen=True):
    """All checks of one moment."""

    checks: tuple[SelfCheck, ...]

    @property
    def is_ready(self) -> bool:
        """Return whether every check that gates readiness holds."""
        return all(check.ok for check in self.checks if check.gates_ready)


class LoopStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of one periodic loop; times are monotonic."""

    name: str
    interval_s: float
    failures: int = 0  # failed runs in a row
    last_error: str = ""
    last_success_s: float | None = None
    due_s: float | None = None  # when the first run is due

    def is_healthy(self, now_s: float) -> bool:
        """Return whether the last good run is younger than three intervals, at least ten seconds.

        Before the first run, its due time counts in its place.
        """
        since_s = self.due_s if self.last_success_s is None else self.last_success_s
        return since_s is not None and now_s - since_s < max(10.0, 3 * self.interval_s)


class StrategyState(enum.Enum):
    """What a strategy does."""

    OFF = "off"  # by its setting
    IDLE = "idle"  # no NodeSLO and no pod asks for it
    ACTIVE = "active"
    FROZEN = "frozen"  # the NodeSLO is stale: values stay, nothing new is decided
    WAITING = "waiting"  # an input is missing: values stay
    UNSUPPORTED = "unsupported"  # the kernel lacks what it needs
    FAILED = "failed"  # by a bug: values stay


class StrategyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy in the last cycle.

    `figures` are its numbers by name, with the unit in the name; a figure that is not known is
    not in it.
    """

    name: str
    mode: str  # off, plan, on
    state: StrategyState
    message: str = ""  # why it is in this state, for people
    values: int = 0  # desired values of files
    figures: tuple[tuple[str, float], ...] = ()


class FileCondition(msgspec.Struct, frozen=True, kw_only=True):
    """A problem that lasts until it is solved; the reason is CamelCase, as in a Node condition."""

    reason: str
    message: str


class DesiredFile(Protocol):
    """The desired value of one cgroup file, as a hook or strategy asks for it."""

    @property
    def cgroup(self) -> str:
        """Path of the group below the controller's mount."""
        ...

    @property
    def key_name(self) -> str:
        """Name of the file in cgroup version 1."""
        ...

    @property
    def owner(self) -> str:
        """The hook or strategy."""
        ...

    @property
    def message(self) -> str:
        """What is set, for people."""
        ...

    @property
    def source(self) -> str:
        """The field that asks for it."""
        ...

    def text(self, version: int) -> str:
        """Return the text of the file."""
        ...


class DesiredFiles(msgspec.Struct, frozen=True, kw_only=True):
    """All desired values of cgroup files; a new object only when one of them changes.

    The value of a strategy replaces that of a hook for the same file.
    """

    version: int = 2  # of the cgroups
    directories: tuple[DesiredFile, ...] = ()  # the kubelet's QoS directories, by hooks
    hooks: tuple[DesiredFile, ...] = ()  # pods and containers
    planned_hooks: tuple[DesiredFile, ...] = ()  # in plan mode: compared, not written
    strategies: tuple[DesiredFile, ...] = ()
    planned_strategies: tuple[DesiredFile, ...] = ()


class FileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What one hook or strategy wants of a file."""

    owner: str
    mode: str  # on; plan: it is not written
    value: str
    wins: bool  # it is the value that is written
    message: str = ""
    source: str = ""  # the field that asks for it


class FileExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a file has its value: who wants what, what was there before, what was written."""

    path: str  # below the host's root
    current: str | None  # None: there is no such file now
    requests: tuple[FileRequest, ...] = ()  # the one that is written first
    original: str | None = None  # before the agent's first write; None: the agent never wrote it
    owner: str = ""  # the hook or strategy of the last write
    own_values: tuple[str, ...] = ()  # some of the last ones that the agent wrote
    refusal: str = ""  # why it is not written now
    is_contested: bool = False  # another program writes it again and again
    changes: tuple[AuditRecord, ...] = ()  # the last ones, oldest first


class EnforcementView(msgspec.Struct, frozen=True, kw_only=True):
    """All strategies, in the order in which they are asked, and the problems that last."""

    strategies: tuple[StrategyStatus, ...] = ()
    is_frozen: bool = False  # the NodeSLO is not confirmed: nothing new is decided
    brake: str = ""  # why no strategy may change anything now; empty: they may
    conditions: tuple[FileCondition, ...] = ()
    turned_s: float | None = None  # wall clock, since when there are conditions, or are none

    @property
    def has_requests(self) -> bool:
        """Return whether a strategy does something, or should."""
        resting = (StrategyState.OFF, StrategyState.IDLE)
        return any(strategy.state not in resting for strategy in self.strategies)


class EnforcementCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of files since the agent's start, and the duration of the cycles that made them."""

    changes: tuple[tuple[str, str, int], ...] = ()  # owner, result, number
    refusals: tuple[tuple[str, str, int], ...] = ()  # owner, errno's name, number
    cycles: Histogram = Histogram()
    lost_audits: int = 0  # records that are not in the audit file


BANDWIDTH_RESOURCE = "MB"  # all other resources have masks


class ResctrlActionKind(enum.Enum):
    """One change of the resctrl file system."""

    REMOVE = "remove"  # a group
    MAKE = "make"
    WRITE = "write"  # its schemata
    MOVE = "move"  # a task into a group; an empty path is the root group


class ResctrlAction(msgspec.Struct, frozen=True, kw_only=True):
    """One change that the plan asks for."""

    kind: ResctrlActionKind
    path: str  # of the group, below the mount
    text: str = ""  # the schemata, or the task's number
    reason: str = ""  # who asks for it, for people


class ResctrlGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group of the agent."""

    name: str
    classes: tuple[str, ...] = ()  # of the NodeSLO, whose pods share it
    pod_uid: str = ""  # of its only pod
    values: tuple[tuple[str, int, int], ...] = ()  # resource, domain, mask or bandwidth

    @property
    def schemata(self) -> str:
        """Return the values for people: `L3:0=f;1=f MB:0=40;1=40`."""
        lines: dict[str, list[str]] = {}
        for resource, domain, value in self.values:
            shown = value if resource == BANDWIDTH_RESOURCE else format(value, "x")
            lines.setdefault(resource, []).append(f"{domain}={shown}")
        return " ".join(f"{resource}:{';'.join(items)}" for resource, items in lines.items())


class ResctrlView(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent does with resctrl at this moment; counters since the start."""

    mode: str = "off"  # off, plan, on
    state: StrategyState = StrategyState.OFF
    message: str = ""  # why not active, for people
    mount_options: tuple[str, ...] = ()
    closids: int | None = None  # groups that the agent may have; `None`: unknown
    foreign_groups: tuple[str, ...] = ()
    groups: tuple[ResctrlGroup, ...] = ()
    class_groups: tuple[tuple[str, str], ...] = ()  # group of each class; empty: the root group
    ready_groups: tuple[str, ...] = ()  # that exist with their values: containers may start there
    protected_namespaces: tuple[str, ...] = ()  # whose pods are in no group of a class
    monitored_pods: int = 0
    planned: tuple[ResctrlAction, ...] = ()  # of this cycle; in mode `on` those not yet done
    problems: tuple[Problem, ...] = ()
    groups_made: int = 0
    groups_removed: int = 0
    schemata_written: int = 0
    tasks_moved: int = 0
    refusals: tuple[tuple[str, int], ...] = ()  # by errno

    def group_of_class(self, name: str, namespace: str) -> str:
        """Return the group where containers of a pod of a class start; empty for the root group."""
        if namespace in self.protected_namespaces:
            return ""
        group = dict(self.class_groups).get(name, "")
        return group if group in self.ready_groups else ""
