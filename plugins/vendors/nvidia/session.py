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
    MODULE,
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

RETRY_LIBRARY_S = 30.0  # between two searches for the library while its kernel module is loaded


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
        self._file: LibraryFile | None = None  # loaded until the process ends
        self._diagnosis = open_diagnosis(
            host, read_xid_rules(settings, os.environ), context.state_dir, clock
        )
        self._watch = NvidiaEventWatch(host, self._diagnosis, clock)
        self._sampler = NvidiaSampler(host, self._diagnosis, self._watch.add, clock)
        self._fabrics = FabricStateTracker(clock)
        store = CardStore(context.state_dir, read_boot_id(host))
        self._cards = NvidiaCards(store, clock, settings.forget_after_s)
        self._calls: LibraryCallJournal = NO_JOURNAL
        self._has_requested_discovery = False  # and the discovery has not run yet
        self._library_retry_s = clock.monotonic() + RETRY_LIBRARY_S  # next search for the library

    def journal_calls(self, journal: LibraryCallJournal) -> None:
        """Set the journal of library calls; called before the library is loaded."""
        self._calls = journal

    def discover(self) -> Inventory:
        """Describe all cards; a card that does not answer stays listed and hides no other card."""
        hardware = find_hardware(self._host)
        if self._is_replay:
            return Inventory(
                vendor="nvidia",
                devices=tuple(describe_recorded_function(s) for s in hardware.cards),
            )
        try:
            nvml = self._library()
        except LibraryUnavailable as error:
            return self._inventory_without_library(hardware, error)
        part = self._cards.discover_part(nvml, hardware, self._machine_facts(nvml))
        partitions = {key: entry.device.partitions for key, entry in self._cards.discovered.items()}
        self._watch.watch(nvml, self._cards.cards, partitions)
        system = read_driver_facts(nvml, self._host, hardware)
        inventory = build_inventory(
            self._cards, part, hardware, system, self._settings, self._fabrics
        )
        self._cards.store.save()
        return self._apply_health(inventory, part.descriptions)

    def _library(self) -> Nvml:
        self._check_library_file()
        if self._nvml is None:
            path = find_library(self._settings)
            self._file = LibraryFile.stat(path)
            self._nvml = Nvml(path, self._calls)
        return self._nvml

    def _check_library_file(self) -> None:
        if self._file is not None and self._file.is_replaced():
            raise LibraryReplaced(f"{self._file.path} was replaced: a new process must load it")

    def _machine_facts(self, nvml: Nvml) -> MachineFacts:
        return MachineFacts(
            host=self._host,
            capabilities=MigCapabilities(self._host),
            system_bytes=memory_total(read_text(self._host, "/proc/meminfo") or ""),
            is_waiting_for_ready_state=platform.is_waiting_for_ready_state(nvml),
        )

    def _inventory_without_library(
        self, hardware: NvidiaHardware, error: LibraryUnavailable
    ) -> Inventory:
        devices = self._cards.describe_all_unreachable(hardware, error.reason, str(error))
        return Inventory(
            vendor="nvidia",
            devices=tuple(apply_diagnosis(card, self._diagnosis) for card in devices),
            driver_version=module_version(self._host),
            problems=(
                Problem(reason=error.reason, message=str(error)),
                *(*self._diagnosis.problems, *self._watch.problems),
            ),
        )

    def _apply_health(
        self, inventory: Inventory, descriptions: Mapping[str, CardDescription]
    ) -> Inventory:
        """Pass the described cards to the sampler; return the inventory with all health."""
        for key, description in descriptions.items():
            entry = self._cards.discovered[key]
            self._sampler.set_card(
                self._cards.cards[key],
                entry.device,
                description.facts,
                shared_bytes=entry.shared_bytes,
                lasting_health=entry.lasting_health,
                clique=entry.links.fabric is not None and entry.links.fabric.clique_id is not None,
            )
        for device in inventory.devices:
            is_examined = inventory.subjects is None or device.key in inventory.subjects
            if device.managed and is_examined and device.key not in descriptions:
                self._sampler.set_unavailable(
                    device.key, combine_health(device.health, self._lasting_health(device.key))
                )
        self._sampler.retain(set(self._cards.discovered))
        devices = tuple(self._with_health(device) for device in inventory.devices)
        problems = (*self._diagnosis.problems, *self._watch.problems)
        return replace(inventory, devices=devices, problems=(*inventory.problems, *problems))

    def _lasting_health(self, key: str) -> Health | None:
        entry = self._cards.discovered.get(key)
        return entry.lasting_health if entry is not None else None

    def _with_health(self, device: VendorDevice) -> VendorDevice:
        lasting = self._lasting_health(device.key)
        return apply_diagnosis(
            replace(device, health=combine_health(device.health, lasting)), self._diagnosis
        )

    def sample(self) -> tuple[DeviceSample, ...]:
        """Sample the cards that answer; slow cards are sampled every ten seconds only."""
        self._check_library_file()
        self._find_late_library()
        if self._cards.needs_discovery() and not self._has_requested_discovery:
            message = (
                "the library is of another driver than the kernel's for longer than an upgrade"
            )
            self._watch.add(DeviceEvent(key="", reason="DriverMismatch", message=message))
        self._has_requested_discovery = self._cards.needs_discovery()
        return self._sampler.sample(self._nvml, self._cards.cards)

    def _find_late_library(self) -> None:
        """Request a discovery when the library can be used at last.

        A driver container loads its module before its files are visible on the node; the kernel
        reports the module, but not the files.
        """
        now_s = self._clock.monotonic()
        if self._nvml is not None or now_s < self._library_retry_s or self._is_replay:
            return
        self._library_retry_s = now_s + RETRY_LIBRARY_S
        if not self._host.exists(MODULE):
            return
        try:
            self._library()
        except LibraryUnavailable:
            return
        message = "the driver's library can be used now"
        self._watch.add(DeviceEvent(key="", reason="DriverCame", message=message))

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Wait for events of the driver and of the sampler."""
        return self._watch.wait(wait_s)

    def clear(self, key: str) -> bool:
        """Remove a card's causes and its old minor, at a person's request."""
        had_faults, was_renumbered = self._diagnosis.clear(key), self._cards.renumber(key)
        self._cards.store.save()
        return had_faults or was_renumbered

    def close(self) -> None:
        """Free the event set and shut NVML down."""
        # while a call hangs NVML must not be shut down; the process ends anyway
        if self._watch.close() and self._nvml is not None:
            nvml, self._nvml = self._nvml, None
            self._cards.cards.clear()
            nvml.close()
