"""A working day with NVML: loads it when it is there, discovers, samples, waits for events."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from agent.errors import LibraryReplaced
from agent.host.files import HostFiles, text
from agent.model.device import Health, HealthState
from agent.model.inventory import DeviceEvent, DeviceSample, Inventory, Problem, Reading
from plugins.bindings.nvml import platform
from plugins.bindings.nvml.card import Card, CardStopped
from plugins.bindings.nvml.library import LibraryAbsent, LibraryFile, Nvml, find_library
from plugins.faults.nvidia import polled as health
from plugins.slices.mig.caps import Capabilities
from plugins.vendors.nvidia.discover import Around, Found, memory_total
from plugins.vendors.nvidia.events import EventWatch
from plugins.vendors.nvidia.fabric import FabricWatch
from plugins.vendors.nvidia.inventory import inventory, module_version, read_system
from plugins.vendors.nvidia.roster import Clocks, Known, Roster
from plugins.vendors.nvidia.sample import sample, slow_readings
from plugins.vendors.nvidia.sight import Sight, device, placeless, recorded, survey
from plugins.vendors.nvidia.stored import CardMemory

SLOW_EVERY = 10  # cycles between two looks at what changes seldom
FORGET_AFTER_S = 86_400.0
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class NvidiaSession:
    """The NVIDIA cards of one host. One thread calls it; `events` may have another."""

    def __init__(
        self,
        host: HostFiles,
        settings: Mapping[str, object],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._host = host
        self._settings = settings
        self._clock = clock
        self._wall = wall
        self._nvml: Nvml | None = None
        self._file: LibraryFile | None = None  # what this process has loaded, for good
        self._watch = EventWatch(clock)
        self._fabrics = FabricWatch(clock)
        self._cycle = 0
        forget = settings.get("forget_after_s")
        forget_s = float(forget) if isinstance(forget, int | float) else FORGET_AFTER_S
        folder = None if settings.get("replay") is True else settings.get("state_dir")
        memory = CardMemory(folder, text(host, BOOT_ID) or "")
        self._roster = Roster(memory, Clocks(clock, wall), forget_s)

    def discover(self) -> Inventory:
        """Describe every card; one that does not answer stays listed and hides no other."""
        sight = survey(self._host)
        if self._settings.get("replay") is True:
            return Inventory(vendor="nvidia", devices=tuple(recorded(s) for s in sight.cards))
        try:
            nvml = self._library()
        except LibraryAbsent as absent:
            return self._without(sight, absent)
        found = self._roster.ask(nvml, sight, self._around(nvml))
        self._watch.watch(nvml, self._roster.cards)
        system = read_system(nvml, self._host, sight)
        answer = inventory(self._roster, found, sight, system, self._settings, self._fabrics)
        self._roster.memory.save()
        return self._told(answer, found)

    def _library(self) -> Nvml:
        self._refuse_replaced()
        if self._nvml is None:
            path = find_library(self._settings)
            self._file = LibraryFile.of(path)
            self._nvml = Nvml(path)
        return self._nvml

    def _refuse_replaced(self) -> None:
        if self._file is not None and self._file.replaced():
            raise LibraryReplaced(f"{self._file.path} was replaced: a new process must load it")

    def _around(self, nvml: Nvml) -> Around:
        return Around(
            host=self._host,
            caps=Capabilities(self._host),
            system_bytes=memory_total(text(self._host, "/proc/meminfo") or ""),
            not_ready=platform.not_ready(nvml),
        )

    def _without(self, sight: Sight, absent: LibraryAbsent) -> Inventory:
        seen = (*sight.cards, *placeless(sight.platform))
        return Inventory(
            vendor="nvidia",
            devices=tuple(device(one, absent.reason, str(absent)) for one in seen),
            driver_version=module_version(self._host),
            problems=(Problem(reason=absent.reason, message=str(absent)),),
        )

    def _told(self, answer: Inventory, found: Mapping[str, Found]) -> Inventory:
        """Note what is published of each card's health, and what changes seldom of its figures."""
        for key, item in found.items():
            card, known = self._roster.cards[key], self._roster.known[key]
            try:
                known.slow = slow_readings(card, item.facts.recovery_action, item.facts.remapped)
            except CardStopped:
                known.slow = ()
        devices = tuple(
            replace(d, health=_graver(d.health, self._roster.known[d.key].standing))
            if d.key in self._roster.known
            else d
            for d in answer.devices
        )
        for told in devices:
            if told.key in self._roster.known:
                self._roster.known[told.key].told = told.health
        return replace(answer, devices=devices)

    def sample(self) -> tuple[DeviceSample, ...]:
        """Sample the cards that answer; late ones are asked every ten seconds."""
        self._refuse_replaced()
        self._cycle += 1
        samples: list[DeviceSample] = []
        for place, key in enumerate(sorted(self._roster.cards)):
            card, known = self._roster.cards[key], self._roster.known.get(key)
            if known is None or card.slow(self._clock()):
                continue
            was_late = card.late
            card.begin()
            try:
                found = sample(card, self._wall(), known.shared_bytes)
                if (self._cycle + place) % SLOW_EVERY == 0:
                    self._look_closer(card, known)
            except CardStopped:
                self._announce(key, known, health.judge(health.stopped(card)))
                continue
            xids = self._xid_readings(key)
            samples.append(replace(found, readings=(*found.readings, *known.slow, *xids)))
            if card.late and not was_late:
                told = "a call took over a second: the card is sampled every ten seconds"
                self._watch.tell(DeviceEvent(key=key, reason="SlowAnswer", message=told))
        return tuple(samples)

    def _look_closer(self, card: Card, known: Known) -> None:
        polled = health.poll(card)
        known.slow = slow_readings(card, polled.recovery_action, polled.remapped)
        self._announce(card.bus_id, known, health.judge(polled))

    def _announce(self, key: str, known: Known, now: Health) -> None:
        """Send an event when a card's health is another than was last told."""
        now = _graver(now, known.standing)
        if (now.state, now.reason) == (known.told.state, known.told.reason):
            return
        known.told = now
        event = DeviceEvent(key=key, reason=now.reason, message=now.message, state=now.state)
        self._watch.tell(event)

    def _xid_readings(self, key: str) -> tuple[Reading, ...]:
        counted = sorted(((n, c) for (k, n), c in tuple(self._watch.xids.items()) if k == key))
        family = "xpu_device_xid_errors_total"
        return tuple(Reading(family=family, value=float(c), labels=(str(n),)) for n, c in counted)

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Wait for events of the driver and for changes that sampling noticed."""
        return self._watch.wait(wait_s)

    def close(self) -> None:
        """Free the event set and let go of the driver."""
        self._watch.close()
        if self._nvml is not None:
            nvml, self._nvml = self._nvml, None
            self._roster.cards.clear()
            nvml.close()


def _graver(judged: Health, standing: Health | None) -> Health:
    """Return what stands against a card, unless what it shows now takes it out of service, too."""
    return judged if standing is None or judged.state is HealthState.FAILED else standing
