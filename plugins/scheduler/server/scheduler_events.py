"""Kubernetes events of the scheduler: the leader, failed bindings, impossible allocations.

Reasons of `filter` are not among them: kube-scheduler writes those into its own event.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from agent.clock import Clock
from agent.snapshot.pod import PodRef
from agent.wire_formats.device_object import DEVICE_API_VERSION, DEVICE_KIND
from agent.wire_formats.event import NORMAL, WARNING, Event, EventTarget
from plugins.scheduler.allocation_audit import AllocationProblem, ProblemKind
from plugins.scheduler.pod_object import PodKey
from plugins.scheduler.server.extender_wire import BindRequest
from plugins.scheduler.server.lease import LEASES

COMPONENT = "xpu-scheduler"


class OffersEvents(Protocol):
    """Queues events and sends them later."""

    def offer(self, events: Iterable[Event]) -> None:
        """Queue events; returns at once."""
        ...


class SchedulerEvents:
    """Creates events; without a sink they are dropped."""

    def __init__(self, sink: OffersEvents | None, clock: Clock) -> None:
        self._sink = sink
        self._clock = clock

    def report_leadership(self, identity: str, namespace: str, lease: str, uid: str = "") -> None:
        """Report that a replica has taken the lease, in the words of Kubernetes' own components."""
        target = EventTarget(
            api_version=LEASES.api_version, name=lease, namespace=namespace, uid=uid
        )
        message = f"{identity} became leader"
        self._offer(NORMAL, "LeaderElection", message, LEASES.kind, target=target)

    def report_failed_binding(
        self, request: BindRequest, error: str, outcome: str, device_uid: str = ""
    ) -> None:
        """Report a binding that failed for a reason that a person has to solve.

        `device_uid` is that of the Device object of the node.
        """
        if outcome == "refused":
            pod = PodRef(namespace=request.namespace, name=request.name, uid=request.uid)
            self._offer(WARNING, "BindingRefused", error, "Pod", pod=pod)
        elif outcome == "not_marked":
            device = _device(request.node, device_uid)
            self._offer(
                WARNING,
                "DeviceNotMarked",
                error,
                DEVICE_KIND,
                target=device,
                repeat_key="DeviceNotMarked",
            )

    def report_problem(self, problem: AllocationProblem) -> None:
        """Report an allocation that cannot be read or satisfied."""
        if problem.kind is ProblemKind.DOUBLE_GRANTED:
            target = _device(problem.node, problem.device_uid)
            self._offer(WARNING, problem.kind.value, problem.message, DEVICE_KIND, target=target)
        elif problem.pod is not None:
            pod = _pod_ref(problem.pod)
            self._offer(WARNING, problem.kind.value, problem.message, "Pod", pod=pod)

    def _offer(
        self,
        kind: str,
        reason: str,
        message: str,
        object_kind: str,
        *,
        pod: PodRef | None = None,
        target: EventTarget | None = None,
        repeat_key: str = "",
    ) -> None:
        if self._sink is not None:
            event = Event(
                type=kind,
                reason=reason,
                message=message,
                object_kind=object_kind,
                at_s=self._clock.wall(),
                pod=pod,
                target=target,
                repeat_key=repeat_key,
            )
            self._sink.offer([event])


def _device(node: str, uid: str) -> EventTarget:
    return EventTarget(api_version=DEVICE_API_VERSION, name=node, uid=uid)


def _pod_ref(key: PodKey) -> PodRef:
    return PodRef(namespace=key.namespace, name=key.name, uid=key.uid)
