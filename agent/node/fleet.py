"""All vendors of this node: their workers kept going, their answers joined into one device view."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

import msgspec

from agent.clock import Clock
from agent.config.sections import Settings
from agent.model.inventory import DeviceEvent, Inventory
from agent.model.snapshot import NodeSnapshot, VendorState
from agent.node.changes_of_health import after_events, dated, with_events
from agent.node.crew import Enlisted
from agent.node.store import SnapshotStore
from agent.probe.base import Inside
from agent.probe.client import VendorClient
from agent.probe.inside import InsideWorker
from agent.probe.life import Heard, Start, Timing, Worker
from agent.probe.process.launch import Launched
from agent.probe.process.spec import WorkerSpec

log = logging.getLogger(__name__)


def with_vendor(snapshot: NodeSnapshot, state: VendorState) -> NodeSnapshot:
    """Return the snapshot with one vendor's state replaced; vendors stay in order of name."""
    others = [vendor for vendor in snapshot.vendors if vendor.vendor != state.vendor]
    vendors = tuple(sorted([*others, state], key=lambda vendor: vendor.vendor))
    return msgspec.structs.replace(snapshot, vendors=vendors)


def _tell_if_it_failed(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:  # a bug of ours: nobody asks this vendor any more
        log.error("vendor_lost", extra={"task": task.get_name()}, exc_info=error)


class _Told(msgspec.Struct):
    """A vendor's answer, and what others are told of it."""

    answer: Inventory
    now: Inventory
    last_events: dict[str, str]  # reason by key of the device


class Fleet:
    """Starts one client for each vendor that has something here. Lives in the loop thread."""

    def __init__(
        self,
        crew: Iterable[Enlisted],
        settings: Settings,
        store: SnapshotStore,
        clock: Clock,
        on_devices: Callable[[], None],
        executor: Executor | None = None,
    ) -> None:
        """`on_devices` is called when an inventory changed; it must be quick.

        Vendors that need no process are asked on `executor`.
        """
        self._executor = executor
        self._store = store
        self._clock = clock
        self._on_devices = on_devices
        discovery = settings.discovery
        self._timing = Timing(
            discover_every_s=discovery.interval_s,
            sample_every_s=settings.collect.device_interval_s,
            discover_deadline_s=discovery.discover_deadline_s,
            sample_deadline_s=discovery.sample_deadline_s,
            memory_limit_bytes=discovery.worker_memory_bytes,
        )
        self._sighted: list[Inventory | None] = []  # what sysfs showed before the first answers
        self.clients: list[VendorClient] = []
        for enlisted in crew:
            self._add(enlisted)
        self._stopped = False
        self._tasks: list[asyncio.Task[None]] = []
        self._told: dict[str, _Told] = {}

    def start(self) -> None:
        """Start all workers; their first answers come later."""
        for client in self.clients:
            self._run(client)

    def welcome(self, late: Enlisted) -> None:
        """Start a worker for a vendor whose hardware, or its driver, came after the agent."""
        known = {client.state.vendor for client in self.clients}
        if late.spec.vendor not in known and not self._stopped:
            log.info("vendor_came", extra={"vendor": late.spec.vendor})
            self._run(self._add(late))

    def _add(self, enlisted: Enlisted) -> VendorClient:
        client = VendorClient(
            enlisted.spec,
            enlisted.sighted,
            on_state=self._heard_state,
            on_events=self._heard_events,
            timing=self._timing,
            clock=self._clock,
        )
        if enlisted.inside is not None:
            client.live_by(self._starting(enlisted.inside))
        if enlisted.launched is not None:
            client.adopt(enlisted.launched)
        self.clients.append(client)
        self._sighted.append(client.state.inventory.value)
        return client

    def _starting(self, inside: Inside) -> Start:
        """Return what begins a life of a vendor that needs no process."""

        def start(_: WorkerSpec, heard: Heard, __: Launched | None) -> Worker:
            return InsideWorker(inside, heard, self._executor)

        return start

    def _run(self, client: VendorClient) -> None:
        self._heard_state(client.state)
        task = asyncio.create_task(client.run(), name=f"vendor {client.state.vendor}")
        task.add_done_callback(_tell_if_it_failed)
        self._tasks.append(task)

    async def stop(self) -> None:
        """End all workers; takes two seconds at most."""
        self._stopped = True
        await asyncio.gather(*(client.stop() for client in self.clients))
        await asyncio.gather(*self._tasks, return_exceptions=True)

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
        """Put what the agent knows into the vendor's answer, which each sample repeats without."""
        answer = state.inventory.value
        if answer is None or any(answer is sighted for sighted in self._sighted):
            return state
        told = self._told.get(state.vendor)
        if told is None or told.answer is not answer:
            last = {} if told is None else told.last_events
            here = {device.key for device in answer.devices}
            last = {key: reason for key, reason in last.items() if key in here}
            now = dated(None if told is None else told.now, answer, self._clock.wall())
            told = _Told(answer, after_events(now, last), last)
            self._told[state.vendor] = told
        part = msgspec.structs.replace(state.inventory, value=told.now)
        return msgspec.structs.replace(state, inventory=part)

    def _heard_events(self, vendor: str, events: tuple[DeviceEvent, ...]) -> None:
        for event in events:
            fields = {"vendor": vendor, "device": event.key, "reason": event.reason}
            log.warning("device_event", extra=fields)
        client = next(client for client in self.clients if client.state.vendor == vendor)
        told = self._told.get(vendor)
        if told is not None:
            # an event that decides nothing shows with the next answer, which is asked for below
            here = {device.key for device in told.now.devices}
            told.last_events.update((e.key, e.reason) for e in events if e.key in here)
            if any(event.state is not None for event in events):
                told.now = with_events(told.now, events, self._clock.wall())
                told.now = after_events(told.now, told.last_events)
                self._heard_state(client.state)
        client.rediscover()  # the library knows more than the event told
