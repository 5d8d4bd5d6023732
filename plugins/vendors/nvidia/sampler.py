"""Samples cards and their state: one round of calls each, expensive ones less often."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from agent.clock import SYSTEM_CLOCK, Clock
from agent.snapshot.device import DevicePartition, Health, HealthState, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import DeviceEvent, DeviceSample, MetricValue, ProcessSample
from plugins.vendors.nvidia.health import card_facts, trends
from plugins.vendors.nvidia.health.card_facts import HealthFacts, HealthFinding
from plugins.vendors.nvidia.health.causes import Cure
from plugins.vendors.nvidia.health.diagnosis import Diagnosis, combine_health, has_fallen_off_bus
from plugins.vendors.nvidia.health.trends import THROTTLES
from plugins.vendors.nvidia.library.card import CardUnavailable, NvmlCard
from plugins.vendors.nvidia.library.codes import NO_PERMISSION, NOT_FOUND
from plugins.vendors.nvidia.library.events import is_card_answering
from plugins.vendors.nvidia.library.nvml import Nvml
from plugins.vendors.nvidia.library.performance import CallRateLimiter, PerformanceCounters
from plugins.vendors.nvidia.library.processes import (
    KINDS,
    ProcessEntry,
    join_processes,
    process_percent,
    read_lists,
    total_memory,
)
from plugins.vendors.nvidia.library.readings import (
    FIELDS,
    core_percent,
    cycle_readings,
    engine_readings,
    noise_readings,
    optional_reading,
    performance_readings,
)
from plugins.vendors.nvidia.mig.usage import card_percent, slice_readings

SLOW_EVERY = 8  # cycles between two looks at what changes seldom

LOOK_S = 9.0  # between them, where cycles take longer: what they show is published within ten

EMPTY_LIST_EVERY = 5  # and between two at lists of graphics and MPS processes that are empty

PROBED_FOR_S = 900.0  # a card that was unwell is probed in every cycle for that long afterwards

MAX_LINKS = 36

LINK_COUNT = (91, 0)

_LOOK_UP = "nvmlDeviceGetHandleByPciBusId"

_BY_UUID = "nvmlDeviceGetHandleByUUID"


class _SampledCard:
    """What is kept of a card between two cycles."""

    def __init__(self, clock: Clock) -> None:
        self.shared_bytes: int | None = None  # the machine's memory, of a card that shares it
        self.partitions: tuple[DevicePartition, ...] = ()
        self.slow: tuple[MetricValue, ...] = ()
        self.performance = PerformanceCounters(clock)
        self.listing = CallRateLimiter()
        self.processes: tuple[ProcessSample, ...] | None = None
        self.listed = False  # the driver has lists of processes
        self.rests: dict[str, int] = {}  # cycle in which a list that was empty is asked for again
        self.alive: set[int] = set()  # pids that were seen in /proc
        self.links: int | None = None
        self.orphan_since_s: float | None = None
        self.exact = True  # memory in use is that of processes, not of the kernel as well
        self.probed_until_s = 0.0
        self.looked_s = clock.monotonic()  # of the last look at what changes seldom
        self.standing: Health | None = None  # a verdict that no look at the card lifts
        self.placeless: str | None = None  # UUID of a card that no bus shows

    @property
    def instances(self) -> list[int]:
        """Return the GPU instances of a card that is cut."""
        return sorted({p.instance for p in self.partitions if p.instance is not None})


class NvidiaSampler:
    """Samples all cards of a session; one thread calls it. Changes of health go to `tell`."""

    def __init__(
        self,
        host: HostFiles,
        diagnosis: Diagnosis,
        tell: Callable[[DeviceEvent], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._host = host
        self._diagnosis = diagnosis
        self._tell = tell
        self._clock = clock
        self._known: dict[str, _SampledCard] = {}
        self._cycle = 0

    def set_card(
        self,
        card: NvmlCard,
        device: VendorDevice,
        facts: HealthFacts,
        *,
        shared_bytes: int | None = None,
        standing: Health | None = None,
        clique: bool = False,
    ) -> None:
        """Take what a discovery found of a card that answers, and what it said of its health.

        `shared_bytes` is the machine's memory if the card shares it, and the card counts none.
        """
        key = device.key
        self._diagnosis.identify(key, device.uuid, clique=clique)
        known = self._known.setdefault(key, _SampledCard(self._clock))
        known.shared_bytes, known.partitions = shared_bytes, device.partitions
        known.standing, known.links = standing, None
        known.placeless = device.uuid if device.bus_id is None else None
        known.exact = ("memory-use", "approximate") not in device.facts
        known.performance.reset()
        known.listed, known.rests = False, {}
        try:
            # it was looked up by its address and told who it is: a probe
            self._look(key, card, known, replace(facts, answers_lookup=True), discovery=True)
        except CardUnavailable:
            self._stopped(card)
        self._report_noise(card)

    def set_silent(self, key: str, told: Health) -> None:
        """Take what a discovery says of a card that does not answer, or is no longer there."""
        self._known.setdefault(key, _SampledCard(self._clock)).standing = told
        if told.state is HealthState.FAILED:
            self._diagnosis.report_finding(
                key, HealthFinding(told.reason, told.message, Cure.ANSWER)
            )

    def retain(self, keys: set[str]) -> None:
        """Forget the cards that are not among these."""
        self._known = {key: known for key, known in self._known.items() if key in keys}

    def sample(self, nvml: Nvml | None, cards: Mapping[str, NvmlCard]) -> tuple[DeviceSample, ...]:
        """Sample the cards that answer; late ones are asked every ten seconds.

        A card that is not healthy, or was not a while ago, is probed and says so in its sample.
        """
        self._cycle += 1
        now_s = self._clock.monotonic()
        for key in self._diagnosis.suspected_cards(self._known):
            self._known[key].probed_until_s = now_s + PROBED_FOR_S
        samples: list[DeviceSample] = []
        for place, key in enumerate(sorted(self._known)):
            known, card = self._known[key], cards.get(key)
            slow = (self._cycle + place) % SLOW_EVERY == 0 or now_s - known.looked_s >= LOOK_S
            if card is None:
                samples.append(self._absent(nvml, key, look=slow))
            elif not card.is_slow(now_s):
                samples.append(self._sampled(card, known, slow=slow))
        return tuple(samples)

    def _absent(self, nvml: Nvml | None, key: str, *, look: bool) -> DeviceSample:
        """Say how a card is that could not be looked up; try it now and then."""
        if (
            look
            and nvml is not None
            and not has_fallen_off_bus(self._host, key)
            and is_card_answering(nvml, key)
        ):
            told = "the card answers again: it is looked at anew"
            self._tell(DeviceEvent(key=key, reason="CardAnswers", message=told))
        return DeviceSample(key=key, health=self._health(key))

    def _health(self, key: str) -> Health:
        return combine_health(self._diagnosis.health(key), self._known[key].standing)

    def _sampled(self, card: NvmlCard, known: _SampledCard, *, slow: bool) -> DeviceSample:
        key, was_late = card.bus_id, card.is_late
        probed = self._clock.monotonic() < known.probed_until_s
        card.begin_cycle()
        try:
            if probed:
                self._probe(card, known)
            found = self._measure(card, known)
            if slow and not probed:
                self._look(key, card, known)
        except CardUnavailable:
            self._stopped(card)
            return DeviceSample(key=key, health=self._health(key))
        finally:
            self._report_noise(card)
        if card.is_late and not was_late:
            told = "a call took over a second: the card is sampled every ten seconds"
            self._tell(DeviceEvent(key=key, reason="SlowAnswer", message=told))
        health = self._diagnosis.health(key)
        if known.standing is not None and health.is_in_service:
            # without a verdict the agent asks for what alone can lift it: a discovery
            return found
        tell = probed or slow or health.state is not HealthState.HEALTHY
        return replace(found, health=self._health(key)) if tell else found

    def _report_noise(self, card: NvmlCard) -> None:
        """Name each call once that answered what cannot be; its readings are left out."""
        while card.unreported:
            what, value = card.unreported.pop()
            told = f"{what} answered {value}, which cannot be: such readings are left out"
            self._tell(DeviceEvent(key=card.bus_id, reason="ImplausibleReading", message=told))

    def _stopped(self, card: NvmlCard) -> None:
        if not card.faults:
            return  # it was found to be gone without being asked
        facts = replace(card_facts.facts_of_unavailable_card(card), answers_lookup=False)
        self._say(self._diagnosis.check(card.bus_id, facts))

    def _say(self, events: Sequence[DeviceEvent]) -> None:
        for event in events:
            self._tell(event)

    # Health

    def _probe(self, card: NvmlCard, known: _SampledCard) -> None:
        """Look the card up anew, as one that comes back has another handle."""
        if has_fallen_off_bus(self._host, card.bus_id):
            # calls on such a card may never return
            told = HealthFinding("GpuLost", "the card's config space reads all ones", Cure.ANSWER)
            self._diagnosis.report_finding(card.bus_id, told)
            raise CardUnavailable(f"{card.bus_id}: {told.message}")
        name, arg = (_BY_UUID, known.placeless) if known.placeless else (_LOOK_UP, card.bus_id)
        handle = card.attempt((name,), lambda: card.nvml.call(name, arg))
        if handle is None:
            unfound = NOT_FOUND if card.is_last_answer_empty else NO_PERMISSION
            self._say(self._diagnosis.report_lost(card.bus_id, card.faults or {unfound: name}))
            raise CardUnavailable(f"{card.bus_id}: not found")
        card.handle = handle
        expected, uuid = self._diagnosis.uuid_of(card.bus_id), card.text("nvmlDeviceGetUUID")
        card.memory()
        same = not expected or uuid == expected
        self._look(card.bus_id, card, known, card_facts.read_facts(card, probed=same))

    def _look(
        self,
        key: str,
        card: NvmlCard,
        known: _SampledCard,
        facts: HealthFacts | None = None,
        *,
        discovery: bool = False,
    ) -> None:
        """Ask what changes seldom, and judge it."""
        known.looked_s = self._clock.monotonic()
        facts = facts if facts is not None else card_facts.read_facts(card)
        orphaned = trends.is_orphan_lasting(known.orphan_since_s, self._clock.monotonic())
        errors = self._link_errors(card, known)
        found = replace(facts, has_orphaned_memory=orphaned)
        self._say(self._diagnosis.check(key, found, errors, discovery=discovery))
        slices = slice_readings(card, known.partitions, known.performance.values)
        known.slow = (*polled_readings(facts, errors), *engine_readings(card), *slices)

    def _link_errors(self, card: NvmlCard, known: _SampledCard) -> dict[str, float]:
        """Return the errors of all links by kind; nothing if one link tells what cannot be.

        A sum without it would fall, and rise again with the next look.
        """
        noise = card.implausible.total()
        fields = card.fields(trends.link_fields(self._links(card, known)))
        return trends.link_totals(fields) if card.implausible.total() == noise else {}

    def _links(self, card: NvmlCard, known: _SampledCard) -> int:
        if known.links is None:
            told = card.fields((LINK_COUNT,)).get(LINK_COUNT)
            known.links = min(int(told), MAX_LINKS) if told is not None else 0
        return known.links

    def _measure(self, card: NvmlCard, known: _SampledCard) -> DeviceSample:
        """Take one round of figures; raises `CardStopped` if the card answers nothing more."""
        wall_s = self._clock.wall()
        fields = card.fields(FIELDS)
        memory: tuple[int | None, int | None] | None = None
        if known.shared_bytes is None:
            memory = card.memory()
        known.performance.read(card, known.instances, self._cycle)
        busy = core_percent(card, wall_s) if not known.partitions else None
        processes = self._processes(card, known, wall_s)
        if memory is not None and not memory[0]:
            memory = (card.memory_bytes, None)  # a card does not lose the size that it told
        total, used = memory or (known.shared_bytes, total_memory(processes))
        if known.partitions and total:
            busy = card_percent(known.partitions, known.performance.values, total)
        count = len(processes) if processes is not None and known.exact else None
        known.orphan_since_s = trends.orphan_start(
            known.orphan_since_s, used, count, self._clock.monotonic()
        )
        whole = known.performance.values.get(None, {})
        xids = self._diagnosis.xid_counts(card.bus_id)
        return DeviceSample(
            key=card.bus_id,
            core_percent=busy,
            memory_used_bytes=used,
            memory_total_bytes=total,
            processes=processes,
            readings=(
                *cycle_readings(card, fields),
                *performance_readings(whole),
                *known.slow,
                *noise_readings(card),
                *(
                    r
                    for n, c in xids
                    for r in optional_reading("xpu_device_xid_errors_total", c, str(n))
                ),
            ),
        )

    def _processes(
        self, card: NvmlCard, known: _SampledCard, wall_s: float
    ) -> tuple[ProcessSample, ...] | None:
        """List the processes if it is time, else as before; those that have ended are left out."""
        if known.listing.is_due(self._cycle):
            began_s = self._clock.monotonic()
            entries = self._entries(card, known)
            busy = process_percent(card, wall_s) if entries else {}
            slots = {
                (p.instance, p.compute_instance): p.uuid
                for p in known.partitions
                if p.instance is not None and p.compute_instance is not None
            }
            known.processes = join_processes(entries, busy, slots) if known.listed else None
            known.listing.record_duration(self._cycle, self._clock.monotonic() - began_s)
        if known.processes:
            known.processes = self._living(known, known.processes)
        return known.processes

    def _entries(self, card: NvmlCard, known: _SampledCard) -> list[ProcessEntry]:
        """Read the lists of processes; those of a kind that few cards have may rest a while."""
        lists = read_lists(card, [k for k in KINDS if self._cycle >= known.rests.get(k, 0)])
        known.listed = known.listed or bool(lists)
        for kind, entries in lists.items():
            if not entries and kind != "Compute":
                known.rests[kind] = self._cycle + EMPTY_LIST_EVERY
        return [entry for entries in lists.values() for entry in entries]

    def _living(
        self, known: _SampledCard, processes: tuple[ProcessSample, ...]
    ) -> tuple[ProcessSample, ...]:
        """Leave out what was seen in /proc and is there no more: drivers list it a while longer.

        A process that was never seen there may be of another namespace than ours.
        """
        here = {p.pid for p in processes if self._host.exists(f"/proc/{p.pid}")}
        kept = tuple(p for p in processes if p.pid in here or p.pid not in known.alive)
        known.alive = here
        return kept


def polled_readings(facts: HealthFacts, link_errors: Mapping[str, float]) -> Iterator[MetricValue]:
    """Yield what changes seldom; what the card does not tell is left out."""
    yield from optional_reading("xpu_device_recovery_action", facts.recovery_action)
    if facts.remapped_rows is not None:
        rows = zip(("correctable", "uncorrectable"), facts.remapped_rows, strict=False)
        for kind, count in rows:
            yield from optional_reading("xpu_device_remapped_rows_total", count, kind)
    yield from optional_reading("xpu_device_ecc_errors_total", facts.uncorrected, "uncorrected")
    yield from optional_reading("xpu_device_pcie_replays_total", facts.replays)
    for kind, total in link_errors.items():
        yield from optional_reading("xpu_device_nvlink_errors_total", total, kind)
    if facts.throttle is not None:
        for name, bit in THROTTLES:
            active = float(bool(facts.throttle & bit))
            yield from optional_reading("xpu_device_throttle_active", active, name)
