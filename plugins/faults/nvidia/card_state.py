"""One card's causes, marks and trends, moved on by events and by looks at it. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from agent.model.device import DeviceCondition, Health, HealthState
from plugins.faults.nvidia import causes as why
from plugins.faults.nvidia import polled, trends
from plugins.faults.nvidia.causes import Cause, Cure, Look, Marks
from plugins.faults.nvidia.polled import Finding, HealthFacts


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """The moment at which something is noticed."""

    wall_s: float
    boot_id: str = ""
    module: str = ""  # identity of the loaded kernel module


class CardState:
    """What is known against one card."""

    def __init__(
        self, uuid: str = "", causes: tuple[Cause, ...] = (), marks: Marks | None = None
    ) -> None:
        self.uuid = uuid
        self.causes = causes
        self.marks = marks or Marks()
        self.clique = False  # it is on a multi-node NVLink
        self.told = Health()  # what others know of its health
        self.warned: dict[str, str] = {}  # reasons and words of warnings that others know of
        self._odd = Health()  # suspect, by what it answered last
        self._warnings: tuple[tuple[str, str], ...] = ()
        self._held: dict[int, float] = {}
        self._links = trends.LinkTrend()

    def met(self, uuid: str) -> None:
        """Take the card's UUID; another card than before has none of its causes."""
        if self.uuid and uuid != self.uuid:
            self.causes, self.marks = (), Marks()
        self.uuid = uuid

    def add(self, found: Finding, now: Now, partition: str = "", *, past: bool = False) -> bool:
        """Add a cause; say whether it takes a healthy card or slice out of service.

        Of the past nobody knows what the driver asked for then: what it asks for now decides.
        """
        if past and any((c.reason, c.partition) == (found.reason, partition) for c in self.causes):
            return False
        was = why.verdict(self.causes, partition).state
        cause = Cause(
            reason=found.reason,
            message=found.message,
            cure=found.cure,
            first_s=now.wall_s,
            last_s=now.wall_s,
            boot_id=now.boot_id,
            partition=partition,
            asked=past,
        )
        self.causes = why.added(self.causes, cause)
        return was is not why.verdict(self.causes, partition).state

    def asked(self) -> None:
        """Note that the driver asks for a recovery action."""
        self.causes = tuple(replace(cause, asked=True) for cause in self.causes)

    def reset(self) -> None:
        """Note that the card was reset."""
        self.causes = tuple(replace(cause, reset=True) for cause in self.causes)

    def looked(self, facts: HealthFacts, link_errors: Mapping[str, float], now: Now) -> None:
        """Take what the card told when it was asked."""
        before = self.marks
        self.marks = _marks(before, facts, now)
        failures = tuple(polled.failures(facts, clique=self.clique))
        look = Look(
            now_s=now.wall_s,
            boot_id=now.boot_id,
            passed=facts.passed,
            action=facts.recovery_action,
            reset=why.reset_seen(before, self.marks),
            found=frozenset(found.reason for found in failures),
        )
        self.causes = why.after(self.causes, look)
        for found in failures:
            self.add(found, now)
        if risen := _risen(before, facts):
            self.add(risen, now)
        self._follow(facts, link_errors, now)

    def _follow(self, facts: HealthFacts, link_errors: Mapping[str, float], now: Now) -> None:
        """Bring up to date what makes the card suspect, and what only warns."""
        odd = next(polled.oddities(facts), None)
        self._odd = (
            Health(state=HealthState.SUSPECT, reason=odd[0], message=odd[1]) if odd else Health()
        )
        self._held = trends.held(self._held, facts.throttle, now.wall_s)
        slowed = trends.throttled(self._held, now.wall_s)
        told = (("Throttled", f"clocks are held back by {slowed}"),) if slowed else ()
        self._warnings = (*polled.warnings(facts), *told)
        self._links, trouble = trends.followed(self._links, link_errors, now.wall_s)
        if trouble is not None:
            self.add(Finding("NVLinkErrors", trouble, Cure.TIME), now)

    def health(self, partition: str = "") -> Health:
        """Return the verdict of now on the card, or on a slice of it by UUID."""
        found = why.verdict(self.causes, partition)
        return self._odd if found.state is HealthState.HEALTHY else found

    def warns(self, now: Now) -> dict[str, str]:
        """Return the warnings of now: message by reason."""
        return why.warnings_of(self.causes, self._warnings, now.wall_s)

    def conditions(self, now: Now) -> tuple[DeviceCondition, ...]:
        """Return `Degraded` while there is a warning."""
        return why.degraded(self.causes, self._warnings, now.wall_s)


def _marks(before: Marks, facts: HealthFacts, now: Now) -> Marks:
    """Return the marks of a look; what it does not tell is as before."""
    return Marks(
        energy_mj=before.energy_mj if facts.energy_mj is None else facts.energy_mj,
        uncorrected=before.uncorrected if facts.uncorrected is None else facts.uncorrected,
        module=now.module or before.module,
        boot_id=now.boot_id or before.boot_id,
    )


def _risen(before: Marks, facts: HealthFacts) -> Finding | None:
    """Judge a rise of uncorrected errors: before Ampere a card must be reset after one."""
    if before.uncorrected is None or facts.uncorrected is None:
        return None
    more = facts.uncorrected - before.uncorrected
    old = facts.architecture is not None and facts.architecture < polled.AMPERE
    told = f"{more:.0f} more uncorrectable memory errors"
    cure = Cure.REPAIR if old else Cure.TIME
    return Finding("UncorrectableECC", told, cure) if more > 0 else None
