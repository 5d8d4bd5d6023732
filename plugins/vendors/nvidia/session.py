"""A working day with NVML: loads it when it is there, discovers, samples, waits for events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from agent.errors import DeviceGone, NotSupported, VendorFault
from agent.host.files import HostFiles, text
from agent.model.device import Health, HealthState, VendorDevice
from agent.model.inventory import DeviceEvent, DeviceSample, Inventory, Problem, Reading
from plugins.bindings.nvml import library
from plugins.bindings.nvml.card import Card, CardStopped
from plugins.bindings.nvml.library import LibraryAbsent, LibraryFile, Nvml, find_library
from plugins.faults.nvidia import polled as health
from plugins.slices.mig import annotation as mig_annotation
from plugins.slices.mig.caps import Capabilities
from plugins.vendors.nvidia import names
from plugins.vendors.nvidia.discover import (
    Around,
    Found,
    describe,
    distinct_modules,
    memory_total,
    silent,
)
from plugins.vendors.nvidia.events import EventWatch
from plugins.vendors.nvidia.links import matrix, node_clique, peers
from plugins.vendors.nvidia.sample import sample, slow_readings
from plugins.vendors.nvidia.sight import Sighting, device, look, recorded

SLOW_EVERY = 10  # cycles between two looks at what changes seldom
FORGET_AFTER_S = 86_400.0
MAX_INDEX = 64  # cards asked for by index


class _Known(msgspec.Struct):
    """What is kept of a card between calls."""

    device: VendorDevice
    seen: Sighting
    last_s: float  # monotonic; when its function was last in sysfs
    shared_bytes: int | None = None  # the machine's memory, of a card that shares it
    slow: tuple[Reading, ...] = ()
    told: Health = Health()  # as last published or announced


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
        self._cards: dict[str, Card] = {}
        self._known: dict[str, _Known] = {}
        self._watch = EventWatch(clock)
        self._cycle = 0
        forget = settings.get("forget_after_s")
        self._forget_s = float(forget) if isinstance(forget, int | float) else FORGET_AFTER_S

    def discover(self) -> Inventory:
        """Describe every card; one that does not answer stays listed and hides no other."""
        sightings = look(self._host)
        if self._settings.get("replay") is True:
            return Inventory(vendor="nvidia", devices=tuple(recorded(s) for s in sightings))
        try:
            nvml = self._library()
        except LibraryAbsent as absent:
            return self._without(sightings, absent)
        found = self._ask_all(nvml, sightings)
        self._watch.watch(nvml, self._cards)
        return self._inventory(nvml, found, sightings)

    def _library(self) -> Nvml:
        if self._file is not None and self._file.replaced():
            raise VendorFault(f"{self._file.path} was replaced: a new process must load it")
        if self._nvml is None:
            path = find_library(self._settings)
            self._file = LibraryFile.of(path)
            self._nvml = Nvml(path)
        return self._nvml

    def _without(self, sightings: tuple[Sighting, ...], absent: LibraryAbsent) -> Inventory:
        return Inventory(
            vendor="nvidia",
            devices=tuple(device(seen, absent.reason, str(absent)) for seen in sightings),
            driver_version=self._module_version(),
            problems=(Problem(reason=absent.reason, message=str(absent)),),
        )

    def _module_version(self) -> str | None:
        return text(self._host, "/sys/module/nvidia/version")

    def _ask_all(self, nvml: Nvml, sightings: tuple[Sighting, ...]) -> dict[str, Found]:
        system_bytes = memory_total(text(self._host, "/proc/meminfo") or "")
        around = Around(system_bytes, Capabilities(self._host))
        ours = [seen for seen in sightings if not seen.reason]
        others = {seen.bus_id for seen in sightings if seen.reason}
        faults = {seen.bus_id: self._handle(nvml, seen.bus_id) for seen in ours}
        refuse_if_over(faults.values())
        ours += self._unsighted(nvml, {seen.bus_id for seen in sightings}, len(ours))
        here = {seen.bus_id for seen in ours}
        self._cards = {key: card for key, card in self._cards.items() if key in here}
        self._known = {k: v for k, v in self._known.items() if k in here or k not in others}
        found: dict[str, Found] = {}
        for seen in ours:
            card, before = self._cards.get(seen.bus_id), self._known.get(seen.bus_id)
            device_before = before.device if before else None
            answer = describe(card, seen, around, device_before) if card else None
            if answer is not None:
                found[seen.bus_id] = answer
                self._remember(answer, seen, system_bytes)
            else:
                noted = card.faults if card is not None else faults.get(seen.bus_id, {})
                self._remember_silent(seen, noted)
        return found

    def _handle(self, nvml: Nvml, bus_id: str) -> dict[int, str]:
        """Get the card's handle; return the code and call if there is none."""
        name = "nvmlDeviceGetHandleByPciBusId"
        try:
            handle = nvml.call(name, bus_id)
        except (VendorFault, DeviceGone, NotSupported) as error:
            self._cards.pop(bus_id, None)
            return {library.code_of(error): name}
        self._take(nvml, bus_id, handle)
        return {}

    def _take(self, nvml: Nvml, bus_id: str, handle: object) -> None:
        card = self._cards.setdefault(bus_id, Card(nvml, bus_id, handle, self._clock))
        card.handle = handle
        card.begin()
        card.forget()

    def _unsighted(self, nvml: Nvml, sighted: set[str], asked: int) -> list[Sighting]:
        """Add cards that NVML knows and sysfs does not show, as in odd mounts."""
        added: list[Sighting] = []
        count = _quiet_number(nvml, "nvmlDeviceGetCount")
        for index in range(min(count, MAX_INDEX) if count > asked else 0):
            try:
                handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
                bus_id = names.bus_id(nvml.bus_id("nvmlDeviceGetPciInfo", handle))
            except (VendorFault, DeviceGone, NotSupported):
                continue  # a card after this one may well answer
            if bus_id is not None and bus_id not in sighted:
                self._take(nvml, bus_id, handle)
                added.append(Sighting(bus_id=bus_id, driver=None))
        return added

    def _remember(self, found: Found, seen: Sighting, system_bytes: int | None) -> None:
        unified = ("unified-memory", "true") in found.device.facts
        card = self._cards[seen.bus_id]
        try:
            slow = slow_readings(card, found.facts.recovery_action, found.facts.remapped)
        except CardStopped:
            slow = ()
        self._known[seen.bus_id] = _Known(
            device=found.device,
            seen=seen,
            last_s=self._clock(),
            shared_bytes=system_bytes if unified else None,
            slow=slow,
            told=found.device.health,
        )

    def _remember_silent(self, seen: Sighting, faults: Mapping[int, str]) -> None:
        before = self._known.get(seen.bus_id)
        told = silent(seen, faults, before.device if before else None)
        self._known[seen.bus_id] = _Known(
            device=told, seen=seen, last_s=self._clock(), told=told.health
        )

    def _vanished(self, here: set[str]) -> list[VendorDevice]:
        """Keep cards whose function is gone for a day: pods may still hold them."""
        gone = Health(
            state=HealthState.FAILED, reason="GpuLost", message="the PCI function is gone"
        )
        kept: list[VendorDevice] = []
        for key in [k for k in self._known if k not in here]:
            if self._clock() - self._known[key].last_s > self._forget_s:
                del self._known[key]
            else:
                kept.append(replace(self._known[key].device, health=gone))
        return kept

    def _inventory(
        self, nvml: Nvml, found: Mapping[str, Found], sightings: tuple[Sighting, ...]
    ) -> Inventory:
        sides = {key: item.links for key, item in found.items()}
        links, problems = matrix(sides)
        problems += tuple(problem for item in found.values() for problem in item.problems)
        vanished = self._vanished({seen.bus_id for seen in sightings} | set(self._cards))
        gone = {d.key for d in vanished}
        joined = peers({key: self._cards[key] for key in found}, links)
        devices = [device(seen) for seen in sightings if seen.reason]
        devices += [_joined(k.device, joined) for key, k in self._known.items() if key not in gone]
        cuda = _quiet_number(nvml, "nvmlSystemGetCudaDriverVersion_v2")
        version = _quiet_text(nvml, "nvmlSystemGetNVMLVersion")
        told = (("cuda", names.cuda_version(cuda) if cuda > 0 else None), ("nvml", version))
        clique = (("clique", node_clique(sides)),)
        ordered = sorted((*devices, *vanished), key=lambda d: d.key)
        cut = ((mig_annotation.KEY, mig_annotation.annotation(ordered)),)
        return Inventory(
            vendor="nvidia",
            devices=distinct_modules(ordered),
            links=links,
            driver_version=_quiet_text(nvml, "nvmlSystemGetDriverVersion")
            or self._module_version(),
            library=f"{nvml.path} {version}" if version else nvml.path,
            facts=tuple((k, v) for k, v in (*told, *clique, *cut) if v),
            problems=problems,
        )

    def sample(self) -> tuple[DeviceSample, ...]:
        """Sample the cards that answer; late ones are asked every ten seconds."""
        self._cycle += 1
        samples: list[DeviceSample] = []
        for place, key in enumerate(sorted(self._cards)):
            card, known = self._cards[key], self._known.get(key)
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

    def _look_closer(self, card: Card, known: _Known) -> None:
        polled = health.poll(card)
        known.slow = slow_readings(card, polled.recovery_action, polled.remapped)
        self._announce(card.bus_id, known, health.judge(polled))

    def _announce(self, key: str, known: _Known, now: Health) -> None:
        """Send an event when a card's health is another than was last told."""
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
            self._cards.clear()
            nvml.close()


def refuse_if_over(faults: Iterable[Mapping[int, str]]) -> None:
    """Raise if no card answers for a reason that only a new process gets over."""
    told = [code for fault in faults for code in fault or (library.SUCCESS,)]
    if told and all(code in library.STOPS_PROCESS for code in told):
        raise VendorFault(f"no card answers ({library.reason_of(told[0])}): start a new process")


def _joined(found: VendorDevice, peers: Mapping[str, str]) -> VendorDevice:
    told = peers.get(found.key)
    return replace(found, facts=(*found.facts, ("peers", told))) if told else found


def _quiet_number(nvml: Nvml, name: str) -> int:
    try:
        found = nvml.call(name)
    except (VendorFault, DeviceGone, NotSupported):
        return 0
    return found if isinstance(found, int) else 0


def _quiet_text(nvml: Nvml, name: str) -> str | None:
    try:
        found = nvml.call(name)
    except (VendorFault, DeviceGone, NotSupported):
        return None
    return found if isinstance(found, str) else None
