"""Causes of bad health: they begin, hold until a stated change, and end. Pure.

A card is healthy as long as it has no cause but warnings. The agent decides, for all vendors
alike, how long a card must be healthy before it takes pods again.
"""

from __future__ import annotations

import enum

import msgspec
from msgspec.structs import replace

from agent.snapshot.device import DeviceCondition, Health, HealthState

QUIET_S = 600.0  # a fault without a known cure that long ago is over if the driver says so
WARNING_S = 3600.0  # a warning is shown that long after it was last seen
REFRESH_S = 600.0  # a cause that goes on is written that seldom
MAX_CAUSES = 32  # of one card


class Cure(enum.Enum):
    """What has to happen before a cause leaves; for all but `TIME` the card must answer well."""

    RESET = "reset"  # the driver asks for nothing any more, or a reset was seen
    QUIET = "quiet"  # as RESET, or ten quiet minutes with a driver that asks for nothing
    REBOOT = "reboot"  # another boot
    ANSWER = "answer"  # the card answers again
    ACTION = "action"  # the driver asks for nothing any more
    REPAIR = "repair"  # a reset, after which the card no longer reports it
    TIME = "time"  # a warning: an hour without it


class FaultCause(msgspec.Struct, frozen=True, kw_only=True):
    """One reason; times are wall time in seconds."""

    reason: str  # CamelCase
    message: str
    cure: Cure
    first_s: float
    last_s: float
    boot_id: str = ""
    partition: str = ""  # uuid of the slice it is confined to
    asked: bool = False  # since then the driver asked for a recovery action
    reset: bool = False  # since then a reset was seen


class ResetMarks(msgspec.Struct, frozen=True, kw_only=True):
    """Counters and names that a reset sets back or changes; `None` or "": not told."""

    energy_mj: float | None = None
    uncorrected: float | None = None  # volatile ECC errors
    module: str = ""  # identity of the loaded kernel module
    boot_id: str = ""


class CardCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at a card showed."""

    now_s: float  # wall time
    boot_id: str = ""
    is_good: bool = False  # found at its address, same UUID, memory told, no grave error
    action: int | None = None  # recovery action that the driver asks for
    was_reset: bool = False  # since the look before
    reasons: frozenset[str] = frozenset()  # reasons that the look itself gave


def was_reset(before: ResetMarks, now: ResetMarks) -> bool:
    """Say whether the card was reset between two sets of marks, as far as they tell."""
    renamed = ((before.module, now.module), (before.boot_id, now.boot_id))
    if any(a and b and a != b for a, b in renamed):
        return True
    counters = ((before.energy_mj, now.energy_mj), (before.uncorrected, now.uncorrected))
    return any(a is not None and b is not None and b < a for a, b in counters)


def add_cause(causes: tuple[FaultCause, ...], new: FaultCause) -> tuple[FaultCause, ...]:
    """Return the causes with one more, or with its last time moved if it is there already.

    Its words are those of the first time: figures in them would be news at each look.
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
    """Return the causes with last times only as exact as they are worth being written for."""
    return tuple(
        c if c.cure is Cure.QUIET else replace(c, last_s=c.last_s // REFRESH_S * REFRESH_S)
        for c in causes
    )


def remaining_causes(causes: tuple[FaultCause, ...], look: CardCheck) -> tuple[FaultCause, ...]:
    """Return the causes that still hold after a look."""
    asks = look.action not in (None, 0)
    kept = (
        replace(cause, asked=cause.asked or asks, reset=cause.reset or look.was_reset)
        for cause in causes
    )
    return tuple(cause for cause in kept if not is_over(cause, look))


def is_over(cause: FaultCause, look: CardCheck) -> bool:
    """Say whether a cause is over."""
    if cause.cure is Cure.TIME:
        return look.now_s - cause.last_s >= WARNING_S
    return look.is_good and cause.reason not in look.reasons and _is_cured(cause, look)


def _is_cured(cause: FaultCause, look: CardCheck) -> bool:
    match cause.cure:
        case Cure.REBOOT:
            return bool(look.boot_id and cause.boot_id) and look.boot_id != cause.boot_id
        case Cure.ACTION:
            return look.action == 0
        case Cure.REPAIR:
            return cause.reset
        case Cure.RESET | Cure.QUIET if look.action is None:
            return cause.reset
        case Cure.RESET | Cure.QUIET:
            quiet = cause.cure is Cure.QUIET and look.now_s - cause.last_s >= QUIET_S
            return look.action == 0 and (cause.asked or cause.reset or quiet)
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
    """Return what takes a card, or one slice of it, out of service; the root of it first.

    What the driver itself reported comes before what polls then found.
    """
    own = [c for c in causes if c.cure is not Cure.TIME and c.partition in ("", partition)]
    return tuple(
        sorted(own, key=lambda c: (not c.reason.startswith("Xid"), _RANK[c.cure], c.first_s))
    )


def health_of(causes: tuple[FaultCause, ...], partition: str = "") -> Health:
    """Return the health that the causes leave to a card or a slice of it."""
    grave = failures(causes, partition)
    if not grave:
        return Health()
    message = grave[0].message + _others([cause.reason for cause in grave[1:]])
    return Health(
        state=HealthState.FAILED,
        reason=grave[0].reason,
        message=message,
        since_s=min(cause.first_s for cause in grave),
    )


def _others(reasons: list[str]) -> str:
    return f"; also {', '.join(reasons[:4])}" if reasons else ""


def warnings_of(
    causes: tuple[FaultCause, ...], warnings: tuple[tuple[str, str], ...], now_s: float
) -> dict[str, str]:
    """Return (reason, message) of now, then of warnings that last, the newest first."""
    lasting = sorted(
        (c for c in causes if c.cure is Cure.TIME and now_s - c.last_s < WARNING_S),
        key=lambda c: -c.last_s,
    )
    found: dict[str, str] = {}
    for reason, message in (*warnings, *((c.reason, c.message) for c in lasting)):
        found.setdefault(reason, message)
    return found


def degraded_conditions(
    causes: tuple[FaultCause, ...], warnings: tuple[tuple[str, str], ...], now_s: float
) -> tuple[DeviceCondition, ...]:
    """Return the condition `Degraded` from (reason, message) of now and warnings that last."""
    told = list(warnings_of(causes, warnings, now_s).items())
    if not told:
        return ()
    reason, message = told[0]
    message += _others([other for other, _ in told[1:]])
    return (DeviceCondition(type="Degraded", status=True, reason=reason, message=message),)
