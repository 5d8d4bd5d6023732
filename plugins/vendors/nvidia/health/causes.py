"""Causes of bad health: when they begin and when they are over. Pure.

A card without causes, or with warnings only, is healthy. How long a card must be healthy before
pods may use it again is decided by the agent, in the same way for all vendors.
"""

from __future__ import annotations

import enum

import msgspec
from msgspec.structs import replace

from agent.snapshot.device import DeviceCondition, Health, HealthState

QUIET_S = 600.0  # a fault without a known cure is over after this time if the driver agrees
WARNING_S = 3600.0  # a warning is published for this time after its last report
REFRESH_S = 600.0  # the state file has the last time of a lasting cause at this resolution
MAX_CAUSES = 32  # of one card

# reason and advice by the number of the action that the driver requires
RECOVERY_ACTIONS: dict[int, tuple[str, str]] = {
    1: ("GPUResetRequired", "reset the GPU"),
    2: ("NodeRebootRequired", "reboot the node"),
    3: ("DrainP2P", "end what uses peer-to-peer traffic"),
    4: ("DrainAndReset", "drain the card and reset it"),
    6: ("BusResetRequired", "reset the PCI bus"),
    7: ("NodeRebootRequired", "reboot the node"),
}


class Cure(enum.Enum):
    """What ends a cause; for all but `TIME` the card's check must also be good."""

    RESET = "reset"  # the driver no longer requires an action, or the card was reset
    QUIET = "quiet"  # as RESET, or ten minutes without the fault and without a required action
    REBOOT = "reboot"  # another boot
    ANSWER = "answer"  # the card answers again
    ACTION = "action"  # the driver no longer requires an action
    REPAIR = "repair"  # a reset, after which the card no longer reports the fault
    TIME = "time"  # a warning: an hour without a report


class FaultCause(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of bad health; times are wall time in seconds."""

    reason: str  # CamelCase
    message: str
    cure: Cure
    first_s: float
    last_s: float
    boot_id: str = ""
    partition: str = ""  # UUID of the slice; empty: the whole card
    action_requested: bool = msgspec.field(
        default=False, name="asked"
    )  # by the driver, since the fault
    was_reset: bool = msgspec.field(default=False, name="reset")  # since the fault


class ResetMarks(msgspec.Struct, frozen=True, kw_only=True):
    """Counters and identities that a reset changes; `None` or "" is unknown."""

    energy_mj: float | None = None
    uncorrected: float | None = None  # volatile ECC errors
    module: str = ""  # identity of the loaded kernel module
    boot_id: str = ""


class CardCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check of a card."""

    now_s: float  # wall time
    boot_id: str = ""
    is_good: bool = False  # same card at its address, its memory is readable, no grave error
    action: int | None = None  # recovery action that the driver requires
    was_reset: bool = False  # since the previous check
    reasons: frozenset[str] = frozenset()  # of failures that this check found


def was_reset(before: ResetMarks, now: ResetMarks) -> bool:
    """Return whether the marks show a reset of the card between them."""
    identities = ((before.module, now.module), (before.boot_id, now.boot_id))
    if any(a and b and a != b for a, b in identities):
        return True
    counters = ((before.energy_mj, now.energy_mj), (before.uncorrected, now.uncorrected))
    return any(a is not None and b is not None and b < a for a, b in counters)


def add_cause(causes: tuple[FaultCause, ...], new: FaultCause) -> tuple[FaultCause, ...]:
    """Return the causes with a new one, or with a newer last time if the cause exists.

    The first message stays: numbers in it would otherwise change at each check.
    """
    for place, cause in enumerate(causes):
        if (cause.reason, cause.partition) == (new.reason, new.partition):
            moved = replace(new, first_s=cause.first_s, message=cause.message)
            return (*causes[:place], moved, *causes[place + 1 :])
    if len(causes) < MAX_CAUSES:
        return (*causes, new)
    warnings = [cause for cause in causes if cause.cure is Cure.TIME]
    if new.cure is Cure.TIME or not warnings:
        return causes
    oldest = min(warnings, key=lambda cause: cause.last_s)
    return (*(cause for cause in causes if cause is not oldest), new)


def with_rough_times(causes: tuple[FaultCause, ...]) -> tuple[FaultCause, ...]:
    """Return the causes with last times rounded down, so that the file is not written often."""
    return tuple(
        c if c.cure is Cure.QUIET else replace(c, last_s=c.last_s // REFRESH_S * REFRESH_S)
        for c in causes
    )


def remaining_causes(causes: tuple[FaultCause, ...], check: CardCheck) -> tuple[FaultCause, ...]:
    """Return the causes that are not over after a check."""
    is_action_requested = check.action not in (None, 0)
    updated = (
        replace(
            cause,
            last_s=min(cause.last_s, check.now_s),  # the clock may have been set back
            action_requested=cause.action_requested or is_action_requested,
            was_reset=cause.was_reset or check.was_reset,
        )
        for cause in causes
    )
    return tuple(cause for cause in updated if not is_over(cause, check))


def is_over(cause: FaultCause, check: CardCheck) -> bool:
    """Return whether a cause is over."""
    if cause.cure is Cure.TIME:
        return check.now_s - cause.last_s >= WARNING_S
    return check.is_good and cause.reason not in check.reasons and _is_cured(cause, check)


def _is_cured(cause: FaultCause, check: CardCheck) -> bool:
    match cause.cure:
        case Cure.REBOOT:
            return bool(check.boot_id and cause.boot_id) and check.boot_id != cause.boot_id
        case Cure.ACTION:
            return check.action == 0
        case Cure.REPAIR:
            return cause.was_reset
        case Cure.RESET | Cure.QUIET if check.action is None:
            return cause.was_reset
        case Cure.RESET | Cure.QUIET:
            is_quiet = cause.cure is Cure.QUIET and check.now_s - cause.last_s >= QUIET_S
            return check.action == 0 and (cause.action_requested or cause.was_reset or is_quiet)
    return True


_RANK = {
    Cure.REBOOT: 0,
    Cure.RESET: 1,
    Cure.QUIET: 2,
    Cure.REPAIR: 3,
    Cure.ACTION: 4,
    Cure.ANSWER: 5,
}


def failures(causes: tuple[FaultCause, ...], partition: str = "") -> tuple[FaultCause, ...]:
    """Return the causes that take a card, or one slice of it, out of service.

    The root cause is the first: Xids come before findings of polls.
    """
    relevant = [c for c in causes if c.cure is not Cure.TIME and c.partition in ("", partition)]
    return tuple(
        sorted(relevant, key=lambda c: (not c.reason.startswith("Xid"), _RANK[c.cure], c.first_s))
    )


def health_of(causes: tuple[FaultCause, ...], partition: str = "") -> Health:
    """Return the health of a card, or of a slice of it, with these causes."""
    active_failures = failures(causes, partition)
    if not active_failures:
        return Health()
    message = active_failures[0].message + _others([cause.reason for cause in active_failures[1:]])
    return Health(
        state=HealthState.FAILED,
        reason=active_failures[0].reason,
        message=message,
        since_s=min(cause.first_s for cause in active_failures),
    )


def _others(reasons: list[str]) -> str:
    return f"; also {', '.join(reasons[:4])}" if reasons else ""


def warnings_of(
    causes: tuple[FaultCause, ...], warnings: tuple[tuple[str, str], ...], now_s: float
) -> dict[str, str]:
    """Return message by reason: current warnings, then lasting ones, the newest first."""
    lasting = sorted(
        (c for c in causes if c.cure is Cure.TIME and now_s - c.last_s < WARNING_S),
        key=lambda c: -c.last_s,
    )
    messages: dict[str, str] = {}
    for reason, message in (*warnings, *((c.reason, c.message) for c in lasting)):
        messages.setdefault(reason, message)
    return messages


def degraded_conditions(
    causes: tuple[FaultCause, ...], warnings: tuple[tuple[str, str], ...], now_s: float
) -> tuple[DeviceCondition, ...]:
    """Return the condition `Degraded` for current and lasting warnings; empty without any."""
    active = list(warnings_of(causes, warnings, now_s).items())
    if not active:
        return ()
    reason, message = active[0]
    message += _others([other for other, _ in active[1:]])
    return (DeviceCondition(type="Degraded", status=True, reason=reason, message=message),)
