"""The cards of a node across discoveries: handles, last answers, removed cards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from agent.errors import CALL_HUNG, CallSuspended, DeviceGone, NotSupported, VendorFault
from agent.snapshot.device import Health, HealthState, VendorDevice
from agent.snapshot.inventory import Problem
from plugins.shared.resources import card_resources
from plugins.vendors.nvidia.discovery import names
from plugins.vendors.nvidia.discovery.card_store import CardStore, StoredCard
from plugins.vendors.nvidia.discovery.descriptions import (
    UNIFIED_MEMORY,
    CardDescription,
    MachineFacts,
    describe_card,
    describe_silent_card,
)
from plugins.vendors.nvidia.discovery.nvlink import CardLinks
from plugins.vendors.nvidia.discovery.sysfs import (
    NOT_YET,
    NvidiaFunction,
    NvidiaHardware,
    cards_without_bus,
    describe_function,
)
from plugins.vendors.nvidia.library import codes
from plugins.vendors.nvidia.library.card import NvmlCard
from plugins.vendors.nvidia.library.codes import GarbledAnswer
from plugins.vendors.nvidia.library.nvml import Nvml

PART_S = 1.0  # of one answer; the cards that are not asked by then follow in the next
SLOW_ATTACH_S = 1.0  # the driver wakes a card when its first client comes, unless it persists
PERSISTENCE_OFF = ("persistence", "off")
MAX_INDEX = 64  # cards asked for by index
UPGRADE_S = 60.0  # that a driver may take from its library to its kernel module
UNBOUND = ("DriverNotBound", "DriverMissing")  # functions that no driver has
LOST = Health(state=HealthState.FAILED, reason="GpuLost", message="the PCI function is gone")


class DiscoveredCard(msgspec.Struct):
    """What is kept of a card between calls."""

    device: VendorDevice
    function: NvidiaFunction
    last_s: float  # monotonic; when its function was last there
    links: CardLinks = CardLinks()
    lasting_health: Health | None = None  # a verdict that no look at the card can lift
    shared_bytes: int | None = None  # the machine's memory, of a card that shares it
    is_answering: bool = False  # it was described the last time that it was asked
    problems: tuple[Problem, ...] = ()


class DiscoveryPart(msgspec.Struct, frozen=True):
    """The result of one part of a discovery."""

    descriptions: Mapping[str, CardDescription]  # cards that answered
    keys: frozenset[str]  # cards that were asked
    pending: tuple[str, ...] = ()  # cards that the next part asks


class Clocks(msgspec.Struct, frozen=True):
    """Monotonic and wall time."""

    monotonic: Callable[[], float]
    wall: Callable[[], float]


class NvidiaCards:
    """Every card that answers, or that did. Keys are those of the devices."""

    def __init__(self, memory: CardStore, clocks: Clocks, forget_s: float) -> None:
        self.cards: dict[str, NvmlCard] = {}  # that have a handle
        self.discovered: dict[str, DiscoveredCard] = {}
        self.store = memory
        self._clocks = clocks
        self._forget_s = forget_s
        self._owners: dict[str, str] = {}  # of UUIDs, in this discovery
        self._mismatch_s: float | None = None  # since when library and kernel do not fit
        self._mismatch_published = False  # the cards are out of service for it
        self._asked: dict[str, Mapping[int, str]] = {}  # in this discovery: why there is no handle
        self._unseen: set[str] = set()  # cards that sysfs does not show
        self._suspended: dict[str, str] = {}  # cards whose look-up hung before, in words
        self.slow_s: dict[str, float] = {}  # what a slow first handle of a card took

    def discover_part(
        self, nvml: Nvml, sight: NvidiaHardware, around: MachineFacts
    ) -> DiscoveryPart:
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
        self.discovered = {
            key: known for key, known in self.discovered.items() if key not in given_away
        }
        found: dict[str, CardDescription] = {}
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
        self,
        nvml: Nvml,
        sight: NvidiaHardware,
        count: int,
        around: MachineFacts,
        found: dict[str, CardDescription],
    ) -> set[str]:
        """Ask the cards that sysfs does not show, and end the discovery; return their keys."""
        faults, self._asked = self._asked, {}
        check_process_usable(faults.values())
        unseen = self._unsighted(nvml, sight, count)
        gone = self._unseen - {seen.key for seen in unseen}
        self._unseen = {seen.key for seen in unseen}
        self.cards = {key: card for key, card in self.cards.items() if key not in gone}
        for seen in unseen:
            self._describe(seen, {}, around, found)
        return set(self._unseen)

    def _describe(
        self,
        seen: NvidiaFunction,
        faults: Mapping[int, str],
        around: MachineFacts,
        found: dict[str, CardDescription],
    ) -> None:
        card, known = self.cards.get(seen.key), self.discovered.get(seen.key)
        before = known.device if known else self.describe_unreachable(seen, NOT_YET)
        told = describe_card(card, seen, around, before) if card else None
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
            except codes.NvmlFault as error:
                if error.code != codes.UNKNOWN:
                    raise
                handle = nvml.call(name, bus_id)
        except CallSuspended as error:
            self.cards.pop(bus_id, None)
            self._suspended[bus_id] = str(error)
            return {codes.TIMEOUT: name}
        except (VendorFault, DeviceGone, NotSupported) as error:
            self.cards.pop(bus_id, None)
            return {codes.code_of(error): name}
        took_s = self._clocks.monotonic() - began_s
        if first and took_s > SLOW_ATTACH_S:
            self.slow_s[bus_id] = took_s
        self._take(nvml, bus_id, handle)
        return {}

    def _take(self, nvml: Nvml, key: str, handle: object) -> None:
        card = self.cards.setdefault(key, NvmlCard(nvml, key, handle, self._clocks.monotonic))
        card.handle = handle
        nvml.assign(handle, key)
        card.begin_cycle()
        card.reset()

    def _unsighted(self, nvml: Nvml, sight: NvidiaHardware, asked: int) -> list[NvidiaFunction]:
        """Add cards that NVML knows and sysfs does not show: odd mounts, WSL, Tegra."""
        sighted = {seen.key for seen in sight.cards}
        added: list[NvidiaFunction] = []
        count = system_number(nvml, "nvmlDeviceGetCount")
        for index in range(min(count, MAX_INDEX) if count > asked else 0):
            try:
                handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
            except (VendorFault, DeviceGone, NotSupported):
                continue  # a card after this one may well answer
            seen = _describe_off_bus(nvml, handle, sight.platform, index)
            if seen is not None and seen.key not in sighted:
                sighted.add(seen.key)
                self._take(nvml, seen.key, handle)
                added.append(seen)
        return added

    def _answered(self, found: CardDescription, seen: NvidiaFunction, around: MachineFacts) -> None:
        unified = UNIFIED_MEMORY in found.device.facts
        known = DiscoveredCard(
            device=found.device,
            function=seen,
            last_s=self._clocks.monotonic(),
            links=found.links,
            shared_bytes=around.system_bytes if unified else None,
            is_answering=True,
            problems=found.problems,
        )
        self._renumbered(known)
        self.discovered[seen.key] = known

    def _silent(self, seen: NvidiaFunction, faults: Mapping[int, str]) -> None:
        before = self.discovered.get(seen.key)
        stored = self.store.card_at(seen.bus_id)
        if stored is not None:
            seen = replace(seen, uuid=seen.uuid or stored[0])
        told = describe_silent_card(seen, faults, before.device if before else None)
        if stored is not None and told.minor is None:
            told = replace(told, minor=stored[1].minor)
        if words := self._suspended.get(seen.key):
            told = replace(
                told, health=Health(state=HealthState.FAILED, reason=CALL_HUNG, message=words)
            )
        known = DiscoveredCard(
            device=told,
            function=seen,
            last_s=self._clocks.monotonic(),
            links=before.links if before else CardLinks(),
        )
        self._renumbered(known)
        self.discovered[seen.key] = known

    def _renumbered(self, known: DiscoveredCard) -> None:
        """Hold on to the minor that pods may know the card by, and say so."""
        card = known.device
        if card.uuid is None or card.bus_id is None or not known.function.driver:
            return
        if self._owners.setdefault(card.uuid, card.key) != card.key:
            return  # two cards with one UUID: nothing can be kept by it
        own = card.memory_bytes if known.is_answering and UNIFIED_MEMORY not in card.facts else None
        size = (own, bool(card.resources)) if own else None
        wall_s = self._clocks.wall()
        old = self.store.record(card.uuid, card.bus_id, card.vendor_minor, wall_s, size)
        if old is None:
            return
        told = (
            f"minor {card.vendor_minor} was {old}, and pods may hold the card under that:"
            f" end them, then run xpu-agent clear {card.key}"
        )
        known.lasting_health = Health(state=HealthState.FAILED, reason="MinorChanged", message=told)
        now = ("minor-now", str(card.vendor_minor))
        known.device = replace(card, minor=old, facts=tuple(dict.fromkeys((*card.facts, now))))

    def _recall(self, here: set[str]) -> None:
        """List cards of an earlier process whose functions went while nobody looked."""
        self.store.forget(self._clocks.wall() - self._forget_s)
        uuids = {known.device.uuid for known in self.discovered.values()}
        for uuid, record in self.store.cards.items():
            if uuid in uuids or record.bdf in here or record.bdf in self.discovered:
                continue
            seen = NvidiaFunction(bus_id=record.bdf, driver="nvidia", uuid=uuid)
            age_s = self._clocks.wall() - record.last_seen_s
            last_s = self._clocks.monotonic() - max(0.0, age_s)
            card = replace(describe_function(seen), minor=record.minor)
            self.discovered[seen.key] = DiscoveredCard(device=card, function=seen, last_s=last_s)

    def describe_unreachable(
        self, seen: NvidiaFunction, reason: str = "", message: str = ""
    ) -> VendorDevice:
        """Describe a card that cannot be asked now by what was known of it.

        One that was ours and has lost its driver stays listed: pods may hold it, and the driver
        is likely to be on its way.
        """
        told = describe_function(seen, reason, message)
        stored, before = self.store.card_at(seen.bus_id), self.discovered.get(seen.key)
        if seen.reason not in ("", *UNBOUND) or (stored is None and before is None):
            return told
        if before is not None:
            before.last_s = self._clocks.monotonic()  # its function is there
        health = told.health
        if seen.reason:
            health = replace(health, state=HealthState.FAILED)
        if reason == NOT_YET and stored is not None and self.store.same_boot:
            told = _with_size(told, stored[1])
        if stored is not None:
            uuid, record = stored
            minor = told.minor if told.minor is not None else record.minor
            told = replace(told, uuid=told.uuid or uuid, minor=minor)
            self.store.record(uuid, record.bdf, None, self._clocks.wall())
        return replace(before.device if before else told, managed=True, health=health)

    def describe_pending(self, seen: NvidiaFunction) -> VendorDevice:
        """Describe a card that was never asked and is to be: nobody can tell how it is."""
        card = self.describe_unreachable(seen, NOT_YET)
        health = Health(reason=NOT_YET, message=card.health.message, certain=False)
        return card if seen.is_excluded else replace(card, health=health)

    def describe_all_unreachable(
        self, sight: NvidiaHardware, reason: str, message: str
    ) -> tuple[VendorDevice, ...]:
        """Describe all cards while the library cannot be asked."""
        now_s, mismatch = self._clocks.monotonic(), reason == codes.reason_of(codes.MISMATCH)
        self._mismatch_s = (self._mismatch_s or now_s) if mismatch else None
        over = self.has_lasting_mismatch()
        self._mismatch_published = over
        here = {seen.key for seen in sight.cards}
        self._recall(here)
        seen = (*sight.cards, *cards_without_bus(sight.platform))
        listed = [self.describe_unreachable(one, reason, message) for one in seen]
        if over:
            listed = [_failed(card) if card.health.reason == reason else card for card in listed]
        return tuple(sorted((*listed, *self.describe_removed(here)), key=lambda card: card.key))

    def has_lasting_mismatch(self) -> bool:
        """Return whether library and kernel module have not fitted for longer than an upgrade."""
        since_s = self._mismatch_s
        return since_s is not None and self._clocks.monotonic() - since_s >= UPGRADE_S

    def wants_discovery(self) -> bool:
        """Return whether time alone has changed what a discovery would say."""
        return self.has_lasting_mismatch() and not self._mismatch_published

    def describe_removed(self, here: set[str]) -> list[VendorDevice]:
        """Return cards whose functions are gone, for as long as pods may still hold them."""
        moved = {self.discovered[key].device.uuid for key in here if key in self.discovered} - {
            None
        }
        kept: list[VendorDevice] = []
        for key in [k for k in self.discovered if k not in here]:
            known = self.discovered[key]
            too_long = self._clocks.monotonic() - known.last_s > self._forget_s
            if too_long or known.device.uuid in moved:
                del self.discovered[key]
            else:
                kept.append(replace(known.device, health=LOST))
        return kept

    def renumber(self, key: str) -> bool:
        """Let a card go on under its new minor; say whether it was waiting for that."""
        known = self.discovered.get(key)
        if (
            known is None
            or known.lasting_health is None
            or known.lasting_health.reason != "MinorChanged"
        ):
            return False
        return known.device.uuid is not None and self.store.renumber(known.device.uuid)


def _with_size(card: VendorDevice, record: StoredCard) -> VendorDevice:
    """Return a card that is still to be asked with what it had: pods may hold all of it."""
    if not record.memory_bytes:
        return card
    granted = card_resources(record.memory_bytes) if record.whole else ()
    return replace(card, memory_bytes=record.memory_bytes, resources=granted)


def _failed(card: VendorDevice) -> VendorDevice:
    return replace(card, health=replace(card.health, state=HealthState.FAILED))


def _describe_off_bus(
    nvml: Nvml, handle: object, platform: str, index: int
) -> NvidiaFunction | None:
    try:
        bus_id = names.bus_id(nvml.bus_id("nvmlDeviceGetPciInfo", handle))
    except (VendorFault, DeviceGone, NotSupported):
        bus_id = None
    if not platform:
        return NvidiaFunction(bus_id=bus_id, driver=None) if bus_id is not None else None
    # no bus shows these cards: their id names them, and their index is all the number they have
    try:
        uuid = nvml.call("nvmlDeviceGetUUID", handle)
    except (VendorFault, DeviceGone, NotSupported):
        uuid = None
    uuid = uuid if isinstance(uuid, str) and uuid else None
    name = uuid or f"nvidia-{index}"
    return NvidiaFunction(
        bus_id=None, driver=None, name=name, uuid=uuid, minor=index, platform=platform
    )


def check_process_usable(faults: Iterable[Mapping[int, str]]) -> None:
    """Raise if no card answers for a reason that only a new process gets over."""
    told = [code for fault in faults for code in fault or (codes.SUCCESS,)]
    if told and all(code in codes.PROCESS_UNUSABLE for code in told):
        raise VendorFault(f"no card answers ({codes.reason_of(told[0])}): start a new process")


def system_number(nvml: Nvml, name: str) -> int:
    """Ask for a number of the whole system; 0 if it cannot be told."""
    try:
        found = nvml.call(name)
    except (VendorFault, DeviceGone, NotSupported, GarbledAnswer):
        return 0
    return found if isinstance(found, int) else 0


def system_text(nvml: Nvml, name: str) -> str | None:
    """Ask for a text of the whole system."""
    try:
        found = nvml.call(name)
    except (VendorFault, DeviceGone, NotSupported, GarbledAnswer):
        return None
    return found if isinstance(found, str) and found else None
