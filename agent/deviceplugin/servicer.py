"""The five methods as gRPC calls them: bytes in, bytes out, or a status with a reason.

What one resource answers to the kubelet. All of it comes from the snapshot of that moment.

ListAndWatch: the whole list at once, and again when it says something new, until the end.

When the kubelet is sent a list again. Pure.

What the kubelet asked for and got, counted since the agent's start.
"""

from __future__ import annotations

import asyncio
import logging
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import grpc
import msgspec
from google.protobuf.message import DecodeError
from grpc import aio

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
from agent.snapshot.part import Counts, build_histogram
from proto.gen import deviceplugin_v1beta1_pb2 as pb

if TYPE_CHECKING:
    Context = aio.ServicerContext[bytes, bytes]

log = logging.getLogger(__name__)

SERVICE = "v1beta1.DevicePlugin"

RpcMethod = Callable[[bytes], Awaitable[bytes]]


def build_service(
    answering: ResourceServicer, streams: ListStreams, options: bytes
) -> grpc.GenericRpcHandler:
    """Return the service of one server, which says these options. gRPC is loaded by then."""

    async def tell_options(_: bytes) -> bytes:
        return options

    async def preferred(request: bytes) -> bytes:
        asked = pb.PreferredAllocationRequest.FromString(request)
        return (await answering.preferred(asked)).SerializeToString()

    async def allocate(request: bytes) -> bytes:
        answer = await answering.allocate(pb.AllocateRequest.FromString(request))
        return answer.SerializeToString()

    async def check_start(request: bytes) -> bytes:
        answering.check_start(tuple(pb.PreStartContainerRequest.FromString(request).devices_ids))
        return b""

    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.unary_unary_rpc_method_handler(_with_status(name, answer))
        for name, answer in (
            ("GetDevicePluginOptions", tell_options),
            ("GetPreferredAllocation", preferred),
            ("Allocate", allocate),
            ("PreStartContainer", check_start),
        )
    }
    handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(streams.list_and_watch)
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


def _with_status(name: str, answer: RpcMethod) -> Callable[[bytes, Context], Awaitable[bytes]]:
    """Make of every error a status; a bug fails that one call, and is logged with its trace."""

    async def answered(request: bytes, context: Context) -> bytes:

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

    return answered


INVENTORY_AWAITED = "InventoryAwaited"

NOT_PREPARED = "NotPrepared"

Ids = tuple[str, ...]

T = TypeVar("T")

T_co = TypeVar("T_co", covariant=True)


class SnapshotDecision(Protocol[T_co]):
    """A decision of the device plug-in by the snapshot of the moment."""

    def __call__(self, *, last: bool) -> T_co:
        """Return it; raise `PodNotSeen`, but not at the last try."""
        ...


class ResourceServicer:
    """Belongs to the loop thread. `offer` is what is listed now.

    `live` says whether the offer is of this process, not what an earlier one left.
    """

    def __init__(
        self,
        resource: KubeletResource,
        site: PluginContext,
        bell: ChangeCondition,
        holding: AllocationTable,
        *,
        live: bool,
    ) -> None:
        self.resource = _cut_to_message(resource)
        self.is_live = live
        self.counters = ResourceCounters(resource.name)
        self._uncut_resource = resource
        self._context = site
        self._changes = bell
        self._allocations = holding

    def set_resource(self, resource: KubeletResource, *, live: bool) -> None:
        """List this from now on, or as much of it as the kubelet takes."""
        if resource != self._uncut_resource or live is not self.is_live:
            self._uncut_resource, self.resource, self.is_live = (
                resource,
                _cut_to_message(resource),
                live,
            )
            self._changes.notify_all()

    def clear_resource(self) -> None:
        """Offer nothing any more; what was listed is known to be gone."""
        self.set_resource(msgspec.structs.replace(self.resource, devices=()), live=True)

    @property
    def devices(self) -> tuple[KubeletDevice, ...]:
        """Return the whole list."""
        return self.resource.devices

    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        """Return what the containers get, or raise `NotAllocated` or another bug of ours."""
        began_s = self._context.clock.monotonic()
        result = RESULT_BUG
        try:
            await self._wait_for_inventory()
            answers = [
                await self._allocate_container(tuple(one.devices_ids))
                for one in request.container_requests
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
        """Return the best devices; no advice where there is none to give.

        An error would fail the pod for want of advice. The kubelet often asks before the agent
        has heard of the pod; advice without it would make the kubelet account another device than
        the pod was granted.
        """
        message = pb.PreferredAllocationResponse()
        for one in request.container_requests:
            available, required = tuple(one.available_deviceIDs), tuple(one.must_include_deviceIDs)
            ids, result = await self._select_preferred(available, required, one.allocation_size)
            self.counters.count_preferred(result)
            message.container_responses.add(deviceIDs=ids)
        return message

    def check_start(self, ids: Ids) -> None:
        """Raise `NotAllocated` if a container with these devices must not start.

        A bug in looking keeps no container from starting.
        """
        result = RESULT_BUG
        try:
            self._context.backend.check_start(
                self.resource.name, ids, self._context.current_snapshot()
            )
            result = RESULT_OK
        except (AllocationError, AllocationRefused) as error:
            result = error.reason
            raise AllocationError(error.reason, _error_detail(error)) from error
        except Exception:
            log.exception("start_check_failed", extra={"resource": self.resource.name})
        finally:
            self.counters.count_start_check(result)

    async def _select_preferred(self, available: Ids, required: Ids, size: int) -> tuple[Ids, str]:
        decide, name = self._context.backend, self.resource.name
        if not self.is_live or not 0 < size <= len(available):
            return (), INVENTORY_AWAITED if not self.is_live else "NoSuchSize"

        def decided(*, last: bool) -> Ids:
            now = self._context.current_snapshot()
            return decide.select_preferred(name, available, required, size, now, last=last)

        try:
            return await self._decide_with_retry(decided), RESULT_OK
        except (AllocationError, AllocationRefused) as error:
            return (), error.reason
        except Exception:
            log.exception("advice_failed", extra={"resource": name})
            return (), RESULT_BUG

    async def _wait_for_inventory(self) -> None:
        """Wait until the vendor has answered for the first time: a refused pod is lost for good."""
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
        held = KubeletAllocation(
            pod_uid=answer.pod_uid, resource=self.resource.name, ids=ids, exchanges=answer.exchanges
        )
        if answer.pod_uid or answer.exchanges:  # the next question must find it in its snapshot
            self._allocations.add_answer(held)
        try:
            async with asyncio.timeout(self._context.timing.prepare_s):
                await self._context.prepare(answer.edits)
        except asyncio.CancelledError:  # the kubelet has gone: it will ask again
            self._allocations.remove_answer(held)
            raise
        except (AgentError, TimeoutError) as error:
            self._allocations.remove_answer(held)
            text = (
                str(error)
                or f"not within {self._context.timing.prepare_s:g} s: does the disk hang?"
            )
            raise AllocationError(NOT_PREPARED, text) from error
        for note in answer.edits.notes:
            self._context.messages.put(EventReported(note.reason, note.message))
        return answer

    async def _decide_allocation(self, ids: Ids) -> ContainerAllocation:
        decide, name = self._context.backend, self.resource.name

        def decided(*, last: bool) -> ContainerAllocation:
            return decide.allocate(name, ids, self._context.current_snapshot(), last=last)

        return await self._decide_with_retry(decided)

    async def _decide_with_retry(self, decide: SnapshotDecision[T]) -> T:
        """Return the decision; while it lacks news of a pod, wake their source and try again.

        After `pod_s` the decision is made with what is known, by `decide(last=True)`.
        """
        pace, monotonic = self._context.timing, self._context.clock.monotonic
        until_s = monotonic() + pace.pod_wait_s
        wake_at_s = -math.inf
        while (now_s := monotonic()) < until_s:
            try:
                return decide(last=False)
            except UnknownPodError:
                if now_s >= wake_at_s:
                    self._context.refresh_pods()
                    wake_at_s = now_s + pace.pod_refresh_s
                await asyncio.sleep(pace.pod_retry_s)
        return decide(last=True)


def _cut_to_message(resource: KubeletResource) -> KubeletResource:

    devices = cut_to_message(resource.devices)
    if len(devices) == len(resource.devices):
        return resource
    left = len(resource.devices) - len(devices)
    log.error("device_list_cut", extra={"resource": resource.name, "left_out": left})
    return msgspec.structs.replace(resource, devices=devices)


def _error_detail(error: AllocationError | AllocationRefused) -> str:
    """Return the message without its reason, which stands in front of it already."""
    return str(error).removeprefix(f"{error.reason}: ")


MANY_DEVICES = 500  # devices of a list that is made beside the loop


class ListStreams:
    """The streams of one server. Belongs to the loop thread; rings when one begins or ends."""

    def __init__(
        self, answering: ResourceServicer, site: PluginContext, bell: ChangeCondition
    ) -> None:
        self.open_count = 0
        self.opened_count = 0  # that ever were
        self._servicer = answering
        self._context = site
        self._changes = bell
        self._is_ending = False

    def end_all(self) -> None:
        """Have every stream end in good order, and none begin."""
        self._is_ending = True
        self._changes.notify_all()

    async def list_and_watch(self, request: bytes, context: Context) -> None:
        """Send lists until the end, or until the kubelet has gone, which cancels this."""
        del request  # it is empty
        self.opened_count += 1
        self._change_open_count(1)
        try:
            await self._send(context)
        finally:
            self._change_open_count(-1)

    async def _send(self, context: Context) -> None:
        """Send the newest list that is due; those that a slow reader missed are never sent."""
        sent: tuple[KubeletDevice, ...] | None = None
        sent_s = -math.inf
        monotonic, list_s = self._context.clock.monotonic, self._context.timing.list_interval_s
        while not self._is_ending:
            devices = self._servicer.devices
            wait_s = list_delay_s(sent, sent_s, devices, monotonic(), list_s)
            if wait_s == 0:
                await context.write(await self._encode_list(devices))
                sent, sent_s = devices, monotonic()
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
    sent: tuple[KubeletDevice, ...] | None,
    sent_s: float,
    devices: tuple[KubeletDevice, ...],
    now_s: float,
    list_s: float,
) -> float | None:
    """Return how long a list has to wait; 0: send it now; `None`: it says nothing new.

    The first list goes at once, and so does one in which a device's health turned or a device is
    gone, which nobody must be given any more. The kubelet writes a file for each: all else waits
    until `list_s` after the last.
    """
    if sent is None:
        return 0.0
    if devices is sent or devices == sent:
        return None
    now = {device.id: device.healthy for device in devices}
    if any(now.get(device.id) is not device.healthy for device in sent):
        return 0.0
    return max(0.0, sent_s + list_s - now_s)


RESULT_OK, RESULT_BUG = "ok", "bug"  # of results; the others are the CamelCase reasons of refusals

MAX_RESULTS = 64  # of one kind


class ResourceCounters:
    """Counts of one resource. Belongs to the loop thread."""

    def __init__(self, name: str) -> None:
        self.streams = 0
        self.lists_sent = 0
        self._name = name
        self._allocations: Counter[str] = Counter()
        self._preferred: Counter[str] = Counter()
        self._starts: Counter[str] = Counter()
        self._registrations: Counter[str] = Counter()
        self._buckets = [0] * (len(ALLOCATION_BUCKETS_S) + 1)
        self._sum_s = 0.0

    def count_allocation(self, result: str, took_s: float) -> None:
        """Count an answer to `Allocate`."""
        _count_result(self._allocations, result)
        self._buckets[bisect_left(ALLOCATION_BUCKETS_S, took_s)] += 1
        self._sum_s += took_s

    def count_preferred(self, result: str) -> None:
        """Count an answer to `GetPreferredAllocation`."""
        _count_result(self._preferred, result)

    def count_start_check(self, result: str) -> None:
        """Count an answer to `PreStartContainer`."""
        _count_result(self._starts, result)

    def count_registration(self, result: str) -> None:
        """Count an answer to our registration."""
        _count_result(self._registrations, result)

    @property
    def registrations(self) -> int:
        """Return how many registrations were answered well."""
        return self._registrations[RESULT_OK]

    def statistics(self) -> ResourceStatistics:
        """Return the present values of all counters."""
        return ResourceStatistics(
            name=self._name,
            allocations=_sorted_counts(self._allocations),
            latency=build_histogram(ALLOCATION_BUCKETS_S, self._buckets, self._sum_s),
            preferred=_sorted_counts(self._preferred),
            starts=_sorted_counts(self._starts),
            registrations=_sorted_counts(self._registrations),
            streams=self.streams,
            lists_sent=self.lists_sent,
        )


def _count_result(counter: Counter[str], result: str) -> None:
    """Count; reasons are a closed list, but who adds to it must not make a metric grow for ever."""
    counter[result if result in counter or len(counter) < MAX_RESULTS else "Other"] += 1


def _sorted_counts(counter: Counter[str]) -> Counts:
    return tuple(sorted(counter.items()))
