"""Samples cards and checks their health; expensive calls are made less often."""

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
    implausible_readings,
    memory_readings,
    optional_reading,
    performance_readings,
)
from plugins.vendors.nvidia.library.slow_cycle import TrafficRates, slow_cycle_readings
from plugins.vendors.nvidia.mig.usage import card_percent, slice_readings

SLOW_EVERY = 8  # cycles between two slow cycles, which read values that change seldom
CHECK_S = 9.0  # with long cycles, time between two slow cycles: changes show within ten seconds
EMPTY_LIST_EVERY = 5  # cycles between two reads of an empty list of graphics or MPS processes
PROBE_S = 900.0  # an unhealthy card is probed in every cycle, until this time after its recovery
MAX_LINKS = 36
LINK_COUNT = (91, 0)
_LOOK_UP = "nvmlDeviceGetHandleByPciBusId"
_BY_UUID = "nvmlDeviceGetHandleByUUID"


class _SampledCard:
    """The state of a card between two cycles."""

    def __init__(self, clock: Clock) -> None:
        self.shared_bytes: int | None = None  # the machine's memory, if the card shares it
        self.partitions: tuple[DevicePartition, ...] = ()
        self.slow_readings: tuple[MetricValue, ...] = ()
        self.performance = PerformanceCounters(clock)
        self.list_limiter = CallRateLimiter()
        self.processes: tuple[ProcessSample, ...] | None = None
        self.has_lists = False  # the driver has lists of processes
        self.skipped_until: dict[str, int] = {}  # list: cycle in which it is read again
        self.pids_in_proc: set[int] = set()  # pids in /proc at the last cycle
        self.links: int | None = None
        self.traffic_rates = TrafficRates()
        self.orphan_since_s: float | None = None
        self.is_memory_exact = True  # used memory contains no page cache of the kernel
        self.probed_until_s = 0.0
        self.last_check_s = clock.monotonic()  # the last health check
        self.lasting_health: Health | None = None  # bad health that no check ends
        self.uuid_without_bus: str | None = None  # UUID of a card that is on no bus

    @property
    def instances(self) -> list[int]:
        """The GPU instances of a card with MIG on."""
        return sorted({p.instance for p in self.partitions if p.instance is not None})


class NvidiaSampler:
    """Samples all cards of a session, on one thread. Events go to `publish`."""

    def __init__(
        self,
        host: HostFiles,
        diagnosis: Diagnosis,
        publish: Callable[[DeviceEvent], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._host = host
        self._diagnosis = diagnosis
        self._publish = publish
        self._clock = clock
        self._sampled_cards: dict[str, _SampledCard] = {}
        self._cycle = 0

    def set_card(
        self,
        card: NvmlCard,
        device: VendorDevice,
        facts: HealthFacts,
        *,
        shared_bytes: int | None = None,
        lasting_health: Health | None = None,
        clique: bool = False,
    ) -> None:
        """Set a card that answered in a discovery, and check its health facts.

        `shared_bytes` is the machine's memory if the card shares it and has none of its own.
        """
        key = device.key
        self._diagnosis.identify(key, device.uuid, clique=clique)
        sampled = self._sampled_cards.setdefault(key, _SampledCard(self._clock))
        sampled.shared_bytes, sampled.partitions = shared_bytes, device.partitions
        sampled.lasting_health, sampled.links = lasting_health, None
        sampled.uuid_without_bus = device.uuid if device.bus_id is None else None
        sampled.is_memory_exact = ("memory-use", "approximate") not in device.facts
        sampled.performance.reset()
        sampled.has_lists, sampled.skipped_until = False, {}
        try:
            # the discovery looked the card up and read its UUID, so this is a good probe
            self._check(key, card, sampled, replace(facts, answers_lookup=True), discovery=True)
        except CardUnavailable:
            self._handle_unavailable(card)
        self._report_implausible_values(card)

    def set_unavailable(self, key: str, health: Health) -> None:
        """Set the health of a card that does not answer or was removed."""
        self._sampled_cards.setdefault(key, _SampledCard(self._clock)).lasting_health = health
        if health.state is HealthState.FAILED:
            self._diagnosis.report_finding(
                key, HealthFinding(health.reason, health.message, Cure.ANSWER)
            )

    def retain(self, keys: set[str]) -> None:
        """Remove all cards but these."""
        self._sampled_cards = {
            key: sampled for key, sampled in self._sampled_cards.items() if key in keys
        }

    def sample(self, nvml: Nvml | None, cards: Mapping[str, NvmlCard]) -> tuple[DeviceSample, ...]:
        """Sample the cards that answer; slow cards are sampled every ten seconds only.

        A card that is or recently was unhealthy is probed, and its sample has the health.
        """
        self._cycle += 1
        now_s = self._clock.monotonic()
        for key in self._diagnosis.suspected_cards(self._sampled_cards):
            self._sampled_cards[key].probed_until_s = now_s + PROBE_S
        samples: list[DeviceSample] = []
        for position, key in enumerate(sorted(self._sampled_cards)):
            sampled, card = self._sampled_cards[key], cards.get(key)
            is_slow_cycle = (
                self._cycle + position
            ) % SLOW_EVERY == 0 or now_s - sampled.last_check_s >= CHECK_S
            if card is None:
                samples.append(self._sample_missing_card(nvml, key, tries_lookup=is_slow_cycle))
            elif not card.is_slow(now_s):
                samples.append(self._sample_card(card, sampled, is_slow_cycle=is_slow_cycle))
        return tuple(samples)

    def _sample_missing_card(
        self, nvml: Nvml | None, key: str, *, tries_lookup: bool
    ) -> DeviceSample:
        """Return the health of a card without a handle; request a discovery when it answers."""
        if (
            tries_lookup
            and nvml is not None
            and not has_fallen_off_bus(self._host, key)
            and is_card_answering(nvml, key)
        ):
            message = "the card answers again: it is looked at anew"
            self._publish(DeviceEvent(key=key, reason="CardAnswers", message=message))
        return DeviceSample(key=key, health=self._health(key))

    def _health(self, key: str) -> Health:
        return combine_health(self._diagnosis.health(key), self._sampled_cards[key].lasting_health)

    def _sample_card(
        self, card: NvmlCard, sampled: _SampledCard, *, is_slow_cycle: bool
    ) -> DeviceSample:
        key, was_late = card.bus_id, card.is_late
        is_probed = self._clock.monotonic() < sampled.probed_until_s
        card.begin_cycle()
        try:
            if is_probed:
                self._probe(card, sampled)
            sample = self._measure(card, sampled)
            if is_slow_cycle and not is_probed:
                self._check(key, card, sampled)
        except CardUnavailable:
            self._handle_unavailable(card)
            return DeviceSample(key=key, health=self._health(key))
        finally:
            self._report_implausible_values(card)
        if card.is_late and not was_late:
            message = "a call took over a second: the card is sampled every ten seconds"
            self._publish(DeviceEvent(key=key, reason="SlowAnswer", message=message))
        health = self._diagnosis.health(key)
        if sampled.lasting_health is not None and health.is_in_service:
            # a sample without health: only a discovery can end the lasting health
            return sample
        has_health = is_probed or is_slow_cycle or health.state is not HealthState.HEALTHY
        return replace(sample, health=self._health(key)) if has_health else sample

    def _report_implausible_values(self, card: NvmlCard) -> None:
        """Publish the first implausible value of each call; such values are left out."""
        while card.unreported:
            source, value = card.unreported.pop()
            message = f"{source} answered {value}, which cannot be: such readings are left out"
            self._publish(
                DeviceEvent(key=card.bus_id, reason="ImplausibleReading", message=message)
            )

    def _handle_unavailable(self, card: NvmlCard) -> None:
        if not card.faults:
            return  # the probe has reported the loss already
        facts = replace(card_facts.facts_of_unavailable_card(card), answers_lookup=False)
        self._publish_all(self._diagnosis.check(card.bus_id, facts))

    def _publish_all(self, events: Sequence[DeviceEvent]) -> None:
        for event in events:
            self._publish(event)

    # Health

    def _probe(self, card: NvmlCard, sampled: _SampledCard) -> None:
        """Look the card up again and check it; a returned card has another handle."""
        if has_fallen_off_bus(self._host, card.bus_id):
            # calls on such a card may never return
            finding = HealthFinding(
                "GpuLost", "the card's config space reads all ones", Cure.ANSWER
            )
            self._diagnosis.report_finding(card.bus_id, finding)
            raise CardUnavailable(f"{card.bus_id}: {finding.message}")
        name, arg = (
            (_BY_UUID, sampled.uuid_without_bus)
            if sampled.uuid_without_bus
            else (_LOOK_UP, card.bus_id)
        )
        handle = card.attempt((name,), lambda: card.nvml.call(name, arg))
        if handle is None:
            lookup_code = NOT_FOUND if card.is_last_answer_empty else NO_PERMISSION
            self._publish_all(
                self._diagnosis.report_lost(card.bus_id, card.faults or {lookup_code: name})
            )
            raise CardUnavailable(f"{card.bus_id}: not found")
        card.handle = handle
        expected, uuid = self._diagnosis.uuid_of(card.bus_id), card.text("nvmlDeviceGetUUID")
        card.memory()
        is_same_card = not expected or uuid == expected
        self._check(card.bus_id, card, sampled, card_facts.read_facts(card, probed=is_same_card))

    def _check(
        self,
        key: str,
        card: NvmlCard,
        sampled: _SampledCard,
        facts: HealthFacts | None = None,
        *,
        discovery: bool = False,
    ) -> None:
        """Read the values that change seldom, and update the diagnosis with them."""
        sampled.last_check_s = self._clock.monotonic()
        facts = facts if facts is not None else card_facts.read_facts(card)
        has_orphans = trends.is_orphan_lasting(sampled.orphan_since_s, self._clock.monotonic())
        link_errors = self._link_errors(card, sampled)
        errors = trends.link_totals(link_errors)
        checked_facts = replace(facts, has_orphaned_memory=has_orphans)
        self._publish_all(self._diagnosis.check(key, checked_facts, errors, discovery=discovery))
        slices = slice_readings(card, sampled.partitions, sampled.performance.values)
        sampled.slow_readings = (
            *polled_readings(facts, errors),
            *link_error_readings(link_errors),
            *engine_readings(card),
            *slow_cycle_readings(card, self._links(card, sampled)),
            *slices,
        )

    def _link_errors(self, card: NvmlCard, sampled: _SampledCard) -> dict[trends.LinkField, float]:
        """Return the error counters of all links; nothing if one value is implausible.

        A sum without that link would fall, and rise again in the next cycle.
        """
        implausible_before = card.implausible.total()
        fields = card.fields(trends.link_fields(self._links(card, sampled)))
        return fields if card.implausible.total() == implausible_before else {}

    def _links(self, card: NvmlCard, sampled: _SampledCard) -> int:
        if sampled.links is None:
            count = card.fields((LINK_COUNT,)).get(LINK_COUNT)
            sampled.links = min(int(count), MAX_LINKS) if count is not None else 0
        return sampled.links

    def _measure(self, card: NvmlCard, sampled: _SampledCard) -> DeviceSample:
        """Read one sample; raises `CardUnavailable` if the card stops answering."""
        wall_s = self._clock.wall()
        fields = card.fields(FIELDS)
        memory = card.memory() if sampled.shared_bytes is None else None
        sampled.performance.read(card, sampled.instances, self._cycle)
        percent = core_percent(card, wall_s) if not sampled.partitions else None
        processes = self._processes(card, sampled, wall_s)
        if memory is None:
            total, used = sampled.shared_bytes, total_memory(processes)
        elif memory.total:
            total, used = memory.total, memory.used
        else:
            total, used = card.memory_bytes, None  # the size does not change
        if sampled.partitions and total:
            percent = card_percent(sampled.partitions, sampled.performance.values, total)
        count = len(processes) if processes is not None and sampled.is_memory_exact else None
        sampled.orphan_since_s = trends.orphan_start(
            sampled.orphan_since_s, used, count, self._clock.monotonic()
        )
        readings = (
            *cycle_readings(card, fields),
            *performance_readings(sampled.performance.values.get(None, {})),
        )
        rates = sampled.traffic_rates.read(card, readings, self._clock.monotonic())
        families = {reading.family for reading in readings}
        return DeviceSample(
            key=card.bus_id,
            rejections=card.take_rejections(),
            core_percent=percent,
            memory_used_bytes=used,
            memory_total_bytes=total,
            processes=processes,
            readings=(
                *readings,
                *(rate for rate in rates if rate.family not in families),
                *memory_readings(memory),
                *sampled.slow_readings,
                *implausible_readings(card),
                *self._xid_readings(card.bus_id),
            ),
        )

    def _xid_readings(self, key: str) -> Iterator[MetricValue]:
        """Yield the number of the card's last Xid, 0 if there was none, and the count of each."""
        yield from optional_reading("xpu_device_last_xid", self._diagnosis.last_xid(key))
        for number, count in self._diagnosis.xid_counts(key):
            yield from optional_reading("xpu_device_xid_errors_total", count, str(number))

    def _processes(
        self, card: NvmlCard, sampled: _SampledCard, wall_s: float
    ) -> tuple[ProcessSample, ...] | None:
        """Return the processes, from new lists if a read is due; ended ones are left out."""
        if sampled.list_limiter.is_due(self._cycle):
            began_s = self._clock.monotonic()
            entries = self._entries(card, sampled)
            percents = process_percent(card, wall_s) if entries else {}
            slots = {
                (p.instance, p.compute_instance): p.uuid
                for p in sampled.partitions
                if p.instance is not None and p.compute_instance is not None
            }
            sampled.processes = (
                join_processes(entries, percents, slots) if sampled.has_lists else None
            )
            sampled.list_limiter.record_duration(self._cycle, self._clock.monotonic() - began_s)
        if sampled.processes:
            sampled.processes = self._running_processes(sampled, sampled.processes)
        return sampled.processes

    def _entries(self, card: NvmlCard, sampled: _SampledCard) -> list[ProcessEntry]:
        """Read the lists of processes; an empty graphics or MPS list is skipped for some cycles."""
        lists = read_lists(
            card, [k for k in KINDS if self._cycle >= sampled.skipped_until.get(k, 0)]
        )
        sampled.has_lists = sampled.has_lists or bool(lists)
        for kind, entries in lists.items():
            if not entries and kind != "Compute":
                sampled.skipped_until[kind] = self._cycle + EMPTY_LIST_EVERY
        return [entry for entries in lists.values() for entry in entries]

    def _running_processes(
        self, sampled: _SampledCard, processes: tuple[ProcessSample, ...]
    ) -> tuple[ProcessSample, ...]:
        """Leave out processes that have left /proc; drivers list them for some time longer.

        A process that was never in /proc stays, because it may be in another PID namespace.
        """
        present = {p.pid for p in processes if self._host.exists(f"/proc/{p.pid}")}
        alive = tuple(p for p in processes if p.pid in present or p.pid not in sampled.pids_in_proc)
        sampled.pids_in_proc = present
        return alive


def polled_readings(facts: HealthFacts, link_errors: Mapping[str, float]) -> Iterator[MetricValue]:
    """Yield the values that change seldom; unknown values are left out."""
    yield from optional_reading("xpu_device_recovery_action", facts.recovery_action)
    if facts.remapped_rows is not None:
        correctable, uncorrectable, pending, failure = facts.remapped_rows
        yield from optional_reading("xpu_device_remapped_rows_total", correctable, "correctable")
        yield from optional_reading(
            "xpu_device_remapped_rows_total", uncorrectable, "uncorrectable"
        )
        yield from optional_reading("xpu_device_row_remap_pending", pending)
        yield from optional_reading("xpu_device_row_remap_failed", failure)
    for cause, pages in facts.retired_pages_by_cause:
        yield from optional_reading("xpu_device_retired_pages", pages, cause)
    yield from optional_reading("xpu_device_page_retirement_pending", facts.retired_pending)
    yield from optional_reading("xpu_device_ecc_errors_total", facts.uncorrected, "uncorrected")
    yield from optional_reading("xpu_device_pcie_replays_total", facts.replays)
    for kind, total in link_errors.items():
        yield from optional_reading("xpu_device_nvlink_errors_total", total, kind)
    if facts.throttle is not None:
        for name, bit in THROTTLES:
            active = float(bool(facts.throttle & bit))
            yield from optional_reading("xpu_device_throttle_active", active, name)


def link_error_readings(errors: Mapping[trends.LinkField, float]) -> Iterator[MetricValue]:
    """Yield the errors of each NVLink by kind."""
    by_link: dict[int, dict[trends.LinkField, float]] = {}
    for field, value in errors.items():
        by_link.setdefault(field[1], {})[field] = value
    for link, of_link in sorted(by_link.items()):
        for kind, total in trends.link_totals(of_link).items():
            yield from optional_reading(
                "xpu_device_nvlink_link_errors_total", total, str(link), kind
            )
