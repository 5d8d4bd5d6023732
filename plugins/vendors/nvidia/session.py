"""A working day with NVML: loads it when it is there, discovers, samples, waits for events."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from agent.errors import LibraryReplaced
from agent.host.files import HostFiles, text
from agent.model.device import Health, VendorDevice
from agent.model.inventory import DeviceEvent, DeviceSample, Inventory, Problem
from plugins.bindings.locate import LibraryAbsent, LibraryFile
from plugins.bindings.nvml import platform
from plugins.bindings.nvml.library import Nvml, find_library
from plugins.calls import NO_JOURNAL, CallJournal
from plugins.faults.nvidia.opened import applied, judged, open_diagnosis
from plugins.slices.mig.caps import Capabilities
from plugins.vendors.nvidia.discover import Around, Found, memory_total
from plugins.vendors.nvidia.events import EventWatch
from plugins.vendors.nvidia.fabric import FabricWatch
from plugins.vendors.nvidia.inventory import inventory, module_version, read_system
from plugins.vendors.nvidia.roster import Clocks, Roster
from plugins.vendors.nvidia.sample import Sampler
from plugins.vendors.nvidia.sight import Sight, recorded, survey
from plugins.vendors.nvidia.stored import CardMemory

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
        self._diagnosis = open_diagnosis(host, settings, os.environ, wall)
        self._watch = EventWatch(host, self._diagnosis, clock)
        self._sampler = Sampler(host, self._diagnosis, self._watch.tell, clock, wall)
        self._fabrics = FabricWatch(clock)
        forget = settings.get("forget_after_s")
        forget_s = float(forget) if isinstance(forget, int | float) else FORGET_AFTER_S
        memory = CardMemory(settings.get("state_dir"), text(host, BOOT_ID) or "")
        self._roster = Roster(memory, Clocks(clock, wall), forget_s)
        self._calls: CallJournal = NO_JOURNAL
        self._waits = False  # a discovery was asked for, and has not come

    def journal_calls(self, journal: CallJournal) -> None:
        """Tell the journal of each call of the library, which is not loaded yet."""
        self._calls = journal

    def discover(self) -> Inventory:
        """Describe every card; one that does not answer stays listed and hides no other."""
        sight = survey(self._host)
        if self._settings.get("replay") is True:
            return Inventory(vendor="nvidia", devices=tuple(recorded(s) for s in sight.cards))
        try:
            nvml = self._library()
        except LibraryAbsent as absent:
            return self._without(sight, absent)
        asked = self._roster.ask(nvml, sight, self._around(nvml))
        parts = {key: known.device.partitions for key, known in self._roster.known.items()}
        self._watch.watch(nvml, self._roster.cards, parts)
        system = read_system(nvml, self._host, sight)
        answer = inventory(self._roster, asked, sight, system, self._settings, self._fabrics)
        self._roster.memory.save()
        return self._told(answer, asked.found)

    def _library(self) -> Nvml:
        self._refuse_replaced()
        if self._nvml is None:
            path = find_library(self._settings)
            self._file = LibraryFile.of(path)
            self._nvml = Nvml(path, self._calls)
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
        listed = self._roster.unanswered(sight, absent.reason, str(absent))
        return Inventory(
            vendor="nvidia",
            devices=tuple(applied(card, self._diagnosis) for card in listed),
            driver_version=module_version(self._host),
            problems=(
                Problem(reason=absent.reason, message=str(absent)),
                *(*self._diagnosis.problems, *self._watch.problems),
            ),
        )

    def _told(self, answer: Inventory, found: Mapping[str, Found]) -> Inventory:
        """Learn what was found of each card, and say what stands against it."""
        for key, item in found.items():
            known = self._roster.known[key]
            self._sampler.learn(
                self._roster.cards[key],
                known.device,
                item.facts,
                shared_bytes=known.shared_bytes,
                standing=known.standing,
                clique=known.links.fabric is not None and known.links.fabric.clique_id is not None,
            )
        for told in answer.devices:
            examined = answer.subjects is None or told.key in answer.subjects
            if told.managed and examined and told.key not in found:
                self._sampler.silent(told.key, judged(told.health, self._standing(told.key)))
        self._sampler.keep(set(self._roster.known))
        devices = tuple(self._verdict(told) for told in answer.devices)
        troubles = (*self._diagnosis.problems, *self._watch.problems)
        return replace(answer, devices=devices, problems=(*answer.problems, *troubles))

    def _standing(self, key: str) -> Health | None:
        known = self._roster.known.get(key)
        return known.standing if known is not None else None

    def _verdict(self, told: VendorDevice) -> VendorDevice:
        standing = self._standing(told.key)
        return applied(replace(told, health=judged(told.health, standing)), self._diagnosis)

    def sample(self) -> tuple[DeviceSample, ...]:
        """Sample the cards that answer; late ones are asked every ten seconds."""
        self._refuse_replaced()
        if self._roster.wants_discovery() and not self._waits:
            told = "the library is of another driver than the kernel's for longer than an upgrade"
            self._watch.tell(DeviceEvent(key="", reason="DriverMismatch", message=told))
        self._waits = self._roster.wants_discovery()
        return self._sampler.cycle(self._nvml, self._roster.cards)

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Wait for events of the driver and for changes that sampling noticed."""
        return self._watch.wait(wait_s)

    def clear(self, key: str) -> bool:
        """Forget what is held against a card, its old number included, on a person's word."""
        faults, number = self._diagnosis.clear(key), self._roster.renumber(key)
        self._roster.memory.save()
        return faults or number

    def close(self) -> None:
        """Free the event set and let go of the driver."""
        # under a call that has not returned the library is not closed: the process ends
        if self._watch.close() and self._nvml is not None:
            nvml, self._nvml = self._nvml, None
            self._roster.cards.clear()
            nvml.close()
