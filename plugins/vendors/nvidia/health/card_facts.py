"""The state of a card as its driver reports it, and the findings that follow from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from agent.snapshot.device import Health, HealthState
from plugins.vendors.nvidia.health.causes import RECOVERY_ACTIONS, Cure
from plugins.vendors.nvidia.library import bounds, codes
from plugins.vendors.nvidia.library.card import NvmlCard
from plugins.vendors.nvidia.library.structures import sram_exceeded

RECOVERY_ACTION = (230, 0)
RETIRED_SBE, RETIRED_DBE, RETIRED_PENDING = (29, 0), (30, 0), (31, 0)
UNCORRECTED, ENERGY, PCIE_REPLAYS = (4, 0), (83, 0), (94, 0)

FIELDS = (
    *(RECOVERY_ACTION, RETIRED_SBE, RETIRED_DBE, RETIRED_PENDING),
    *(UNCORRECTED, ENERGY, PCIE_REPLAYS),
)

RETIRED_LIMIT = 60  # pages; NVIDIA's limit for a card before Ampere
UNKNOWN_LIMIT = 3  # cycles in a row
FULL_SPEED = 0  # performance state P0; in other states a narrower link is normal
AMPERE = 7  # the first architecture that replaces rows instead of retiring pages
RECOVER_IMEX = 5
_FATAL_CODES = (codes.GPU_IS_LOST, 16, 11, 8, codes.MISMATCH)
_ODD_CODES = (codes.NO_PERMISSION, 17)

_GONE_CODES = frozenset(
    {codes.GPU_IS_LOST, 16, codes.UNKNOWN}
)  # none of them occurs in a good check


class HealthFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Polled values of a card; `None` is unknown, and never a reason for bad health."""

    faults: Mapping[int, str]  # NVML code: the call that returned it
    unknown_cycles: int = 0
    is_garbled: bool = False
    is_excluded: bool = False
    answers_lookup: bool | None = None  # a new look-up returned the same card; None: not tried
    recovery_action: int | None = None
    remapped_rows: tuple[int, ...] | None = None  # correctable, uncorrectable, pending, failure
    retired_pages: int | None = None
    retired_pages_by_cause: tuple[tuple[str, int], ...] = ()
    retired_pending: bool | None = None
    uncorrected: float | None = None  # memory errors since the driver was loaded
    energy_mj: float | None = None
    replays: float | None = None  # replayed PCIe packets
    architecture: int | None = None
    sram_exceeded: bool | None = None
    repair_pending: bool | None = None
    unrepairable: bool | None = None
    throttle: int | None = None  # clock event reasons
    has_orphaned_memory: bool = False  # for minutes, memory has been in use without a process
    width: int | None = None  # PCIe lanes at full speed
    max_width: int | None = None

    @property
    def is_good(self) -> bool:
        """Return whether this check of the card is a good one."""
        return self.answers_lookup is True and not _GONE_CODES & set(self.faults)


def read_facts(card: NvmlCard, *, probed: bool | None = None) -> HealthFacts:
    """Read a card's health values; raises `CardUnavailable` if the card stops answering."""
    fields = card.fields(FIELDS)
    remapped = _remapped(card)
    awake = card.number("nvmlDeviceGetPerformanceState") == FULL_SPEED
    causes = (("single_bit", RETIRED_SBE), ("double_bit", RETIRED_DBE))
    pages = tuple((cause, int(fields[field])) for cause, field in causes if field in fields)
    pending, action = fields.get(RETIRED_PENDING), fields.get(RECOVERY_ACTION)
    uncorrected, energy = fields.get(UNCORRECTED), fields.get(ENERGY)
    if uncorrected is None:
        # error type 1 (uncorrected), counter 0 (since the driver was loaded)
        uncorrected = card.measure("nvmlDeviceGetTotalEccErrors", bounds.ERRORS, 1, 0)
    if energy is None:
        energy = card.measure("nvmlDeviceGetTotalEnergyConsumption", bounds.COUNTER)
    repair = card.flags("nvmlDeviceGetRepairStatus")
    flag = card.measure("nvmlDeviceGetUnrepairableMemoryFlag_v1", bounds.FLAG)
    sram = card.attempt(("sram",), lambda: sram_exceeded(card.nvml, card.handle))
    exceeded = sram if isinstance(sram, int) else None
    exceeded = card.check_bounds("nvmlDeviceGetSramEccErrorStatus", exceeded, bounds.FLAG)
    return HealthFacts(
        throttle=throttle_mask(card),
        width=_lanes(card, "nvmlDeviceGetCurrPcieLinkWidth") if awake else None,
        max_width=_lanes(card, "nvmlDeviceGetMaxPcieLinkWidth") if awake else None,
        architecture=card.number("nvmlDeviceGetArchitecture"),
        faults=dict(card.faults),
        unknown_cycles=_unknown_cycles(card),
        is_garbled=card.is_garbled,
        answers_lookup=probed,
        recovery_action=int(action) if action is not None else None,
        remapped_rows=remapped,
        retired_pages=sum(count for _, count in pages) if pages else None,
        retired_pages_by_cause=pages,
        retired_pending=bool(pending) if pending is not None else None,
        uncorrected=uncorrected,
        energy_mj=energy,
        replays=fields.get(PCIE_REPLAYS),
        sram_exceeded=bool(exceeded) if exceeded is not None else None,
        repair_pending=any(repair) if repair is not None else None,
        unrepairable=bool(flag) if flag is not None else None,
    )


def throttle_mask(card: NvmlCard) -> int | None:
    """Return the reasons for reduced clocks as a bit mask."""
    mask = card.measure("nvmlDeviceGetCurrentClocksEventReasons", bounds.CLOCK_REASONS)
    if mask is not None:
        return mask
    return card.measure("nvmlDeviceGetCurrentClocksThrottleReasons", bounds.CLOCK_REASONS)


def _lanes(card: NvmlCard, name: str) -> int | None:
    return card.measure(name, bounds.LANES)


def _remapped(card: NvmlCard) -> tuple[int, ...] | None:
    """Return row counts and two flags; `None` if one of them is implausible."""
    name = "nvmlDeviceGetRemappedRows"
    rows = card.numbers(name)
    ranges = (bounds.ROWS, bounds.ROWS, bounds.FLAG, bounds.FLAG)
    if rows is None or len(rows) != len(ranges):
        return None
    plausible = all(
        card.check_bounds(name, n, r) is not None for n, r in zip(rows, ranges, strict=True)
    )
    return rows if plausible else None


def facts_of_unavailable_card(card: NvmlCard, *, excluded: bool = False) -> HealthFacts:
    """Return the facts of a card that no longer answers."""
    return HealthFacts(
        faults=dict(card.faults), unknown_cycles=_unknown_cycles(card), is_excluded=excluded
    )


def _unknown_cycles(card: NvmlCard) -> int:
    return card.unknown_cycles + 1 if codes.UNKNOWN in card.faults else 0


class HealthFinding(msgspec.Struct, frozen=True):
    """A reason why a card is unhealthy, and what ends it."""

    reason: str
    message: str
    cure: Cure


def judge_facts(facts: HealthFacts) -> Health:
    """Return FAILED with the gravest failure, else SUSPECT with an oddity, else healthy.

    Warnings do not change the health: see `warnings`.
    """
    for finding in failures(facts):
        return Health(state=HealthState.FAILED, reason=finding.reason, message=finding.message)
    for reason, message in oddities(facts):
        return Health(state=HealthState.SUSPECT, reason=reason, message=message)
    return Health()


def action_finding(action: int | None, *, clique: bool = False) -> HealthFinding | None:
    """Return the finding for a recovery action that the driver requires; `None` if harmless."""
    if action == RECOVER_IMEX and clique:
        message = "the driver asks to recover the IMEX domain of the card's clique"
        return HealthFinding("RecoverIMEXDomain", message, Cure.ACTION)
    if action not in RECOVERY_ACTIONS:
        return None
    reason, advice = RECOVERY_ACTIONS[action]
    cure = Cure.REBOOT if reason == "NodeRebootRequired" else Cure.ACTION
    return HealthFinding(reason, f"the driver asks for recovery action {action}: {advice}", cure)


def failures(facts: HealthFacts, *, clique: bool = False) -> Iterator[HealthFinding]:
    """Yield findings that take the card out of service; `clique`: it is on multi-node NVLink."""
    if facts.is_excluded:
        yield HealthFinding("Excluded", "the driver was told to leave this card out", Cure.ANSWER)
    for code in _FATAL_CODES:
        if code in facts.faults:
            message = f"{facts.faults[code]}: NVML error {code}"
            yield HealthFinding(codes.reason_of(code), message, Cure.ANSWER)
    if finding := action_finding(facts.recovery_action, clique=clique):
        yield finding
    if facts.remapped_rows is not None and facts.remapped_rows[3]:
        yield HealthFinding(
            "RowRemapFailure", "a faulty memory row could not be replaced", Cure.REPAIR
        )
    if facts.sram_exceeded:
        message = "uncorrectable errors of the SRAM are above the threshold"
        yield HealthFinding("SRAMThreshold", message, Cure.REPAIR)
    if facts.unrepairable:
        yield HealthFinding("UnrepairableMemory", "memory that cannot be repaired", Cure.REPAIR)
    if facts.unknown_cycles >= UNKNOWN_LIMIT:
        message = f"unknown NVML errors in {facts.unknown_cycles} cycles in a row"
        yield HealthFinding("NVMLUnknown", message, Cure.ANSWER)


def oddities(facts: HealthFacts) -> Iterator[tuple[str, str]]:
    """Yield (reason, message) of answers that make the card suspect."""
    for code in _ODD_CODES:
        if code in facts.faults:
            yield codes.reason_of(code), f"{facts.faults[code]}: NVML error {code}"
    if facts.is_garbled:
        yield "GarbledAnswer", "the card's answers are not text: it may be falling off its bus"


def warnings(facts: HealthFacts) -> Iterator[tuple[str, str]]:
    """Yield (reason, message) of conditions that need a person; the card stays in service."""
    if 14 in facts.faults:
        yield "CorruptedInfoROM", f"{facts.faults[14]}: NVML error 14"
    if facts.recovery_action == RECOVER_IMEX:
        yield "RecoverIMEXDomain", "the driver asks to recover the IMEX domain"
    if facts.remapped_rows is not None and facts.remapped_rows[2]:
        yield "RowRemapPending", "a memory row is replaced at the next reset of the card"
    if facts.retired_pending:
        yield "PageRetirementPending", "memory pages are retired at the next reset of the card"
    if facts.retired_pages is not None and facts.retired_pages >= RETIRED_LIMIT:
        yield "RetiredPagesLimit", f"{facts.retired_pages} memory pages are retired"
    if facts.repair_pending:
        yield "RepairPending", "the card is repaired at its next reset"
    if facts.has_orphaned_memory:
        yield "OrphanMemory", "memory is in use that belongs to no process"
    if facts.width and facts.max_width and facts.width < facts.max_width:
        yield "PCIeWidthReduced", f"PCIe link of {facts.width} of {facts.max_width} lanes"
