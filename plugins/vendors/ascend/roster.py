"""Who is there: every chip that the driver lists, with its numbers; one bad chip hides no other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec
from msgspec.structs import asdict, replace

from agent.errors import AgentError
from agent.model.inventory import Problem
from plugins.bindings.dcmi import cards
from plugins.bindings.dcmi.chip import Chip, logic_id, physical_id
from plugins.bindings.dcmi.codes import BadDriverAnswer
from plugins.bindings.dcmi.facts import ChipFacts, read_facts
from plugins.bindings.dcmi.library import Dcmi
from plugins.vendors.ascend import identity
from plugins.vendors.ascend.describe import Described, chip_uuid
from plugins.vendors.ascend.sight import Sighting

BAD_ANSWER = "BadDriverAnswer"
Place = tuple[int, int]  # card and number in the card


class Roll(msgspec.Struct, frozen=True, kw_only=True):
    """The chips by physical id, and what was wrong with others."""

    chips: tuple[Described, ...] = ()
    handles: Mapping[str, Chip] = msgspec.field(default_factory=dict)  # by key
    booting: bool = False  # the driver counts cards that it does not name yet
    problems: tuple[Problem, ...] = ()


class Roster:
    """Calls the roll. What a chip told before stands in for what it cannot tell for a moment."""

    def __init__(self) -> None:
        self._handles: dict[Place, Chip] = {}
        self._before: dict[Place, Described] = {}

    def call(self, dcmi: Dcmi, seen: Mapping[str, Sighting]) -> Roll:
        """Ask for all chips; raises what the list of cards raises, and nothing of a single chip."""

        def handle(card: int, number: int) -> Chip:
            return self._handles.setdefault((card, number), Chip(dcmi, card, number))

        listed = cards.list_chips(dcmi, handle)
        faults = [Problem(reason="DriverError", message=told) for told in listed.faults]
        found: list[Described] = []
        for chip in listed.chips:
            chip.begin()
            try:
                found.append(self._describe(chip, seen))
            except AgentError as error:
                told = f"card {chip.card}, chip {chip.number}: {error}"
                faults.append(Problem(reason="DriverError", message=told))
        kept, odd = _distinct(found)
        odd += [_unknown(chip) for chip in kept if chip.family == identity.UNKNOWN]
        self._before = {(chip.card, chip.number): chip for chip in kept}
        return Roll(
            chips=kept,
            handles={chip.key: self._handles[chip.card, chip.number] for chip in kept},
            booting=listed.cards < listed.expected,
            problems=(*faults, *odd),
        )

    def _describe(self, chip: Chip, seen: Mapping[str, Sighting]) -> Described:
        before = self._before.get((chip.card, chip.number))
        logic = logic_id(chip)
        phy = physical_id(chip, logic)
        facts = read_facts(chip)
        if before is not None and before.phy == phy:
            facts = _filled(facts, before.facts, changed=bool(chip.faults))
        if facts.name is None:
            raise BadDriverAnswer("dcmi_get_device_chip_info", "a chip without a name")
        sighting = seen.get(facts.bus_id or "")
        by_sysfs = sighting.device_id if sighting is not None else None
        device_id = by_sysfs if by_sysfs is not None else facts.pci_device
        return Described(
            card=chip.card,
            number=chip.number,
            logic=logic,
            phy=phy,
            facts=facts,
            bus_id=facts.bus_id,
            uuid=chip_uuid(facts, chip.card, phy),
            family=identity.family(facts.name, facts.board_id, device_id),
            product=facts.product,
        )


def _unknown(chip: Described) -> Problem:
    told = f"NPU {chip.phy} ({chip.facts.name!r}) is of no family that the agent knows"
    return Problem(reason="UnknownModel", message=f"{told}: it is granted by its memory only")


def _filled(now: ChipFacts, before: ChipFacts, *, changed: bool) -> ChipFacts:
    """Keep what was known if calls failed: a fact that is not told is not a fact that is gone."""
    if not changed:
        return now
    old = asdict(before)
    return replace(now, **{k: old[k] for k, value in asdict(now).items() if value is None})


def _distinct(found: list[Described]) -> tuple[tuple[Described, ...], list[Problem]]:
    """Sort by physical id, and sort out what two chips claim for themselves."""
    problems: list[Problem] = []
    by_phy: dict[int, Described] = {}
    for chip in sorted(found, key=lambda chip: chip.logic):
        first = by_phy.setdefault(chip.phy, chip)
        if first is not chip:
            told = f"chips {first.logic} and {chip.logic} both say that they are davinci{chip.phy}"
            problems.append(Problem(reason=BAD_ANSWER, message=told))
    chips = [by_phy[phy] for phy in sorted(by_phy)]
    chips = [_own_uuid(chip, chips, problems) for chip in chips]
    taken: set[str] = set()
    kept = []
    for chip in chips:
        kept.append(chip if chip.bus_id not in taken else replace(chip, bus_id=None))
        taken.update(filter(None, (chip.bus_id,)))
    return tuple(kept), problems


def _own_uuid(chip: Described, chips: list[Described], problems: list[Problem]) -> Described:
    if Counter(other.uuid for other in chips)[chip.uuid] == 1:
        return chip
    told = f"NPU {chip.phy} shares the die id {chip.uuid} with another: it is named by its place"
    problems.append(Problem(reason=BAD_ANSWER, message=told))
    return replace(chip, uuid=f"npu-{chip.card}-{chip.phy}")
