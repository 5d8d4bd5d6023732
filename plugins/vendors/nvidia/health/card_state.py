"""One card's fault causes, reset marks and trends, updated by events and polls. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from agent.snapshot.device import DeviceCondition, Health, HealthState
from plugins.vendors.nvidia.health import card_facts, trends
from plugins.vendors.nvidia.health import causes as fault_causes
from plugins.vendors.nvidia.health.card_facts import HealthFacts, HealthFinding
from plugins.vendors.nvidia.health.causes import CardCheck, Cure, FaultCause, ResetMarks


class DiagnosisTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time, boot and kernel module at which a report arrives."""

    wall_s: float
    boot_id: str = ""
    module: str = ""  # identity of the loaded kernel module


class CardFaultState:
    """The faults of one card and the values that its diagnosis compares."""

    def __init__(
        self, uuid: str = "", causes: tuple[FaultCause, ...] = (), marks: ResetMarks | None = None
    ) -> None:
        self.uuid = uuid
        self.causes = causes
        self.marks = marks or ResetMarks()
        self.clique = False  # it is on a multi-node NVLink
        self.reported_health = Health()  # the health in the last event
        self.reported_warnings: dict[str, str] = {}  # message by reason, at the last check
        self._suspect_health = Health()  # SUSPECT if the last answers were odd
        self._warnings: tuple[tuple[str, str], ...] = ()
        self._throttle_starts: dict[int, float] = {}
        self._links = trends.LinkTrend()

    def identify(self, uuid: str) -> None:
        """Set the card's UUID; if another card is in the slot now, drop the causes."""
        if self.uuid and uuid != self.uuid:
            self.causes, self.marks = (), ResetMarks()
        self.uuid = uuid

    def add(
        self, finding: HealthFinding, now: DiagnosisTime, partition: str = "", *, past: bool = False
    ) -> bool:
        """Add a cause; return whether it takes a healthy card or slice out of service.

        For a past report, the recovery action that the driver required then is unknown: the
        action that it requires now decides when the cause is over.
        """
        if past and any(
            (c.reason, c.partition) == (finding.reason, partition) for c in self.causes
        ):
            return False
        state_before = fault_causes.health_of(self.causes, partition).state
        cause = FaultCause(
            reason=finding.reason,
            message=finding.message,
            cure=finding.cure,
            first_s=now.wall_s,
            last_s=now.wall_s,
            boot_id=now.boot_id,
            partition=partition,
            action_requested=past,
        )
        self.causes = fault_causes.add_cause(self.causes, cause)
        return state_before is not fault_causes.health_of(self.causes, partition).state

    def note_recovery_action(self) -> None:
        """Mark all causes: the driver required a recovery action after them."""
        self.causes = tuple(replace(cause, action_requested=True) for cause in self.causes)

    def note_reset(self) -> None:
        """Mark all causes: the card was reset after them."""
        self.causes = tuple(replace(cause, was_reset=True) for cause in self.causes)

    def check(
        self, facts: HealthFacts, link_errors: Mapping[str, float], now: DiagnosisTime
    ) -> None:
        """Update causes, marks and warnings with the polled values."""
        before = self.marks
        self.marks = _marks(before, facts, now)
        failures = tuple(card_facts.failures(facts, clique=self.clique))
        card_check = CardCheck(
            now_s=now.wall_s,
            boot_id=now.boot_id,
            is_good=facts.is_good,
            action=facts.recovery_action,
            was_reset=fault_causes.was_reset(before, self.marks),
            reasons=frozenset(finding.reason for finding in failures),
        )
        self.causes = fault_causes.remaining_causes(self.causes, card_check)
        for finding in failures:
            self.add(finding, now)
        if errors := _rise_of_errors(before, facts):
            self.add(errors, now)
        self._follow(facts, link_errors, now)

    def _follow(
        self, facts: HealthFacts, link_errors: Mapping[str, float], now: DiagnosisTime
    ) -> None:
        """Update the suspect state and the warnings."""
        oddity = next(card_facts.oddities(facts), None)
        self._suspect_health = (
            Health(state=HealthState.SUSPECT, reason=oddity[0], message=oddity[1])
            if oddity
            else Health()
        )
        self._throttle_starts = trends.throttle_starts(
            self._throttle_starts, facts.throttle, now.wall_s
        )
        reasons = trends.lasting_throttle(self._throttle_starts, now.wall_s)
        throttled = (("Throttled", f"clocks are held back by {reasons}"),) if reasons else ()
        self._warnings = (*card_facts.warnings(facts), *throttled)
        self._links, link_problem = trends.follow_links(self._links, link_errors, now.wall_s)
        if link_problem is not None:
            self.add(HealthFinding("NVLinkErrors", link_problem, Cure.TIME), now)

    def health(self, partition: str = "") -> Health:
        """Return the current health of the card, or of its slice with that UUID."""
        health = fault_causes.health_of(self.causes, partition)
        return self._suspect_health if health.state is HealthState.HEALTHY else health

    def warnings(self, now: DiagnosisTime) -> dict[str, str]:
        """Return the current warnings: message by reason."""
        return fault_causes.warnings_of(self.causes, self._warnings, now.wall_s)

    def conditions(self, now: DiagnosisTime) -> tuple[DeviceCondition, ...]:
        """Return `Degraded` while there is a warning."""
        return fault_causes.degraded_conditions(self.causes, self._warnings, now.wall_s)


def _marks(before: ResetMarks, facts: HealthFacts, now: DiagnosisTime) -> ResetMarks:
    """Return the marks after a check; unknown values stay as they were."""
    return ResetMarks(
        energy_mj=before.energy_mj if facts.energy_mj is None else facts.energy_mj,
        uncorrected=before.uncorrected if facts.uncorrected is None else facts.uncorrected,
        module=now.module or before.module,
        boot_id=now.boot_id or before.boot_id,
    )


def _rise_of_errors(before: ResetMarks, facts: HealthFacts) -> HealthFinding | None:
    """Return the finding for a rise of uncorrected errors; before Ampere it needs a reset."""
    if before.uncorrected is None or facts.uncorrected is None:
        return None
    increase = facts.uncorrected - before.uncorrected
    old = facts.architecture is not None and facts.architecture < card_facts.AMPERE
    message = f"{increase:.0f} more uncorrectable memory errors"
    cure = Cure.REPAIR if old else Cure.TIME
    return HealthFinding("UncorrectableECC", message, cure) if increase > 0 else None
