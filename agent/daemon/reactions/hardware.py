"""What is done when hardware may be another: read the host again, ask whom it concerns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from agent.hotplug.departed import GONE, MESSAGE, with_departure
from agent.hotplug.uevent import Part
from agent.model.assemble import parent_of
from agent.model.device import HealthState, VendorDevice
from agent.model.inventory import DeviceEvent
from agent.node.crew import recruits
from agent.node.fleet import Fleet
from agent.node.parts import Parts

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
        self._read_host = read_host

    async def look(self, parts: frozenset[Part]) -> None:
        """Read what may be another, welcome vendors that have something now, ask the others."""
        loop = asyncio.get_running_loop()
        if Part.HOST in parts:
            await loop.run_in_executor(self._executor, self._read_host)
        for client in self._fleet.clients:
            if not concerned(client.state.vendor, parts):
                continue
            if client.state.state in RESTING:
                client.retry()
            else:
                client.rediscover()
        await loop.run_in_executor(self._executor, self.welcome, loop)

    def welcome(self, loop: asyncio.AbstractEventLoop) -> None:
        """Find vendors that had nothing here so far; call on the executor.

        Their workers are started by the loop's thread, which they end with.
        """
        known = {client.state.vendor for client in self._fleet.clients}
        others = [vendor for name, vendor in self._parts.vendors.items() if name not in known]
        for late in recruits(others, self._parts.opened, self._parts.settings):
            loop.call_soon_threadsafe(self._fleet.welcome, late)

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
