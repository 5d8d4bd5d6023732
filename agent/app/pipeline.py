"""From a message of a worker, the kernel or the cluster to the objects that show the devices."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from concurrent.futures import Executor

from agent.app.events import EventRecorder
from agent.app.publishing import PublisherRunner
from agent.app.threads import DEVICES_RETRY_S, run_when_changed
from agent.clock import Clock
from agent.config.health import HealthSettings
from agent.devices.health import TimePoint
from agent.devices.health_file import HealthFile
from agent.devices.joiner import DeviceJoiner
from agent.devices.presence import GONE_MESSAGE, GONE_REASON, add_removed
from agent.devices.vendor_health import VendorHealth
from agent.loop import Loop, call_or_log
from agent.messages import (
    ClusterFactsChanged,
    DeviceMessage,
    DevicesReported,
    DevicesUnplaced,
    FunctionRemoved,
    HostRead,
    MessageQueue,
    MinorsRead,
    VendorStateChanged,
)
from agent.snapshot.device import HealthState, VendorDevice, pci_address_of
from agent.snapshot.inventory import DeviceEvent
from agent.snapshot.node import SnapshotStore, VendorState
from agent.snapshot.self_check import SelfCheck
from agent.workers.manager import VendorManager, replace_vendor

log = logging.getLogger(__name__)

HEALTH_INTERVAL_S = 1.0  # how often time alone may change a device's health


class HealthUpdater:
    """Puts the vendors' states with the health of their devices into the snapshot.

    Belongs to the loop thread. Takes less than a millisecond a message.
    """

    def __init__(
        self,
        settings: HealthSettings,
        store: SnapshotStore,
        clock: Clock,
        vendors: VendorManager,
        health_file: HealthFile,
    ) -> None:
        """Read the tracks of the last run from `health_file`."""
        self._settings = settings
        self._store = store
        self._clock = clock
        self._vendors = vendors
        self._health_file = health_file
        self._states: dict[str, VendorState] = {}  # by vendor, as its client sent them
        self._health: dict[str, VendorHealth] = {}
        # of vendors that are not here yet
        self._saved_tracks = dict(health_file.load(self._now()))

    def update_state(self, state: VendorState) -> bool:
        """Take a client's state; return whether the inventory or the worker's state changed."""
        vendor, now = state.vendor, self._now()
        if vendor not in self._health:
            tracks = self._saved_tracks.pop(vendor, None)
            overrides = self._vendors.health_overrides(vendor)
            self._health[vendor] = VendorHealth(
                vendor, self._settings, state.inventory.value, tracks, overrides
            )
        self._states[vendor] = state
        judged = self._health[vendor].update(state, now)
        old = next((one for one in self._store.current.vendors if one.vendor == vendor), None)
        self._store.change(lambda snapshot: replace_vendor(snapshot, judged))
        is_same = old is not None and old.inventory.value is judged.inventory.value
        if old is not None and is_same and old.state == judged.state:
            return False
        self._save(now)
        return True

    def record_events(self, vendor: str, events: tuple[DeviceEvent, ...]) -> bool:
        """Take events of a vendor's devices; return whether the snapshot's devices changed."""
        for event in events:
            fields = {"vendor": vendor, "device": event.key, "reason": event.reason}
            if event.message:
                fields["detail"] = event.message
            log.warning("device_event", extra=fields)
        is_changed = self._health[vendor].record_events(events, self._now())
        is_changed = is_changed and self.update_state(self._states[vendor])
        self._vendors.rediscover(vendor)  # the library knows more than the event says
        return is_changed

    def is_settled(self) -> bool:
        """Return whether every vendor has answered, or failed to answer in its time."""
        return all(state.state != "starting" for state in self._states.values())

    def clear_flapping(self, vendor: str, key: str) -> tuple[bool, bool]:
        """Return whether the device was held for its flapping, and whether devices changed."""
        is_held = self._health[vendor].clear_flapping(key)
        return is_held, is_held and self.update_state(self._states[vendor])

    def remove_function(self, address: str) -> bool:
        """Fail the devices of a function that the kernel removed; return whether there are any."""
        is_changed = False
        for state in self._store.current.vendors:
            inventory = state.inventory.value
            devices = () if inventory is None else inventory.devices
            removed = [device for device in devices if pci_address_of(device) == address]
            for device in removed:
                if device.managed:
                    self._record_removal(state.vendor, device)
            if removed:
                self.record_events(state.vendor, tuple(_removal_event(one) for one in removed))
                is_changed = True
        return is_changed

    def tick(self) -> bool:
        """Apply the time that has passed to silent vendors and suspect devices.

        Return whether devices changed.
        """
        now, is_changed = self._now(), False
        for vendor, health in self._health.items():
            if health.tick(now):
                is_changed = self.update_state(self._states[vendor]) or is_changed
            if health.needs_check(now):
                self._vendors.rediscover(vendor)
        self._save(now)
        return is_changed

    def _record_removal(self, vendor: str, device: VendorDevice) -> None:
        now, removed = self._now(), self._store.current.removed_devices
        removed = add_removed(removed, vendor, device, now.mono_s, now.wall_s)
        self._store.put(removed_devices=removed)

    def _save(self, now: TimePoint) -> None:
        present = {vendor: health.tracks for vendor, health in self._health.items()}
        self._health_file.save({**self._saved_tracks, **present}, now)

    def _now(self) -> TimePoint:
        return TimePoint(self._clock.monotonic(), self._clock.wall())


class DevicePipeline:
    """Applies messages on the loop thread and publishes on the devices thread.

    `apply` and `tick` take less than a millisecond. `refresh` joins the devices with their places,
    swaps the snapshot, renders the objects and hands them and the events to their sinks.
    """

    def __init__(
        self,
        health: HealthUpdater,
        messages: MessageQueue,
        executor: Executor,
        store: SnapshotStore,
        clock: Clock,
        joiner: DeviceJoiner,
        publishers: Iterable[PublisherRunner],
        events: EventRecorder,
    ) -> None:
        """`executor` is the devices thread."""
        self._health = health
        self._messages = messages
        self._executor = executor
        self._store = store
        self._clock = clock
        self._joiner = joiner
        self._places_wanted = asyncio.Event()
        self._refresh_wanted = asyncio.Event()
        self._first_loop = Loop("devices", DEVICES_RETRY_S, self.publish)
        self.publisher_runners = tuple(publishers)
        self.events = events
        self.devices_loop = Loop("devices", DEVICES_RETRY_S, self.refresh)
        self.health_loop = Loop("health", HEALTH_INTERVAL_S, self.tick)

    def apply(self, message: DeviceMessage) -> None:
        """Take one message; for the loop thread."""
        is_changed = True
        match message:
            case VendorStateChanged():
                is_changed = self._health.update_state(message.state)
            case DevicesReported():
                is_changed = self._health.record_events(message.vendor, message.events)
            case FunctionRemoved():
                is_changed = self._health.remove_function(message.address)
            case MinorsRead():
                self._joiner.adopt_minors(message.body)
            case DevicesUnplaced():
                is_changed = False
                self._places_wanted.set()
            case HostRead() | ClusterFactsChanged():
                pass
        if is_changed:
            self._refresh_wanted.set()

    def tick(self) -> None:
        """Apply the time that has passed; for the loop thread, once a second."""
        if self._health.tick():
            self._refresh_wanted.set()

    def clear_flapping(self, vendor: str, key: str) -> bool:
        """Stop holding a device for flapping; return whether it was held."""
        is_held, is_changed = self._health.clear_flapping(vendor, key)
        if is_changed:
            self._refresh_wanted.set()
        return is_held

    def publish(self) -> None:
        """Join the vendors' answers with the places and publish the result."""
        joined = self._joiner.update(self._store, self._clock.monotonic())
        if joined.has_unplaced:
            self._messages.put(DevicesUnplaced())
        for runner in self.publisher_runners:
            runner.run_once()

    def refresh(self) -> None:
        """Publish the devices as they are now and record what changed; for the devices thread."""
        self.publish()
        self.events.record_changes()

    def drain(self) -> None:
        """Apply all messages in the queue; for the loop thread."""
        for message in self._messages.drain():
            call_or_log(self.apply, message, log, "message_failed")

    async def run(self) -> None:
        """Apply messages and record reported events until cancelled; for the loop thread."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._apply_messages(), name="messages")
            tasks.create_task(self._run_health_loop(), name="health")
            tasks.create_task(self.events.run(self._executor), name="reported events")

    async def refresh_first(self) -> None:
        """Publish for the first time."""
        event_loop = asyncio.get_running_loop()
        now_s = self._clock.monotonic()
        await event_loop.run_in_executor(self._executor, self._first_loop.step, now_s)

    async def refresh_when_changed(self, window_s: float) -> None:
        """Refresh once for all changes within a window that the first one opens, for ever."""
        await run_when_changed(
            self._refresh_wanted, self.devices_loop, self._executor, self._clock, window_s
        )

    async def wait_settled(self) -> None:
        """Wait until every vendor has answered, or failed to."""
        self.drain()
        while not self._health.is_settled():
            self._refresh_wanted.clear()
            await self._refresh_wanted.wait()

    async def wait_unplaced(self) -> None:
        """Wait until a new device needs another read of the host."""
        await self._places_wanted.wait()
        self._places_wanted.clear()

    def request_refresh(self) -> None:
        """Refresh soon; for the loop thread."""
        self._refresh_wanted.set()

    def check(self) -> SelfCheck:
        """Return whether the last refresh succeeded."""
        loop = self.devices_loop
        return SelfCheck(name="devices", ok=not loop.failures, message=loop.last_error)

    async def _apply_messages(self) -> None:
        while True:
            await self._messages.wait_messages()
            self.drain()

    async def _run_health_loop(self) -> None:
        while True:
            await asyncio.sleep(self.health_loop.step(self._clock.monotonic()))


def _removal_event(device: VendorDevice) -> DeviceEvent:
    return DeviceEvent(
        key=device.key, reason=GONE_REASON, message=GONE_MESSAGE, state=HealthState.FAILED
    )
