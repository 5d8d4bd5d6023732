"""The chips of a node over time: silent chips stay, returning chips are compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations

from msgspec.structs import replace

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
MISSING_POLLS = 3  # rolls in a row without an answer, after which a chip is lost


class ChipTable:
    """What is known of every chip, by key. One thread changes it."""

    def __init__(
        self, host: HostFiles, state_dir: str, forget_after_s: float, clock: Callable[[], float]
    ) -> None:
        self._host = host
        self._clock = clock
        self._file = JsonStateFile(state_dir, FILE_NAME, tuple[VendorDevice, ...])
        stored = self._file.load() or ()
        # a file of an earlier version has the driver's number as `minor` only
        self.remembered: dict[str, VendorDevice] = {
            device.key: replace(device, vendor_minor=device.minor) for device in stored
        }
        self.known: dict[str, WatchedChip] = {}
        self._told: dict[frozenset[str], str] = {}
        self._asked: frozenset[str] = frozenset()
        self._heard = False  # of any link
        self._forget_s = forget_after_s

    @property
    def problem(self) -> Problem | None:
        """Say why nothing is remembered; `None` if it is."""
        return self._file.problem

    def update(self, roll: ChipEnumeration, sighted: Collection[str]) -> tuple[DeviceEvent, ...]:
        """Take in who answered, and which functions sysfs shows; tell who has another number."""
        now_s = self._clock()
        for chip in roll.chips:
            watched = self.known.get(chip.key)
            if watched is None:
                watched = self.known[chip.key] = WatchedChip(chip, roll.handles[chip.key])
            watched.description, watched.chip = chip, roll.handles[chip.key]
            watched.missing, watched.seen_s = 0, now_s
            watched.is_in_sysfs = watched.is_in_sysfs or chip.bus_id in sighted
        answered = {chip.key for chip in roll.chips}
        phys, uuids = {c.phy for c in roll.chips}, {c.uuid for c in roll.chips}
        for key in [key for key in self.known if key not in answered]:
            watched = self.known[key]
            watched.missing += 1
            chip = watched.description
            # it has another key now, or another chip has its number
            another = chip.phy in phys or chip.uuid in uuids
            if another or now_s - watched.seen_s > self._forget_s:
                del self.known[key]
        self.mark_missing(sighted)
        return self._renumbered()

    def mark_missing(self, sighted: Collection[str] | None = None) -> None:
        """Find out which chips are gone, by what sysfs and /dev once had of them.

        `sighted` are the functions in sysfs, `None` if nobody looked.
        """
        for watched in self.known.values():
            chip = watched.description
            node = self._host.exists(f"/dev/davinci{chip.phy}")
            watched.has_node = watched.has_node or node
            if sighted is not None:
                watched.is_off_bus = watched.is_in_sysfs and chip.bus_id not in sighted
            if watched.is_off_bus:
                watched.gone = "its PCI function is not there any more"
            elif watched.has_node and not node:
                watched.gone = f"/dev/davinci{chip.phy} is not there any more"
            elif watched.missing >= MISSING_POLLS:
                watched.gone = "the driver does not list it any more"
            else:
                watched.gone = ""

    def _renumbered(self) -> tuple[DeviceEvent, ...]:
        """Tell of dies whose /dev/davinci<N> has another number than when they were last seen."""
        before = {d.uuid: d.vendor_minor for d in self.remembered.values() if d.uuid}
        found = []
        for watched in self.known.values():
            chip = watched.description
            old = before.get(chip.uuid, chip.phy)
            if chip.facts.vdie is not None and old != chip.phy:
                told = f"{chip.uuid} was davinci{old} and is davinci{chip.phy} now"
                found.append(DeviceEvent(key=chip.key, reason="DeviceRenumbered", message=told))
        return tuple(found)

    def save_devices(self, devices: Sequence[VendorDevice]) -> None:
        """Keep what chips are, but not how, for a time when their driver does not answer."""
        numbered = [replace(found, health=Health()) for found in devices if found.minor is not None]
        self.remembered = {found.key: found for found in numbered}
        self._file.save(tuple(self.remembered.values()))

    def handles(self) -> dict[str, Chip]:
        """Return the chips by the id of their die."""
        return {w.description.uuid: w.chip for w in self.known.values() if w.is_answering}

    def ports(self) -> tuple[tuple[str, int, int], ...]:
        """Return key, card and number of the chips that may have a network port."""
        chips = (watched.description for watched in self.known.values())
        return tuple((chip.key, chip.card, chip.number) for chip in chips if chip.has_port)

    def links(self, dcmi: Dcmi) -> LinkTypes | None:
        """Return how chips are joined, asked once for each two; `None` if the driver is silent."""
        families = {watched.description.family for watched in self.known.values()}
        if not can_read_links(dcmi) or not families <= set(FAMILIES_WITH_LINK_TYPES):
            return None
        answering = {
            key: w.chip for key, w in self.known.items() if w.is_answering and not w.missing
        }
        if frozenset(answering) - self._asked:
            self._ask_links(answering)
        if not self._heard:
            return None
        pairs = ((tuple(sorted(pair)), kind) for pair, kind in self._told.items())
        return {(a, b): kind for (a, b), kind in pairs if a in self.known and b in self.known}

    def _ask_links(self, answering: Mapping[str, Chip]) -> None:
        told = {
            frozenset((a, b)): link_type(answering[a], answering[b])
            for a, b in combinations(sorted(answering), 2)
        }
        if told and all(kind is None for kind in told.values()):
            return  # the driver has the function, and does not know
        self._heard = True
        for pair, kind in told.items():
            if kind in LINKS:
                self._told[pair] = LINKS[kind]
            elif kind is not None:
                self._told.pop(pair, None)
        # who did not answer for a moment is asked again; who cannot tell costs no call
        untold = {key for pair, kind in told.items() if kind is None for key in pair}
        self._asked = frozenset(answering) - untold
