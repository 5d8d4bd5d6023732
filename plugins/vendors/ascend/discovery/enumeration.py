"""Lists every chip of the driver with its numbers; a failing chip does not hide others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec
from msgspec.structs import asdict, replace

from agent.errors import AgentError
from agent.snapshot.inventory import Problem
from plugins.vendors.ascend.discovery import models
from plugins.vendors.ascend.discovery.descriptions import ChipDescription, chip_uuid
from plugins.vendors.ascend.discovery.sysfs import AscendFunction
from plugins.vendors.ascend.library import cards
from plugins.vendors.ascend.library.chip import Chip, logic_id, physical_id
from plugins.vendors.ascend.library.codes import BadDriverAnswer
from plugins.vendors.ascend.library.dcmi import Dcmi
from plugins.vendors.ascend.library.facts import ChipFacts, read_facts

BAD_ANSWER = "BadDriverAnswer"
Place = tuple[int, int]  # card and number in the card


class ChipEnumeration(msgspec.Struct, frozen=True, kw_only=True):
    """The chips by physical id, and what was wrong with others."""

    chips: tuple[ChipDescription, ...] = ()
    handles: Mapping[str, Chip] = msgspec.field(default_factory=dict)  # by key
    is_booting: bool = False  # the driver counts cards that it does not name yet
    problems: tuple[Problem, ...] = ()


class ChipEnumerator:
    """Calls the roll. What a chip told before stands in for what it cannot tell for a moment."""

    def __init__(self) -> None:
        self._handles: dict[Place, Chip] = {}
        self._before: dict[Place, ChipDescription] = {}

    def enumerate(self, dcmi: Dcmi, seen: Mapping[str, AscendFunction]) -> ChipEnumeration:
        """Ask for all chips; raises what the list of cards raises, and nothing of a single chip."""

        def handle(card: int, number: int) -> Chip:
            return self._handles.setdefault((card, number), Chip(dcmi, card, number))

        listed = cards.list_chips(dcmi, handle)
        faults = [Problem(reason="DriverError", message=message) for message in listed.faults]
        described: list[ChipDescription] = []
        for chip in listed.chips:
            chip.begin_round()
            try:
                described.append(self._describe(chip, seen))
            except AgentError as error:
                message = f"card {chip.card}, chip {chip.number}: {error}"
                faults.append(Problem(reason="DriverError", message=message))
        chips, problems = _resolve_duplicates(described)
        problems += [_unknown(chip) for chip in chips if chip.family == models.UNKNOWN]
        self._before = {(chip.card, chip.number): chip for chip in chips}
        return ChipEnumeration(
            chips=chips,
            handles={chip.key: self._handles[chip.card, chip.number] for chip in chips},
            is_booting=listed.cards < listed.expected,
            problems=(*faults, *problems),
        )

    def _describe(self, chip: Chip, seen: Mapping[str, AscendFunction]) -> ChipDescription:
        before = self._before.get((chip.card, chip.number))
        logic = logic_id(chip)
        phy = physical_id(chip, logic)
        facts = read_facts(chip)
        if before is not None and before.phy == phy:
            facts = _with_last_facts(facts, before.facts, changed=bool(chip.faults))
        if facts.name is None:
            raise BadDriverAnswer("dcmi_get_device_chip_info", "a chip without a name")
        sighting = seen.get(facts.bus_id or "")
        by_sysfs = sighting.device_id if sighting is not None else None
        device_id = by_sysfs if by_sysfs is not None else facts.pci_device
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


def _with_last_facts(now: ChipFacts, before: ChipFacts, *, changed: bool) -> ChipFacts:
    """Keep what was known if calls failed: a fact that is not told is not a fact that is gone."""
    if not changed:
        return now
    old = asdict(before)
    return replace(now, **{k: old[k] for k, value in asdict(now).items() if value is None})


def _resolve_duplicates(
    found: list[ChipDescription],
) -> tuple[tuple[ChipDescription, ...], list[Problem]]:
    """Sort by physical id, and sort out what two chips claim for themselves."""
    problems: list[Problem] = []
    by_phy: dict[int, ChipDescription] = {}
    for chip in sorted(found, key=lambda chip: chip.logic):
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
