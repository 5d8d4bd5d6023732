"""The session over libcndev: loads the library, discovers, samples, receives Xids."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from agent.clock import SYSTEM_CLOCK, Clock
from agent.errors import AgentError, HostFileError, LibraryReplaced, ParseError
from agent.host.kernel import read_boot_id
from agent.snapshot.device import DeviceCondition, DeviceLink, Health, HealthState, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import (
    DeviceEvent,
    DeviceSample,
    Inventory,
    MetricValue,
    Problem,
    SliceReport,
    SliceRequest,
)
from agent.snapshot.vendor import LIVE_CONTEXT, SessionContext
from agent.topology.device_groups import DeviceGrouping
from plugins.shared.call_journal import NO_JOURNAL, LibraryCallJournal
from plugins.shared.library_file import LibraryFile, LibraryUnavailable
from plugins.vendors.cambricon.discovery import cnmon
from plugins.vendors.cambricon.discovery.card_store import MluStore, serial_of
from plugins.vendors.cambricon.discovery.descriptions import (
    describe_card,
    describe_instance,
    device_id,
)
from plugins.vendors.cambricon.discovery.links import find_links, group_cards, ring_pairs
from plugins.vendors.cambricon.discovery.sysfs import describe_function, find_cards
from plugins.vendors.cambricon.health import (
    XidWatch,
    judge_failed_calls,
    judge_status,
    memory_conditions,
)
from plugins.vendors.cambricon.kubelet import MIM_MODE_REASON
from plugins.vendors.cambricon.library import meters
from plugins.vendors.cambricon.library.card import MIB, CndevCard, MluStatus, open_cards
from plugins.vendors.cambricon.library.cndev import Cndev, card_name, locate_cndev
from plugins.vendors.cambricon.library.codes import BAD_LINK, GARBLED, NOT_LOADED, CndevFault
from plugins.vendors.cambricon.metrics import LAST_XID, XID
from plugins.vendors.cambricon.sampler import CardSampler, state_readings
from plugins.vendors.cambricon.settings import CambriconSettings
from plugins.vendors.cambricon.smlu.maker import DivisibleCard, reconcile_slices
from plugins.vendors.cambricon.smlu.ownership import SmluOwnershipFile, with_owners
from plugins.vendors.cambricon.smlu.profiles import unit_mib

MAX_CARDS = 64
MAX_RINGS_BYTES = 4 << 20
LINK_CALLS = "cndevGetMLULink"

_HEALTH_UNKNOWN = Health(
    state=HealthState.SUSPECT,
    reason="DriverError",
    message="the card has not said how it is",
)


class _DiscoveredMlu(msgspec.Struct):
    """A card and its state between calls of the session."""

    card: CndevCard
    device: VendorDevice
    status: MluStatus | None = None  # of the last health call; None: it failed
    failed_calls: int = 0  # consecutive failed health calls
    remotes: tuple[str, ...] = ()  # UUIDs at the other ends of its links


class CambriconSession:
    """The Cambricon cards of one host. One thread calls it; `events` may have another."""

    def __init__(
        self,
        host: HostFiles,
        settings: CambriconSettings,
        context: SessionContext = LIVE_CONTEXT,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._host = host
        self._settings = settings
        self._is_replay = context.is_replay
        self._cndev: Cndev | None = None
        self._file: LibraryFile | None = None  # loaded until the process ends
        self._discovered: dict[int, _DiscoveredMlu] = {}  # by index
        # by index: cards that the library omits, although their functions are there
        self._omitted: dict[int, _DiscoveredMlu] = {}
        self._watch = XidWatch(self._health_of, clock)
        self._sampler = CardSampler(clock)
        self._calls: LibraryCallJournal = NO_JOURNAL
        self._lock = threading.Lock()  # the thread of events checks cards, too
        folder, boot_id = context.state_dir, read_boot_id(host)
        self._owned = SmluOwnershipFile(folder, boot_id) if folder else None
        self._store = MluStore(folder, boot_id)

    def journal_calls(self, journal: LibraryCallJournal) -> None:
        """Set the journal of library calls; called before the library is loaded."""
        self._calls = journal

    def discover(self) -> Inventory:
        """Describe all cards; a card that does not answer stays listed and hides no other card."""
        functions = find_cards(self._host)
        if self._is_replay:
            devices = tuple(describe_function(bus_id, "NoRecordedAnswers") for bus_id in functions)
            return Inventory(vendor="cambricon", devices=devices)
        try:
            cndev = self._library()
            cards, failed = self._open_cards(cndev)
        except LibraryUnavailable as error:
            return self._inventory_without_library(functions, error)
        return self._inventory(cndev, functions, cards, failed)

    def _library(self) -> Cndev:
        if self._file is not None and self._file.is_replaced():
            raise LibraryReplaced(f"{self._file.path} was replaced: a new process must load it")
        if self._cndev is None:
            path = locate_cndev(self._settings)
            self._file = LibraryFile.stat(path)
            self._cndev = Cndev(path, self._calls)
        return self._cndev

    def _inventory_without_library(
        self, functions: tuple[str, ...], error: LibraryUnavailable
    ) -> Inventory:
        problem = Problem(reason=error.reason, message=str(error))
        if error.reason != "DriverNotLoaded" and (
            cards := cnmon.run_cnmon(self._settings.driver_root)
        ):
            return cnmon.inventory_from_cnmon(cards, self._host, functions, problem)
        # cards of the last discovery stay listed, because pods may use them
        health = Health(state=HealthState.FAILED, reason=error.reason, message=str(error))
        discovered = [k.device for _, k in sorted(self._discovered.items())]
        stored = self._store.unlisted(functions, discovered).values()
        devices_before = [replace(device, health=health) for device in (*discovered, *stored)]
        bus_ids = {device.bus_id for device in devices_before}
        described = (
            describe_function(b, health.reason, health.message, health.state) for b in functions
        )
        devices = (
            *devices_before,
            *(device for device in described if device.bus_id not in bus_ids),
        )
        return Inventory(vendor="cambricon", devices=devices, problems=(problem,))

    def _open_cards(self, cndev: Cndev) -> tuple[dict[int, CndevCard], dict[int, AgentError]]:
        try:
            return open_cards(cndev, MAX_CARDS)
        except CndevFault as error:
            if error.code not in NOT_LOADED:
                raise
            self._cndev = None  # initialised again when the driver is back
            raise LibraryUnavailable("DriverNotLoaded", str(error)) from error

    def _inventory(
        self,
        cndev: Cndev,
        functions: tuple[str, ...],
        cards: Mapping[int, CndevCard],
        failed: Mapping[int, AgentError],
    ) -> Inventory:
        self._sampler.reset()
        remotes: dict[str, tuple[str, ...]] = {}
        uuids: dict[str, str] = {}
        for index, card in cards.items():
            before = self._card_before(index, card)
            device = describe_card(
                card, self._host, self._settings.smlu_unit_mib, before.device if before else None
            )
            entry = self._discovered[index] = _DiscoveredMlu(
                card, device, failed_calls=before.failed_calls if before else 0
            )
            last_health = before.device.health if before else _HEALTH_UNKNOWN
            entry.device = replace(
                device,
                health=self._check_health(entry) or last_health,
                conditions=_read_conditions(card, before),
            )
            self._calls.assign(card_name(index), device.key)
            entry.remotes = remotes[device.key] = _linked_uuids(card, before)
            uuids[(device.uuid or "").removeprefix("MLU-")] = device.key
        for index, error in failed.items():
            self._mark_failed(index, error)
        self._set_omitted({*cards, *failed}, functions)
        devices = [entry.device for _, entry in sorted(self._discovered.items())]
        omitted = self._store.unlisted(functions, devices)
        omitted |= {k.device.bus_id: k.device for _, k in sorted(self._omitted.items())}
        unlisted = _describe_unlisted(functions, devices, omitted)
        self._store.save((*devices, *unlisted))
        uuids |= {d.uuid.removeprefix("MLU-"): d.key for d in unlisted if d.uuid}
        links = find_links(uuids, remotes)
        grouping = self._groups(links)
        self._watch.watch(cndev, {k.device.key: k.card for k in self._discovered.values()})
        missing_symbols = ",".join(sorted(cndev.missing))
        drivers = (dict(entry.device.facts).get("driver") for entry in self._discovered.values())
        return Inventory(
            vendor="cambricon",
            devices=(*with_owners(devices, uuids, self._owned), *unlisted),
            links=links,
            driver_version=next((version for version in drivers if version), None),
            library=cndev.path,
            facts=tuple(
                (k, v)
                for k, v in (("api", str(cndev.version)), ("missing-symbols", missing_symbols))
                if v
            ),
            problems=(*grouping.problems, *filter(None, (self._store.problem,))),
            groups=grouping.groups,
            group_policy="Prefer" if grouping.groups else None,
        )

    def _card_before(self, index: int, card: CndevCard) -> _DiscoveredMlu | None:
        """Return the last state of this card; `None` if another card has its index now."""
        before = self._discovered.get(index) or self._omitted.get(index)
        uuid = device_id(card.uuid())
        serial = card.serial()
        if before is not None:
            serial_before = serial_of(before.device)
            is_other = bool(serial and serial_before) and serial != serial_before
            if uuid == before.device.uuid or (uuid is None and not is_other):
                return before
        stored = self._store.find(uuid, serial, card.bus_id(), index)
        return _DiscoveredMlu(card, replace(stored, health=_HEALTH_UNKNOWN)) if stored else None

    def _set_omitted(self, listed: Collection[int], functions: Collection[str]) -> None:
        """Move cards between the discovered and the omitted ones; forget removed cards."""
        cards = self._omitted | self._discovered
        self._discovered = {i: k for i, k in self._discovered.items() if i in listed}
        self._omitted = {
            index: entry
            for index, entry in cards.items()
            if index not in self._discovered and entry.device.bus_id in functions
        }

    def _mark_failed(self, index: int, error: AgentError) -> None:
        """Mark a card without a handle as failed, with its last description."""
        before = self._discovered.get(index)
        if before is not None:
            health = Health(state=HealthState.FAILED, reason="DriverError", message=str(error))
            before.device = replace(before.device, health=health)

    def _groups(self, links: tuple[DeviceLink, ...]) -> DeviceGrouping:
        keys = {index: entry.device.key for index, entry in sorted(self._discovered.items())}
        pairs = self._rings()
        ring_keys = [(keys[a], keys[b]) for a, b in pairs if a in keys and b in keys]
        return group_cards(
            tuple(keys.values()), links, ring_keys if len(ring_keys) == len(pairs) else ()
        )

    def _rings(self) -> tuple[tuple[int, int], ...]:
        path = self._settings.cntopo_file
        if not path:
            return ()
        try:
            return ring_pairs(self._host.read(path, MAX_RINGS_BYTES))
        except (HostFileError, ParseError):
            return ()  # pairs are only a preference

    def _check_health(self, entry: _DiscoveredMlu) -> Health | None:
        """Return a card's health now; `None` if it is not yet known."""
        card = entry.card
        with self._lock:
            card.begin_round()
            status = card.status()
            code = card.faults.get("cndevGetCardHealthState")
        entry.status = status
        if status is None:
            entry.failed_calls += 1
            return judge_failed_calls(entry.failed_calls, GARBLED if code is None else code)
        entry.failed_calls = 0
        if entry.device.health.reason == MIM_MODE_REASON:
            return entry.device.health
        return judge_status(status, self._watch.last.get(entry.device.key))

    def _health_of(self, key: str) -> Health | None:
        entry = next((k for k in tuple(self._discovered.values()) if k.device.key == key), None)
        return self._check_health(entry) if entry else None

    def sample(self) -> tuple[DeviceSample, ...]:
        """Sample the cards that answer, with their health."""
        if self._file is not None and self._file.is_replaced():
            raise LibraryReplaced(f"{self._file.path} was replaced: a new process must load it")
        samples: list[DeviceSample] = []
        for entry in tuple(self._discovered.values()) if self._cndev is not None else ():
            key = entry.device.key
            health = self._check_health(entry)
            has_slices = ("smlu", "on") in entry.device.facts
            sample = self._sampler.sample(entry.card, key, with_slices=has_slices)
            if sample is None and health is None:
                continue
            readings = (
                *(sample.readings if sample else ()),
                *state_readings(entry.device, entry.status),
                *self._xids(key),
            )
            own_sample = sample or DeviceSample(key=key)
            samples.append(replace(own_sample, readings=readings, health=health))
        return tuple(samples)

    def _xids(self, key: str) -> Iterator[MetricValue]:
        """Yield the number of each Xid of a card, and the last Xid."""
        for xid, count in sorted(
            (n, c) for (k, n), c in tuple(self._watch.counts.items()) if k == key
        ):
            yield MetricValue(family=XID, value=float(count), labels=(f"{xid:#018x}",))
        last = self._watch.last.get(key)
        if last is not None:
            label = f"{last:#018x}"
            yield MetricValue(family=LAST_XID.name, value=float(last), labels=(label,))

    def slices(self, requests: Sequence[SliceRequest], pods: Collection[str] | None) -> SliceReport:
        """Create requested sMLU instances, and destroy the agent's instances of deleted pods."""
        cards = {k.device.key: self._divisible_card(k) for k in self._discovered.values()}
        with self._lock:
            return reconcile_slices(
                self._owned, cards if self._cndev is not None else {}, requests, pods
            )

    def _divisible_card(self, entry: _DiscoveredMlu) -> DivisibleCard:
        unit = unit_mib(self._settings.smlu_unit_mib, (entry.device.memory_bytes or 0) // MIB)
        describe = partial(describe_instance, entry.device.uuid, host=self._host, mim=False)
        return DivisibleCard(card=entry.card, unit_mib=unit, describe=describe)

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Wait for Xids; an event is returned after its card was checked."""
        return self._watch.wait(wait_s)

    def close(self) -> None:
        """Stop the event watch and release the library."""
        self._watch.close()
        if self._cndev is not None:
            cndev, self._cndev = self._cndev, None
            self._discovered.clear()
            self._sampler.close()
            cndev.close()


def _read_conditions(card: CndevCard, before: _DiscoveredMlu | None) -> tuple[DeviceCondition, ...]:
    """Return the conditions of a card's memory; the last ones if they cannot be read now."""
    repairs = {state: value > 0 for (state,), value in meters.read_repair_states(card)}
    if before is not None and not repairs:
        return before.device.conditions
    return memory_conditions(repairs)


def _linked_uuids(card: CndevCard, before: _DiscoveredMlu | None) -> tuple[str, ...]:
    """Return the UUIDs at the other ends of a card's links; the last ones if a call failed."""
    uuids = card.linked_uuids()
    failed_codes = (code for call, code in card.faults.items() if call.startswith(LINK_CALLS))
    return before.remotes if before and any(code != BAD_LINK for code in failed_codes) else uuids


def _describe_unlisted(
    functions: Sequence[str],
    devices: Sequence[VendorDevice],
    omitted: Mapping[str | None, VendorDevice],
) -> tuple[VendorDevice, ...]:
    """Describe functions that the library does not list, because a driver starts or failed.

    `omitted` are the cards, by bus id, that it listed earlier: they stay what they were.
    """
    listed_bus_ids = {device.bus_id for device in devices}
    message = "the driver's library does not list this card"
    unknown = [bus_id for bus_id in functions if bus_id not in listed_bus_ids]
    # a listed card may have no address, so it may be one of the unlisted functions
    missing_count = max(0, len(functions) - len(devices))
    unlisted = []
    for bus_id in unknown[:missing_count]:
        device = describe_function(bus_id, "DriverError", message, HealthState.FAILED)
        before = omitted.get(bus_id)
        unlisted.append(device if before is None else replace(before, health=device.health))
    return tuple(unlisted)
