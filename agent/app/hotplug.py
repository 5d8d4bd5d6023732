"""What is done when hardware may be another: read the host again, ask whom it concerns.

Hears the kernel's events, and has looked at what they are about; without them it looks often.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from agent.app.context import AppContext
from agent.clock import Clock
from agent.devices.presence import (
    drop_returned,
    missing_parts,
)
from agent.host.hotplug import ALL_SCOPES, HotplugTracker
from agent.host.uevents import RescanScope, Uevent, UeventMonitor, UeventsLost, UeventsUnavailable
from agent.loop import Loop
from agent.messages import EventReported, FunctionRemoved, MessageQueue
from agent.snapshot.node import HotplugView, SnapshotStore
from agent.workers.manager import VendorManager
from agent.workers.selection import select_vendors

RESCAN_INTERVAL_S = 30.0  # what its heartbeat would expect; nothing waits that long

RDMA_VENDOR = "rdma"  # the vendor whose devices the kernel itself makes

PAUSED_STATES = ("restarting", "quarantined")  # a driver that comes is worth an attempt


class HardwareScanner:
    """Looks at once, where loops look in turn. Belongs to the loop thread."""

    def __init__(
        self,
        parts: AppContext,
        fleet: VendorManager,
        executor: Executor,
        read_host: Callable[[], None],
    ) -> None:
        """`read_host` runs on `executor`: it reads the host and joins the devices with it."""
        self._context = parts
        self._vendor_manager = fleet
        self._executor = executor
        self._reading = Loop("hotplug-host", RESCAN_INTERVAL_S, read_host)
        self._finding = Loop("hotplug-vendors", RESCAN_INTERVAL_S, self._find_vendors)
        self._loop = asyncio.get_running_loop()

    async def rescan(self, parts: frozenset[RescanScope]) -> None:
        """Read what may be another, welcome vendors that have something now, ask the others."""
        if RescanScope.HOST in parts:
            began_s = self._context.clock.monotonic()
            await self._step(self._reading)
            self._forget_returned(began_s)
        for client in self._vendor_manager.clients:
            if not is_affected(client.state.vendor, parts):
                continue
            if client.state.state in PAUSED_STATES:
                client.retry()
            else:
                client.rediscover()
        await self._step(self._finding)

    def _forget_returned(self, read_s: float) -> None:
        now = self._context.store.current
        if now.removed_devices:
            self._context.store.put(
                removed_devices=drop_returned(now.removed_devices, now.pci.value, read_s)
            )

    async def _step(self, work: Loop) -> None:
        """Do it on the executor; a failure is logged, and the periodic look follows anyway."""
        now_s = self._context.clock.monotonic()
        await self._loop.run_in_executor(self._executor, work.step, now_s)

    def vendor_search_loop(self, interval_s: float) -> Loop:
        """Return the periodic search for vendors that had nothing here so far."""
        return Loop("vendors", interval_s, self._find_vendors)

    def _find_vendors(self) -> None:
        """Find them on the executor; their workers are started by the loop's thread.

        They end with the thread that starts them.
        """
        known = {client.state.vendor for client in self._vendor_manager.clients}
        others = [vendor for name, vendor in self._context.vendors.items() if name not in known]
        for late in select_vendors(others, self._context.host_source, self._context.settings):
            self._loop.call_soon_threadsafe(self._vendor_manager.add, late)


def is_affected(vendor: str, parts: frozenset[RescanScope]) -> bool:
    """Say whether a vendor is to be asked again because of these parts."""
    return (RescanScope.RDMA if vendor == RDMA_VENDOR else RescanScope.ACCELERATORS) in parts


log = logging.getLogger(__name__)

LISTEN_RETRY_S = 30.0  # without events: a look at everything, and another attempt to hear them

MAX_PAUSE_S = 3600.0  # how long nothing may be due


class UeventSource(Protocol):
    """Where events come from."""

    def fileno(self) -> int:
        """Return what becomes readable."""
        ...

    def read_events(self) -> list[Uevent | str]:
        """Return what has come, without waiting."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class HotplugHandler(Protocol):
    """What can be done about events."""

    async def rescan(self, parts: frozenset[RescanScope]) -> None:
        """Read again what may be another."""
        ...


class HotplugListener:
    """Lives in the loop thread; `run` ends when it is cancelled."""

    def __init__(
        self,
        store: SnapshotStore,
        clock: Clock,
        reaction: HotplugHandler,
        executor: Executor,
        *,
        messages: MessageQueue,
        on_pace: Callable[[bool], None],
        open_monitor: Callable[[], UeventSource] = UeventMonitor,
    ) -> None:
        """`on_pace` is told whether the kernel tells of changes, or everybody has to look."""
        self._store = store
        self._clock = clock
        self._handler = reaction
        self._executor = executor
        self._messages = messages
        self._on_listening_changed = on_pace
        self._open_monitor = open_monitor
        self._tracker = HotplugTracker()
        self._wake = asyncio.Event()
        self._problem = ""

    async def run(self) -> None:
        """Listen for ever; where that is not possible, look at everything every half minute."""
        loop = asyncio.get_running_loop()
        cause, parts = "start", frozenset((RescanScope.HOST,))  # the vendors were asked just now
        while True:
            monitor: UeventSource | None = None
            try:
                monitor = await loop.run_in_executor(self._executor, self._open_monitor)
                # what changed before the first event could be heard
                self._tracker.request_rescan(self._clock.monotonic(), cause, parts)
                self._set_problem("")
                await self._listen(monitor)
            except UeventsUnavailable as error:
                self._set_problem(str(error))
            finally:
                if monitor is not None:
                    monitor.close()
            cause, parts = "lost", ALL_SCOPES
            await asyncio.sleep(LISTEN_RETRY_S)
            self._tracker.request_rescan(self._clock.monotonic(), "poll")
            await self._handle_due(at_once=True)

    def _set_problem(self, problem: str) -> None:
        if problem != self._problem or self._store.current.hotplug.state == "off":
            log.log(
                logging.WARNING if problem else logging.INFO,
                "uevents_missing" if problem else "uevents_heard",
                extra={"error": problem},
            )
        self._problem = problem
        self._on_listening_changed(not problem)
        self._update_snapshot()

    async def _listen(self, monitor: UeventSource) -> None:
        """Take events as they come until there can be no more."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def readable() -> None:
            try:
                self._take(monitor)
            except UeventsUnavailable as error:
                if not ended.done():
                    ended.set_exception(error)
            self._wake.set()

        loop.add_reader(monitor.fileno(), readable)
        try:
            while not ended.done():
                await self._handle_due()
                await self._wait()
            ended.result()
        finally:
            loop.remove_reader(monitor.fileno())

    def _take(self, monitor: UeventSource) -> None:
        now_s = self._clock.monotonic()
        try:
            for event in monitor.read_events():
                address = self._tracker.handle_event(event, now_s)
                if address is not None:
                    self._messages.put(FunctionRemoved(address))
        except UeventsLost:
            log.warning("uevents_lost")
            self._tracker.request_rescan(now_s, "lost")
        self._update_snapshot()

    async def _wait(self) -> None:
        next_s = self._tracker.next_s
        pause_s = MAX_PAUSE_S if next_s is None else max(0.0, next_s - self._clock.monotonic())
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _handle_due(self, *, at_once: bool = False) -> None:
        """Do what is due, or all that waits."""
        now_s = self._clock.monotonic()
        if at_once:
            now_s = max(now_s, self._tracker.next_s or now_s)
        look, due = self._tracker.take_due(now_s, self._missing)
        for address, lacks in due.incomplete:
            text = f"{address}: still without {', '.join(lacks)}"
            self._messages.put(EventReported("DeviceIncomplete", text))
        if look is not None:
            self._update_snapshot()
            await self._handler.rescan(look.parts)

    def _missing(self, address: str) -> tuple[str, ...]:
        return missing_parts(self._store.current, address)

    def _update_snapshot(self) -> None:
        view = HotplugView(
            state="polling" if self._problem else "listening",
            problem=self._problem,
            seen=self._tracker.event_counts,
            dropped=self._tracker.dropped_counts,
            scans=self._tracker.rescan_counts,
        )
        self._store.put(hotplug=view)
