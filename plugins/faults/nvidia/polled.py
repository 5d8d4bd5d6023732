"""A card's health from what its driver says of it when asked. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from agent.model.device import Health, HealthState
from plugins.bindings.nvml import library
from plugins.bindings.nvml.card import Card

RECOVERY_ACTION = (230, 0)
RETIRED_SBE, RETIRED_DBE, RETIRED_PENDING = (29, 0), (30, 0), (31, 0)
FIELDS = (RECOVERY_ACTION, RETIRED_SBE, RETIRED_DBE, RETIRED_PENDING)
RETIRED_LIMIT = 60  # pages; NVIDIA's limit for a card before Ampere
UNKNOWN_LIMIT = 3  # cycles in a row
FULL_SPEED = 0  # performance state P0: only there do link widths count

_ACTIONS: dict[int, str] = {
    1: "GPUResetRequired",
    2: "NodeRebootRequired",
    3: "DrainP2P",
    4: "DrainAndReset",
    6: "BusResetRequired",
    7: "NodeRebootRequired",
}
_RECOVER_IMEX = 5
_FATAL_CODES = (library.GPU_IS_LOST, 16, 11, 8, library.MISMATCH)
_WARNING_CODES = (14, library.NO_PERMISSION, 17)


class HealthFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was polled; `None` is what the card cannot tell, and never counts against it."""

    faults: Mapping[int, str]  # NVML code: the call that gave it
    unknown_cycles: int = 0
    garbled: bool = False
    excluded: bool = False
    recovery_action: int | None = None
    remapped: tuple[int, ...] | None = None  # correctable, uncorrectable, pending, failure
    retired_pages: int | None = None
    retired_pending: bool | None = None
    width: int | None = None  # PCIe lanes at full speed
    max_width: int | None = None


def poll(card: Card) -> HealthFacts:
    """Ask a card what the judgement needs; raises `CardStopped` as its calls do."""
    fields = card.fields(FIELDS)
    remapped = card.numbers("nvmlDeviceGetRemappedRows")
    awake = card.number("nvmlDeviceGetPerformanceState") == FULL_SPEED
    pages = [fields[f] for f in (RETIRED_SBE, RETIRED_DBE) if f in fields]
    pending, action = fields.get(RETIRED_PENDING), fields.get(RECOVERY_ACTION)
    return HealthFacts(
        faults=dict(card.faults),
        unknown_cycles=_unknown_cycles(card),
        garbled=card.garbled,
        recovery_action=int(action) if action is not None else None,
        remapped=remapped,
        retired_pages=int(sum(pages)) if pages else None,
        retired_pending=bool(pending) if pending is not None else None,
        width=card.number("nvmlDeviceGetCurrPcieLinkWidth") if awake else None,
        max_width=card.number("nvmlDeviceGetMaxPcieLinkWidth") if awake else None,
    )


def stopped(card: Card, *, excluded: bool = False) -> HealthFacts:
    """Return the facts of a card that answers nothing more."""
    return HealthFacts(
        faults=dict(card.faults), unknown_cycles=_unknown_cycles(card), excluded=excluded
    )


def _unknown_cycles(card: Card) -> int:
    return card.unknown_cycles + 1 if library.UNKNOWN in card.faults else 0


def judge(facts: HealthFacts) -> Health:
    """Return the gravest finding: one that takes the card out of service, else a warning."""
    for reason, message in _failures(facts):
        return Health(state=HealthState.FAILED, reason=reason, message=message)
    for reason, message in _warnings(facts):
        return Health(state=HealthState.SUSPECT, reason=reason, message=message)
    return Health()


def _failures(facts: HealthFacts) -> Iterator[tuple[str, str]]:
    if facts.excluded:
        yield "Excluded", "the driver was told to leave this card out"
    for code in _FATAL_CODES:
        if code in facts.faults:
            yield library.reason_of(code), f"{facts.faults[code]}: NVML error {code}"
    action = facts.recovery_action
    if action in _ACTIONS:
        yield _ACTIONS[action], f"the driver asks for recovery action {action}"
    if facts.remapped is not None and facts.remapped[3]:
        yield "RowRemapFailure", "a faulty memory row could not be replaced"
    if facts.unknown_cycles >= UNKNOWN_LIMIT:
        yield "NVMLUnknown", f"unknown NVML errors in {facts.unknown_cycles} cycles in a row"


def _warnings(facts: HealthFacts) -> Iterator[tuple[str, str]]:
    for code in _WARNING_CODES:
        if code in facts.faults:
            yield library.reason_of(code), f"{facts.faults[code]}: NVML error {code}"
    if facts.garbled:
        yield "GarbledAnswer", "the card's answers are not text: it may be falling off its bus"
    if facts.recovery_action == _RECOVER_IMEX:
        yield "RecoverIMEXDomain", "the driver asks to recover the IMEX domain"
    if facts.remapped is not None and facts.remapped[2]:
        yield "RowRemapPending", "a memory row is replaced at the next reset of the card"
    if facts.retired_pending:
        yield "PageRetirementPending", "memory pages are retired at the next reset of the card"
    if facts.retired_pages is not None and facts.retired_pages >= RETIRED_LIMIT:
        yield "RetiredPagesLimit", f"{facts.retired_pages} memory pages are retired"
    if facts.width and facts.max_width and facts.width < facts.max_width:
        yield "PCIeWidthReduced", f"PCIe link of {facts.width} of {facts.max_width} lanes"
