"""A machine for the diagnosis of NVIDIA's cards: time, boot and reports are set by hand."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from agent.snapshot.device import HealthState
from agent.snapshot.inventory import DeviceEvent
from plugins.vendors.nvidia.health.card_facts import HealthFacts
from plugins.vendors.nvidia.health.card_state import DiagnosisTime
from plugins.vendors.nvidia.health.diagnosis import Diagnosis, XidReport
from plugins.vendors.nvidia.health.xid import XidRules
from plugins.vendors.nvidia.health.xid_counter import XidSource

CARD = "0000:3b:00.0"
HEALTHY = (HealthState.HEALTHY, "DeviceHealthy")
FINE = HealthFacts(faults={}, answers_lookup=True)
DRIVER, KERNEL = XidSource.DRIVER, XidSource.KERNEL_LOG


class Site:
    """A machine whose time and boot are set by hand, with the diagnosis of its cards."""

    def __init__(self, folder: Path | None = None) -> None:
        self.now = DiagnosisTime(wall_s=1000.0, boot_id="a")
        self.folder = str(folder) if folder else ""
        self.diagnosis = self.opened()

    def opened(self) -> Diagnosis:
        return Diagnosis(XidRules(), lambda: self.now, self.folder)

    def pass_time(self, seconds: float) -> None:
        self.now = replace(self.now, wall_s=self.now.wall_s + seconds)

    def xid(
        self, number: int, witness: XidSource = DRIVER, *, fatal: bool = False, past: bool = False
    ) -> tuple[DeviceEvent, ...]:
        report = XidReport(
            number=number, source=witness, at_s=self.now.wall_s, is_fatal=fatal, is_past=past
        )
        return self.diagnosis.report_xid(CARD, report)

    def check(self, **facts: object) -> tuple[DeviceEvent, ...]:
        return self.diagnosis.check(CARD, replace(FINE, **facts))

    @property
    def verdict(self) -> tuple[HealthState, str]:
        health = self.diagnosis.health(CARD)
        return health.state, health.reason

    @property
    def degraded(self) -> list[str]:
        return [c.reason for c in self.diagnosis.conditions(CARD)]
