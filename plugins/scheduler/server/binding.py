"""Binds pods: chooses devices, and writes them together with the node in one request.

The API server stores the node and the Binding's annotations in one transaction, so no pod has
devices and no node, or a node and no devices. From the choice on, the devices are reserved in the
cluster's state. If the outcome of a request is unknown, they stay reserved until the server cannot
be processing the request any more: releasing devices that are bound would allocate them twice,
while reserving devices that are not bound only wastes them for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from agent.clock import Clock
from agent.errors import AgentError, ParseError
from agent.kube.api import ApiClient, ApiRequest
from agent.kube.errors import ApiError, Conflict, NotFound
from agent.kube.resources import PODS
from agent.wire_formats.device_allocated import ANNOTATION, decode_allocated
from agent.wire_formats.resource_status import RESOURCE_STATUS
from plugins.scheduler.cluster_state import Allocation, AssignedPod, ClusterState
from plugins.scheduler.decisions import DecisionMaker, request_signature
from plugins.scheduler.devices.allocator import NodeRefused
from plugins.scheduler.devices.binding_metadata import BindingMetadata, allocation_metadata
from plugins.scheduler.devices.hami_annotations import decode_hami_allocation
from plugins.scheduler.devices.requests import InvalidRequest
from plugins.scheduler.numa.alignment import PodPlacement
from plugins.scheduler.numa.cpu_request import PodRequest, numa_amounts, pod_request
from plugins.scheduler.numa.status_annotation import (
    recorded_numa,
    spec_annotations,
    status_annotations,
)
from plugins.scheduler.pod_object import SchedulerPod, decode_scheduler_pod
from plugins.scheduler.server.device_ledger import DeviceLedger, LedgerRefused
from plugins.scheduler.server.extender_wire import BindRequest
from plugins.scheduler.server.lease import NotLeader
from plugins.scheduler.server.plan_barrier import PlanBarrier, PlanIncomplete
from plugins.scheduler.server.vendor_plugins import (
    SETTLED_AFTER_S,
    UNCERTAIN_ERRORS,
    NodeLocked,
    VendorPlugins,
)

DEADLINE_S = 5.0  # of one request: less than what the lease leaves an old leader
MAX_TRIES = 4  # of one binding: the pod may change meanwhile, or an answer may be lost
READ_PAUSES_S = (0.2, 0.5, 1.0)  # before each read of a pod whose outcome is not known


class BindFailed(AgentError):
    """The pod was not bound, as far as is known; kube-scheduler tries again.

    `outcome` is a label for metrics.
    """

    def __init__(self, message: str, outcome: str = "failed") -> None:
        super().__init__(message)
        self.outcome = outcome


class PodSource(Protocol):
    """The pods that are not bound yet, as the watch reports them."""

    def pending_pod(self, namespace: str, name: str) -> SchedulerPod | None:
        """Return a pod; `None` if it is not known."""
        ...


class _PendingBinding(msgspec.Struct, kw_only=True):
    """What a pod that is being bound gets. `sent_s`: its binding may be in force since then."""

    pod: AssignedPod
    annotations: Mapping[str, str]
    vendor: BindingMetadata | None = None  # what is to be written before the binding
    sent_s: float | None = None  # monotonic, of the last request without an answer


class _PodReading(msgspec.Struct, frozen=True):
    """The result of reading a pod; without `is_known` the server did not answer."""

    pod: SchedulerPod | None = None  # None: it is gone, or another pod has its name
    is_known: bool = True


class Binder:
    """Binds several pods at a time. Belongs to the loop thread."""

    def __init__(
        self,
        api: ApiClient,
        state: ClusterState,
        decisions: DecisionMaker,
        pods: PodSource,
        clock: Clock,
        *,
        ledger: DeviceLedger | None = None,
        vendor_plugins: VendorPlugins | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """With a ledger, the Device object is marked before each binding that gives devices.

        With `vendor_plugins`, vendors' own device plug-ins find what they read. The pods of a plan
        wait for each other.
        """
        self._api = api
        self._ledger = ledger
        self._vendor_plugins = vendor_plugins
        self._state = state
        self._decisions = decisions
        self._pods = pods
        self._clock = clock
        self._sleep = sleep
        self._barrier = PlanBarrier(state)
        self._holds: dict[str, _PendingBinding] = {}  # by uid
        self._in_progress: set[str] = set()

    @property
    def uncertain(self) -> tuple[AssignedPod, ...]:
        """Return the pods whose binding was sent and whose outcome is not known."""
        holds = (self._hold_of(uid) for uid in tuple(self._holds))
        return tuple(hold.pod for hold in holds if hold is not None and hold.sent_s is not None)

    @property
    def hold_count(self) -> int:
        """Return the number of pods with reserved devices whose binding is not certain."""
        return sum(self._hold_of(uid) is not None for uid in tuple(self._holds))

    async def bind(self, request: BindRequest) -> None:
        """Bind a pod to a node with its devices; raise `BindFailed`.

        A repeated call for a pod that is on the node already succeeds.
        """
        if request.uid in self._in_progress:
            raise BindFailed(f"{_name(request)} is being bound")
        self._in_progress.add(request.uid)
        try:
            await self._bind(request)
        except BindFailed:
            self._give_up(request)
            await self._settle_locks(request.uid)
            raise
        else:
            await self._settle_locks(request.uid)
        finally:
            self._in_progress.discard(request.uid)

    async def resolve_uncertain(self) -> None:
        """Read the pods with an unknown outcome; release those that cannot be bound any more."""
        await self.confirm(self.uncertain)
        for uid in () if self._vendor_plugins is None else self._vendor_plugins.locking_uids:
            if uid not in self._in_progress:
                self._in_progress.add(uid)  # a lock that the pod takes anew must stay
                try:
                    await self._settle_locks(uid)
                finally:
                    self._in_progress.discard(uid)

    async def confirm(self, pods: Iterable[AssignedPod]) -> None:
        """Read pods that hold devices, and release what those that are gone have."""
        for held in pods:
            if held.key.uid not in self._in_progress:
                key = held.key
                request = BindRequest(
                    namespace=key.namespace, name=key.name, uid=key.uid, node=held.node
                )
                reading = await self._read(request)
                if reading.is_known and key.uid not in self._in_progress:
                    self._settle(request, reading.pod)

    async def _settle_locks(self, uid: str) -> None:
        """Remove the locks of nodes that were taken for a pod, once it is known to be elsewhere.

        The vendor's plug-in deletes the one of the node to which the pod is bound.
        """
        if self._vendor_plugins is None or self._hold_of(uid) is not None:
            return
        bound = None if self._state.plan_of(uid) else self._state.pod(uid)
        await self._vendor_plugins.settle_locks(uid, "" if bound is None else bound.node)

    async def _bind(self, request: BindRequest) -> None:
        pod = await self._find_pod(request)
        for _ in range(MAX_TRIES):
            if self._is_settled(request, pod):
                return
            hold = self._hold(request, pod)
            try:
                await self._barrier.wait(request.uid)
                await self._post(request, pod, hold)
            except PlanIncomplete as incomplete:
                raise BindFailed(f"{_name(request)}: {incomplete}", "planned") from incomplete
            except Conflict:  # the pod changed, or a lost request was in force after all
                pod = await self._read_after(request, hold, pauses_s=(0.0,), before=pod)
            except (LedgerRefused, NodeLocked) as refused:
                outcome = "locked" if isinstance(refused, NodeLocked) else "not_marked"
                raise BindFailed(f"{_name(request)}: {refused}", outcome) from refused
            except UNCERTAIN_ERRORS:
                pod = await self._read_after(request, hold, pauses_s=READ_PAUSES_S, before=pod)
            except ApiError as error:  # refused: 403, 404, 422
                outcome = "not_leader" if isinstance(error, NotLeader) else "refused"
                raise BindFailed(f"{_name(request)}: {error}", outcome) from error
            else:
                self._finish(request)
                return
        raise BindFailed(f"{_name(request)} could not be bound in {MAX_TRIES} tries")

    async def _find_pod(self, request: BindRequest) -> SchedulerPod:
        pod = self._pods.pending_pod(request.namespace, request.name)
        if pod is not None and pod.key.uid == request.uid and self._hold_of(request.uid) is None:
            return pod
        reading = await self._read(request)
        if not reading.is_known:
            raise BindFailed(f"{_name(request)} cannot be read now", "uncertain")
        return self._require(request, reading.pod)

    def _is_settled(self, request: BindRequest, pod: SchedulerPod) -> bool:
        """Return whether the pod is on the node; raise `BindFailed` if it is on another one."""
        if not pod.node:
            return False
        self._settle(request, pod)
        if pod.node != request.node:
            raise BindFailed(f"{_name(request)} is on node {pod.node} already")
        return True

    def _hold_of(self, uid: str) -> _PendingBinding | None:
        """Return the reservation of a pod; drop it if the watch has reported the outcome since."""
        hold = self._holds.get(uid)
        if hold is not None and self._state.pod(uid) != hold.pod:
            del self._holds[uid]
            return None
        return hold

    def _hold(self, request: BindRequest, pod: SchedulerPod) -> _PendingBinding | None:
        """Choose devices and reserve them; the same ones for a second attempt on the same node.

        A pod whose earlier binding to another node may still take effect is not bound elsewhere.
        Without devices, CPUs and NUMA nodes there is no reservation.
        """
        hold = self._hold_of(request.uid)
        if hold is not None and hold.pod.node == request.node and self._is_usable(hold, pod):
            return hold
        if hold is not None and hold.sent_s is not None:
            raise BindFailed(
                f"{_name(request)}: whether it is bound to {hold.pod.node} is not known yet",
                "uncertain",
            )
        self._release(request.uid)
        plan_hold, plan = self._state.hold_of(request.uid), self._state.plan_of(request.uid)
        if plan is not None and plan_hold is not None and plan_hold.node != request.node:
            raise BindFailed(
                f"{_name(request)}: {plan.name}: planned on {plan_hold.node}", "planned"
            )
        pod_request = _pod_request(pod)
        try:
            placement = self._decisions.allocate(pod_request, request.node, request.uid)
        except (NodeRefused, InvalidRequest) as refused:
            message = f"devices on {request.node} were taken meanwhile: {refused}"
            raise BindFailed(message, "taken") from refused
        annotations = pod_annotations(placement, pod.annotations)
        if not annotations:
            return None
        vendor = self._vendor_metadata(request, pod, placement)
        if vendor is not None:
            annotations = {**annotations, **vendor.annotations}
        assigned = AssignedPod(
            key=pod.key,
            node=request.node,
            allocation=tuple(device.as_allocated() for device in placement.devices),
            numa=recorded_numa({**pod.annotations, **emptied_annotations(pod), **annotations}),
            amounts=pod_request.amounts,
            is_assumed=True,
        )
        self._state.set_pod(assigned)
        hold = _PendingBinding(pod=assigned, annotations=annotations, vendor=vendor)
        self._holds[request.uid] = hold
        return hold

    def _is_usable(self, hold: _PendingBinding, pod: SchedulerPod) -> bool:
        """Return whether a binding may be sent with what is held.

        If one was sent before, it has to be the same again. Else a device may be sick by now.
        """
        if hold.sent_s is not None:
            return True
        try:
            self._decisions.allocate(_pod_request(pod), hold.pod.node, pod.key.uid)
        except (NodeRefused, InvalidRequest):
            return False
        return True

    def _vendor_metadata(
        self, request: BindRequest, pod: SchedulerPod, placement: PodPlacement
    ) -> BindingMetadata | None:
        if self._vendor_plugins is None:
            return None
        try:
            return self._vendor_plugins.metadata(pod, request.node, placement.devices)
        except NodeRefused as refused:
            raise BindFailed(f"{_name(request)}: {refused}") from refused

    async def _post(
        self, request: BindRequest, pod: SchedulerPod, hold: _PendingBinding | None
    ) -> None:
        """Send the binding. After an error that is an answer, `sent_s` is what it was before."""
        version = pod.resource_version
        annotations = emptied_annotations(pod)
        if hold is None:
            await self._api.call(binding_request(request, version, annotations))
            return
        if self._vendor_plugins is not None and hold.vendor is not None:
            version = await self._vendor_plugins.prepare(pod, request.node, hold.vendor)
        if self._ledger is not None:
            await self._ledger.mark(request.node)
        before_s, hold.sent_s = hold.sent_s, self._clock.monotonic()
        try:
            await self._api.call(
                binding_request(request, version, {**annotations, **hold.annotations})
            )
        except UNCERTAIN_ERRORS:
            raise
        except ApiError:
            hold.sent_s = before_s
            raise

    async def _read_after(
        self,
        request: BindRequest,
        hold: _PendingBinding | None,
        *,
        pauses_s: tuple[float, ...],
        before: SchedulerPod,
    ) -> SchedulerPod:
        """Return the pod for another attempt with the same devices; raises `BindFailed`."""
        for pause_s in pauses_s:
            await self._sleep(pause_s)
            reading = await self._read(request)
            if not reading.is_known:
                continue
            pod = self._require(request, reading.pod)
            if not pod.node and hold is not None and _signature(pod) != _signature(before):
                raise BindFailed(f"{_name(request)} changed its request for devices", "changed")
            return pod
        raise BindFailed(f"{_name(request)}: whether it is bound is not known", "uncertain")

    def _require(self, request: BindRequest, pod: SchedulerPod | None) -> SchedulerPod:
        if pod is None or (pod.is_terminating and not pod.node):
            self._settle(request, None)
            raise BindFailed(f"pod {_name(request)} is gone", "gone")
        return pod

    async def _read(self, request: BindRequest) -> _PodReading:
        path = PODS.path(request.name, request.namespace)
        try:
            response = await self._api.call(
                ApiRequest(method="GET", path=path, deadline_s=DEADLINE_S)
            )
            pod = decode_scheduler_pod(response.body)
        except NotFound:
            return _PodReading()
        except (ApiError, ParseError):
            return _PodReading(is_known=False)
        return _PodReading(pod if pod.key.uid == request.uid else None)

    def _settle(self, request: BindRequest, pod: SchedulerPod | None) -> None:
        """Update the reservation of a pod to the state of the pod at the server."""
        if pod is not None and not pod.node and not pod.has_ended:
            hold = self._hold_of(request.uid)
            now_s = self._clock.monotonic()
            if hold is None or hold.sent_s is None or now_s - hold.sent_s >= SETTLED_AFTER_S:
                self._release(request.uid)
            return
        self._holds.pop(request.uid, None)
        assigned = None if pod is None else assigned_pod(pod)
        if assigned is None:
            self._state.remove_pod(request.uid)
        else:
            self._state.set_pod(assigned)

    def _finish(self, request: BindRequest) -> None:
        """Store the pod as bound, unless the watch has reported it, or its end, before."""
        hold = self._hold_of(request.uid)
        if hold is not None:
            del self._holds[request.uid]
            self._state.set_pod(msgspec.structs.replace(hold.pod, is_assumed=False))

    def _give_up(self, request: BindRequest) -> None:
        """Release what is held, unless an earlier request may still come into force."""
        hold = self._hold_of(request.uid)
        if hold is None or hold.sent_s is None:
            self._release(request.uid)

    def _release(self, uid: str) -> None:
        """Release what is held for a binding; what a plan holds for the pod stays held."""
        self._holds.pop(uid, None)
        held, plan = self._state.pod(uid), self._state.plan_of(uid)
        if held is None or not held.is_assumed:
            return
        if plan:
            self._state.hold(msgspec.structs.replace(held, is_assumed=False), plan)
        else:
            self._state.remove_pod(uid)


def binding_request(
    request: BindRequest, resource_version: str, annotations: Mapping[str, str]
) -> ApiRequest:
    """Return the request that binds exactly this version of the pod."""
    metadata: dict[str, object] = {"name": request.name, "namespace": request.namespace}
    if request.uid:
        metadata["uid"] = request.uid
    if resource_version:
        metadata["resourceVersion"] = resource_version
    if annotations:
        metadata["annotations"] = dict(annotations)
    target = {"apiVersion": "v1", "kind": "Node", "name": request.node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
    return ApiRequest(
        method="POST",
        path=PODS.path(request.name, request.namespace, "binding"),
        body=msgspec.json.encode(body),
        deadline_s=DEADLINE_S,
    )


def pod_annotations(placement: PodPlacement, annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Return the annotations that a binding writes; empty for a pod without devices and CPUs."""
    return {
        **allocation_metadata(placement.devices).annotations,
        **status_annotations(placement.cpus, placement.amounts),
        **spec_annotations(placement.cpu_request, annotations),
    }


def emptied_annotations(pod: SchedulerPod) -> Mapping[str, str]:
    """Return empty allocations in place of those that a user wrote to a pod that is not bound."""
    return {name: "{}" for name in (ANNOTATION, RESOURCE_STATUS) if name in pod.annotations}


def assigned_pod(pod: SchedulerPod) -> AssignedPod | None:
    """Return the devices and CPUs of a bound pod; `None` if it is not bound or has none.

    Annotations on a pod without a node are not trusted: users can write them. An unreadable one is
    ignored.
    """
    if not pod.node or pod.has_ended:
        return None
    assigned = AssignedPod(
        key=pod.key,
        node=pod.node,
        allocation=_recorded_allocation(pod),
        numa=recorded_numa(pod.annotations),
        amounts=numa_amounts(pod.amounts),
    )
    is_counted = assigned.allocation or assigned.has_record or assigned.amounts
    return assigned if is_counted else None


def allocation_error(pod: SchedulerPod) -> str:
    """Return why the pod's allocation of devices cannot be read; empty if it can, or is absent."""
    try:
        _decode_allocation(pod)
    except ParseError as error:
        return str(error)
    return ""


def _recorded_allocation(pod: SchedulerPod) -> Allocation:
    try:
        return _decode_allocation(pod)
    except ParseError:
        return ()


def _decode_allocation(pod: SchedulerPod) -> Allocation:
    """Return the devices that Koordinator's annotation names, or else HAMi's."""
    text = pod.annotations.get(ANNOTATION)
    return decode_hami_allocation(pod.annotations) if text is None else decode_allocated(text)


def _signature(pod: SchedulerPod) -> bytes:
    return request_signature(_pod_request(pod))


def _pod_request(pod: SchedulerPod) -> PodRequest:
    try:
        return pod_request(pod)
    except InvalidRequest as error:
        raise BindFailed(str(error), "invalid") from error


def _name(request: BindRequest) -> str:
    return f"{request.namespace}/{request.name}"
