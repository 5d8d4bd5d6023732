"""A card's state as its driver tells it when asked, and what speaks against it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from agent.model.device import Health, HealthState
from plugins.bindings.nvml import bounds, library
from plugins.bindings.nvml.card import Card
from plugins.bindings.nvml.structures import sram_exceeded
from plugins.faults.nvidia.causes import Cure

RECOVERY_ACTION = (230, 0)
RETIRED_SBE, RETIRED_DBE, RETIRED_PENDING = (29, 0), (30, 0), (31, 0)
UNCORRECTED, ENERGY, PCIE_REPLAYS = (4, 0), (83, 0), (94, 0)
FIELDS = (
    *(RECOVERY_ACTION, RETIRED_SBE, RETIRED_DBE, RETIRED_PENDING),
    *(UNCORRECTED, ENERGY, PCIE_REPLAYS),
)
RETIRED_LIMIT = 60  # pages; NVIDIA's limit for a card before Ampere
UNKNOWN_LIMIT = 3  # cycles in a row
FULL_SPEED = 0  # performance state P0: only there do link widths count
AMPERE = 7  # the first architecture that replaces rows instead of retiring pages

ACTIONS: dict[int, tuple[str, str]] = {
    1: ("GPUResetRequired", "reset the GPU"),
    2: ("NodeRebootRequired", "reboot the node"),
    3: ("DrainP2P", "end what uses peer-to-peer traffic"),
    4: ("DrainAndReset", "drain the card and reset it"),
    6: ("BusResetRequired", "reset the PCI bus"),
    7: ("NodeRebootRequired", "reboot the node"),
}
RECOVER_IMEX = 5
_FATAL_CODES = (library.GPU_IS_LOST, 16, 11, 8, library.MISMATCH)
_ODD_CODES = (library.NO_PERMISSION, 17)
_STOPPED = frozenset({library.GPU_IS_LOST, 16, library.UNKNOWN})  # of which a probe must be free


class HealthFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was polled; `None` is what the card cannot tell, and never counts against it."""

    faults: Mapping[int, str]  # NVML code: the call that gave it
    unknown_cycles: int = 0
    garbled: bool = False
    excluded: bool = False
    probed: bool | None = None  # looked up anew and found to be the same card; None: not tried
    recovery_action: int | None = None
    remapped: tuple[int, ...] | None = None  # correctable, uncorrectable, pending, failure
    retired_pages: int | None = None
    retired_pending: bool | None = None
    uncorrected: float | None = None  # memory errors since the driver was loaded
    energy_mj: float | None = None
    replays: float | None = None  # of PCIe packets
    architecture: int | None = None
    sram_exceeded: bool | None = None
    repair_pending: bool | None = None
    unrepairable: bool | None = None
    throttle: int | None = None  # clock event reasons
    orphaned: bool = False  # memory is in use, and by no process, for minutes
    width: int | None = None  # PCIe lanes at full speed
    max_width: int | None = None

    @property
    def passed(self) -> bool:
        """Say whether this look counts as a good probe."""
        return self.probed is True and not _STOPPED & set(self.faults)


def poll(card: Card, *, probed: bool | None = None) -> HealthFacts:
    """Ask a card what the judgement needs; raises `CardStopped` as its calls do."""
    fields = card.fields(FIELDS)
    remapped = _remapped(card)
    awake = card.number("nvmlDeviceGetPerformanceState") == FULL_SPEED
    pages = [fields[f] for f in (RETIRED_SBE, RETIRED_DBE) if f in fields]
    pending, action = fields.get(RETIRED_PENDING), fields.get(RECOVERY_ACTION)
    uncorrected, energy = fields.get(UNCORRECTED), fields.get(ENERGY)
    if uncorrected is None:
        # of kind 1, uncorrected, since the driver was loaded
        uncorrected = card.measure("nvmlDeviceGetTotalEccErrors", bounds.ERRORS, 1, 0)
    if energy is None:
        energy = card.measure("nvmlDeviceGetTotalEnergyConsumption", bounds.COUNTER)
    repair = card.flags("nvmlDeviceGetRepairStatus")
    flag = card.measure("nvmlDeviceGetUnrepairableMemoryFlag_v1", bounds.FLAG)
    sram = card.attempt(("sram",), lambda: sram_exceeded(card.nvml, card.handle))
    exceeded = sram if isinstance(sram, int) else None
    exceeded = card.within("nvmlDeviceGetSramEccErrorStatus", exceeded, bounds.FLAG)
    return HealthFacts(
        throttle=throttle_mask(card),
        width=_lanes(card, "nvmlDeviceGetCurrPcieLinkWidth") if awake else None,
        max_width=_lanes(card, "nvmlDeviceGetMaxPcieLinkWidth") if awake else None,
        architecture=card.number("nvmlDeviceGetArchitecture"),
        faults=dict(card.faults),
        unknown_cycles=_unknown_cycles(card),
        garbled=card.garbled,
        probed=probed,
        recovery_action=int(action) if action is not None else None,
        remapped=remapped,
        retired_pages=int(sum(pages)) if pages else None,
        retired_pending=bool(pending) if pending is not None else None,
        uncorrected=uncorrected,
        energy_mj=energy,
        replays=fields.get(PCIE_REPLAYS),
        sram_exceeded=bool(exceeded) if exceeded is not None else None,
        repair_pending=any(repair) if repair is not None else None,
        unrepairable=bool(flag) if flag is not None else None,
    )


def throttle_mask(card: Card) -> int | None:
    """Return why the card holds its clocks back, as a set of bits."""
    mask = card.measure("nvmlDeviceGetCurrentClocksEventReasons", bounds.CLOCK_REASONS)
    if mask is not None:
        return mask
    return card.measure("nvmlDeviceGetCurrentClocksThrottleReasons", bounds.CLOCK_REASONS)


def _lanes(card: Card, name: str) -> int | None:
    return card.measure(name, bounds.LANES)


def _remapped(card: Card) -> tuple[int, ...] | None:
    """Return counts of rows and two flags; one that cannot be takes the others along."""
    name = "nvmlDeviceGetRemappedRows"
    told = card.numbers(name)
    ranges = (bounds.ROWS, bounds.ROWS, bounds.FLAG, bounds.FLAG)
    if told is None or len(told) != len(ranges):
        return None
    sound = all(card.within(name, n, r) is not None for n, r in zip(told, ranges, strict=True))
    return told if sound else None


def stopped(card: Card, *, excluded: bool = False) -> HealthFacts:
    """Return the facts of a card that answers nothing more."""
    return HealthFacts(
        faults=dict(card.faults), unknown_cycles=_unknown_cycles(card), excluded=excluded
    )


def _unknown_cycles(card: Card) -> int:
    return card.unknown_cycles + 1 if library.UNKNOWN in card.faults else 0


class Finding(msgspec.Struct, frozen=True):
    """Something that speaks against a card, and what has to happen before it is over."""

    reason: str
    message: str
    cure: Cure


def judge(facts: HealthFacts) -> Health:
    """Return the gravest finding that takes the card out of service, else what is odd.

    Warnings are no matter of health: see `warnings`.
    """
    for found in failures(facts):
        return Health(state=HealthState.FAILED, reason=found.reason, message=found.message)
    for reason, message in oddities(facts):
        return Health(state=HealthState.SUSPECT, reason=reason, message=message)
    return Health()


def action_finding(action: int | None, *, clique: bool = False) -> Finding | None:
    """Return what a recovery action that the driver asks for means for the card's health."""
    if action == RECOVER_IMEX and clique:
        told = "the driver asks to recover the IMEX domain of the card's clique"
        return Finding("RecoverIMEXDomain", told, Cure.ACTION)
    if action not in ACTIONS:
        return None
    reason, advice = ACTIONS[action]
    cure = Cure.REBOOT if reason == "NodeRebootRequired" else Cure.ACTION
    return Finding(reason, f"the driver asks for recovery action {action}: {advice}", cure)


def failures(facts: HealthFacts, *, clique: bool = False) -> Iterator[Finding]:
    """Yield what takes the card out of service; `clique`: it is on a multi-node NVLink."""
    if facts.excluded:
        yield Finding("Excluded", "the driver was told to leave this card out", Cure.ANSWER)
    for code in _FATAL_CODES:
        if code in facts.faults:
            told = f"{facts.faults[code]}: NVML error {code}"
            yield Finding(library.reason_of(code), told, Cure.ANSWER)
    if found := action_finding(facts.recovery_action, clique=clique):
        yield found
    if facts.remapped is not None and facts.remapped[3]:
        yield Finding("RowRemapFailure", "a faulty memory row could not be replaced", Cure.REPAIR)
    if facts.sram_exceeded:
        told = "uncorrectable errors of the SRAM are above the threshold"
        yield Finding("SRAMThreshold", told, Cure.REPAIR)
    if facts.unrepairable:
        yield Finding("UnrepairableMemory", "memory that cannot be repaired", Cure.REPAIR)
    if facts.unknown_cycles >= UNKNOWN_LIMIT:
        told = f"unknown NVML errors in {facts.unknown_cycles} cycles in a row"
        yield Finding("NVMLUnknown", told, Cure.ANSWER)


def oddities(facts: HealthFacts) -> Iterator[tuple[str, str]]:
    """Yield (reason, message) of answers that make the card suspect."""
    for code in _ODD_CODES:
        if code in facts.faults:
            yield library.reason_of(code), f"{facts.faults[code]}: NVML error {code}"
    if facts.garbled:
        yield "GarbledAnswer", "the card's answers are not text: it may be falling off its bus"


def warnings(facts: HealthFacts) -> Iterator[tuple[str, str]]:
    """Yield (reason, message) of what a person should see to; the card works on."""
    if 14 in facts.faults:
        yield "CorruptedInfoROM", f"{facts.faults[14]}: NVML error 14"
    if facts.recovery_action == RECOVER_IMEX:
        yield "RecoverIMEXDomain", "the driver asks to recover the IMEX domain"
    if facts.remapped is not None and facts.remapped[2]:
        yield "RowRemapPending", "a memory row is replaced at the next reset of the card"
    if facts.retired_pending:
        yield "PageRetirementPending", "memory pages are retired at the next reset of the card"
    if facts.retired_pages is not None and facts.retired_pages >= RETIRED_LIMIT:
        yield "RetiredPagesLimit", f"{facts.retired_pages} memory pages are retired"
    if facts.repair_pending:
        yield "RepairPending", "the card is repaired at its next reset"
    if facts.orphaned:
        yield "OrphanMemory", "memory is in use that belongs to no process"
    if facts.width and facts.max_width and facts.width < facts.max_width:
        yield "PCIeWidthReduced", f"PCIe link of {facts.width} of {facts.max_width} lanes"
