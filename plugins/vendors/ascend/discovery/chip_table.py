"""The chips of a node across discoveries: silent chips stay, renumbered chips are reported."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from msgspec.structs import replace

from agent.clock import Clock
from agent.snapshot.device import Health, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import DeviceEvent, Problem
from plugins.shared.state_file import JsonStateFile
from plugins.vendors.ascend.discovery.enumeration import ChipEnumeration
from plugins.vendors.ascend.discovery.links import FAMILIES_WITH_LINK_TYPES, LinkTypes
from plugins.vendors.ascend.health.watch import WatchedChip
from plugins.vendors.ascend.library.chip import Chip
from plugins.vendors.ascend.library.dcmi import Dcmi
from plugins.vendors.ascend.library.state import LINKS, can_read_links, link_type

FILE_NAME = "ascend-devices.json"
MISSING_POLLS = 3  # consecutive enumerations without a chip, after which it is lost


class ChipTable:
    """All chips by key, with their state. One thread changes the table."""

    def __init__(
        self, host: HostFiles, state_dir: str, forget_after_s: float, clock: Clock
    ) -> None:
        self._host = host
        self._clock = clock
        self._file = JsonStateFile(state_dir, FILE_NAME, tuple[VendorDevice, ...])
        stored = self._file.load() or ()
        # files of earlier versions have the driver's number in `minor` only
        self.stored: dict[str, VendorDevice] = {
            device.key: replace(device, vendor_minor=device.minor) for device in stored
        }
        self.chips: dict[str, WatchedChip] = {}
        self._link_types: dict[frozenset[str], str] = {}
        self._queried_keys: frozenset[str] = frozenset()
        self._has_link_types = False  # the driver has reported a link
        self._retention_s = forget_after_s

    @property
    def problem(self) -> Problem | None:
        """The problem of the state file, if there is one."""
        return self._file.problem

    def update(
        self, enumeration: ChipEnumeration, bus_ids: Collection[str]
    ) -> tuple[DeviceEvent, ...]:
        """Update the table with the driver's list and with sysfs; return events of new numbers."""
        now_s = self._clock.monotonic()
        for chip in enumeration.chips:
            watched = self.chips.get(chip.key)
            if watched is None:
                watched = self.chips[chip.key] = WatchedChip(chip, enumeration.handles[chip.key])
            watched.description, watched.chip = chip, enumeration.handles[chip.key]
            watched.absent_rounds, watched.last_answer_s = 0, now_s
            watched.is_in_sysfs = watched.is_in_sysfs or chip.bus_id in bus_ids
        listed_keys = {chip.key for chip in enumeration.chips}
        phys, uuids = {c.phy for c in enumeration.chips}, {c.uuid for c in enumeration.chips}
        for key in [key for key in self.chips if key not in listed_keys]:
            watched = self.chips[key]
            watched.absent_rounds += 1
            chip = watched.description
            # the chip has another key now, or another chip has its number
            is_replaced = chip.phy in phys or chip.uuid in uuids
            if is_replaced or now_s - watched.last_answer_s > self._retention_s:
                del self.chips[key]
        self.mark_missing(bus_ids)
        return self._renumber_events()

    def mark_missing(self, bus_ids: Collection[str] | None = None) -> None:
        """Set the loss reason of chips whose PCI function or device node has vanished.

        `bus_ids` are the functions in sysfs, `None` if sysfs was not read.
        """
        for watched in self.chips.values():
            chip = watched.description
            has_node = self._host.exists(f"/dev/davinci{chip.phy}")
            watched.has_node = watched.has_node or has_node
            if bus_ids is not None:
                watched.is_off_bus = watched.is_in_sysfs and chip.bus_id not in bus_ids
            if watched.is_off_bus:
                watched.loss_reason = "its PCI function is not there any more"
            elif watched.has_node and not has_node:
                watched.loss_reason = f"/dev/davinci{chip.phy} is not there any more"
            elif watched.absent_rounds >= MISSING_POLLS:
                watched.loss_reason = "the driver does not list it any more"
            else:
                watched.loss_reason = ""

    def _renumber_events(self) -> tuple[DeviceEvent, ...]:
        """Return events for dies whose /dev/davinci<N> has another number than in the file."""
        before = {d.uuid: d.vendor_minor for d in self.stored.values() if d.uuid}
        events = []
        for watched in self.chips.values():
            chip = watched.description
            old_number = before.get(chip.uuid, chip.phy)
            if chip.facts.vdie is not None and old_number != chip.phy:
                message = f"{chip.uuid} was davinci{old_number} and is davinci{chip.phy} now"
                events.append(DeviceEvent(key=chip.key, reason="DeviceRenumbered", message=message))
        return tuple(events)

    def save_devices(self, devices: Sequence[VendorDevice]) -> None:
        """Store the devices without their health, for times when the driver does not answer."""
        stored = [
            replace(device, health=Health()) for device in devices if device.minor is not None
        ]
        self.stored = {device.key: device for device in stored}
        self._file.save(tuple(self.stored.values()))

    def handles(self) -> dict[str, Chip]:
        """Return the answering chips by the id of their die."""
        return {w.description.uuid: w.chip for w in self.chips.values() if w.is_answering}

    def places(self) -> tuple[tuple[str, int, int], ...]:
        """Return key, card and number of all chips."""
        chips = (watched.description for watched in self.chips.values())
        return tuple((chip.key, chip.card, chip.number) for chip in chips)

    def ports(self) -> tuple[tuple[str, int, int], ...]:
        """Return key, card and number of the chips that may have a network port."""
        chips = (watched.description for watched in self.chips.values())
        return tuple((chip.key, chip.card, chip.number) for chip in chips if chip.has_port)

    def port_numbers(self) -> dict[str, int]:
        """Return the number of `/dev/davinci<N>` of the chips that may have a network port."""
        chips = (watched.description for watched in self.chips.values())
        return {chip.key: chip.phy for chip in chips if chip.has_port}

    def links(self, dcmi: Dcmi) -> LinkTypes | None:
        """Return the link types, which are read once for each pair; `None` if unknown."""
        families = {watched.description.family for watched in self.chips.values()}
        if not can_read_links(dcmi) or not families <= set(FAMILIES_WITH_LINK_TYPES):
            return None
        handles = {
            key: w.chip for key, w in self.chips.items() if w.is_answering and not w.absent_rounds
        }
        if frozenset(handles) - self._queried_keys:
            self._query_links(handles)
        if not self._has_link_types:
            return None
        pairs = ((tuple(sorted(pair)), kind) for pair, kind in self._link_types.items())
        return {(a, b): kind for (a, b), kind in pairs if a in self.chips and b in self.chips}

    def _query_links(self, handles: Mapping[str, Chip]) -> None:
        link_types = {
            frozenset((a, b)): link_type(handles[a], handles[b])
            for a, b in combinations(sorted(handles), 2)
        }
        if link_types and all(kind is None for kind in link_types.values()):
            return  # the driver has the call but returns no link type
        self._has_link_types = True
        for pair, kind in link_types.items():
            if kind in LINKS:
                self._link_types[pair] = LINKS[kind]
            elif kind is not None:
                self._link_types.pop(pair, None)
        # chips with an unknown link are queried again by the next discovery
        unknown_keys = {key for pair, kind in link_types.items() if kind is None for key in pair}
        self._queried_keys = frozenset(handles) - unknown_keys
