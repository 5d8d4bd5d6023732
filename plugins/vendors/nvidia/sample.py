"""What cards do now and how they are: one round of calls each, the dear ones made rarely."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from agent.host.files import HostFiles
from agent.model.device import DevicePartition, Health, HealthState, VendorDevice
from agent.model.inventory import DeviceEvent, DeviceSample, ProcessSample, Reading
from plugins.bindings.nvml.card import Card, CardStopped
from plugins.bindings.nvml.library import NO_PERMISSION, NOT_FOUND, Nvml
from plugins.bindings.nvml.notices import answers
from plugins.bindings.nvml.pace import Pace
from plugins.bindings.nvml.performance import Performance
from plugins.bindings.nvml.processes import (
    KINDS,
    Entry,
    joined,
    process_percent,
    read_lists,
    total_memory,
)
from plugins.bindings.nvml.readings import (
    FIELDS,
    core_percent,
    of_engines,
    of_every_cycle,
    of_noise,
    of_performance,
    reading,
)
from plugins.faults.nvidia import polled, trends
from plugins.faults.nvidia.causes import Cure
from plugins.faults.nvidia.diagnosis import Diagnosis
from plugins.faults.nvidia.figures import polled_readings
from plugins.faults.nvidia.opened import fallen_off, judged
from plugins.faults.nvidia.polled import Finding, HealthFacts
from plugins.slices.mig.usage import card_percent, slice_readings

SLOW_EVERY = 8  # cycles between two looks at what changes seldom
LOOK_S = 9.0  # between them, where cycles take longer: what they show is published within ten
EMPTY_EVERY = 5  # and between two at lists of graphics and MPS processes that are empty
PROBED_FOR_S = 900.0  # a card that was unwell is probed in every cycle for that long afterwards
MAX_LINKS = 36
LINK_COUNT = (91, 0)
_LOOK_UP = "nvmlDeviceGetHandleByPciBusId"
_BY_UUID = "nvmlDeviceGetHandleByUUID"


class _Known:
    """What is kept of a card between two cycles."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.shared_bytes: int | None = None  # the machine's memory, of a card that shares it
        self.partitions: tuple[DevicePartition, ...] = ()
        self.slow: tuple[Reading, ...] = ()
        self.performance = Performance(clock)
        self.listing = Pace()
        self.processes: tuple[ProcessSample, ...] | None = None
        self.listed = False  # the driver has lists of processes
        self.rests: dict[str, int] = {}  # cycle in which a list that was empty is asked for again
        self.alive: set[int] = set()  # pids that were seen in /proc
        self.links: int | None = None
        self.orphan_since_s: float | None = None
        self.exact = True  # memory in use is that of processes, not of the kernel as well
        self.probed_until_s = 0.0
        self.looked_s = clock()  # of the last look at what changes seldom
        self.standing: Health | None = None  # a verdict that no look at the card lifts
        self.placeless: str | None = None  # UUID of a card that no bus shows

    @property
    def instances(self) -> list[int]:
        """Return the GPU instances of a card that is cut."""
        return sorted({p.instance for p in self.partitions if p.instance is not None})


class Sampler:
    """Samples all cards of a session; one thread calls it. Changes of health go to `tell`."""

    def __init__(
        self,
        host: HostFiles,
        diagnosis: Diagnosis,
        tell: Callable[[DeviceEvent], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._host = host
        self._diagnosis = diagnosis
        self._tell = tell
        self._clock = clock
        self._wall = wall
        self._known: dict[str, _Known] = {}
        self._cycle = 0

    def learn(
        self,
        card: Card,
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
        self._diagnosis.met(key, device.uuid, clique=clique)
        known = self._known.setdefault(key, _Known(self._clock))
        known.shared_bytes, known.partitions = shared_bytes, device.partitions
        known.standing, known.links = standing, None
        known.placeless = device.uuid if device.bus_id is None else None
        known.exact = ("memory-use", "approximate") not in device.facts
        known.performance.forget()
        known.listed, known.rests = False, {}
        try:
            # it was looked up by its address and told who it is: a probe
            self._look(key, card, known, replace(facts, probed=True), discovery=True)
        except CardStopped:
            self._stopped(card)
        self._report_noise(card)

    def silent(self, key: str, told: Health) -> None:
        """Take what a discovery says of a card that does not answer, or is no longer there."""
        self._known.setdefault(key, _Known(self._clock)).standing = told
        if told.state is HealthState.FAILED:
            self._diagnosis.happened(key, Finding(told.reason, told.message, Cure.ANSWER))

    def keep(self, keys: set[str]) -> None:
        """Forget the cards that are not among these."""
        self._known = {key: known for key, known in self._known.items() if key in keys}

    def cycle(self, nvml: Nvml | None, cards: Mapping[str, Card]) -> tuple[DeviceSample, ...]:
        """Sample the cards that answer; late ones are asked every ten seconds.

        A card that is not healthy, or was not a while ago, is probed and says so in its sample.
        """
        self._cycle += 1
        now_s = self._clock()
        for key in self._diagnosis.unwell(self._known):
            self._known[key].probed_until_s = now_s + PROBED_FOR_S
        samples: list[DeviceSample] = []
        for place, key in enumerate(sorted(self._known)):
            known, card = self._known[key], cards.get(key)
            slow = (self._cycle + place) % SLOW_EVERY == 0 or now_s - known.looked_s >= LOOK_S
            if card is None:
                samples.append(self._absent(nvml, key, look=slow))
            elif not card.slow(now_s):
                samples.append(self._sampled(card, known, slow=slow))
        return tuple(samples)

    def _absent(self, nvml: Nvml | None, key: str, *, look: bool) -> DeviceSample:
        """Say how a card is that could not be looked up; try it now and then."""
        if look and nvml is not None and not fallen_off(self._host, key) and answers(nvml, key):
            told = "the card answers again: it is looked at anew"
            self._tell(DeviceEvent(key=key, reason="CardAnswers", message=told))
        return DeviceSample(key=key, health=self._health(key))

    def _health(self, key: str) -> Health:
        return judged(self._diagnosis.health(key), self._known[key].standing)

    def _sampled(self, card: Card, known: _Known, *, slow: bool) -> DeviceSample:
        key, was_late = card.bus_id, card.late
        probed = self._clock() < known.probed_until_s
        card.begin()
        try:
            if probed:
                self._probe(card, known)
            found = self._measure(card, known)
            if slow and not probed:
                self._look(key, card, known)
        except CardStopped:
            self._stopped(card)
            return DeviceSample(key=key, health=self._health(key))
        finally:
            self._report_noise(card)
        if card.late and not was_late:
            told = "a call took over a second: the card is sampled every ten seconds"
            self._tell(DeviceEvent(key=key, reason="SlowAnswer", message=told))
        health = self._diagnosis.health(key)
        if known.standing is not None and health.in_service:
            # without a verdict the agent asks for what alone can lift it: a discovery
            return found
        tell = probed or slow or health.state is not HealthState.HEALTHY
        return replace(found, health=self._health(key)) if tell else found

    def _report_noise(self, card: Card) -> None:
        """Name each call once that answered what cannot be; its readings are left out."""
        while card.unreported:
            what, value = card.unreported.pop()
            told = f"{what} answered {value}, which cannot be: such readings are left out"
            self._tell(DeviceEvent(key=card.bus_id, reason="ImplausibleReading", message=told))

    def _stopped(self, card: Card) -> None:
        if not card.faults:
            return  # it was found to be gone without being asked
        facts = replace(polled.stopped(card), probed=False)
        self._say(self._diagnosis.looked(card.bus_id, facts))

    def _say(self, events: Sequence[DeviceEvent]) -> None:
        for event in events:
            self._tell(event)

    # Health

    def _probe(self, card: Card, known: _Known) -> None:
        """Look the card up anew, as one that comes back has another handle."""
        if fallen_off(self._host, card.bus_id):
            # calls on such a card may never return
            told = Finding("GpuLost", "the card's config space reads all ones", Cure.ANSWER)
            self._diagnosis.happened(card.bus_id, told)
            raise CardStopped(f"{card.bus_id}: {told.message}")
        name, arg = (_BY_UUID, known.placeless) if known.placeless else (_LOOK_UP, card.bus_id)
        handle = card.attempt((name,), lambda: card.nvml.call(name, arg))
        if handle is None:
            unfound = NOT_FOUND if card.nothing else NO_PERMISSION
            self._say(self._diagnosis.lost(card.bus_id, card.faults or {unfound: name}))
            raise CardStopped(f"{card.bus_id}: not found")
        card.handle = handle
        expected, uuid = self._diagnosis.uuid_of(card.bus_id), card.text("nvmlDeviceGetUUID")
        card.memory()
        same = not expected or uuid == expected
        self._look(card.bus_id, card, known, polled.poll(card, probed=same))

    def _look(
        self,
        key: str,
        card: Card,
        known: _Known,
        facts: HealthFacts | None = None,
        *,
        discovery: bool = False,
    ) -> None:
        """Ask what changes seldom, and judge it."""
        known.looked_s = self._clock()
        facts = facts if facts is not None else polled.poll(card)
        orphaned = trends.orphaned(known.orphan_since_s, self._clock())
        errors = self._link_errors(card, known)
        found = replace(facts, orphaned=orphaned)
        self._say(self._diagnosis.looked(key, found, errors, discovery=discovery))
        slices = slice_readings(card, known.partitions, known.performance.values)
        known.slow = (*polled_readings(facts, errors), *of_engines(card), *slices)

    def _link_errors(self, card: Card, known: _Known) -> dict[str, float]:
        """Return the errors of all links by kind; nothing if one link tells what cannot be.

        A sum without it would fall, and rise again with the next look.
        """
        noise = card.implausible.total()
        fields = card.fields(trends.link_fields(self._links(card, known)))
        return trends.link_totals(fields) if card.implausible.total() == noise else {}

    def _links(self, card: Card, known: _Known) -> int:
        if known.links is None:
            told = card.fields((LINK_COUNT,)).get(LINK_COUNT)
            known.links = min(int(told), MAX_LINKS) if told is not None else 0
        return known.links

    def _measure(self, card: Card, known: _Known) -> DeviceSample:
        """Take one round of figures; raises `CardStopped` if the card answers nothing more."""
        wall_s = self._wall()
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
        known.orphan_since_s = trends.orphan_since(known.orphan_since_s, used, count, self._clock())
        whole = known.performance.values.get(None, {})
        xids = self._diagnosis.xids(card.bus_id)
        return DeviceSample(
            key=card.bus_id,
            core_percent=busy,
            memory_used_bytes=used,
            memory_total_bytes=total,
            processes=processes,
            readings=(
                *of_every_cycle(card, fields),
                *of_performance(whole),
                *known.slow,
                *of_noise(card),
                *(r for n, c in xids for r in reading("xpu_device_xid_errors_total", c, str(n))),
            ),
        )

    def _processes(
        self, card: Card, known: _Known, wall_s: float
    ) -> tuple[ProcessSample, ...] | None:
        """List the processes if it is time, else as before; those that have ended are left out."""
        if known.listing.due(self._cycle):
            began_s = self._clock()
            entries = self._entries(card, known)
            busy = process_percent(card, wall_s) if entries else {}
            slots = {
                (p.instance, p.compute_instance): p.uuid
                for p in known.partitions
                if p.instance is not None and p.compute_instance is not None
            }
            known.processes = joined(entries, busy, slots) if known.listed else None
            known.listing.took(self._cycle, self._clock() - began_s)
        if known.processes:
            known.processes = self._living(known, known.processes)
        return known.processes

    def _entries(self, card: Card, known: _Known) -> list[Entry]:
        """Read the lists of processes; those of a kind that few cards have may rest a while."""
        lists = read_lists(card, [k for k in KINDS if self._cycle >= known.rests.get(k, 0)])
        known.listed = known.listed or bool(lists)
        for kind, entries in lists.items():
            if not entries and kind != "Compute":
                known.rests[kind] = self._cycle + EMPTY_EVERY
        return [entry for entries in lists.values() for entry in entries]

    def _living(
        self, known: _Known, processes: tuple[ProcessSample, ...]
    ) -> tuple[ProcessSample, ...]:
        """Leave out what was seen in /proc and is there no more: drivers list it a while longer.

        A process that was never seen there may be of another namespace than ours.
        """
        here = {p.pid for p in processes if self._host.exists(f"/proc/{p.pid}")}
        kept = tuple(p for p in processes if p.pid in here or p.pid not in known.alive)
        known.alive = here
        return kept
