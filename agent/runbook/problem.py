"""A problem of the node: what is affected, since when, and the entry of the runbook."""

from __future__ import annotations

import enum

import msgspec

from agent.runbook.entries import UNLISTED
from agent.runbook.entry import FaultCategory, RecommendedAction
from agent.runbook.runbook import EntryLookup

MAX_NAMED = 8  # subjects that one message names


class Severity(enum.StrEnum):
    """How bad a problem is; the worst first."""

    CRITICAL = "critical"  # something is out of service or is not done
    WARNING = "warning"  # it works with a fault, or its state is unknown
    INFO = "info"  # no person has to do anything now


SEVERITY_ORDER = tuple(Severity)


class SubjectKind(enum.StrEnum):
    """What a problem is about; the order is that of equally bad problems."""

    AGENT = "agent"  # its own loops, lock and files
    NODE = "node"  # the Node object
    DEVICE = "device"
    SLICE = "slice"
    VENDOR = "vendor"  # a vendor's worker, driver or settings
    RUNTIME = "runtime"  # the container runtime
    CONTAINER = "container"
    ALLOCATION = "allocation"  # of a pod
    RESOURCE = "resource"  # at the kubelet
    KUBELET = "kubelet"
    API_SERVER = "api-server"
    OBJECT = "object"  # that the agent writes
    FILES = "files"  # of pods and of the node
    COLLECTOR = "collector"
    HOST = "host"  # the machine


KIND_ORDER = tuple(SubjectKind)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong on the node now. All texts are for people."""

    kind: SubjectKind
    subject: str  # its id: key of a device, name of a resource, namespace/name of a pod
    name: str  # for people: GPU 3
    severity: Severity
    reason: str  # CamelCase
    message: str
    since_s: float | None = None  # wall clock; None: the snapshot does not have it
    vendor: str = ""  # name of the plug-in; empty: none
    title: str = ""  # this and the following are those of the runbook's entry
    meaning: str = ""
    impact: str = ""
    remedy: str = ""
    action: RecommendedAction = RecommendedAction.LOOK
    category: FaultCategory = FaultCategory.OTHER
    anchor: str = ""


class ProblemContext(msgspec.Struct, frozen=True, kw_only=True):
    """The runbook and the time with which problems are built."""

    lookup: EntryLookup
    now_s: float  # monotonic
    wall_s: float

    def problem(
        self,
        kind: SubjectKind,
        subject: str,
        severity: Severity,
        reason: str,
        message: str,
        *,
        name: str = "",
        vendor: str = "",
        since_s: float | None = None,
    ) -> Problem:
        """Return a problem with the texts of its reason's entry."""
        entry = self.lookup(vendor, reason, message) or UNLISTED
        return Problem(
            kind=kind,
            subject=subject,
            name=name or subject,
            severity=severity,
            reason=reason,
            message=message,
            since_s=since_s,
            vendor=vendor,
            title=entry.title,
            meaning=entry.meaning,
            impact=entry.impact,
            remedy=entry.remedy,
            action=entry.action,
            category=entry.category,
            anchor=entry.anchor,
        )

    def has_action(self, vendor: str, reason: str, message: str) -> bool:
        """Return whether the entry of a reason asks for an action."""
        entry = self.lookup(vendor, reason, message) or UNLISTED
        return entry.action is not RecommendedAction.NONE

    def wall_time(self, monotonic_s: float | None) -> float | None:
        """Return a monotonic time as wall clock."""
        return None if monotonic_s is None else self.wall_s - (self.now_s - monotonic_s)


def sort_key(problem: Problem) -> tuple[int, int, str, str, str]:
    """Return the key that sorts problems: the worst first."""
    return (
        SEVERITY_ORDER.index(problem.severity),
        KIND_ORDER.index(problem.kind),
        problem.subject,
        problem.reason,
        problem.message,
    )


def name_some(names: list[str]) -> str:
    """Return the first names as a text, with the number of the others."""
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
