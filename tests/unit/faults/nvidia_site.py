"""A machine for the diagnosis of NVIDIA's cards: time, boot and reports are set by hand."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from agent.model.device import HealthState
from agent.model.inventory import DeviceEvent
from plugins.faults.nvidia.card_state import Now
from plugins.faults.nvidia.diagnosis import Diagnosis, Report
from plugins.faults.nvidia.polled import HealthFacts
from plugins.faults.nvidia.tally import Witness
from plugins.faults.nvidia.xid import XidRules

CARD = "0000:3b:00.0"
HEALTHY = (HealthState.HEALTHY, "DeviceHealthy")
FINE = HealthFacts(faults={}, probed=True)
DRIVER, KERNEL = Witness.DRIVER, Witness.KERNEL_LOG


class Site:
    """A machine whose time and boot are set by hand, and what is known of its cards."""

    def __init__(self, folder: Path | None = None) -> None:
        self.now = Now(wall_s=1000.0, boot_id="a")
        self.folder = str(folder) if folder else None
        self.diagnosis = self.opened()

    def opened(self) -> Diagnosis:
        return Diagnosis(XidRules(), lambda: self.now, self.folder)

    def pass_time(self, seconds: float) -> None:
        self.now = replace(self.now, wall_s=self.now.wall_s + seconds)

    def xid(
        self, number: int, witness: Witness = DRIVER, *, fatal: bool = False, past: bool = False
    ) -> tuple[DeviceEvent, ...]:
        report = Report(
            number=number, witness=witness, at_s=self.now.wall_s, fatal=fatal, past=past
        )
        return self.diagnosis.xid(CARD, report)

    def look(self, **facts: object) -> tuple[DeviceEvent, ...]:
        return self.diagnosis.looked(CARD, replace(FINE, **facts))

    @property
    def verdict(self) -> tuple[HealthState, str]:
        found = self.diagnosis.health(CARD)
        return found.state, found.reason

    @property
    def degraded(self) -> list[str]:
        return [c.reason for c in self.diagnosis.conditions(CARD)]
