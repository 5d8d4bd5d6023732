"""Lists the driver's chips with their numbers; a failing chip does not hide other chips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import asdict, replace

from agent.errors import AgentError
from agent.snapshot.device import VendorDevice
from agent.snapshot.inventory import Problem
from plugins.vendors.ascend.discovery import models
from plugins.vendors.ascend.discovery.descriptions import (
    ChipDescription,
    Place,
    chip_uuid,
    place_of,
    restore_facts,
)
from plugins.vendors.ascend.discovery.sysfs import AscendFunction
from plugins.vendors.ascend.library import cards
from plugins.vendors.ascend.library.chip import Chip, logic_id, physical_id
from plugins.vendors.ascend.library.codes import BadDriverAnswer
from plugins.vendors.ascend.library.dcmi import Dcmi
from plugins.vendors.ascend.library.facts import ChipFacts, read_facts

BAD_ANSWER = "BadDriverAnswer"


class ChipEnumeration(msgspec.Struct, frozen=True, kw_only=True):
    """The chips sorted by physical id, and problems of other chips."""

    chips: tuple[ChipDescription, ...] = ()
    handles: Mapping[str, Chip] = msgspec.field(default_factory=dict)  # by key
    is_booting: bool = False  # the driver counts cards that it does not list yet
    problems: tuple[Problem, ...] = ()


class _LastFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The last facts of the chip at one place."""

    phy: int | None
    facts: ChipFacts
    is_restored: bool = False  # from the state file: the chip may have been replaced since then


class ChipEnumerator:
    """Lists all chips; a fact that cannot be read now keeps its last value.

    `stored` are the devices of an earlier process.
    """

    def __init__(self, stored: Iterable[VendorDevice] = ()) -> None:
        self._handles: dict[Place, Chip] = {}
        # a chip that the driver omits for a while keeps its entry
        self._before: dict[Place, _LastFacts] = {}
        for device in stored:
            place, facts = place_of(device), restore_facts(device)
            if place is not None:
                self._before[place] = _LastFacts(
                    phy=device.vendor_minor, facts=facts, is_restored=True
                )

    def enumerate(self, dcmi: Dcmi, functions: Mapping[str, AscendFunction]) -> ChipEnumeration:
        """List all chips; raises errors of the list of cards, but none of a single chip."""

        def handle(card: int, number: int) -> Chip:
            return self._handles.setdefault((card, number), Chip(dcmi, card, number))

        listing = cards.list_chips(dcmi, handle)
        faults = [Problem(reason="DriverError", message=message) for message in listing.faults]
        described: list[ChipDescription] = []
        for chip in listing.chips:
            chip.begin_round()
            try:
                described.append(self._describe(chip, functions))
            except AgentError as error:
                message = f"card {chip.card}, chip {chip.number}: {error}"
                faults.append(Problem(reason="DriverError", message=message))
        chips, problems = _resolve_duplicates(described)
        problems += [_unknown(chip) for chip in chips if chip.family == models.UNKNOWN]
        self._before |= {(c.card, c.number): _LastFacts(phy=c.phy, facts=c.facts) for c in chips}
        return ChipEnumeration(
            chips=chips,
            handles={chip.key: self._handles[chip.card, chip.number] for chip in chips},
            is_booting=listing.cards < listing.expected,
            problems=(*faults, *problems),
        )

    def _describe(self, chip: Chip, functions: Mapping[str, AscendFunction]) -> ChipDescription:
        before = self._before.get((chip.card, chip.number))
        logic = logic_id(chip)
        phy = physical_id(chip, logic)
        facts = read_facts(chip)
        if before is not None and before.phy == phy and _is_same_chip(facts, before):
            facts = _with_last_facts(facts, before.facts)
        if facts.name is None:
            raise BadDriverAnswer("dcmi_get_device_chip_info", "a chip without a name")
        function = functions.get(facts.bus_id or "")
        sysfs_device_id = function.device_id if function is not None else None
        device_id = sysfs_device_id if sysfs_device_id is not None else facts.pci_device
        return ChipDescription(
            card=chip.card,
            number=chip.number,
            logic=logic,
            phy=phy,
            facts=facts,
            bus_id=facts.bus_id,
            uuid=chip_uuid(facts, chip.card, phy),
            family=models.family_of(facts.name, facts.board_id, device_id),
            product=facts.product,
        )


def _unknown(chip: ChipDescription) -> Problem:
    message = f"NPU {chip.phy} ({chip.facts.name!r}) is of no family that the agent knows"
    return Problem(reason="UnknownModel", message=f"{message}: it is granted by its memory only")


def _is_same_chip(now: ChipFacts, before: _LastFacts) -> bool:
    """Return whether the last facts of a place are of the chip that is there now."""
    last = before.facts
    if before.is_restored and None in (now.serial, last.serial):
        return False
    identities = ((now.serial, last.serial), (now.vdie, last.vdie), (now.bus_id, last.bus_id))
    return all(a == b for a, b in identities if a is not None and b is not None)


def _with_last_facts(now: ChipFacts, before: ChipFacts) -> ChipFacts:
    """Return the facts; missing ones keep their last value, because no fact of a chip ends."""
    last_facts = asdict(before)
    return replace(now, **{k: last_facts[k] for k, value in asdict(now).items() if value is None})


def _resolve_duplicates(
    described: list[ChipDescription],
) -> tuple[tuple[ChipDescription, ...], list[Problem]]:
    """Sort by physical id; resolve ids that two chips report."""
    problems: list[Problem] = []
    by_phy: dict[int, ChipDescription] = {}
    for chip in sorted(described, key=lambda chip: chip.logic):
        first = by_phy.setdefault(chip.phy, chip)
        if first is not chip:
            message = (
                f"chips {first.logic} and {chip.logic} both say that they are davinci{chip.phy}"
            )
            problems.append(Problem(reason=BAD_ANSWER, message=message))
    chips = [by_phy[phy] for phy in sorted(by_phy)]
    chips = [_own_uuid(chip, chips, problems) for chip in chips]
    used: set[str] = set()
    unique = []
    for chip in chips:
        unique.append(chip if chip.bus_id not in used else replace(chip, bus_id=None))
        used.update(filter(None, (chip.bus_id,)))
    return tuple(unique), problems


def _own_uuid(
    chip: ChipDescription, chips: list[ChipDescription], problems: list[Problem]
) -> ChipDescription:
    if Counter(other.uuid for other in chips)[chip.uuid] == 1:
        return chip
    message = f"NPU {chip.phy} shares the die id {chip.uuid} with another: it is named by its place"
    problems.append(Problem(reason=BAD_ANSWER, message=message))
    return replace(chip, uuid=f"npu-{chip.card}-{chip.phy}")
