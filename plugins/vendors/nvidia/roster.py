"""The cards of a node from one discovery to the next: handles, last answers, those that went."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from agent.errors import CALL_HUNG, CallSuspended, DeviceGone, NotSupported, VendorFault
from agent.model.device import Health, HealthState, VendorDevice
from agent.model.inventory import Problem
from plugins.bindings.nvml import library
from plugins.bindings.nvml.card import Card
from plugins.bindings.nvml.library import GarbledAnswer, Nvml
from plugins.vendors.nvidia import names
from plugins.vendors.nvidia.discover import (
    UNIFIED,
    Around,
    Found,
    describe,
    resources,
    silent,
)
from plugins.vendors.nvidia.links import CardLinks
from plugins.vendors.nvidia.sight import NOT_YET, Sight, Sighting, device, placeless
from plugins.vendors.nvidia.stored import CardMemory, CardRecord

PART_S = 1.0  # of one answer; the cards that are not asked by then follow in the next
SLOW_ATTACH_S = 1.0  # the driver wakes a card when its first client comes, unless it persists
PERSISTENCE_OFF = ("persistence", "off")
MAX_INDEX = 64  # cards asked for by index
UPGRADE_S = 60.0  # that a driver may take from its library to its kernel module
UNBOUND = ("DriverNotBound", "DriverMissing")  # functions that no driver has
LOST = Health(state=HealthState.FAILED, reason="GpuLost", message="the PCI function is gone")


class Known(msgspec.Struct):
    """What is kept of a card between calls."""

    device: VendorDevice
    seen: Sighting
    last_s: float  # monotonic; when its function was last there
    links: CardLinks = CardLinks()
    standing: Health | None = None  # a verdict that no look at the card can lift
    shared_bytes: int | None = None  # the machine's memory, of a card that shares it
    answers: bool = False  # it was described the last time that it was asked
    problems: tuple[Problem, ...] = ()


class DiscoveryPart(msgspec.Struct, frozen=True):
    """The result of one part of a discovery."""

    found: Mapping[str, Found]  # cards that answered
    keys: frozenset[str]  # cards that were asked
    pending: tuple[str, ...] = ()  # cards that the next part asks


class Clocks(msgspec.Struct, frozen=True):
    """Monotonic and wall time."""

    monotonic: Callable[[], float]
    wall: Callable[[], float]


class Roster:
    """Every card that answers, or that did. Keys are those of the devices."""

    def __init__(self, memory: CardMemory, clocks: Clocks, forget_s: float) -> None:
        self.cards: dict[str, Card] = {}  # that have a handle
        self.known: dict[str, Known] = {}
        self.memory = memory
        self._clocks = clocks
        self._forget_s = forget_s
        self._owners: dict[str, str] = {}  # of UUIDs, in this discovery
        self._mismatch_s: float | None = None  # since when library and kernel do not fit
        self._mismatch_published = False  # the cards are out of service for it
        self._asked: dict[str, Mapping[int, str]] = {}  # in this discovery: why there is no handle
        self._unseen: set[str] = set()  # cards that sysfs does not show
        self._suspended: dict[str, str] = {}  # cards whose look-up hung before, in words
        self.slow_s: dict[str, float] = {}  # what a slow first handle of a card took

    def ask(self, nvml: Nvml, sight: Sight, around: Around) -> DiscoveryPart:
        """Ask cards everything for a while; one that does not answer hides no other.

        A first handle may take seconds, so the cards are asked in parts: each call goes on where
        the last one ended. Raises `VendorFault` if none answers for a reason that only a new
        process gets over.
        """
        ours = [seen for seen in sight.cards if not seen.reason]
        others = {seen.key for seen in sight.cards if seen.reason}
        given_away = {seen.key for seen in sight.cards if seen.reason not in ("", *UNBOUND)}
        if not self._asked:
            self._owners = {}
        here = {seen.key for seen in ours} | self._unseen
        self.cards = {key: card for key, card in self.cards.items() if key in here}
        self.known = {key: known for key, known in self.known.items() if key not in given_away}
        found: dict[str, Found] = {}
        until_s = self._clocks.monotonic() + PART_S
        todo = [seen for seen in ours if seen.key not in self._asked]
        done = 0
        for seen in todo:
            if done and self._clocks.monotonic() >= until_s:
                break
            done += 1
            self._asked[seen.key] = faults = self._handle(nvml, seen.key)
            self._describe(seen, faults, around, found)
        keys = {seen.key for seen in todo[:done]}
        pending = tuple(seen.key for seen in todo[done:])
        if not pending:
            keys |= self._finish(nvml, sight, len(ours), around, found)
        self._recall(here | others | keys)
        return DiscoveryPart(found, frozenset(keys), pending)

    def _finish(
        self, nvml: Nvml, sight: Sight, count: int, around: Around, found: dict[str, Found]
    ) -> set[str]:
        """Ask the cards that sysfs does not show, and end the discovery; return their keys."""
        faults, self._asked = self._asked, {}
        refuse_if_over(faults.values())
        unseen = self._unsighted(nvml, sight, count)
        gone = self._unseen - {seen.key for seen in unseen}
        self._unseen = {seen.key for seen in unseen}
        self.cards = {key: card for key, card in self.cards.items() if key not in gone}
        for seen in unseen:
            self._describe(seen, {}, around, found)
        return set(self._unseen)

    def _describe(
        self, seen: Sighting, faults: Mapping[int, str], around: Around, found: dict[str, Found]
    ) -> None:
        card, known = self.cards.get(seen.key), self.known.get(seen.key)
        before = known.device if known else self.unasked(seen, NOT_YET)
        told = describe(card, seen, around, before) if card else None
        if told is not None:
            found[seen.key] = told
            self._answered(told, seen, around)
        else:
            self._silent(seen, card.faults if card is not None else faults)

    def _handle(self, nvml: Nvml, bus_id: str) -> Mapping[int, str]:
        """Get the card's handle; return the code and call if there is none."""
        name = "nvmlDeviceGetHandleByPciBusId"
        self._suspended.pop(bus_id, None)
        began_s, first = self._clocks.monotonic(), bus_id not in self.cards
        try:
            try:
                handle = nvml.call(name, bus_id)
            except library.NvmlFault as error:
                if error.code != library.UNKNOWN:
                    raise
                handle = nvml.call(name, bus_id)
        except CallSuspended as error:
            self.cards.pop(bus_id, None)
            self._suspended[bus_id] = str(error)
            return {library.TIMEOUT: name}
        except (VendorFault, DeviceGone, NotSupported) as error:
            self.cards.pop(bus_id, None)
            return {library.code_of(error): name}
        took_s = self._clocks.monotonic() - began_s
        if first and took_s > SLOW_ATTACH_S:
            self.slow_s[bus_id] = took_s
        self._take(nvml, bus_id, handle)
        return {}

    def _take(self, nvml: Nvml, key: str, handle: object) -> None:
        card = self.cards.setdefault(key, Card(nvml, key, handle, self._clocks.monotonic))
        card.handle = handle
        nvml.assign(handle, key)
        card.begin()
        card.forget()

    def _unsighted(self, nvml: Nvml, sight: Sight, asked: int) -> list[Sighting]:
        """Add cards that NVML knows and sysfs does not show: odd mounts, WSL, Tegra."""
        sighted = {seen.key for seen in sight.cards}
        added: list[Sighting] = []
        count = quiet_number(nvml, "nvmlDeviceGetCount")
        for index in range(min(count, MAX_INDEX) if count > asked else 0):
            try:
                handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
            except (VendorFault, DeviceGone, NotSupported):
                continue  # a card after this one may well answer
            seen = _unsighted_one(nvml, handle, sight.platform, index)
            if seen is not None and seen.key not in sighted:
                sighted.add(seen.key)
                self._take(nvml, seen.key, handle)
                added.append(seen)
        return added

    def _answered(self, found: Found, seen: Sighting, around: Around) -> None:
        unified = UNIFIED in found.device.facts
        known = Known(
            device=found.device,
            seen=seen,
            last_s=self._clocks.monotonic(),
            links=found.links,
            shared_bytes=around.system_bytes if unified else None,
            answers=True,
            problems=found.problems,
        )
        self._renumbered(known)
        self.known[seen.key] = known

    def _silent(self, seen: Sighting, faults: Mapping[int, str]) -> None:
        before = self.known.get(seen.key)
        stored = self.memory.at(seen.bus_id)
        if stored is not None:
            seen = replace(seen, uuid=seen.uuid or stored[0])
        told = silent(seen, faults, before.device if before else None)
        if stored is not None and told.minor is None:
            told = replace(told, minor=stored[1].minor)
        if words := self._suspended.get(seen.key):
            told = replace(
                told, health=Health(state=HealthState.FAILED, reason=CALL_HUNG, message=words)
            )
        known = Known(
            device=told,
            seen=seen,
            last_s=self._clocks.monotonic(),
            links=before.links if before else CardLinks(),
        )
        self._renumbered(known)
        self.known[seen.key] = known

    def _renumbered(self, known: Known) -> None:
        """Hold on to the minor that pods may know the card by, and say so."""
        card = known.device
        if card.uuid is None or card.bus_id is None or not known.seen.driver:
            return
        if self._owners.setdefault(card.uuid, card.key) != card.key:
            return  # two cards with one UUID: nothing can be kept by it
        own = card.memory_bytes if known.answers and UNIFIED not in card.facts else None
        size = (own, bool(card.resources)) if own else None
        wall_s = self._clocks.wall()
        old = self.memory.see(card.uuid, card.bus_id, card.vendor_minor, wall_s, size)
        if old is None:
            return
        told = (
            f"minor {card.vendor_minor} was {old}, and pods may hold the card under that:"
            f" end them, then run xpu-agent clear {card.key}"
        )
        known.standing = Health(state=HealthState.FAILED, reason="MinorChanged", message=told)
        now = ("minor-now", str(card.vendor_minor))
        known.device = replace(card, minor=old, facts=tuple(dict.fromkeys((*card.facts, now))))

    def _recall(self, here: set[str]) -> None:
        """List cards of an earlier process whose functions went while nobody looked."""
        self.memory.forget(self._clocks.wall() - self._forget_s)
        uuids = {known.device.uuid for known in self.known.values()}
        for uuid, record in self.memory.cards.items():
            if uuid in uuids or record.bdf in here or record.bdf in self.known:
                continue
            seen = Sighting(bus_id=record.bdf, driver="nvidia", uuid=uuid)
            age_s = self._clocks.wall() - record.last_seen_s
            last_s = self._clocks.monotonic() - max(0.0, age_s)
            card = replace(device(seen), minor=record.minor)
            self.known[seen.key] = Known(device=card, seen=seen, last_s=last_s)

    def unasked(self, seen: Sighting, reason: str = "", message: str = "") -> VendorDevice:
        """Describe a card that cannot be asked now by what was known of it.

        One that was ours and has lost its driver stays listed: pods may hold it, and the driver
        is likely to be on its way.
        """
        told = device(seen, reason, message)
        stored, before = self.memory.at(seen.bus_id), self.known.get(seen.key)
        if seen.reason not in ("", *UNBOUND) or (stored is None and before is None):
            return told
        if before is not None:
            before.last_s = self._clocks.monotonic()  # its function is there
        health = told.health
        if seen.reason:
            health = replace(health, state=HealthState.FAILED)
        if reason == NOT_YET and stored is not None and self.memory.same_boot:
            told = _with_size(told, stored[1])
        if stored is not None:
            uuid, record = stored
            minor = told.minor if told.minor is not None else record.minor
            told = replace(told, uuid=told.uuid or uuid, minor=minor)
            self.memory.see(uuid, record.bdf, None, self._clocks.wall())
        return replace(before.device if before else told, managed=True, health=health)

    def pending(self, seen: Sighting) -> VendorDevice:
        """Describe a card that was never asked and is to be: nobody can tell how it is."""
        card = self.unasked(seen, NOT_YET)
        health = Health(reason=NOT_YET, message=card.health.message, certain=False)
        return card if seen.excluded else replace(card, health=health)

    def unanswered(self, sight: Sight, reason: str, message: str) -> tuple[VendorDevice, ...]:
        """Describe all cards while the library cannot be asked."""
        now_s, mismatch = self._clocks.monotonic(), reason == library.reason_of(library.MISMATCH)
        self._mismatch_s = (self._mismatch_s or now_s) if mismatch else None
        over = self.mismatch_lasts()
        self._mismatch_published = over
        here = {seen.key for seen in sight.cards}
        self._recall(here)
        seen = (*sight.cards, *placeless(sight.platform))
        listed = [self.unasked(one, reason, message) for one in seen]
        if over:
            listed = [_failed(card) if card.health.reason == reason else card for card in listed]
        return tuple(sorted((*listed, *self.vanished(here)), key=lambda card: card.key))

    def mismatch_lasts(self) -> bool:
        """Return whether library and kernel module have not fitted for longer than an upgrade."""
        since_s = self._mismatch_s
        return since_s is not None and self._clocks.monotonic() - since_s >= UPGRADE_S

    def wants_discovery(self) -> bool:
        """Return whether time alone has changed what a discovery would say."""
        return self.mismatch_lasts() and not self._mismatch_published

    def vanished(self, here: set[str]) -> list[VendorDevice]:
        """Return cards whose functions are gone, for as long as pods may still hold them."""
        moved = {self.known[key].device.uuid for key in here if key in self.known} - {None}
        kept: list[VendorDevice] = []
        for key in [k for k in self.known if k not in here]:
            known = self.known[key]
            too_long = self._clocks.monotonic() - known.last_s > self._forget_s
            if too_long or known.device.uuid in moved:
                del self.known[key]
            else:
                kept.append(replace(known.device, health=LOST))
        return kept

    def renumber(self, key: str) -> bool:
        """Let a card go on under its new minor; say whether it was waiting for that."""
        known = self.known.get(key)
        if known is None or known.standing is None or known.standing.reason != "MinorChanged":
            return False
        return known.device.uuid is not None and self.memory.renumber(known.device.uuid)


def _with_size(card: VendorDevice, record: CardRecord) -> VendorDevice:
    """Return a card that is still to be asked with what it had: pods may hold all of it."""
    if not record.memory_bytes:
        return card
    granted = resources(record.memory_bytes) if record.whole else ()
    return replace(card, memory_bytes=record.memory_bytes, resources=granted)


def _failed(card: VendorDevice) -> VendorDevice:
    return replace(card, health=replace(card.health, state=HealthState.FAILED))


def _unsighted_one(nvml: Nvml, handle: object, platform: str, index: int) -> Sighting | None:
    try:
        bus_id = names.bus_id(nvml.bus_id("nvmlDeviceGetPciInfo", handle))
    except (VendorFault, DeviceGone, NotSupported):
        bus_id = None
    if not platform:
        return Sighting(bus_id=bus_id, driver=None) if bus_id is not None else None
    # no bus shows these cards: their id names them, and their index is all the number they have
    try:
        uuid = nvml.call("nvmlDeviceGetUUID", handle)
    except (VendorFault, DeviceGone, NotSupported):
        uuid = None
    uuid = uuid if isinstance(uuid, str) and uuid else None
    name = uuid or f"nvidia-{index}"
    return Sighting(bus_id=None, driver=None, name=name, uuid=uuid, minor=index, platform=platform)


def refuse_if_over(faults: Iterable[Mapping[int, str]]) -> None:
    """Raise if no card answers for a reason that only a new process gets over."""
    told = [code for fault in faults for code in fault or (library.SUCCESS,)]
    if told and all(code in library.STOPS_PROCESS for code in told):
        raise VendorFault(f"no card answers ({library.reason_of(told[0])}): start a new process")


def quiet_number(nvml: Nvml, name: str) -> int:
    """Ask for a number of the whole system; 0 if it cannot be told."""
    try:
        found = nvml.call(name)
    except (VendorFault, DeviceGone, NotSupported, GarbledAnswer):
        return 0
    return found if isinstance(found, int) else 0


def quiet_text(nvml: Nvml, name: str) -> str | None:
    """Ask for a text of the whole system."""
    try:
        found = nvml.call(name)
    except (VendorFault, DeviceGone, NotSupported, GarbledAnswer):
        return None
    return found if isinstance(found, str) and found else None
