"""Answers the kubelet's calls for one resource by the current snapshot.

`build_service` converts the five methods between bytes and messages, and errors to statuses.
`ListStreams` sends the list in ListAndWatch at once and again after each change. `ResourceCounters`
counts requests and answers since the agent's start.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import grpc
import msgspec
from google.protobuf.message import DecodeError
from grpc import aio

from agent.containers.folders import make_folders
from agent.deviceplugin.allocations import AllocationTable
from agent.deviceplugin.context import ChangeCondition, PluginContext
from agent.deviceplugin.messages import build_allocate_response, cut_to_message, encode_list
from agent.deviceplugin.resources import (
    AllocationError,
    ContainerAllocation,
    KubeletDevice,
    KubeletResource,
    UnknownPodError,
)
from agent.errors import AgentError
from agent.loop import run_in_thread
from agent.messages import EventReported
from agent.snapshot.allocation import AllocationRefused
from agent.snapshot.device_plugin import ALLOCATION_BUCKETS_S, KubeletAllocation, ResourceStatistics
from agent.snapshot.part import Counts, HistogramCounter
from proto.gen import deviceplugin_v1beta1_pb2 as pb

if TYPE_CHECKING:
    Context = aio.ServicerContext[bytes, bytes]

log = logging.getLogger(__name__)

SERVICE = "v1beta1.DevicePlugin"

RpcMethod = Callable[[bytes], Awaitable[bytes]]


def build_service(
    servicer: ResourceServicer, streams: ListStreams, options: bytes
) -> grpc.GenericRpcHandler:
    """Return the gRPC service of one server with these options. gRPC is loaded by then."""

    async def options_message(_: bytes) -> bytes:
        return options

    async def preferred(request: bytes) -> bytes:
        message = pb.PreferredAllocationRequest.FromString(request)
        return (await servicer.preferred(message)).SerializeToString()

    async def allocate(request: bytes) -> bytes:
        answer = await servicer.allocate(pb.AllocateRequest.FromString(request))
        return answer.SerializeToString()

    async def check_start(request: bytes) -> bytes:
        servicer.check_start(tuple(pb.PreStartContainerRequest.FromString(request).devices_ids))
        return b""

    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.unary_unary_rpc_method_handler(_with_status(name, answer))
        for name, answer in (
            ("GetDevicePluginOptions", options_message),
            ("GetPreferredAllocation", preferred),
            ("Allocate", allocate),
            ("PreStartContainer", check_start),
        )
    }
    handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(streams.list_and_watch)
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


def _with_status(name: str, answer: RpcMethod) -> Callable[[bytes, Context], Awaitable[bytes]]:
    """Turn every error into a status; a bug fails that one call and is logged with its trace."""

    async def call(request: bytes, context: Context) -> bytes:
        try:
            return await answer(request)
        except AllocationError as error:
            code, text = grpc.StatusCode.FAILED_PRECONDITION, str(error)
        except DecodeError:
            code, text = grpc.StatusCode.INVALID_ARGUMENT, "not a message of v1beta1"
        except Exception:
            log.exception("device_plugin_failed", extra={"method": name})
            code, text = grpc.StatusCode.INTERNAL, "a bug of xpu-agent; its log has the trace"
        return await context.abort(code, text)

    return call


INVENTORY_AWAITED = "InventoryAwaited"

NOT_PREPARED = "NotPrepared"

Ids = tuple[str, ...]

T = TypeVar("T")

T_co = TypeVar("T_co", covariant=True)


class SnapshotDecision(Protocol[T_co]):
    """A decision of the device plug-in by the current snapshot."""

    def __call__(self, *, last: bool) -> T_co:
        """Return the decision; raise `UnknownPodError`, but not at the last try."""
        ...


class ResourceServicer:
    """Answers for one resource. Belongs to the loop thread. `resource` is what is listed now.

    `is_live` says whether it comes from this process, not from the cache of an earlier one.
    """

    def __init__(
        self,
        resource: KubeletResource,
        context: PluginContext,
        changes: ChangeCondition,
        allocations: AllocationTable,
        *,
        live: bool,
    ) -> None:
        self.resource = _cut_to_message(resource)
        self.is_live = live
        self.counters = ResourceCounters(resource.name)
        self._uncut_resource = resource
        self._context = context
        self._changes = changes
        self._allocations = allocations

    def set_resource(self, resource: KubeletResource, *, live: bool) -> None:
        """List this resource from now on, cut to what the kubelet accepts."""
        if resource != self._uncut_resource or live is not self.is_live:
            self._uncut_resource, self.resource, self.is_live = (
                resource,
                _cut_to_message(resource),
                live,
            )
            self._changes.notify_all()

    def clear_resource(self) -> None:
        """List no devices from now on: those listed before do not exist any more."""
        self.set_resource(msgspec.structs.replace(self.resource, devices=()), live=True)

    @property
    def devices(self) -> tuple[KubeletDevice, ...]:
        """Return all devices of the list."""
        return self.resource.devices

    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        """Return what the containers get, or raise `AllocationError`; other errors are bugs."""
        began_s = self._context.clock.monotonic()
        result = RESULT_BUG
        try:
            await self._wait_for_inventory()
            answers = [
                await self._allocate_container(tuple(container_request.devices_ids))
                for container_request in request.container_requests
            ]
            result = RESULT_OK
            return build_allocate_response(answers)
        except (AllocationError, AllocationRefused) as error:
            result = error.reason
            raise AllocationError(error.reason, _error_detail(error)) from error
        finally:
            self.counters.count_allocation(result, self._context.clock.monotonic() - began_s)

    async def preferred(
        self, request: pb.PreferredAllocationRequest
    ) -> pb.PreferredAllocationResponse:
        """Return the preferred devices; an empty answer where there is no preference.

        An error would fail the pod. The kubelet often asks before the agent knows the pod; a
        preference without the pod would make the kubelet account another device than the allocated
        one.
        """
        message = pb.PreferredAllocationResponse()
        for container_request in request.container_requests:
            available, required = (
                tuple(container_request.available_deviceIDs),
                tuple(container_request.must_include_deviceIDs),
            )
            ids, result = await self._select_preferred(
                available, required, container_request.allocation_size
            )
            self.counters.count_preferred(result)
            message.container_responses.add(deviceIDs=ids)
        return message

    def check_start(self, ids: Ids) -> None:
        """Raise `AllocationError` if a container with these devices must not start.

        A bug in the check does not prevent the start.
        """
        result = RESULT_BUG
        try:
            self._context.backend.check_start(self.resource.name, ids, self._context.store.current)
            result = RESULT_OK
        except (AllocationError, AllocationRefused) as error:
            result = error.reason
            raise AllocationError(error.reason, _error_detail(error)) from error
        except Exception:
            log.exception("start_check_failed", extra={"resource": self.resource.name})
        finally:
            self.counters.count_start_check(result)

    async def _select_preferred(self, available: Ids, required: Ids, size: int) -> tuple[Ids, str]:
        backend, name = self._context.backend, self.resource.name
        if not self.is_live or not 0 < size <= len(available):
            return (), INVENTORY_AWAITED if not self.is_live else "NoSuchSize"

        def decide(*, last: bool) -> Ids:
            now = self._context.store.current
            return backend.select_preferred(name, available, required, size, now, last=last)

        try:
            return await self._decide_with_retry(decide), RESULT_OK
        except (AllocationError, AllocationRefused) as error:
            return (), error.reason
        except Exception:
            log.exception("advice_failed", extra={"resource": name})
            return (), RESULT_BUG

    async def _wait_for_inventory(self) -> None:
        """Wait for the vendor's first answer: the kubelet never retries a refused pod."""
        if self.is_live:
            return
        limit_s = self._context.timing.inventory_wait_s
        if not await self._changes.wait_for(lambda: self.is_live, limit_s):
            vendor = self.resource.vendor
            raise AllocationError(
                INVENTORY_AWAITED, f"{vendor} has not answered within {limit_s:g} s"
            )

    async def _allocate_container(self, ids: Ids) -> ContainerAllocation:
        answer = await self._decide_allocation(ids)
        allocation = KubeletAllocation(
            pod_uid=answer.pod_uid, resource=self.resource.name, ids=ids, exchanges=answer.exchanges
        )
        if answer.pod_uid or answer.exchanges:  # the next request must find it in its snapshot
            self._allocations.add_answer(allocation)
        try:
            async with asyncio.timeout(self._context.timing.prepare_s):
                if answer.edits.folders:
                    await run_in_thread(lambda: make_folders(answer.edits.folders))
        except asyncio.CancelledError:  # the kubelet has ended the call, and will repeat it
            self._allocations.remove_answer(allocation)
            raise
        except (AgentError, TimeoutError) as error:
            self._allocations.remove_answer(allocation)
            text = (
                str(error)
                or f"not within {self._context.timing.prepare_s:g} s: does the disk hang?"
            )
            raise AllocationError(NOT_PREPARED, text) from error
        for note in answer.edits.notes:
            self._context.messages.put(EventReported(note.reason, note.message))
        return answer

    async def _decide_allocation(self, ids: Ids) -> ContainerAllocation:
        backend, name = self._context.backend, self.resource.name

        def decide(*, last: bool) -> ContainerAllocation:
            return backend.allocate(name, ids, self._context.store.current, last=last)

        return await self._decide_with_retry(decide)

    async def _decide_with_retry(self, decide: SnapshotDecision[T]) -> T:
        """Return the decision; while the pod is unknown, request a fresh list of pods and retry.

        After `pod_wait_s` the decision is made with the pods known by then, by `decide(last=True)`.
        """
        timing, monotonic = self._context.timing, self._context.clock.monotonic
        until_s = monotonic() + timing.pod_wait_s
        wake_at_s = -math.inf
        while (now_s := monotonic()) < until_s:
            try:
                return decide(last=False)
            except UnknownPodError:
                if now_s >= wake_at_s:
                    self._context.pods_wanted.set()
                    wake_at_s = now_s + timing.pod_refresh_s
                await asyncio.sleep(timing.pod_retry_s)
        return decide(last=True)


def _cut_to_message(resource: KubeletResource) -> KubeletResource:
    devices = cut_to_message(resource.devices)
    if len(devices) == len(resource.devices):
        return resource
    dropped_count = len(resource.devices) - len(devices)
    log.error("device_list_cut", extra={"resource": resource.name, "left_out": dropped_count})
    return msgspec.structs.replace(resource, devices=devices)


def _error_detail(error: AllocationError | AllocationRefused) -> str:
    """Return the message without the reason in front of it."""
    return str(error).removeprefix(f"{error.reason}: ")


MANY_DEVICES = 500  # a longer list is encoded on another thread


class ListStreams:
    """The streams of one server. Belongs to the loop thread; notifies when one begins or ends."""

    def __init__(
        self, servicer: ResourceServicer, context: PluginContext, changes: ChangeCondition
    ) -> None:
        self.open_count = 0
        self.opened_count = 0  # number of streams ever opened
        self._servicer = servicer
        self._context = context
        self._changes = changes
        self._is_ending = False

    def end_all(self) -> None:
        """End every stream in order, and let none begin."""
        self._is_ending = True
        self._changes.notify_all()

    async def list_and_watch(self, request: bytes, context: Context) -> None:
        """Send lists until the server stops, or the kubelet ends the call, which cancels this."""
        del request  # it is empty
        self.opened_count += 1
        self._change_open_count(1)
        try:
            await self._send(context)
        finally:
            self._change_open_count(-1)

    async def _send(self, context: Context) -> None:
        """Send the newest list that is due; lists that a slow reader missed are never sent."""
        last_list: tuple[KubeletDevice, ...] | None = None
        sent_s = -math.inf
        monotonic, list_s = self._context.clock.monotonic, self._context.timing.list_interval_s
        while not self._is_ending:
            devices = self._servicer.devices
            wait_s = list_delay_s(last_list, sent_s, devices, monotonic(), list_s)
            if wait_s == 0:
                await context.write(await self._encode_list(devices))
                last_list, sent_s = devices, monotonic()
                self._servicer.counters.lists_sent += 1
                self._changes.notify_all()
                continue
            await self._changes.wait_for(partial(self._is_list_changed, devices), wait_s)

    def _is_list_changed(self, devices: tuple[KubeletDevice, ...]) -> bool:
        return self._is_ending or self._servicer.devices is not devices

    async def _encode_list(self, devices: tuple[KubeletDevice, ...]) -> bytes:
        if len(devices) <= MANY_DEVICES:
            return encode_list(devices)
        return await run_in_thread(lambda: encode_list(devices))

    def _change_open_count(self, more: int) -> None:
        self.open_count += more
        self._servicer.counters.streams += more
        self._changes.notify_all()


def list_delay_s(
    last_list: tuple[KubeletDevice, ...] | None,
    sent_s: float,
    devices: tuple[KubeletDevice, ...],
    now_s: float,
    list_s: float,
) -> float | None:
    """Return how long a list has to wait; 0: send it now; `None`: it is unchanged.

    The first list is sent at once, and so is a change of health or a removed device, which no pod
    must get any more. The kubelet writes a file for each list: other changes wait until `list_s`
    after the last one.
    """
    if last_list is None:
        return 0.0
    if devices is last_list or devices == last_list:
        return None
    now = {device.id: device.healthy for device in devices}
    if any(now.get(device.id) is not device.healthy for device in last_list):
        return 0.0
    return max(0.0, sent_s + list_s - now_s)


RESULT_OK, RESULT_BUG = "ok", "bug"  # other results are the CamelCase reasons of refusals

MAX_RESULTS = 64  # of one counter


class ResourceCounters:
    """Counters of one resource. Belongs to the loop thread."""

    def __init__(self, name: str) -> None:
        self.streams = 0
        self.lists_sent = 0
        self._name = name
        self._allocations: Counter[str] = Counter()
        self._preferred: Counter[str] = Counter()
        self._starts: Counter[str] = Counter()
        self._registrations: Counter[str] = Counter()
        self._latency = HistogramCounter(ALLOCATION_BUCKETS_S)

    def count_allocation(self, result: str, duration_s: float) -> None:
        """Count an answer to `Allocate`."""
        _count_result(self._allocations, result)
        self._latency.add(duration_s)

    def count_preferred(self, result: str) -> None:
        """Count an answer to `GetPreferredAllocation`."""
        _count_result(self._preferred, result)

    def count_start_check(self, result: str) -> None:
        """Count an answer to `PreStartContainer`."""
        _count_result(self._starts, result)

    def count_registration(self, result: str) -> None:
        """Count an answer of the kubelet to the registration."""
        _count_result(self._registrations, result)

    @property
    def registrations(self) -> int:
        """Return the number of successful registrations."""
        return self._registrations[RESULT_OK]

    def statistics(self) -> ResourceStatistics:
        """Return the current values of all counters."""
        return ResourceStatistics(
            name=self._name,
            allocations=_sorted_counts(self._allocations),
            latency=self._latency.histogram,
            preferred=_sorted_counts(self._preferred),
            starts=_sorted_counts(self._starts),
            registrations=_sorted_counts(self._registrations),
            streams=self.streams,
            lists_sent=self.lists_sent,
        )


def _count_result(counter: Counter[str], result: str) -> None:
    """Count a result; a limit keeps the metric small if reasons are added without bound."""
    counter[result if result in counter or len(counter) < MAX_RESULTS else "Other"] += 1


def _sorted_counts(counter: Counter[str]) -> Counts:
    return tuple(sorted(counter.items()))
