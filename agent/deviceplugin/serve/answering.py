"""What one resource answers to the kubelet. All of it comes from the snapshot of that moment."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from agent.deviceplugin.base import Allocated, Listed, NotAllocated, PodNotSeen, Resource
from agent.deviceplugin.serve.bell import Bell
from agent.deviceplugin.serve.figures import BUG, OK, ResourceCounts
from agent.deviceplugin.serve.holding import Holding
from agent.deviceplugin.serve.site import Site
from agent.errors import AgentError
from agent.model.grant.refusal import GrantRefused
from agent.model.runtime.served import Held

if TYPE_CHECKING:
    from proto.gen import deviceplugin_v1beta1_pb2 as pb

log = logging.getLogger(__name__)

NOT_READY = "InventoryAwaited"
NOT_PREPARED = "NotPrepared"

Ids = tuple[str, ...]
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Decision(Protocol[T_co]):
    """A decision of the device plug-in by the snapshot of the moment."""

    def __call__(self, *, last: bool) -> T_co:
        """Return it; raise `PodNotSeen`, but not at the last try."""
        ...


class Answering:
    """Belongs to the loop thread. `offer` is what is listed now.

    `live` says whether the offer is of this process, not what an earlier one left.
    """

    def __init__(
        self, resource: Resource, site: Site, bell: Bell, holding: Holding, *, live: bool
    ) -> None:
        self.offer = _fitting(resource)
        self.live = live
        self.counts = ResourceCounts(resource.name)
        self._given = resource
        self._site = site
        self._bell = bell
        self._holding = holding

    def put(self, resource: Resource, *, live: bool) -> None:
        """List this from now on, or as much of it as the kubelet takes."""
        if resource != self._given or live is not self.live:
            self._given, self.offer, self.live = resource, _fitting(resource), live
            self._bell.ring()

    def put_out(self) -> None:
        """Offer nothing any more; what was listed is known to be gone."""
        self.put(msgspec.structs.replace(self.offer, devices=()), live=True)

    @property
    def devices(self) -> tuple[Listed, ...]:
        """Return the whole list."""
        return self.offer.devices

    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        """Return what the containers get, or raise `NotAllocated` or another bug of ours."""
        from agent.deviceplugin.serve.messages import allocated_message  # noqa: PLC0415 - protobuf

        began_s = self._site.clock.monotonic()
        result = BUG
        try:
            await self._inventory()
            answers = [
                await self._one(tuple(one.devices_ids)) for one in request.container_requests
            ]
            result = OK
            return allocated_message(answers)
        except (NotAllocated, GrantRefused) as error:
            result = error.reason
            raise NotAllocated(error.reason, _detail(error)) from error
        finally:
            self.counts.allocated(result, self._site.clock.monotonic() - began_s)

    async def preferred(
        self, request: pb.PreferredAllocationRequest
    ) -> pb.PreferredAllocationResponse:
        """Return the best devices; no advice where there is none to give.

        An error would fail the pod for want of advice. The kubelet often asks before the agent
        has heard of the pod; advice without it would make the kubelet account another device than
        the pod was granted.
        """
        from proto.gen import deviceplugin_v1beta1_pb2 as pb  # noqa: PLC0415 - protobuf

        message = pb.PreferredAllocationResponse()
        for one in request.container_requests:
            available, required = tuple(one.available_deviceIDs), tuple(one.must_include_deviceIDs)
            ids, result = await self._advice(available, required, one.allocation_size)
            self.counts.advised(result)
            message.container_responses.add(deviceIDs=ids)
        return message

    def check_start(self, ids: Ids) -> None:
        """Raise `NotAllocated` if a container with these devices must not start.

        A bug in looking keeps no container from starting.
        """
        result = BUG
        try:
            self._site.decide.check_start(self.offer.name, ids, self._site.current())
            result = OK
        except (NotAllocated, GrantRefused) as error:
            result = error.reason
            raise NotAllocated(error.reason, _detail(error)) from error
        except Exception:
            log.exception("start_check_failed", extra={"resource": self.offer.name})
        finally:
            self.counts.checked(result)

    async def _advice(self, available: Ids, required: Ids, size: int) -> tuple[Ids, str]:
        decide, name = self._site.decide, self.offer.name
        if not self.live or not 0 < size <= len(available):
            return (), NOT_READY if not self.live else "NoSuchSize"

        def decided(*, last: bool) -> Ids:
            now = self._site.current()
            return decide.preferred(name, available, required, size, now, last=last)

        try:
            return await self._with_news(decided), OK
        except (NotAllocated, GrantRefused) as error:
            return (), error.reason
        except Exception:
            log.exception("advice_failed", extra={"resource": name})
            return (), BUG

    async def _inventory(self) -> None:
        """Wait until the vendor has answered for the first time: a refused pod is lost for good."""
        if self.live:
            return
        limit_s = self._site.pace.inventory_s
        if not await self._bell.until(lambda: self.live, limit_s):
            vendor = self.offer.vendor
            raise NotAllocated(NOT_READY, f"{vendor} has not answered within {limit_s:g} s")

    async def _one(self, ids: Ids) -> Allocated:
        answer = await self._decided(ids)
        held = Held(
            pod_uid=answer.pod_uid, resource=self.offer.name, ids=ids, exchanges=answer.exchanges
        )
        if answer.pod_uid or answer.exchanges:  # the next question must find it in its snapshot
            self._holding.answered(held)
        try:
            async with asyncio.timeout(self._site.pace.prepare_s):
                await self._site.prepare(answer.edits)
        except asyncio.CancelledError:  # the kubelet has gone: it will ask again
            self._holding.withdrawn(held)
            raise
        except (AgentError, TimeoutError) as error:
            self._holding.withdrawn(held)
            text = str(error) or f"not within {self._site.pace.prepare_s:g} s: does the disk hang?"
            raise NotAllocated(NOT_PREPARED, text) from error
        for note in answer.edits.notes:
            self._site.tell(note.reason, note.message)
        return answer

    async def _decided(self, ids: Ids) -> Allocated:
        decide, name = self._site.decide, self.offer.name

        def decided(*, last: bool) -> Allocated:
            return decide.allocate(name, ids, self._site.current(), last=last)

        return await self._with_news(decided)

    async def _with_news(self, decide: Decision[T]) -> T:
        """Return the decision; while it lacks news of a pod, wake their source and try again.

        After `pod_s` the decision is made with what is known, by `decide(last=True)`.
        """
        pace, monotonic = self._site.pace, self._site.clock.monotonic
        until_s = monotonic() + pace.pod_s
        wake_at_s = -math.inf
        while (now_s := monotonic()) < until_s:
            try:
                return decide(last=False)
            except PodNotSeen:
                if now_s >= wake_at_s:
                    self._site.wake()
                    wake_at_s = now_s + pace.wake_s
                await asyncio.sleep(pace.pod_look_s)
        return decide(last=True)


def _fitting(resource: Resource) -> Resource:
    from agent.deviceplugin.serve.messages import fitting  # noqa: PLC0415 - protobuf

    devices = fitting(resource.devices)
    if len(devices) == len(resource.devices):
        return resource
    left = len(resource.devices) - len(devices)
    log.error("device_list_cut", extra={"resource": resource.name, "left_out": left})
    return msgspec.structs.replace(resource, devices=devices)


def _detail(error: NotAllocated | GrantRefused) -> str:
    """Return the message without its reason, which stands in front of it already."""
    return str(error).removeprefix(f"{error.reason}: ")
