"""The session over NVML: loads the library, discovers, samples, waits for events."""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec.structs import replace

from agent.clock import SYSTEM_CLOCK, Clock
from agent.errors import LibraryReplaced
from agent.host.files import read_text
from agent.host.kernel import read_boot_id
from agent.snapshot.device import Health, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory, Problem
from agent.snapshot.vendor import LIVE_CONTEXT, SessionContext
from plugins.shared.call_journal import NO_JOURNAL, LibraryCallJournal
from plugins.shared.library_file import LibraryFile, LibraryUnavailable
from plugins.vendors.nvidia.discovery.card_store import CardStore
from plugins.vendors.nvidia.discovery.cards import NvidiaCards
from plugins.vendors.nvidia.discovery.descriptions import (
    CardDescription,
    MachineFacts,
    memory_total,
)
from plugins.vendors.nvidia.discovery.inventory import (
    build_inventory,
    module_version,
    read_driver_facts,
)
from plugins.vendors.nvidia.discovery.nvlink import FabricStateTracker
from plugins.vendors.nvidia.discovery.sysfs import (
    NvidiaHardware,
    describe_recorded_function,
    find_hardware,
)
from plugins.vendors.nvidia.events import NvidiaEventWatch
from plugins.vendors.nvidia.health.diagnosis import apply_diagnosis, combine_health, open_diagnosis
from plugins.vendors.nvidia.library import platform
from plugins.vendors.nvidia.library.nvml import Nvml, find_library
from plugins.vendors.nvidia.mig.capabilities import MigCapabilities
from plugins.vendors.nvidia.sampler import NvidiaSampler
from plugins.vendors.nvidia.settings import NvidiaSettings, read_xid_rules


class NvidiaSession:
    """The NVIDIA cards of one host. One thread calls it; `events` may have another."""

    def __init__(
        self,
        host: HostFiles,
        settings: NvidiaSettings,
        context: SessionContext = LIVE_CONTEXT,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._host = host
        self._settings = settings
        self._is_replay = context.is_replay
        self._clock = clock
        self._nvml: Nvml | None = None
        self._file: LibraryFile | None = None  # what this process has loaded, for good
        self._diagnosis = open_diagnosis(
            host, read_xid_rules(settings, os.environ), context.state_dir, clock
        )
        self._watch = NvidiaEventWatch(host, self._diagnosis, clock)
        self._sampler = NvidiaSampler(host, self._diagnosis, self._watch.add, clock)
        self._fabrics = FabricStateTracker(clock)
        store = CardStore(context.state_dir, read_boot_id(host))
        self._roster = NvidiaCards(store, clock, settings.forget_after_s)
        self._calls: LibraryCallJournal = NO_JOURNAL
        self._waits = False  # a discovery was asked for, and has not come

    def journal_calls(self, journal: LibraryCallJournal) -> None:
        """Tell the journal of each call of the library, which is not loaded yet."""
        self._calls = journal

    def discover(self) -> Inventory:
        """Describe every card; one that does not answer stays listed and hides no other."""
        sight = find_hardware(self._host)
        if self._is_replay:
            return Inventory(
                vendor="nvidia", devices=tuple(describe_recorded_function(s) for s in sight.cards)
            )
        try:
            nvml = self._library()
        except LibraryUnavailable as absent:
            return self._without(sight, absent)
        asked = self._roster.discover_part(nvml, sight, self._around(nvml))
        parts = {key: known.device.partitions for key, known in self._roster.discovered.items()}
        self._watch.watch(nvml, self._roster.cards, parts)
        system = read_driver_facts(nvml, self._host, sight)
        answer = build_inventory(self._roster, asked, sight, system, self._settings, self._fabrics)
        self._roster.store.save()
        return self._told(answer, asked.descriptions)

    def _library(self) -> Nvml:
        self._refuse_replaced()
        if self._nvml is None:
            path = find_library(self._settings)
            self._file = LibraryFile.stat(path)
            self._nvml = Nvml(path, self._calls)
        return self._nvml

    def _refuse_replaced(self) -> None:
        if self._file is not None and self._file.is_replaced():
            raise LibraryReplaced(f"{self._file.path} was replaced: a new process must load it")

    def _around(self, nvml: Nvml) -> MachineFacts:
        return MachineFacts(
            host=self._host,
            capabilities=MigCapabilities(self._host),
            system_bytes=memory_total(read_text(self._host, "/proc/meminfo") or ""),
            is_waiting_for_ready_state=platform.is_waiting_for_ready_state(nvml),
        )

    def _without(self, sight: NvidiaHardware, absent: LibraryUnavailable) -> Inventory:
        listed = self._roster.describe_all_unreachable(sight, absent.reason, str(absent))
        return Inventory(
            vendor="nvidia",
            devices=tuple(apply_diagnosis(card, self._diagnosis) for card in listed),
            driver_version=module_version(self._host),
            problems=(
                Problem(reason=absent.reason, message=str(absent)),
                *(*self._diagnosis.problems, *self._watch.problems),
            ),
        )

    def _told(self, answer: Inventory, found: Mapping[str, CardDescription]) -> Inventory:
        """Learn what was found of each card, and say what stands against it."""
        for key, item in found.items():
            known = self._roster.discovered[key]
            self._sampler.set_card(
                self._roster.cards[key],
                known.device,
                item.facts,
                shared_bytes=known.shared_bytes,
                standing=known.lasting_health,
                clique=known.links.fabric is not None and known.links.fabric.clique_id is not None,
            )
        for told in answer.devices:
            examined = answer.subjects is None or told.key in answer.subjects
            if told.managed and examined and told.key not in found:
                self._sampler.set_silent(
                    told.key, combine_health(told.health, self._standing(told.key))
                )
        self._sampler.retain(set(self._roster.discovered))
        devices = tuple(self._verdict(told) for told in answer.devices)
        troubles = (*self._diagnosis.problems, *self._watch.problems)
        return replace(answer, devices=devices, problems=(*answer.problems, *troubles))

    def _standing(self, key: str) -> Health | None:
        known = self._roster.discovered.get(key)
        return known.lasting_health if known is not None else None

    def _verdict(self, told: VendorDevice) -> VendorDevice:
        standing = self._standing(told.key)
        return apply_diagnosis(
            replace(told, health=combine_health(told.health, standing)), self._diagnosis
        )

    def sample(self) -> tuple[DeviceSample, ...]:
        """Sample the cards that answer; late ones are asked every ten seconds."""
        self._refuse_replaced()
        if self._roster.needs_discovery() and not self._waits:
            told = "the library is of another driver than the kernel's for longer than an upgrade"
            self._watch.add(DeviceEvent(key="", reason="DriverMismatch", message=told))
        self._waits = self._roster.needs_discovery()
        return self._sampler.sample(self._nvml, self._roster.cards)

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Wait for events of the driver and for changes that sampling noticed."""
        return self._watch.wait(wait_s)

    def clear(self, key: str) -> bool:
        """Forget what is held against a card, its old number included, on a person's word."""
        faults, number = self._diagnosis.clear(key), self._roster.renumber(key)
        self._roster.store.save()
        return faults or number

    def close(self) -> None:
        """Free the event set and let go of the driver."""
        # under a call that has not returned the library is not closed: the process ends
        if self._watch.close() and self._nvml is not None:
            nvml, self._nvml = self._nvml, None
            self._roster.cards.clear()
            nvml.close()
