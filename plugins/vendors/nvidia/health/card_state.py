"""One card's causes, marks and trends, updated by events and polls. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from agent.snapshot.device import DeviceCondition, Health, HealthState
from plugins.vendors.nvidia.health import card_facts, trends
from plugins.vendors.nvidia.health import causes as why
from plugins.vendors.nvidia.health.card_facts import HealthFacts, HealthFinding
from plugins.vendors.nvidia.health.causes import CardCheck, Cure, FaultCause, ResetMarks


class DiagnosisTime(msgspec.Struct, frozen=True, kw_only=True):
    """The moment at which something is noticed."""

    wall_s: float
    boot_id: str = ""
    module: str = ""  # identity of the loaded kernel module


class CardFaultState:
    """What is known against one card."""

    def __init__(
        self, uuid: str = "", causes: tuple[FaultCause, ...] = (), marks: ResetMarks | None = None
    ) -> None:
        self.uuid = uuid
        self.causes = causes
        self.marks = marks or ResetMarks()
        self.clique = False  # it is on a multi-node NVLink
        self.told = Health()  # what others know of its health
        self.warned: dict[str, str] = {}  # reasons and words of warnings that others know of
        self._odd = Health()  # suspect, by what it answered last
        self._warnings: tuple[tuple[str, str], ...] = ()
        self._held: dict[int, float] = {}
        self._links = trends.LinkTrend()

    def identify(self, uuid: str) -> None:
        """Take the card's UUID; another card than before has none of its causes."""
        if self.uuid and uuid != self.uuid:
            self.causes, self.marks = (), ResetMarks()
        self.uuid = uuid

    def add(
        self, found: HealthFinding, now: DiagnosisTime, partition: str = "", *, past: bool = False
    ) -> bool:
        """Add a cause; say whether it takes a healthy card or slice out of service.

        Of the past nobody knows what the driver asked for then: what it asks for now decides.
        """
        if past and any((c.reason, c.partition) == (found.reason, partition) for c in self.causes):
            return False
        was = why.health_of(self.causes, partition).state
        cause = FaultCause(
            reason=found.reason,
            message=found.message,
            cure=found.cure,
            first_s=now.wall_s,
            last_s=now.wall_s,
            boot_id=now.boot_id,
            partition=partition,
            asked=past,
        )
        self.causes = why.add_cause(self.causes, cause)
        return was is not why.health_of(self.causes, partition).state

    def note_recovery_action(self) -> None:
        """Note that the driver asks for a recovery action."""
        self.causes = tuple(replace(cause, asked=True) for cause in self.causes)

    def note_reset(self) -> None:
        """Note that the card was reset."""
        self.causes = tuple(replace(cause, reset=True) for cause in self.causes)

    def check(
        self, facts: HealthFacts, link_errors: Mapping[str, float], now: DiagnosisTime
    ) -> None:
        """Take what the card told when it was asked."""
        before = self.marks
        self.marks = _marks(before, facts, now)
        failures = tuple(card_facts.failures(facts, clique=self.clique))
        look = CardCheck(
            now_s=now.wall_s,
            boot_id=now.boot_id,
            is_good=facts.is_good,
            action=facts.recovery_action,
            was_reset=why.was_reset(before, self.marks),
            reasons=frozenset(found.reason for found in failures),
        )
        self.causes = why.remaining_causes(self.causes, look)
        for found in failures:
            self.add(found, now)
        if risen := _rise_of_errors(before, facts):
            self.add(risen, now)
        self._follow(facts, link_errors, now)

    def _follow(
        self, facts: HealthFacts, link_errors: Mapping[str, float], now: DiagnosisTime
    ) -> None:
        """Bring up to date what makes the card suspect, and what only warns."""
        odd = next(card_facts.oddities(facts), None)
        self._odd = (
            Health(state=HealthState.SUSPECT, reason=odd[0], message=odd[1]) if odd else Health()
        )
        self._held = trends.throttle_starts(self._held, facts.throttle, now.wall_s)
        slowed = trends.lasting_throttle(self._held, now.wall_s)
        told = (("Throttled", f"clocks are held back by {slowed}"),) if slowed else ()
        self._warnings = (*card_facts.warnings(facts), *told)
        self._links, trouble = trends.follow_links(self._links, link_errors, now.wall_s)
        if trouble is not None:
            self.add(HealthFinding("NVLinkErrors", trouble, Cure.TIME), now)

    def health(self, partition: str = "") -> Health:
        """Return the verdict of now on the card, or on a slice of it by UUID."""
        found = why.health_of(self.causes, partition)
        return self._odd if found.state is HealthState.HEALTHY else found

    def warnings(self, now: DiagnosisTime) -> dict[str, str]:
        """Return the warnings of now: message by reason."""
        return why.warnings_of(self.causes, self._warnings, now.wall_s)

    def conditions(self, now: DiagnosisTime) -> tuple[DeviceCondition, ...]:
        """Return `Degraded` while there is a warning."""
        return why.degraded_conditions(self.causes, self._warnings, now.wall_s)


def _marks(before: ResetMarks, facts: HealthFacts, now: DiagnosisTime) -> ResetMarks:
    """Return the marks of a look; what it does not tell is as before."""
    return ResetMarks(
        energy_mj=before.energy_mj if facts.energy_mj is None else facts.energy_mj,
        uncorrected=before.uncorrected if facts.uncorrected is None else facts.uncorrected,
        module=now.module or before.module,
        boot_id=now.boot_id or before.boot_id,
    )


def _rise_of_errors(before: ResetMarks, facts: HealthFacts) -> HealthFinding | None:
    """Judge a rise of uncorrected errors: before Ampere a card must be reset after one."""
    if before.uncorrected is None or facts.uncorrected is None:
        return None
    more = facts.uncorrected - before.uncorrected
    old = facts.architecture is not None and facts.architecture < card_facts.AMPERE
    told = f"{more:.0f} more uncorrectable memory errors"
    cure = Cure.REPAIR if old else Cure.TIME
    return HealthFinding("UncorrectableECC", told, cure) if more > 0 else None
