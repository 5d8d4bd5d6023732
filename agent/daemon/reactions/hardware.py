"""What is done when hardware may be another: read the host again, ask whom it concerns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from agent.hotplug.departed import GONE, MESSAGE, still_away, with_departure
from agent.hotplug.uevent import Part
from agent.loop import Loop
from agent.model.assemble import parent_of
from agent.model.device import HealthState, VendorDevice
from agent.model.inventory import DeviceEvent
from agent.node.crew import recruits
from agent.node.fleet import Fleet
from agent.node.parts import Parts

FAILED_S = 30.0  # what its heartbeat would expect; nothing waits that long
RDMA = "rdma"  # the vendor whose devices the kernel itself makes
RESTING = ("restarting", "quarantined")  # a driver that comes is worth an attempt


class Hardware:
    """Looks at once, where loops look in turn. Belongs to the loop thread."""

    def __init__(
        self, parts: Parts, fleet: Fleet, executor: Executor, read_host: Callable[[], None]
    ) -> None:
        """`read_host` runs on `executor`: it reads the host and joins the devices with it."""
        self._parts = parts
        self._fleet = fleet
        self._executor = executor
        self._reading = Loop("hotplug-host", FAILED_S, read_host)
        self._finding = Loop("hotplug-vendors", FAILED_S, self._find)
        self._loop = asyncio.get_running_loop()

    async def look(self, parts: frozenset[Part]) -> None:
        """Read what may be another, welcome vendors that have something now, ask the others."""
        if Part.HOST in parts:
            began_s = self._parts.clock.monotonic()
            await self._step(self._reading)
            self._forget_returned(began_s)
        for client in self._fleet.clients:
            if not concerned(client.state.vendor, parts):
                continue
            if client.state.state in RESTING:
                client.retry()
            else:
                client.rediscover()
        await self._step(self._finding)

    def _forget_returned(self, read_s: float) -> None:
        now = self._parts.store.current
        if now.departed:
            self._parts.store.put(departed=still_away(now.departed, now.pci.value, read_s))

    async def _step(self, work: Loop) -> None:
        """Do it on the executor; a failure is logged, and the periodic look follows anyway."""
        now_s = self._parts.clock.monotonic()
        await self._loop.run_in_executor(self._executor, work.step, now_s)

    def find_loop(self, interval_s: float) -> Loop:
        """Return the periodic search for vendors that had nothing here so far."""
        return Loop("vendors", interval_s, self._find)

    def _find(self) -> None:
        """Find them on the executor; their workers are started by the loop's thread.

        They end with the thread that starts them.
        """
        known = {client.state.vendor for client in self._fleet.clients}
        others = [vendor for name, vendor in self._parts.vendors.items() if name not in known]
        for late in recruits(others, self._parts.opened, self._parts.settings):
            self._loop.call_soon_threadsafe(self._fleet.welcome, late)

    def left(self, address: str) -> None:
        """Say at once that the devices of a function are gone; their vendor is asked then."""
        for state in self._parts.store.current.vendors:
            inventory = state.inventory.value
            devices = () if inventory is None else inventory.devices
            gone = [device for device in devices if parent_of(device) == address]
            for device in gone:
                if device.managed:
                    self._keep(state.vendor, device)
            if gone:
                self._fleet.tell(state.vendor, tuple(_event(device) for device in gone))

    def _keep(self, vendor: str, device: VendorDevice) -> None:
        clock, store = self._parts.clock, self._parts.store
        known = store.current.departed
        times = (clock.monotonic(), clock.wall())
        store.put(departed=with_departure(known, vendor, device, *times))


def _event(device: VendorDevice) -> DeviceEvent:
    return DeviceEvent(key=device.key, reason=GONE, message=MESSAGE, state=HealthState.FAILED)


def concerned(vendor: str, parts: frozenset[Part]) -> bool:
    """Say whether a vendor is to be asked again because of these parts."""
    return (Part.RDMA if vendor == RDMA else Part.ACCELERATORS) in parts
