"""What the kubelet is told of devices, put together from the decisions of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.deviceplugin.accounts import Accounts
from agent.deviceplugin.allocate import Request, allocate
from agent.deviceplugin.base import Allocated, NotAllocated, Resource
from agent.deviceplugin.hardware import vendor_of
from agent.deviceplugin.occupancy import check
from agent.deviceplugin.preferred import Wish, preferred
from agent.deviceplugin.resources import Offer, Offering, Problems
from agent.deviceplugin.units import Served
from agent.errors import BadConfig
from agent.grants.check import grants_now
from agent.grants.kept import Kept
from agent.grants.remember import Remembered
from plugins.injection.preferred.board import Board, board_of
from plugins.injection.preferred.cards import NotEnough

if TYPE_CHECKING:
    from agent.config.containers import DevicePluginSettings
    from agent.model.snapshot import DeviceView, NodeSnapshot
    from agent.probe.base import DeviceVendor
    from agent.topology.pci import PciTree

UNKNOWN_RESOURCE = "UnknownResource"


class Deciding:
    """Decisions by the settings; `BadConfig` if they are wrong. `vendors` are those loaded.

    What follows from the devices alone is kept while these are the same objects.
    """

    def __init__(self, settings: DevicePluginSettings, vendors: Mapping[str, DeviceVendor]) -> None:
        if absent := sorted(set(settings.vendors) - vendors.keys()):
            raise BadConfig(f"device_plugin.vendors: {absent[0]} is switched off in discovery")
        self._device_plugin = settings
        self._vendors = vendors
        self._offering = Offering(settings)
        self._kept = Kept()
        self._offered: tuple[DeviceView, Offer] | None = None
        self._resources = Remembered(
            lambda now: (now.devices.value,),
            lambda now, _: self._offer(now).resources(check_start=settings.check_occupancy),
        )
        self._listed = Remembered(_of_list, lambda now, _: self._list(now))
        self._grants = Remembered(_of_grants, lambda now, _: grants_now(now, self._kept))
        self._boarded: tuple[DeviceView, PciTree, Board] | None = None

    def resources(self, snapshot: NodeSnapshot) -> tuple[Resource, ...]:
        """Return what is offered now, by name; of vendors that have not answered yet nothing."""
        return self._listed(self._current(snapshot))

    def problems(self, snapshot: NodeSnapshot) -> Problems:
        """Return why something is not offered that the settings ask for, by vendor."""
        return self._offer(snapshot).problems

    def preferred(
        self,
        resource: str,
        available: tuple[str, ...],
        required: tuple[str, ...],
        size: int,
        snapshot: NodeSnapshot,
        *,
        last: bool = False,
    ) -> tuple[str, ...]:
        """Return the best `size` ids of those available, with all required ones."""
        snapshot = self._current(snapshot)
        wish = Wish(available=available, required=required, size=size, last=last)
        packed = self._device_plugin.replicas_policy == "packed"
        offered = self._offer(snapshot).served
        one, board = self._served(resource, snapshot), self._board(snapshot)
        try:
            return preferred(wish, one, offered, snapshot, board, self._kept, packed=packed)
        except NotEnough as error:
            raise NotAllocated("NotEnoughDevices", str(error)) from error

    def allocate(
        self, resource: str, ids: tuple[str, ...], snapshot: NodeSnapshot, *, last: bool = False
    ) -> Allocated:
        """Return what a container with these ids gets; raise `NotAllocated` or `GrantRefused`."""
        snapshot = self._current(snapshot)
        one = self._served(resource, snapshot)
        device_plugin = self._device_plugin
        request = Request(
            ids=ids,
            injection=device_plugin.injection,
            single=device_plugin.fail_requests_greater_than_one,
            last=last,
        )
        offered, edits = self._offer(snapshot).served, self._vendors[one.vendor].edits
        return allocate(request, one, offered, snapshot, edits, self._kept)

    def check_start(self, resource: str, ids: tuple[str, ...], snapshot: NodeSnapshot) -> None:
        """Raise `NotAllocated` if another pod's process is on a whole card of these."""
        if self._device_plugin.check_occupancy:
            check(ids, self._served(resource, snapshot), self._current(snapshot))

    def _current(self, snapshot: NodeSnapshot) -> NodeSnapshot:
        """Return the snapshot with grants as of now, and not as of the last check."""
        view = self._grants(snapshot)
        if view is snapshot.grants.value:
            return snapshot
        return replace(snapshot, grants=replace(snapshot.grants, value=view))

    def _list(self, snapshot: NodeSnapshot) -> tuple[Resource, ...]:
        offer = self._offer(snapshot)
        resources = self._resources(snapshot)
        held = snapshot.served.value.held
        if not snapshot.grants.value.held and not any(one.exchanges for one in held):
            return resources  # both accounts are the same
        return tuple(
            withdraw(resource, Accounts(one, offer.served, snapshot).ids_to_withdraw())
            for resource, one in zip(resources, offer.served.values(), strict=True)
        )

    def _served(self, resource: str, snapshot: NodeSnapshot) -> Served:
        one = self._offer(snapshot).served.get(resource)
        if one is None:
            raise NotAllocated(UNKNOWN_RESOURCE, f"{resource} is not offered by this agent now")
        return one

    def _offer(self, snapshot: NodeSnapshot) -> Offer:
        view = snapshot.devices.value
        if self._offered is None or self._offered[0] is not view:
            self._offered = view, self._offering.offer(view)
        return self._offered[1]

    def _board(self, snapshot: NodeSnapshot) -> Board:
        view, tree = snapshot.devices.value, snapshot.pci.value
        kept = self._boarded
        if kept is None or kept[0] is not view or kept[1] is not tree:
            # of those that pods can have from here: each pair costs something
            vendors = self._device_plugin.vendors
            devices = tuple(one for one in view.devices if vendor_of(one) in vendors)
            kept = self._boarded = view, tree, board_of(replace(view, devices=devices), tree)
        return kept[2]


def withdraw(resource: Resource, ids: frozenset[str]) -> Resource:
    """Return the resource with these ids as unhealthy: the kubelet gives them to no pod."""
    if not ids:
        return resource
    return replace(
        resource,
        devices=tuple(
            replace(one, healthy=False) if one.id in ids else one for one in resource.devices
        ),
        withdrawn_ids=tuple(one.id for one in resource.devices if one.id in ids),
    )


def _of_grants(now: NodeSnapshot) -> tuple[object, ...]:
    """Return what grants are checked by."""
    cluster = now.cluster
    return (
        now.grants.value,
        now.devices.value,
        now.runtime.value,
        now.served.value.held,
        cluster.pods,
        cluster.pods_known,
        cluster.deleted,
    )


def _of_list(now: NodeSnapshot) -> tuple[object, ...]:
    """Return what the lists for the kubelet are made of."""
    cluster = now.cluster
    return (
        now.devices.value,
        now.grants.value,
        now.served.value.held,
        cluster.pods,
        cluster.deleted,
        cluster.kubelet.value,
    )
