"""All vendors of this node: their workers kept going, their answers joined into one device view."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from agent.clock import Clock
from agent.config.sections import Settings
from agent.model.device import Health
from agent.model.inventory import DeviceEvent, Inventory
from agent.model.snapshot import NodeSnapshot, VendorState
from agent.node.crew import Enlisted
from agent.node.store import SnapshotStore
from agent.probe.client import Timing, VendorClient

log = logging.getLogger(__name__)


def with_vendor(snapshot: NodeSnapshot, state: VendorState) -> NodeSnapshot:
    """Return the snapshot with one vendor's state replaced; vendors stay in order of name."""
    others = [vendor for vendor in snapshot.vendors if vendor.vendor != state.vendor]
    vendors = tuple(sorted([*others, state], key=lambda vendor: vendor.vendor))
    return msgspec.structs.replace(snapshot, vendors=vendors)


def with_events(inventory: Inventory, events: Iterable[DeviceEvent], wall_s: float) -> Inventory:
    """Return the inventory with the health that events tell; an event with no key is for all."""
    devices = list(inventory.devices)
    for event in events:
        if event.state is None:
            continue
        for index, device in enumerate(devices):
            if event.key in ("", device.key) and device.health.state is not event.state:
                health = Health(
                    state=event.state, reason=event.reason, message=event.message, since_s=wall_s
                )
                devices[index] = msgspec.structs.replace(device, health=health)
    return msgspec.structs.replace(inventory, devices=tuple(devices))


class Fleet:
    """Starts one client for each vendor that has something here. Lives in the loop thread."""

    def __init__(
        self,
        crew: Iterable[Enlisted],
        settings: Settings,
        store: SnapshotStore,
        clock: Clock,
        on_devices: Callable[[], None],
    ) -> None:
        """`on_devices` is called when an inventory changed; it must be quick."""
        self._store = store
        self._clock = clock
        self._on_devices = on_devices
        discovery = settings.discovery
        timing = Timing(
            discover_every_s=discovery.interval_s,
            sample_every_s=settings.collect.device_interval_s,
            discover_deadline_s=discovery.discover_deadline_s,
            sample_deadline_s=discovery.sample_deadline_s,
        )
        self.clients: list[VendorClient] = []
        for enlisted in crew:
            client = VendorClient(
                enlisted.spec,
                enlisted.sighted,
                on_state=self._heard_state,
                on_events=self._heard_events,
                timing=timing,
                clock=clock,
            )
            if enlisted.launched is not None:
                client.adopt(enlisted.launched)
            self.clients.append(client)
        self._tasks: list[asyncio.Task[None]] = []
        self._told: dict[str, tuple[Inventory, Inventory]] = {}  # as answered, with its events

    def start(self) -> None:
        """Start all workers; their first answers come later."""
        for client in self.clients:
            self._heard_state(client.state)
            self._tasks.append(asyncio.create_task(client.run(), name="vendor"))

    async def stop(self) -> None:
        """End all workers; takes two seconds at most."""
        await asyncio.gather(*(client.stop() for client in self.clients))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def rediscover(self) -> None:
        """Ask every vendor for its devices now."""
        for client in self.clients:
            client.rediscover()

    def settled(self) -> bool:
        """Say whether every vendor has answered, or failed to in its time."""
        return all(vendor.state != "starting" for vendor in self._store.current.vendors)

    def _heard_state(self, state: VendorState) -> None:
        state = self._with_told(state)
        before = {vendor.vendor: vendor for vendor in self._store.current.vendors}
        old = before.get(state.vendor)
        self._store.change(lambda snapshot: with_vendor(snapshot, state))
        changed = old is None or old.inventory.value is not state.inventory.value
        if changed or (old is not None and old.state != state.state):
            self._on_devices()

    def _with_told(self, state: VendorState) -> VendorState:
        """Put back what events told of this very answer: a sample repeats it without them."""
        answered, told = self._told.get(state.vendor, (None, None))
        if told is None or state.inventory.value is not answered:
            self._told.pop(state.vendor, None)
            return state
        part = msgspec.structs.replace(state.inventory, value=told)
        return msgspec.structs.replace(state, inventory=part)

    def _heard_events(self, vendor: str, events: tuple[DeviceEvent, ...]) -> None:
        for event in events:
            fields = {"vendor": vendor, "device": event.key, "reason": event.reason}
            log.warning("device_event", extra=fields)
        client = next(client for client in self.clients if client.state.vendor == vendor)
        answered = client.state.inventory.value
        if answered is not None:
            _, known = self._told.get(vendor, (None, answered))
            told = with_events(known, events, self._clock.wall())
            self._told[vendor] = (answered, told)
            self._heard_state(client.state)
        client.rediscover()  # the library knows more than the event told
