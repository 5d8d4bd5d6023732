"""Checks the allocations of bound pods: unreadable ones, unknown devices, devices given twice."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Set
from typing import Protocol

import msgspec

from plugins.scheduler.cluster_state import AssignedPod, ClusterState
from plugins.scheduler.devices.allocator import NodeState
from plugins.scheduler.devices.device_table import NodeDevice
from plugins.scheduler.devices.device_usage import minors_by_id
from plugins.scheduler.pod_object import PodKey

NODES_AT_ONCE = 16  # between two chances for other calls
MAX_PODS = 8  # that one message names


class ProblemKind(enum.Enum):
    """Why an allocation is impossible; the value is the reason of the event."""

    UNREADABLE = "GrantUnreadable"
    UNKNOWN_DEVICE = "GrantOfUnknownDevice"
    DOUBLE_GRANTED = "DeviceDoubleGranted"


class AllocationSource(Protocol):
    """The allocations of bound pods, as the watch reports them."""

    @property
    def unreadable(self) -> Mapping[PodKey, str]:
        """Return the pods whose allocation cannot be read, with the reasons."""
        ...

    def take_changed_nodes(self) -> Set[str]:
        """Return the nodes whose devices, or those of their pods, changed since the last call."""
        ...


class AllocationProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One problem; equal problems are reported once."""

    kind: ProblemKind
    message: str
    node: str = ""  # of a device
    device_uid: str = ""  # of the node's Device object
    pod: PodKey | None = None


def node_problems(state: NodeState, pods: Iterable[AssignedPod]) -> Iterator[AllocationProblem]:
    """Yield the problems of the allocations on a node that has a Device object."""
    pods = tuple(pods)
    if state.table is None:
        return
    for device in overcommitted_devices(state):
        yield AllocationProblem(
            kind=ProblemKind.DOUBLE_GRANTED,
            node=state.name,
            device_uid=state.table.uid,
            message=_double_granted(state, device, pods),
        )
    known = {
        (device.kind, name)
        for of_kind in state.table.devices.values()
        for device in of_kind
        for name in (device.minor, device.id)
    }
    for pod in pods:
        unknown = [
            f"{entry.type} {entry.id or entry.minor}"
            for entry in pod.allocation
            if not {(entry.type, entry.minor), (entry.type, entry.id)} & known
        ]
        if unknown:
            message = f"node {state.name} has no {', '.join(unknown[:MAX_PODS])}"
            yield AllocationProblem(kind=ProblemKind.UNKNOWN_DEVICE, pod=pod.key, message=message)


def overcommitted_devices(state: NodeState) -> Iterator[NodeDevice]:
    """Yield the healthy devices of which more is allocated to pods than they have."""
    for of_kind in () if state.table is None else state.table.devices.values():
        for device in of_kind:
            used = state.usage.used(device)
            if used and any(used.get(name, 0) > total for name, total in device.total.items()):
                yield device


def _double_granted(state: NodeState, device: NodeDevice, pods: Iterable[AssignedPod]) -> str:
    used = state.usage.used(device)
    amounts = ", ".join(
        f"{used[name]} of {total} {name}"
        for name, total in device.total.items()
        if used.get(name, 0) > total
    )
    minors = minors_by_id(state.table)
    holders = sorted(
        f"{pod.key.namespace}/{pod.key.name}"
        for pod in pods
        for entry in pod.allocation
        if entry.type == device.kind
        and minors.get((entry.type, entry.id), entry.minor) == device.minor
    )
    name = f"{device.kind} {device.minor}" + (f" ({device.id})" if device.id else "")
    return f"{name} is given to {', '.join(holders[:MAX_PODS])}: {amounts}"


class AllocationAudit:
    """Checks the allocations on nodes whose devices or pods changed. Belongs to the loop thread."""

    def __init__(self, state: ClusterState, pods: AllocationSource) -> None:
        self._state = state
        self._pods = pods
        self._of_node: dict[str, frozenset[AllocationProblem]] = {}  # nodes with problems alone
        self._unreadable: frozenset[AllocationProblem] = frozenset()

    @property
    def unknown_device_count(self) -> int:
        """Return the number of pods with allocated devices that their node does not have."""
        problems = (problem for of_node in self._of_node.values() for problem in of_node)
        return sum(problem.kind is ProblemKind.UNKNOWN_DEVICE for problem in problems)

    async def check(self) -> AsyncIterator[AllocationProblem]:
        """Yield the new problems since the last check."""
        for number, name in enumerate(self._pods.take_changed_nodes()):
            if number % NODES_AT_ONCE == NODES_AT_ONCE - 1:
                await asyncio.sleep(0)
            problems = node_problems(self._state.state(name), self._state.pods_of(name))
            before, now = self._of_node.pop(name, frozenset()), frozenset(problems)
            if now:
                self._of_node[name] = now
            for problem in _new_problems(before, now):
                yield problem
        before = self._unreadable
        self._unreadable = frozenset(
            AllocationProblem(kind=ProblemKind.UNREADABLE, pod=key, message=error)
            for key, error in self._pods.unreadable.items()
        )
        for problem in _new_problems(before, self._unreadable):
            yield problem


def _new_problems(
    before: frozenset[AllocationProblem], now: frozenset[AllocationProblem]
) -> list[AllocationProblem]:
    return sorted(now - before, key=lambda problem: problem.message)
