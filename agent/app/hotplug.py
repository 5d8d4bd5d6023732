"""Reacts to added and removed hardware: reads the host again and asks the affected vendors.

It listens to the kernel's uevents; without them it polls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Protocol

from agent.clock import Clock
from agent.config.settings import Settings
from agent.devices.presence import (
    drop_returned,
    missing_parts,
)
from agent.host.hotplug import ALL_SCOPES, HotplugTracker
from agent.host.uevents import RescanScope, Uevent, UeventMonitor, UeventsLost, UeventsUnavailable
from agent.loop import Loop, run_forever
from agent.messages import EventReported, FunctionRemoved, MessageQueue
from agent.recording.host_source import HostSource
from agent.snapshot.node import HotplugView, SnapshotStore
from agent.snapshot.vendor import DeviceVendor
from agent.workers.manager import VendorManager
from agent.workers.selection import select_vendors

log = logging.getLogger(__name__)

RESCAN_INTERVAL_S = 30.0  # of the loops of one rescan, which nothing schedules

PAUSED_STATES = ("restarting", "quarantined")  # a new driver justifies an early attempt


class VendorSearch:
    """Finds vendors whose devices appear after the start, and adds them to the vendor manager."""

    def __init__(
        self,
        vendors: Iterable[DeviceVendor],
        host_source: HostSource,
        settings: Settings,
        vendor_manager: VendorManager,
    ) -> None:
        """Call on the loop thread; `vendors` are all that may be added."""
        self._vendors = tuple(vendors)
        self._host_source = host_source
        self._settings = settings
        self._vendor_manager = vendor_manager
        self._event_loop = asyncio.get_running_loop()

    @property
    def network_vendors(self) -> frozenset[str]:
        """Return the names of the vendors whose devices are NICs."""
        descriptions = (vendor.description for vendor in self._vendors)
        return frozenset(description.name for description in descriptions if description.is_network)

    def run(self) -> None:
        """Search once; for a thread that may read the host.

        The loop thread starts the workers: the kernel ends a worker with the thread that started
        it.
        """
        added = {client.state.vendor for client in self._vendor_manager.clients}
        others = [one for one in self._vendors if one.description.name not in added]
        for vendor in select_vendors(others, self._host_source, self._settings):
            self._event_loop.call_soon_threadsafe(self._vendor_manager.add, vendor)


class HardwareScanner:
    """Reads the host and asks vendors at once, without waiting for their loops.

    Belongs to the loop thread.
    """

    def __init__(
        self,
        store: SnapshotStore,
        clock: Clock,
        vendor_manager: VendorManager,
        vendor_search: VendorSearch,
        executor: Executor,
        read_host: Callable[[], None],
    ) -> None:
        """`read_host` and `vendor_search` run on `executor`."""
        self._store = store
        self._clock = clock
        self._vendor_manager = vendor_manager
        self._executor = executor
        self._host_loop = Loop("hotplug-host", RESCAN_INTERVAL_S, read_host)
        self._network_vendors = vendor_search.network_vendors
        self._search_loop = Loop("hotplug-vendors", RESCAN_INTERVAL_S, vendor_search.run)

    async def rescan(self, scopes: frozenset[RescanScope]) -> None:
        """Read the host, ask the affected vendors, and search for new vendors."""
        if RescanScope.HOST in scopes:
            began_s = self._clock.monotonic()
            await self._step(self._host_loop)
            self._drop_returned(began_s)
        for client in self._vendor_manager.clients:
            if not is_affected(self._network_vendors, client.state.vendor, scopes):
                continue
            if client.state.state in PAUSED_STATES:
                client.retry()
            else:
                client.rediscover()
        await self._step(self._search_loop)

    def _drop_returned(self, read_s: float) -> None:
        now = self._store.current
        if now.removed_devices:
            removed = drop_returned(now.removed_devices, now.pci.value, read_s)
            self._store.put(removed_devices=removed)

    async def _step(self, loop: Loop) -> None:
        """Run the loop once on the executor; it logs a failure, and a periodic loop tries again."""
        event_loop = asyncio.get_running_loop()
        await event_loop.run_in_executor(self._executor, loop.step, self._clock.monotonic())


def is_affected(
    network_vendors: frozenset[str], vendor: str, scopes: frozenset[RescanScope]
) -> bool:
    """Return whether changes in these scopes may concern the vendor's devices."""
    return (RescanScope.RDMA if vendor in network_vendors else RescanScope.ACCELERATORS) in scopes


LISTEN_RETRY_S = 30.0  # without uevents: until the next rescan and attempt to listen

RESTART_S = 1.0  # after an unexpected exception, doubled each time

MAX_PAUSE_S = 3600.0  # the longest wait for an event


class UeventSource(Protocol):
    """A source of uevents."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable."""
        ...

    def read_events(self) -> list[Uevent | str]:
        """Return the events that wait, without blocking."""
        ...

    def close(self) -> None:
        """Close the descriptor."""
        ...


class HotplugHandler(Protocol):
    """Reacts to uevents."""

    async def rescan(self, scopes: frozenset[RescanScope]) -> None:
        """Read the scopes again."""
        ...


class HotplugListener:
    """Listens to uevents and requests rescans. Belongs to the loop thread."""

    def __init__(
        self,
        store: SnapshotStore,
        clock: Clock,
        handler: HotplugHandler,
        executor: Executor,
        *,
        messages: MessageQueue,
        on_listening_changed: Callable[[bool], None],
        driver_modules: tuple[str, ...] = (),
        open_monitor: Callable[[], UeventSource] = UeventMonitor,
    ) -> None:
        """`on_listening_changed` is called with whether uevents arrive; else the host is polled."""
        self._store = store
        self._clock = clock
        self._handler = handler
        self._executor = executor
        self._messages = messages
        self._on_listening_changed = on_listening_changed
        self._open_monitor = open_monitor
        self._tracker = HotplugTracker(driver_modules)
        self._wake = asyncio.Event()
        self._problem = ""
        # cause and scopes of the rescan when listening begins; the vendors have just answered
        self._first_rescan = "start", frozenset((RescanScope.HOST,))

    async def run(self) -> None:
        """Listen until cancelled; without uevents, rescan everything each half minute."""
        await run_forever(
            "hotplug",
            self._run,
            again_s=RESTART_S,
            monotonic=self._clock.monotonic,
            sleep=asyncio.sleep,
            failed=self._set_problem,
        )

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            cause, scopes = self._first_rescan
            self._first_rescan = "lost", ALL_SCOPES
            monitor: UeventSource | None = None
            try:
                monitor = await loop.run_in_executor(self._executor, self._open_monitor)
                # something may have changed before the monitor was open
                self._tracker.request_rescan(self._clock.monotonic(), cause, scopes)
                self._set_problem("")
                await self._listen(monitor)
            except UeventsUnavailable as error:
                self._set_problem(str(error))
            finally:
                if monitor is not None:
                    monitor.close()
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
        """Take events until the monitor fails."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def handle_readable() -> None:
            try:
                self._take(monitor)
            except UeventsUnavailable as error:
                if not ended.done():
                    ended.set_exception(error)
            self._wake.set()

        loop.add_reader(monitor.fileno(), handle_readable)
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
        """Rescan the due parts, or with `at_once` all waiting parts."""
        now_s = self._clock.monotonic()
        if at_once:
            now_s = max(now_s, self._tracker.next_s or now_s)
        rescan, due = self._tracker.pop_due(now_s, self._missing)
        for address, missing in due.incomplete:
            text = f"{address}: still without {', '.join(missing)}"
            self._messages.put(EventReported("DeviceIncomplete", text))
        if rescan is not None:
            self._update_snapshot()
            await self._handler.rescan(rescan.scopes)

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
