"""All vendors of this node: their workers kept going, their answers joined into one device view."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import TypeVar

import msgspec

from agent.clock import Clock
from agent.config.sections import Settings
from agent.errors import WorkerError
from agent.health.lasting import HealthFile
from agent.health.track import Moment
from agent.health.vendor import VendorHealth
from agent.loop import Loop
from agent.model.inventory import DeviceEvent
from agent.model.snapshot import NodeSnapshot, VendorState
from agent.node.crew import Enlisted
from agent.node.store import SnapshotStore
from agent.probe.base import Inside
from agent.probe.client import NOT_RUNNING, VendorClient
from agent.probe.inside import InsideWorker
from agent.probe.life import Errand, Heard, Start, Timing, Worker
from agent.probe.process.launch import Launched
from agent.probe.process.spec import WorkerSpec

log = logging.getLogger(__name__)

T = TypeVar("T")
TICK_S = 1.0  # how often time alone may change a device's health


def with_vendor(snapshot: NodeSnapshot, state: VendorState) -> NodeSnapshot:
    """Return the snapshot with one vendor's state replaced; vendors stay in order of name."""
    others = [vendor for vendor in snapshot.vendors if vendor.vendor != state.vendor]
    vendors = tuple(sorted([*others, state], key=lambda vendor: vendor.vendor))
    return msgspec.structs.replace(snapshot, vendors=vendors)


def _tell_if_it_failed(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:  # a bug of ours: nobody asks this vendor any more
        log.error("vendor_lost", extra={"task": task.get_name()}, exc_info=error)


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
        kept: HealthFile | None = None,
    ) -> None:
        """`on_devices` is called when an inventory changed; it must be quick.

        Vendors that need no process are asked on `executor`. `kept` is where health outlives the
        agent; it is read here, and told what to keep.
        """
        self._executor = executor
        self._settings = settings.health
        self._kept = kept or HealthFile("", "")
        self.beat = Loop("health", TICK_S, self.tick)
        self._beating: asyncio.Task[None] | None = None
        self._health: dict[str, VendorHealth] = {}
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
        self._known = dict(self._kept.load(self._now()))  # of vendors that are not here yet
        self.clients: list[VendorClient] = []
        for enlisted in crew:
            self._add(enlisted)
        self._stopped = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start all workers; their first answers come later."""
        for client in self.clients:
            self._run(client)
        self._beating = asyncio.create_task(self._beat(), name="health")

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
        vendor, sighted = client.state.vendor, client.state.inventory.value
        known = self._known.pop(vendor, None)
        self._health[vendor] = VendorHealth(vendor, self._settings, sighted, known)
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
        if self._beating is not None:
            self._beating.cancel()
        await asyncio.gather(*(client.stop() for client in self.clients))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def settled(self) -> bool:
        """Say whether every vendor has answered, or failed to in its time."""
        return all(vendor.state != "starting" for vendor in self._store.current.vendors)

    def tick(self) -> None:
        """Let time pass: for silent vendors, for devices in doubt, for what is to be kept."""
        now = self._now()
        for client in self.clients:
            health = self._health[client.state.vendor]
            if health.tick(now):
                self._heard_state(client.state)
            if health.wants_look(now):
                client.rediscover()
        self._keep(now)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.beat.step(self._clock.monotonic()))

    def _heard_state(self, state: VendorState) -> None:
        now = self._now()
        state = self._health[state.vendor].heard(state, now)
        before = {vendor.vendor: vendor for vendor in self._store.current.vendors}
        old = before.get(state.vendor)
        self._store.change(lambda snapshot: with_vendor(snapshot, state))
        changed = old is None or old.inventory.value is not state.inventory.value
        if changed or (old is not None and old.state != state.state):
            self._keep(now)
            self._on_devices()

    async def have(self, vendor: str, errand: Errand[T]) -> T:
        """Have a vendor's worker do something in its turn; `WorkerError` if nobody can be asked."""
        for client in self.clients:
            if client.state.vendor == vendor:
                return await client.have(errand)
        raise WorkerError(vendor, NOT_RUNNING, "no worker of this vendor was started")

    def pardon(self, vendor: str, key: str) -> bool:
        """Hold a device no longer because it flapped; say whether it was held."""
        held = self._health[vendor].pardon(key)
        for client in self.clients:
            if held and client.state.vendor == vendor:
                self._heard_state(client.state)
        return held

    def tell(self, vendor: str, events: tuple[DeviceEvent, ...]) -> None:
        """Take what somebody else than the vendor noticed of its devices."""
        self._heard_events(vendor, events)

    def _heard_events(self, vendor: str, events: tuple[DeviceEvent, ...]) -> None:
        for event in events:
            fields = {"vendor": vendor, "device": event.key, "reason": event.reason}
            if event.message:
                fields["detail"] = event.message
            log.warning("device_event", extra=fields)
        client = next(client for client in self.clients if client.state.vendor == vendor)
        if self._health[vendor].happened(events, self._now()):
            self._heard_state(client.state)
        client.rediscover()  # the library knows more than the event told

    def _keep(self, now: Moment) -> None:
        present = {vendor: health.tracks for vendor, health in self._health.items()}
        self._kept.want({**self._known, **present}, now)

    def _now(self) -> Moment:
        return Moment(self._clock.monotonic(), self._clock.wall())
