"""The cards of a node across discoveries: handles, last answers, removed cards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from agent.clock import Clock
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

PART_S = 1.0  # duration of one part; the remaining cards follow in the next part
SLOW_ATTACH_S = 1.0  # without persistence mode the first client initialises the card
PERSISTENCE_OFF = ("persistence", "off")
MAX_INDEX = 64  # cards that are looked up by index
UPGRADE_S = 60.0  # time between the update of the library and that of the kernel module
UNBOUND = ("DriverNotBound", "DriverMissing")  # reasons of functions without a driver
LOST = Health(state=HealthState.FAILED, reason="GpuLost", message="the PCI function is gone")


class DiscoveredCard(msgspec.Struct):
    """A card as the last discovery described it."""

    device: VendorDevice
    function: NvidiaFunction
    last_s: float  # monotonic; when the PCI function was last present
    links: CardLinks = CardLinks()
    lasting_health: Health | None = None  # bad health that no check of the card can end
    shared_bytes: int | None = None  # the machine's memory, if the card shares it
    is_answering: bool = False  # the card answered in the last discovery
    problems: tuple[Problem, ...] = ()


class DiscoveryPart(msgspec.Struct, frozen=True):
    """The result of one part of a discovery."""

    descriptions: Mapping[str, CardDescription]  # cards that answered
    keys: frozenset[str]  # cards that this part queried
    pending: tuple[str, ...] = ()  # cards that the next part queries


class NvidiaCards:
    """All cards that answer or have answered, by device key."""

    def __init__(self, store: CardStore, clock: Clock, retention_s: float) -> None:
        self.cards: dict[str, NvmlCard] = {}  # cards with a handle
        self.discovered: dict[str, DiscoveredCard] = {}
        self.store = store
        self._clock = clock
        self._retention_s = retention_s
        self._owners: dict[str, str] = {}  # UUID: key of its card, in this discovery
        self._mismatch_s: float | None = None  # start of a mismatch of library and kernel module
        self._mismatch_published = False  # the cards are out of service because of it
        self._handle_faults: dict[
            str, Mapping[int, str]
        ] = {}  # card: code and call, in this discovery
        self._unlisted: set[str] = set()  # cards that sysfs does not list
        self._suspended_lookups: dict[str, str] = {}  # card: message, if its look-up hung earlier
        self.attach_times_s: dict[str, float] = {}  # time that a slow first look-up took

    def discover_part(
        self, nvml: Nvml, hardware: NvidiaHardware, machine: MachineFacts
    ) -> DiscoveryPart:
        """Query cards for `PART_S`; a card that does not answer hides no other card.

        The first look-up of a card may take seconds, so each call continues where the last one
        ended. Raises `VendorFault` if no card answers and only a new process can help.
        """
        bound = [function for function in hardware.cards if not function.reason]
        unbound_keys = {function.key for function in hardware.cards if function.reason}
        taken_over = {
            function.key for function in hardware.cards if function.reason not in ("", *UNBOUND)
        }
        if not self._handle_faults:
            self._owners = {}
        present = {function.key for function in bound} | self._unlisted
        self.cards = {key: card for key, card in self.cards.items() if key in present}
        self.discovered = {
            key: entry for key, entry in self.discovered.items() if key not in taken_over
        }
        descriptions: dict[str, CardDescription] = {}
        until_s = self._clock.monotonic() + PART_S
        remaining = [function for function in bound if function.key not in self._handle_faults]
        count = 0
        for function in remaining:
            if count and self._clock.monotonic() >= until_s:
                break
            count += 1
            self._handle_faults[function.key] = faults = self._handle(nvml, function.key)
            self._describe(function, faults, machine, descriptions)
        keys = {function.key for function in remaining[:count]}
        pending = tuple(function.key for function in remaining[count:])
        if not pending:
            keys |= self._finish(nvml, hardware, len(bound), machine, descriptions)
        self._add_vanished_cards(present | unbound_keys | keys)
        return DiscoveryPart(descriptions, frozenset(keys), pending)

    def _finish(
        self,
        nvml: Nvml,
        hardware: NvidiaHardware,
        count: int,
        machine: MachineFacts,
        descriptions: dict[str, CardDescription],
    ) -> set[str]:
        """Query the cards that sysfs does not list, and end the discovery; return their keys."""
        faults, self._handle_faults = self._handle_faults, {}
        check_process_usable(faults.values())
        unlisted = self._find_unlisted_cards(nvml, hardware, count)
        vanished = self._unlisted - {function.key for function in unlisted}
        self._unlisted = {function.key for function in unlisted}
        self.cards = {key: card for key, card in self.cards.items() if key not in vanished}
        for function in unlisted:
            self._describe(function, {}, machine, descriptions)
        return set(self._unlisted)

    def _describe(
        self,
        function: NvidiaFunction,
        faults: Mapping[int, str],
        machine: MachineFacts,
        descriptions: dict[str, CardDescription],
    ) -> None:
        card, entry = self.cards.get(function.key), self.discovered.get(function.key)
        before = entry.device if entry else self.describe_unreachable(function, NOT_YET)
        description = describe_card(card, function, machine, before) if card else None
        if description is not None:
            descriptions[function.key] = description
            self._record_answer(description, function, machine)
        else:
            self._record_silence(function, card.faults if card is not None else faults)

    def _handle(self, nvml: Nvml, bus_id: str) -> Mapping[int, str]:
        """Look up the card's handle; return code and call if that fails."""
        name = "nvmlDeviceGetHandleByPciBusId"
        self._suspended_lookups.pop(bus_id, None)
        began_s, first = self._clock.monotonic(), bus_id not in self.cards
        try:
            try:
                handle = nvml.call(name, bus_id)
            except codes.NvmlFault as error:
                if error.code != codes.UNKNOWN:
                    raise
                handle = nvml.call(name, bus_id)
        except CallSuspended as error:
            self.cards.pop(bus_id, None)
            self._suspended_lookups[bus_id] = str(error)
            return {codes.TIMEOUT: name}
        except (VendorFault, DeviceGone, NotSupported) as error:
            self.cards.pop(bus_id, None)
            return {codes.code_of(error): name}
        took_s = self._clock.monotonic() - began_s
        if first and took_s > SLOW_ATTACH_S:
            self.attach_times_s[bus_id] = took_s
        self._store_handle(nvml, bus_id, handle)
        return {}

    def _store_handle(self, nvml: Nvml, key: str, handle: object) -> None:
        card = self.cards.setdefault(key, NvmlCard(nvml, key, handle, self._clock))
        card.handle = handle
        nvml.assign(handle, key)
        card.begin_cycle()
        card.reset()

    def _find_unlisted_cards(
        self, nvml: Nvml, hardware: NvidiaHardware, bound_count: int
    ) -> list[NvidiaFunction]:
        """Return cards that NVML lists and sysfs does not: unusual mounts, WSL, Tegra."""
        listed_keys = {function.key for function in hardware.cards}
        added: list[NvidiaFunction] = []
        count = system_number(nvml, "nvmlDeviceGetCount")
        for index in range(min(count, MAX_INDEX) if count > bound_count else 0):
            try:
                handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
            except (VendorFault, DeviceGone, NotSupported):
                continue  # the next card may answer
            function = _describe_off_bus(nvml, handle, hardware.platform, index)
            if function is not None and function.key not in listed_keys:
                listed_keys.add(function.key)
                self._store_handle(nvml, function.key, handle)
                added.append(function)
        return added

    def _record_answer(
        self, description: CardDescription, function: NvidiaFunction, machine: MachineFacts
    ) -> None:
        is_unified = UNIFIED_MEMORY in description.device.facts
        entry = DiscoveredCard(
            device=description.device,
            function=function,
            last_s=self._clock.monotonic(),
            links=description.links,
            shared_bytes=machine.system_bytes if is_unified else None,
            is_answering=True,
            problems=description.problems,
        )
        self._keep_published_minor(entry)
        self.discovered[function.key] = entry

    def _record_silence(self, function: NvidiaFunction, faults: Mapping[int, str]) -> None:
        before = self.discovered.get(function.key)
        stored = self.store.card_at(function.bus_id)
        if stored is not None:
            function = replace(function, uuid=function.uuid or stored[0])
        device = describe_silent_card(function, faults, before.device if before else None)
        if stored is not None and device.minor is None:
            device = replace(device, minor=stored[1].minor)
        if message := self._suspended_lookups.get(function.key):
            device = replace(
                device, health=Health(state=HealthState.FAILED, reason=CALL_HUNG, message=message)
            )
        entry = DiscoveredCard(
            device=device,
            function=function,
            last_s=self._clock.monotonic(),
            links=before.links if before else CardLinks(),
        )
        self._keep_published_minor(entry)
        self.discovered[function.key] = entry

    def _keep_published_minor(self, entry: DiscoveredCard) -> None:
        """Keep the published minor of a card whose minor changed, and mark the card as failed."""
        card = entry.device
        if card.uuid is None or card.bus_id is None or not entry.function.driver:
            return
        if self._owners.setdefault(card.uuid, card.key) != card.key:
            return  # the UUID is not unique, so it does not identify a card
        own_bytes = (
            card.memory_bytes if entry.is_answering and UNIFIED_MEMORY not in card.facts else None
        )
        size = (own_bytes, bool(card.resources)) if own_bytes else None
        wall_s = self._clock.wall()
        published = self.store.record(card.uuid, card.bus_id, card.vendor_minor, wall_s, size)
        if published is None:
            return
        message = (
            f"minor {card.vendor_minor} was {published}, and pods may hold the card under that:"
            f" end them, then run xpu-agent clear {card.key}"
        )
        entry.lasting_health = Health(
            state=HealthState.FAILED, reason="MinorChanged", message=message
        )
        now = ("minor-now", str(card.vendor_minor))
        entry.device = replace(
            card, minor=published, facts=tuple(dict.fromkeys((*card.facts, now)))
        )

    def _add_vanished_cards(self, present: set[str]) -> None:
        """Add stored cards whose functions vanished while the agent did not run."""
        self.store.prune(self._clock.wall() - self._retention_s)
        uuids = {entry.device.uuid for entry in self.discovered.values()}
        for uuid, record in self.store.cards.items():
            if uuid in uuids or record.bdf in present or record.bdf in self.discovered:
                continue
            function = NvidiaFunction(bus_id=record.bdf, driver="nvidia", uuid=uuid)
            age_s = self._clock.wall() - record.last_seen_s
            last_s = self._clock.monotonic() - max(0.0, age_s)
            card = replace(describe_function(function), minor=record.minor)
            self.discovered[function.key] = DiscoveredCard(
                device=card, function=function, last_s=last_s
            )

    def describe_unreachable(
        self, function: NvidiaFunction, reason: str = "", message: str = ""
    ) -> VendorDevice:
        """Describe a card that cannot be queried now, from its last answer and the store.

        A card that has lost its driver stays managed: pods may use it, and the driver is probably
        being loaded.
        """
        device = describe_function(function, reason, message)
        stored, before = self.store.card_at(function.bus_id), self.discovered.get(function.key)
        if function.reason not in ("", *UNBOUND) or (stored is None and before is None):
            return device
        if before is not None:
            before.last_s = self._clock.monotonic()  # the function is present
        health = device.health
        if function.reason:
            health = replace(health, state=HealthState.FAILED)
        if reason == NOT_YET and stored is not None and self.store.is_same_boot:
            device = _with_size(device, stored[1])
        if stored is not None:
            uuid, record = stored
            minor = device.minor if device.minor is not None else record.minor
            device = replace(device, uuid=device.uuid or uuid, minor=minor)
            self.store.record(uuid, record.bdf, None, self._clock.wall())
        return replace(before.device if before else device, managed=True, health=health)

    def describe_pending(self, function: NvidiaFunction) -> VendorDevice:
        """Describe a card that a later part queries for the first time: its health is unknown."""
        card = self.describe_unreachable(function, NOT_YET)
        health = Health(reason=NOT_YET, message=card.health.message, certain=False)
        return card if function.is_excluded else replace(card, health=health)

    def describe_all_unreachable(
        self, hardware: NvidiaHardware, reason: str, message: str
    ) -> tuple[VendorDevice, ...]:
        """Describe all cards while the library is unavailable."""
        now_s, is_mismatch = self._clock.monotonic(), reason == codes.reason_of(codes.MISMATCH)
        self._mismatch_s = (self._mismatch_s or now_s) if is_mismatch else None
        is_lasting = self.has_lasting_mismatch()
        self._mismatch_published = is_lasting
        present = {function.key for function in hardware.cards}
        self._add_vanished_cards(present)
        function = (*hardware.cards, *cards_without_bus(hardware.platform))
        devices = [self.describe_unreachable(one, reason, message) for one in function]
        if is_lasting:
            devices = [
                _with_failed_state(card) if card.health.reason == reason else card
                for card in devices
            ]
        return tuple(sorted((*devices, *self.describe_removed(present)), key=lambda card: card.key))

    def has_lasting_mismatch(self) -> bool:
        """Return whether library and kernel module have differed for longer than an upgrade."""
        since_s = self._mismatch_s
        return since_s is not None and self._clock.monotonic() - since_s >= UPGRADE_S

    def needs_discovery(self) -> bool:
        """Return whether a mismatch has become lasting since the last discovery."""
        return self.has_lasting_mismatch() and not self._mismatch_published

    def describe_removed(self, present: set[str]) -> list[VendorDevice]:
        """Return removed cards within the retention time, in which pods may still use them."""
        moved = {self.discovered[key].device.uuid for key in present if key in self.discovered} - {
            None
        }
        removed: list[VendorDevice] = []
        for key in [k for k in self.discovered if k not in present]:
            entry = self.discovered[key]
            too_long = self._clock.monotonic() - entry.last_s > self._retention_s
            if too_long or entry.device.uuid in moved:
                del self.discovered[key]
            else:
                removed.append(replace(entry.device, health=LOST))
        return removed

    def renumber(self, key: str) -> bool:
        """Accept a card's new minor; return whether the card was failed because of it."""
        entry = self.discovered.get(key)
        if (
            entry is None
            or entry.lasting_health is None
            or entry.lasting_health.reason != "MinorChanged"
        ):
            return False
        return entry.device.uuid is not None and self.store.renumber(entry.device.uuid)


def _with_size(card: VendorDevice, record: StoredCard) -> VendorDevice:
    """Return a card that is not yet queried with its stored memory and resources."""
    if not record.memory_bytes:
        return card
    resources = card_resources(record.memory_bytes) if record.whole else ()
    return replace(card, memory_bytes=record.memory_bytes, resources=resources)


def _with_failed_state(card: VendorDevice) -> VendorDevice:
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
    # no bus lists these cards: they are named by UUID, and numbered by NVML's index
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
    """Raise `VendorFault` if no card answers and only a new process can help."""
    fault_codes = [code for fault in faults for code in fault or (codes.SUCCESS,)]
    if fault_codes and all(code in codes.PROCESS_UNUSABLE for code in fault_codes):
        raise VendorFault(
            f"no card answers ({codes.reason_of(fault_codes[0])}): start a new process"
        )


def system_number(nvml: Nvml, name: str) -> int:
    """Read a number of the whole system; 0 if it is unknown."""
    try:
        answer = nvml.call(name)
    except (VendorFault, DeviceGone, NotSupported, GarbledAnswer):
        return 0
    return answer if isinstance(answer, int) else 0


def system_text(nvml: Nvml, name: str) -> str | None:
    """Read a text of the whole system; `None` if it is unknown."""
    try:
        answer = nvml.call(name)
    except (VendorFault, DeviceGone, NotSupported, GarbledAnswer):
        return None
    return answer if isinstance(answer, str) and answer else None
