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
from agent.snapshot.device import DeviceLink, Health, HealthState, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import (
    DeviceEvent,
    DeviceSample,
    Inventory,
    MetricValue,
    Problem,
    ProcessSample,
    SliceReport,
    SliceRequest,
)
from agent.snapshot.vendor import LIVE_CONTEXT, SessionContext
from agent.topology.device_groups import DeviceGrouping
from plugins.shared import metric_families
from plugins.shared.call_journal import NO_JOURNAL, LibraryCallJournal
from plugins.shared.library_file import LibraryFile, LibraryUnavailable
from plugins.vendors.cambricon.discovery import cnmon
from plugins.vendors.cambricon.discovery.descriptions import (
    describe_card,
    describe_instance,
    device_id,
)
from plugins.vendors.cambricon.discovery.links import find_links, group_cards, ring_pairs
from plugins.vendors.cambricon.discovery.sysfs import describe_function, find_cards
from plugins.vendors.cambricon.health import XidWatch, judge_silence, judge_status
from plugins.vendors.cambricon.library.card import MIB, CndevCard, MluInstance, open_cards
from plugins.vendors.cambricon.library.cndev import Cndev, card_name, locate_cndev
from plugins.vendors.cambricon.library.codes import BAD_LINK, GARBLED, NOT_LOADED, CndevFault
from plugins.vendors.cambricon.metrics import SLICE_CORE, SLICE_MEMORY, XID
from plugins.vendors.cambricon.settings import CambriconSettings
from plugins.vendors.cambricon.smlu.maker import DivisibleCard, keep_slices
from plugins.vendors.cambricon.smlu.ownership import SmluOwnershipFile, with_owners
from plugins.vendors.cambricon.smlu.profiles import unit_mib


def sample_card(card: CndevCard, key: str, *, sliced: bool) -> DeviceSample | None:
    """Ask a card everything that changes; `None` if it answered nothing at all.

    `sliced` says that sMLU cuts the card, so that its instances are asked about too.
    """
    memory = card.memory()
    core = card.utilisation()
    processes = card.processes()
    readings = (*_readings(card), *(_slice_readings(card.smlu_instances()) if sliced else ()))
    if memory is None and core is None and processes is None and not readings:
        return None
    return DeviceSample(
        key=key,
        core_percent=core,
        memory_used_bytes=memory[1] if memory else None,
        memory_total_bytes=memory[0] if memory else None,
        processes=None
        if processes is None
        else tuple(
            ProcessSample(pid=p.pid, memory_bytes=p.memory_bytes, core_percent=p.core_percent)
            for p in processes
        ),
        readings=readings,
    )


def _readings(card: CndevCard) -> Iterator[MetricValue]:
    power = card.power_watts()
    if power is not None:
        yield MetricValue(family=metric_families.POWER.name, value=power)
    for sensor, heat in card.temperatures():
        yield MetricValue(family=metric_families.TEMPERATURE.name, value=heat, labels=(sensor,))
    for kind, count in card.ecc():
        yield MetricValue(
            family=metric_families.ECC_ERRORS.name, value=float(count), labels=(kind,)
        )


def _slice_readings(found: Sequence[MluInstance]) -> Iterator[MetricValue]:
    for one in found:
        label = (str(one.number),)
        if one.used_percent is not None:
            yield MetricValue(family=SLICE_CORE, value=float(one.used_percent), labels=label)
        if one.used_bytes is not None:
            yield MetricValue(family=SLICE_MEMORY, value=float(one.used_bytes), labels=label)


MAX_CARDS = 64

MAX_RINGS_BYTES = 4 << 20

LINK_CALLS = "cndevGetMLULink"

_HEALTH_UNKNOWN = Health(
    state=HealthState.SUSPECT,
    reason="DriverError",
    message="the card has not said how it is",
)


class _DiscoveredMlu(msgspec.Struct):
    """What is kept of a card between calls."""

    card: CndevCard
    device: VendorDevice
    failing: int = 0  # calls for its health in a row
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
        self._file: LibraryFile | None = None  # what this process has loaded, for good
        self._known: dict[int, _DiscoveredMlu] = {}  # by index
        self._watch = XidWatch(self._verdict_of, clock)
        self._calls: LibraryCallJournal = NO_JOURNAL
        self._lock = threading.Lock()  # the thread of events looks at cards too
        folder = context.state_dir
        self._owned = SmluOwnershipFile(folder, read_boot_id(host)) if folder else None

    def journal_calls(self, journal: LibraryCallJournal) -> None:
        """Tell the journal of each call of the library, which is not loaded yet."""
        self._calls = journal

    def discover(self) -> Inventory:
        """Describe every card; one that does not answer stays listed and hides no other."""
        functions = find_cards(self._host)
        if self._is_replay:
            devices = tuple(describe_function(bus_id, "NoRecordedAnswers") for bus_id in functions)
            return Inventory(vendor="cambricon", devices=devices)
        try:
            cndev = self._library()
            cards, failed = self._cards(cndev)
        except LibraryUnavailable as absent:
            return self._without(functions, absent)
        return self._inventory(cndev, functions, cards, failed)

    def _library(self) -> Cndev:
        if self._file is not None and self._file.is_replaced():
            raise LibraryReplaced(f"{self._file.path} was replaced: a new process must load it")
        if self._cndev is None:
            path = locate_cndev(self._settings)
            self._file = LibraryFile.stat(path)
            self._cndev = Cndev(path, self._calls)
        return self._cndev

    def _without(self, functions: tuple[str, ...], absent: LibraryUnavailable) -> Inventory:
        problem = Problem(reason=absent.reason, message=str(absent))
        if absent.reason != "DriverNotLoaded" and (
            told := cnmon.run_cnmon(self._settings.driver_root)
        ):
            return cnmon.inventory_from_cnmon(told, self._host, functions, problem)
        # cards that were known stay what they are: pods may hold them
        health = Health(state=HealthState.FAILED, reason=absent.reason, message=str(absent))
        known = [replace(k.device, health=health) for _, k in sorted(self._known.items())]
        named = {found.bus_id for found in known}
        seen = (
            describe_function(b, health.reason, health.message, health.state) for b in functions
        )
        devices = (*known, *(found for found in seen if found.bus_id not in named))
        return Inventory(vendor="cambricon", devices=devices, problems=(problem,))

    def _cards(self, cndev: Cndev) -> tuple[dict[int, CndevCard], dict[int, AgentError]]:
        try:
            return open_cards(cndev, MAX_CARDS)
        except CndevFault as error:
            if error.code not in NOT_LOADED:
                raise
            self._cndev = None  # initialised anew once the driver is back
            raise LibraryUnavailable("DriverNotLoaded", str(error)) from error

    def _inventory(
        self,
        cndev: Cndev,
        functions: tuple[str, ...],
        cards: Mapping[int, CndevCard],
        failed: Mapping[int, AgentError],
    ) -> Inventory:
        remotes: dict[str, tuple[str, ...]] = {}
        uuids: dict[str, str] = {}
        for index, card in cards.items():
            before = self._before(index, card)
            found = describe_card(
                card, self._host, self._settings.smlu_unit_mib, before.device if before else None
            )
            known = self._known[index] = _DiscoveredMlu(
                card, found, before.failing if before else 0
            )
            last = before.device.health if before else _HEALTH_UNKNOWN
            known.device = replace(found, health=self._judge(known) or last)
            self._calls.assign(card_name(index), found.key)
            known.remotes = remotes[found.key] = _remotes(card, before)
            uuids[(found.uuid or "").removeprefix("MLU-")] = found.key
        for index, error in failed.items():
            self._keep(index, error)
        self._known = {i: k for i, k in self._known.items() if i in cards or i in failed}
        listed = [known.device for _, known in sorted(self._known.items())]
        missing = _missing(functions, listed)
        joined = find_links(uuids, remotes)
        table = self._groups(joined)
        self._watch.watch(cndev, {k.device.key: k.card for k in self._known.values()})
        lacking = ",".join(sorted(cndev.missing))
        drivers = (dict(known.device.facts).get("driver") for known in self._known.values())
        return Inventory(
            vendor="cambricon",
            devices=(*with_owners(listed, uuids, self._owned), *missing),
            links=joined,
            driver_version=next((version for version in drivers if version), None),
            library=cndev.path,
            facts=tuple(
                (k, v) for k, v in (("api", str(cndev.version)), ("missing-symbols", lacking)) if v
            ),
            problems=table.problems,
            groups=table.groups,
            group_policy="Prefer" if table.groups else None,
        )

    def _before(self, index: int, card: CndevCard) -> _DiscoveredMlu | None:
        """Return what was known of this very card; another one may have its number by now."""
        before = self._known.get(index)
        uuid = device_id(card.uuid())
        return None if before and uuid and uuid != before.device.uuid else before

    def _keep(self, index: int, error: AgentError) -> None:
        """Keep a card that has no handle any more as what it was."""
        before = self._known.get(index)
        if before is not None:
            health = Health(state=HealthState.FAILED, reason="DriverError", message=str(error))
            before.device = replace(before.device, health=health)

    def _groups(self, joined: tuple[DeviceLink, ...]) -> DeviceGrouping:
        keys = {index: known.device.key for index, known in sorted(self._known.items())}
        pairs = self._rings()
        inside = [(keys[a], keys[b]) for a, b in pairs if a in keys and b in keys]
        return group_cards(
            tuple(keys.values()), joined, inside if len(inside) == len(pairs) else ()
        )

    def _rings(self) -> tuple[tuple[int, int], ...]:
        path = self._settings.cntopo_file
        if not path:
            return ()
        try:
            return ring_pairs(self._host.read(path, MAX_RINGS_BYTES))
        except (HostFileError, ParseError):
            return ()  # pairs are a preference; the links say what there is

    def _judge(self, known: _DiscoveredMlu) -> Health | None:
        """Look at a card's health now; `None` if it cannot be told yet."""
        card = known.card
        with self._lock:
            card.begin_round()
            vitals = card.status()
            code = card.faults.get("cndevGetCardHealthState")
        if vitals is None:
            known.failing += 1
            return judge_silence(known.failing, GARBLED if code is None else code)
        known.failing = 0
        if known.device.health.reason == "MIMMode":
            return known.device.health
        return judge_status(vitals, self._watch.last.get(known.device.key))

    def _verdict_of(self, key: str) -> Health | None:
        found = next((k for k in tuple(self._known.values()) if k.device.key == key), None)
        return self._judge(found) if found else None

    def sample(self) -> tuple[DeviceSample, ...]:
        """Sample the cards that answer, each with a look at its health."""
        if self._file is not None and self._file.is_replaced():
            raise LibraryReplaced(f"{self._file.path} was replaced: a new process must load it")
        samples: list[DeviceSample] = []
        for known in tuple(self._known.values()) if self._cndev is not None else ():
            key = known.device.key
            health = self._judge(known)
            sliced = ("smlu", "on") in known.device.facts
            found = sample_card(known.card, key, sliced=sliced)
            if found is None and health is None:
                continue
            readings = (*(found.readings if found else ()), *self._xids(key))
            base = found or DeviceSample(key=key)
            samples.append(replace(base, readings=readings, health=health))
        return tuple(samples)

    def _xids(self, key: str) -> tuple[MetricValue, ...]:
        counted = sorted((n, c) for (k, n), c in tuple(self._watch.counts.items()) if k == key)
        return tuple(
            MetricValue(family=XID, value=float(c), labels=(f"{n:#018x}",)) for n, c in counted
        )

    def slices(self, wishes: Sequence[SliceRequest], pods: Collection[str] | None) -> SliceReport:
        """Keep the sMLU slices that are wished for, and none of ours for pods that are gone."""
        cards = {k.device.key: self._cuttable(k) for k in self._known.values()}
        with self._lock:
            return keep_slices(self._owned, cards if self._cndev is not None else {}, wishes, pods)

    def _cuttable(self, known: _DiscoveredMlu) -> DivisibleCard:
        unit = unit_mib(self._settings.smlu_unit_mib, (known.device.memory_bytes or 0) // MIB)
        describe_it = partial(describe_instance, known.device.uuid, host=self._host, mim=False)
        return DivisibleCard(card=known.card, unit_mib=unit, describe=describe_it)

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Wait for Xids; each is told once its card was looked at."""
        return self._watch.wait(wait_s)

    def close(self) -> None:
        """Let go of the driver."""
        self._watch.close()
        if self._cndev is not None:
            cndev, self._cndev = self._cndev, None
            self._known.clear()
            cndev.close()


def _remotes(card: CndevCard, before: _DiscoveredMlu | None) -> tuple[str, ...]:
    """Ask a card for its links; while it fails to tell of one, they are those of before."""
    told = card.linked_uuids()
    failed = (code for what, code in card.faults.items() if what.startswith(LINK_CALLS))
    return before.remotes if before and any(code != BAD_LINK for code in failed) else told


def _missing(functions: Sequence[str], listed: Sequence[VendorDevice]) -> tuple[VendorDevice, ...]:
    """Return functions that the library does not know: its driver is still starting, or failed."""
    known = {found.bus_id for found in listed}
    told = "the driver's library does not list this card"
    unknown = [bus_id for bus_id in functions if bus_id not in known]
    # a card whose address cannot be read is listed all the same: it is none of these
    lacking = max(0, len(functions) - len(listed))
    return tuple(
        describe_function(bus_id, "DriverError", told, HealthState.FAILED)
        for bus_id in unknown[:lacking]
    )
