"""Computes the health of a chip and its reason from its state. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from agent.snapshot.device import Health, HealthState
from plugins.vendors.ascend.health.fault_codes import (
    LINK_DOWN,
    MAJOR_SEVERITY,
    CodeTable,
    FaultClass,
    classify,
    maker_table,
    worst_class,
)
from plugins.vendors.ascend.health.history import NO_FAULTS, FaultHistory, active_codes

RESET_LIMIT_S = 150.0
_FAULTY = (
    FaultClass.SEPARATE,
    FaultClass.RESTART_CHIP,
    FaultClass.RESTART_CHIP_IF_FREE,
    FaultClass.RESTART_JOB,
    FaultClass.RESTART_REQUEST,
)


class ChipState(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a chip's health; unknown values never make it worse."""

    phy: int
    health: int | None = None
    history: FaultHistory = NO_FAULTS
    severities: Mapping[int, int] = msgspec.field(default_factory=dict)  # by code, from events
    uncoded_faults: int = 0  # faults that the driver counts without a code
    loss_reason: str = ""  # why the chip counts as lost; empty: it is present
    is_not_ready: bool = False
    resetting_s: float | None = None  # how long it, or a chip of its card, has been starting
    failing_call: str = ""  # the call that failed in three consecutive polls
    denied_call: str = ""  # the call that the agent has no right to make
    is_inconsistent: bool = False
    network: int | None = None  # state of a port that does not work
    network_counts: bool = False


def judge_chip(chip: ChipState, table: CodeTable | None = None) -> Health:
    """Return the health by the finding with the highest precedence; healthy without findings."""
    table = maker_table() if table is None else table
    kind = _worst(chip, table)
    for reason, message in (
        *_loss_findings(chip),
        *_fault_findings(chip, kind),
        *_other_findings(chip, kind),
    ):
        return Health(state=HealthState.FAILED, reason=reason, message=message)
    for reason, message in _warnings(chip, kind):
        return Health(state=HealthState.SUSPECT, reason=reason, message=message)
    return Health()


def _worst(chip: ChipState, table: CodeTable) -> FaultClass:
    causes = [
        classify(code, table, chip.severities.get(code), chip.health)
        for code in active_codes(chip.history)
    ]
    if chip.uncoded_faults and not causes:
        causes.append(
            FaultClass.SEPARATE if (chip.health or 0) >= MAJOR_SEVERITY else FaultClass.SUB_HEALTH
        )
    return worst_class(causes)


def fault_text(chip: ChipState, kind: FaultClass) -> str:
    """Return a text with number and codes of a chip's faults, and the worst class."""
    codes = active_codes(chip.history)
    count = len(codes) or chip.uncoded_faults
    text = f"NPU {chip.phy} reports {count} chip fault{'' if count == 1 else 's'}"
    if not codes:
        return text
    return f"{text}: {','.join(f'{code:08X}' for code in codes)} ({kind.value})"


def _loss_findings(chip: ChipState) -> Iterator[tuple[str, str]]:
    if chip.loss_reason:
        yield "DeviceLost", f"NPU {chip.phy} is gone: {chip.loss_reason}"
    if chip.is_not_ready:
        yield "CardDropped", f"NPU {chip.phy} is not ready (-8012)"
    if chip.resetting_s is not None:
        yield "Resetting", _reset_text(chip.phy, chip.resetting_s)


def _fault_findings(chip: ChipState, kind: FaultClass) -> Iterator[tuple[str, str]]:
    if chip.history.separated_s is not None:
        yield "ManuallySeparated", _separated_text(chip)
    if kind in _FAULTY:
        yield "ChipFault", fault_text(chip, kind)
    if kind is FaultClass.PRE_SEPARATE:
        yield "PreSeparated", fault_text(chip, kind)
    elif chip.history.link_outage:
        yield "PreSeparated", f"NPU {chip.phy} lost its link for long ({LINK_DOWN:08X})"


def _other_findings(chip: ChipState, kind: FaultClass) -> Iterator[tuple[str, str]]:
    if chip.failing_call:
        yield "DriverError", f"NPU {chip.phy}: {chip.failing_call} failed in three rounds in a row"
    has_fault = kind is not FaultClass.NONE or active_codes(chip.history)
    if chip.health is not None and chip.health >= MAJOR_SEVERITY and not has_fault:
        yield f"HealthCode{chip.health}", f"NPU {chip.phy} reports health {chip.health}"
    if chip.network is not None and chip.network_counts:
        yield "NetworkUnhealthy", _network_text(chip.phy, chip.network)


def _reset_text(phy: int, resetting_s: float) -> str:
    if resetting_s > RESET_LIMIT_S:
        return f"NPU {phy} has been starting for more than {RESET_LIMIT_S:.0f} seconds"
    return f"NPU {phy}, or another chip of its card, is starting"


def _separated_text(chip: ChipState) -> str:
    text = f"NPU {chip.phy} had fault {chip.history.separated_by:08X} again and again"
    if chip.history.released_s is not None:
        return f"{text}; it is let back two days later, or by hand"
    return f"{text}; it stays out until it is let back by hand"


def _warnings(chip: ChipState, kind: FaultClass) -> Iterator[tuple[str, str]]:
    if chip.network is not None:
        yield "NetworkUnhealthy", _network_text(chip.phy, chip.network)
    if kind is FaultClass.SUB_HEALTH:
        yield "SubHealth", fault_text(chip, kind)
    if chip.is_inconsistent:
        yield "FirmwareInconsistent", f"NPU {chip.phy}: its firmware does not fit (-8022)"
    if chip.denied_call:
        yield "PermissionDenied", f"NPU {chip.phy}: {chip.denied_call} is not allowed to the agent"


def _network_text(phy: int, state: int) -> str:
    return f"NPU {phy}: its network port reports state {state}"
