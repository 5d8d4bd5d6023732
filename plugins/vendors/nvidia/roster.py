"""The cards of a node from one discovery to the next: handles, last answers, those that went."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from agent.errors import DeviceGone, NotSupported, VendorFault
from agent.model.device import Health, HealthState, VendorDevice
from plugins.bindings.nvml import library
from plugins.bindings.nvml.card import Card
from plugins.bindings.nvml.library import GarbledAnswer, Nvml
from plugins.vendors.nvidia import names
from plugins.vendors.nvidia.discover import Around, Found, describe, silent
from plugins.vendors.nvidia.links import CardLinks
from plugins.vendors.nvidia.sight import Sight, Sighting, device, placeless
from plugins.vendors.nvidia.stored import CardMemory

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

    def ask(self, nvml: Nvml, sight: Sight, around: Around) -> dict[str, Found]:
        """Ask every card everything; one that does not answer hides no other.

        Raises `VendorFault` if none answers for a reason that only a new process gets over.
        """
        ours = [seen for seen in sight.cards if not seen.reason]
        others = {seen.key for seen in sight.cards if seen.reason}
        given_away = {seen.key for seen in sight.cards if seen.reason not in ("", *UNBOUND)}
        faults = {seen.key: self._handle(nvml, seen.key) for seen in ours}
        refuse_if_over(faults.values())
        ours += self._unsighted(nvml, sight, len(ours))
        here = {seen.key for seen in ours}
        self.cards = {key: card for key, card in self.cards.items() if key in here}
        self.known = {key: known for key, known in self.known.items() if key not in given_away}
        self._owners = {}
        found: dict[str, Found] = {}
        for seen in ours:
            card, before = self.cards.get(seen.key), self.known.get(seen.key)
            told = describe(card, seen, around, before.device if before else None) if card else None
            if told is not None:
                found[seen.key] = told
                self._answered(told, seen, around)
            else:
                noted = card.faults if card is not None else faults.get(seen.key, {})
                self._silent(seen, noted)
        self._recall(here | others)
        return found

    def _handle(self, nvml: Nvml, bus_id: str) -> dict[int, str]:
        """Get the card's handle; return the code and call if there is none."""
        name = "nvmlDeviceGetHandleByPciBusId"
        try:
            try:
                handle = nvml.call(name, bus_id)
            except library.NvmlFault as error:
                if error.code != library.UNKNOWN:
                    raise
                handle = nvml.call(name, bus_id)
        except (VendorFault, DeviceGone, NotSupported) as error:
            self.cards.pop(bus_id, None)
            return {library.code_of(error): name}
        self._take(nvml, bus_id, handle)
        return {}

    def _take(self, nvml: Nvml, key: str, handle: object) -> None:
        card = self.cards.setdefault(key, Card(nvml, key, handle, self._clocks.monotonic))
        card.handle = handle
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
        unified = ("unified-memory", "true") in found.device.facts
        known = Known(
            device=found.device,
            seen=seen,
            last_s=self._clocks.monotonic(),
            links=found.links,
            shared_bytes=around.system_bytes if unified else None,
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
        old = self.memory.see(card.uuid, card.bus_id, card.vendor_minor, self._clocks.wall())
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
        if stored is not None:
            uuid, record = stored
            minor = told.minor if told.minor is not None else record.minor
            told = replace(told, uuid=told.uuid or uuid, minor=minor)
            self.memory.see(uuid, record.bdf, None, self._clocks.wall())
        return replace(before.device if before else told, managed=True, health=health)

    def unanswered(self, sight: Sight, reason: str, message: str) -> tuple[VendorDevice, ...]:
        """Describe all cards while the library cannot be asked."""
        now_s, mismatch = self._clocks.monotonic(), reason == library.reason_of(library.MISMATCH)
        self._mismatch_s = (self._mismatch_s or now_s) if mismatch else None
        over = self._mismatch_s is not None and now_s - self._mismatch_s >= UPGRADE_S
        here = {seen.key for seen in sight.cards}
        self._recall(here)
        seen = (*sight.cards, *placeless(sight.platform))
        listed = [self.unasked(one, reason, message) for one in seen]
        if over:
            listed = [_failed(card) if card.health.reason == reason else card for card in listed]
        return tuple(sorted((*listed, *self.vanished(here)), key=lambda card: card.key))

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
